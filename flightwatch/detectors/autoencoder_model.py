"""The model file of the autoencoder: plain arrays, read without torch and without executing anything.

An `.npz` archive: `format` (1), `columns`, `window`, `mean_C`, `scale_C`, `limit`, `trained_windows`, and the layers
`weight_0`, `bias_0`, ... of a perceptron with tanh between its layers. numpy reads it with pickling refused.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flightwatch.core.errors import ConfigError

FORMAT = 1
#: What a file may hold at most: it is read by the server.
MOST_BYTES, MOST_LAYERS, MOST_WIDTH = 16_000_000, 8, 4096

FloatArray = np.ndarray[Any, np.dtype[np.floating]]


@dataclass(frozen=True)
class Model:
    """A trained model.

    Attributes
    ----------
    columns: of `device_samples`, in the order of the input. window: samples in one input vector.
    mean_C, scale_C: of the residuals it was trained with. limit: error that one in a thousand healthy windows exceeds.
    layers: (weight [in, out], bias [out]). trained_windows: how many it saw. version: digits of the file's hash.
    """

    columns: tuple[str, ...]
    window: int
    mean_C: FloatArray
    scale_C: FloatArray
    limit: float
    layers: tuple[tuple[FloatArray, FloatArray], ...]
    trained_windows: int
    version: str

    def errors(self, windows_NWC: FloatArray) -> FloatArray:
        """Return the squared error of each standardised value after the bottleneck, [N, W, C]."""
        x = ((windows_NWC - self.mean_C) / self.scale_C).reshape(len(windows_NWC), -1)
        # One broken sensor must not drown the others.
        x = np.clip(x, -20, 20)
        y = x
        for at, (weight, bias) in enumerate(self.layers):
            y = y @ weight + bias
            if at < len(self.layers) - 1:
                y = np.tanh(y)
        return ((y - x) ** 2).reshape(windows_NWC.shape)


def save_model(
    path: Path, columns: tuple[str, ...], mean_C: FloatArray, scale_C: FloatArray, window: int, limit: float,
    layers: Sequence[tuple[FloatArray, FloatArray]], trained_windows: int,
) -> None:  # fmt: skip
    """Write a model file."""
    arrays: dict[str, Any] = {
        "format": np.array(FORMAT), "columns": np.array(columns), "window": np.array(window), "mean_C": mean_C,
        "scale_C": scale_C, "limit": np.array(limit), "trained_windows": np.array(trained_windows),
    }  # fmt: skip
    for at, (weight, bias) in enumerate(layers):
        arrays |= {f"weight_{at}": weight.astype(np.float32), f"bias_{at}": bias.astype(np.float32)}
    with path.open("wb") as file:
        np.savez_compressed(file, **arrays)


def load_model(path: Path) -> Model:
    """Read a model file.

    Raises
    ------
    ConfigError: it cannot be read, is of another format, or its parts do not fit together.
    """
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ConfigError(f"model {path}: larger than {MOST_BYTES} bytes")
        raw = path.read_bytes()
        with zipfile.ZipFile(path) as archive:
            if sum(member.file_size for member in archive.infolist()) > 4 * MOST_BYTES:
                raise ConfigError(f"model {path}: unpacks to more than {4 * MOST_BYTES} bytes")
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        return _checked(arrays, hashlib.sha256(raw).hexdigest()[:8])
    except OSError as error:
        raise ConfigError(f"model {path}: cannot read the file: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, zipfile.BadZipFile, EOFError) as error:
        raise ConfigError(f"model {path}: is no model of this format: {error}") from error


def _checked(arrays: dict[str, Any], version: str) -> Model:
    if int(arrays["format"]) != FORMAT:
        raise ValueError(f"format {arrays['format']} instead of {FORMAT}")
    columns, window = tuple(str(name) for name in arrays["columns"]), int(arrays["window"])
    count = sum(name.startswith("weight_") for name in arrays)
    layers = tuple(
        (np.asarray(arrays[f"weight_{at}"], dtype=np.float32), np.asarray(arrays[f"bias_{at}"], dtype=np.float32))
        for at in range(count)
    )
    width = window * len(columns)
    if not 1 <= count <= MOST_LAYERS or not 1 <= width <= MOST_WIDTH:
        raise ValueError("too many layers, or none")
    size = width
    for weight, bias in layers:
        if weight.shape != (size, len(bias)) or len(bias) > MOST_WIDTH:
            raise ValueError("its layers do not fit together")
        size = len(bias)
    mean_C, scale_C = (np.asarray(arrays[name], dtype=float) for name in ("mean_C", "scale_C"))
    limit = float(arrays["limit"])
    known = all(np.isfinite(one).all() for one in (mean_C, scale_C, *(part for layer in layers for part in layer)))
    if size != width or mean_C.shape != (len(columns),) or scale_C.shape != (len(columns),) or not known:
        raise ValueError("its parts do not fit together")
    if (scale_C <= 0).any() or not limit > 0:
        raise ValueError("a scale or the limit is not above 0")
    return Model(columns, window, mean_C, scale_C, limit, layers, int(arrays["trained_windows"]), version)
