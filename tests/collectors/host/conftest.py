"""Hand-written pseudo file trees and a stand-in for NVML."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flightwatch.collectors.environment import Environment
from flightwatch.collectors.settings import AgentSettings
from flightwatch.collectors.tree import FolderTree
from flightwatch.core.errors import NoData


def _no_command(words: object, timeout_seconds: float) -> bytes:
    raise NoData("no command in this test")


@pytest.fixture
def tree_of(tmp_path: Path) -> Callable[[Mapping[str, str | bytes]], FolderTree]:
    """Write files below a temporary root and return its tree."""

    def write(files: Mapping[str, str | bytes]) -> FolderTree:
        for path, content in files.items():
            file = tmp_path / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content.encode() if isinstance(content, str) else content)
        return FolderTree(str(tmp_path))

    return write


@pytest.fixture
def environment_of() -> Callable[..., Environment]:
    """Return surroundings over a tree: recorded unless `live` is given."""

    def make(tree: FolderTree, live: bool = False, **changes: Any) -> Environment:
        return Environment(tree, live, AgentSettings(**changes.pop("settings", {})), _no_command, **changes)

    return make


class FakeNvmlError(Exception):
    """Carries NVML's number like the real one."""

    def __init__(self, value: int) -> None:
        super().__init__(f"code {value}")
        self.value = value


class FakeNvml:
    """Answers like pynvml for `count` devices; `answers[name]` or `fields[id]` of an absent name is "not supported"."""

    NVMLError = FakeNvmlError

    def __init__(self, count: int = 2) -> None:
        self.count = count
        self.links = 2
        self.calls: list[str] = []
        self.broken: dict[int, int] = {}
        self.start_error = 0
        self.mig: dict[int, list[str]] = {}
        self.fields: dict[int, int] = {
            82: 41, 185: 627_320, 186: 625_240, 83: 9_000_500, 3: 0, 4: 0, 5: 3, 6: 0, 142: 1, 143: 2, 144: 1, 145: 0,
            74: 204_642_816_000, 269: 1_000, 270: 2_000, 271: 0, 94: 7, 197: 1 << 40, 198: 1 << 41, 138: 10, 139: 20,
            38: 1, 52: 2,
        }  # fmt: skip
        self.answers: dict[str, Any] = {
            "Temperature": 52,
            "MarginTemperature": 35,
            "UtilizationRates": SimpleNamespace(gpu=100, memory=40),
            "MemoryInfo": SimpleNamespace(used=5 << 30, total=141 << 30),
            "CurrentClocksEventReasons": 4,
            "EccMode": [1, 1],
            "EnforcedPowerLimit": 700_000,
            "PowerManagementLimit": 700_000,
            "CurrPcieLinkGeneration": 5,
            "CurrPcieLinkWidth": 16,
            "VbiosVersion": "96.00.A5",
            "MigMode": [0, 0],
            "PersistenceMode": 1,
            "Serial": "0123456789",
            "PowerUsage": 100_000,
        }

    def nvmlInit(self) -> None:  # noqa: N802
        if self.start_error:
            raise FakeNvmlError(self.start_error)

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.calls.append("Shutdown")

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return "590.48.01"

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return self.count

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: int, number: int) -> str:  # noqa: N802
        names = self.mig.get(handle, [])
        if number >= len(names) or not names[number]:
            raise FakeNvmlError(6)
        return names[number]

    def nvmlDeviceGetNvLinkState(self, handle: int, link: int) -> int:  # noqa: N802
        if link >= self.links:
            raise FakeNvmlError(2)
        return 1 if link == 0 else 0

    def nvmlDeviceGetNvLinkErrorCounter(self, handle: int, link: int, counter: int) -> int:  # noqa: N802
        return 10 * link + counter

    def field_values(self, handle: int, count: int, buffer: Any) -> int:
        """Fill the buffer as the C function does."""
        self.calls.append("FieldValues")
        if handle in self.broken:
            return self.broken[handle]
        for place in range(count):
            field, scope = struct.unpack_from("=II", buffer, 40 * place)
            value = self.fields.get(field)
            answer = (3, 0, value) if value is not None else (0, 3, 0)
            struct.pack_into("=IIqqIIQ", buffer, 40 * place, field, scope, 0, 0, *answer)
        return 0

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvmlDeviceGet"):
            raise AttributeError(name)
        what = name.removeprefix("nvmlDeviceGet")

        def ask(handle: Any, *arguments: Any) -> Any:
            self._check(what, handle)
            if what == "Name":
                return "NVIDIA H200"
            if what == "UUID":
                return f"GPU-{handle}"
            if what == "ClockInfo":
                return {1: 1980, 2: 3201}[arguments[0]]
            if what == "MaxMigDeviceCount":
                return 7
            if what not in self.answers:
                raise FakeNvmlError(3)
            return self.answers[what]

        return ask

    def _check(self, what: str, handle: Any) -> None:
        self.calls.append(what)
        if handle in self.broken:
            raise FakeNvmlError(self.broken[handle])


@pytest.fixture
def fake_nvml() -> FakeNvml:
    """Two healthy devices."""
    return FakeNvml()
