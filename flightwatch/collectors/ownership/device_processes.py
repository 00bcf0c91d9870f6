"""Which processes have which devices open: from the vendor's library, else from open device files."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable

from flightwatch.collectors.nvml import load_nvml
from flightwatch.core.errors import NoData

_DEVICE_FILE = re.compile(r"/dev/(?:nvidia|davinci|cambricon_dev|mtgpu\.|accel/accel)(\d{1,3})$")
_PROCESSES_LIMIT = 4096


def from_nvml() -> tuple[dict[int, list[int]], dict[str, int]]:
    """Return processes and device uuids as NVML tells them; both empty where there is no NVIDIA driver."""
    try:
        # Without the driver's library the binding is not imported: it costs 2 MB.
        pynvml = load_nvml().module
    except NoData:
        return {}, {}
    processes: dict[int, list[int]] = {}
    uuids: dict[str, int] = {}
    try:
        pynvml.nvmlInit()
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            uuids[str(pynvml.nvmlDeviceGetUUID(handle))] = index
            for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
                processes.setdefault(int(process.pid), []).append(index)
    except pynvml.NVMLError:
        return processes, uuids
    return processes, uuids


def has_device_files(names: Iterable[str]) -> bool:
    """Say whether a listing of /dev names an accelerator: without one no process needs to be looked at."""
    return any(_DEVICE_FILE.fullmatch(f"/dev/{name}") or name in ("accel", "kfd") for name in names)


def from_open_files(root: str = "/proc", readlink: Callable[[str], str] = os.readlink) -> dict[int, list[int]]:
    """Return processes by the device files they hold open; those of other users only as root.

    A process that opens every device (a monitor) is left out: it runs on none.
    """
    found: dict[int, list[int]] = {}
    seen: set[int] = set()
    for name in _names(root)[:_PROCESSES_LIMIT]:
        if not name.isdigit():
            continue
        devices: set[int] = set()
        for descriptor in _names(f"{root}/{name}/fd")[:65_536]:
            try:
                match = _DEVICE_FILE.fullmatch(readlink(f"{root}/{name}/fd/{descriptor}"))
            except OSError:
                continue
            if match:
                devices.add(int(match[1]))
        if devices:
            found[int(name)] = sorted(devices)
            seen |= devices
    return {pid: devices for pid, devices in found.items() if len(devices) == 1 or len(devices) < len(seen)}


def _names(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []
