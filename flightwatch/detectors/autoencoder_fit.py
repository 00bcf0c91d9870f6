"""Training of the autoencoder: needs torch (extra `[deep]`) and numpy, nothing else of this package.

Run as a program inside a Python with torch: `python -m flightwatch.detectors.autoencoder_fit WINDOWS.npz MODEL.npz`.
The windows file holds `windows_NWC` and `columns`, written by `flightwatch detect train`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from flightwatch.detectors.autoencoder_model import FloatArray, save_model

HIDDEN, BOTTLENECK, EPOCHS, BATCH, SEED = 32, 6, 40, 256, 7
#: One in a thousand healthy windows that training did not see lies above the limit.
QUANTILE, HELD_OUT = 0.999, 0.2


def fit(windows_NWC: FloatArray, columns: tuple[str, ...], path: Path, epochs: int = EPOCHS) -> float:
    """Train on healthy windows and write the model file; return its limit.

    Parameters
    ----------
    windows_NWC: residuals, N windows of W samples of C columns; every fifth one is held out for the limit.

    Raises
    ------
    ValueError: fewer than 50 windows.
    """
    import torch
    from torch import nn

    if len(windows_NWC) < 50:
        raise ValueError(f"{len(windows_NWC)} windows are too few to learn from: at least 50 are needed")
    mean_C = windows_NWC.mean(axis=(0, 1))
    scale_C = np.maximum(windows_NWC.std(axis=(0, 1)), 1e-6)
    flat = np.clip((windows_NWC - mean_C) / scale_C, -20, 20).reshape(len(windows_NWC), -1).astype(np.float32)
    held = np.random.default_rng(SEED).random(len(flat)) < HELD_OUT
    torch.manual_seed(SEED)
    width = flat.shape[1]
    sizes = [width, HIDDEN, BOTTLENECK, HIDDEN, width]
    parts: list[Any] = []
    for at in range(len(sizes) - 1):
        parts += [nn.Linear(sizes[at], sizes[at + 1]), *([nn.Tanh()] if at < len(sizes) - 2 else [])]
    model = nn.Sequential(*parts)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    seen, unseen = torch.from_numpy(flat[~held]), torch.from_numpy(flat[held])
    for _ in range(epochs):
        for batch in seen[torch.randperm(len(seen))].split(BATCH):
            optimizer.zero_grad()
            ((model(batch) - batch) ** 2).mean().backward()
            optimizer.step()
    with torch.no_grad():
        errors = ((model(unseen) - unseen) ** 2).mean(dim=1).numpy()
    limit = float(np.quantile(errors, QUANTILE))
    layers = [(part.weight.detach().numpy().T, part.bias.detach().numpy()) for part in parts if hasattr(part, "weight")]
    save_model(path, columns, mean_C, scale_C, windows_NWC.shape[1], limit, layers, len(flat))
    return limit


def main() -> int:
    """Train from one file into another."""
    with np.load(sys.argv[1], allow_pickle=False) as archive:
        windows, columns = archive["windows_NWC"], tuple(str(name) for name in archive["columns"])
    try:
        fit(windows, columns, Path(sys.argv[2]))
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
