"""Configuration facts: sent when they change, and all of them once in a while: `config_facts`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from flightwatch.collectors.environment import Environment
from flightwatch.collectors.fact_board import Key
from flightwatch.collectors.tree import Tree, text, whole_number
from flightwatch.core.errors import NoData
from flightwatch.core.protocols import Row


def host_facts(tree: Tree) -> dict[Key, str]:
    """Read what the machine's files say about its configuration.

    Kernel, command line options by allow-list, distribution, firmware and BIOS, board, CPU model and
    governor, huge pages, MTU, driver and speed of network interfaces, firmware of RDMA adapters,
    labels of memory slots. What is absent is left out.
    """
    found: dict[Key, str | None] = {
        (None, "kernel"): text(tree.read("proc/sys/kernel/osrelease")),
        (None, "governor"): _governors(tree),
        (None, "transparent_hugepage"): _chosen(text(tree.read("sys/kernel/mm/transparent_hugepage/enabled"))),
        (None, "numa_balancing"): text(tree.read("proc/sys/kernel/numa_balancing")),
        (None, "bios"): text(tree.read("sys/class/dmi/id/bios_version")),
        (None, "system"): text(tree.read("sys/class/dmi/id/product_name")),
        (None, "bmc_firmware"): text(tree.read("sys/class/dmi/id/ec_firmware_release")),
        (None, "driver.nvidia"): text(tree.read("sys/module/nvidia/version")),
        (None, "driver.amdgpu"): text(tree.read("sys/module/amdgpu/version")),
        (None, "driver.mlx5_core"): text(tree.read("sys/module/mlx5_core/version")),
        (None, "clocksource"): text(tree.read("sys/devices/system/clocksource/clocksource0/current_clocksource")),
        (None, "distribution"): _distribution(tree.read("etc/os-release")),
        (None, "cpu_model"): _cpu_model(tree.read("proc/cpuinfo")),
        (None, "iommu"): _kernel_option(text(tree.read("proc/cmdline")), "iommu"),
    }
    _network(tree, found)
    _adapters(tree, found)
    _memory_slots(tree, found)
    return {key: value for key, value in found.items() if value}


def _network(tree: Tree, found: dict[Key, str | None]) -> None:
    for name in tree.listdir("sys/class/net"):
        folder = f"sys/class/net/{name}"
        if name == "lo" or not tree.listdir(f"{folder}/device"):
            continue
        found[None, f"net.{name}.mtu"] = text(tree.read(f"{folder}/mtu"))
        speed = whole_number(tree.read(f"{folder}/speed"))
        found[None, f"net.{name}.speed_mbps"] = str(speed) if speed is not None and speed > 0 else None
        for line in (tree.read(f"{folder}/device/uevent") or b"").split(b"\n"):
            if line.startswith(b"DRIVER="):
                found[None, f"net.{name}.driver"] = text(line[7:])


def _adapters(tree: Tree, found: dict[Key, str | None]) -> None:
    for hca in tree.listdir("sys/class/infiniband"):
        folder = f"sys/class/infiniband/{hca}"
        found[None, f"hca.{hca}.firmware"] = text(tree.read(f"{folder}/fw_ver"))
        found[None, f"hca.{hca}.board"] = text(tree.read(f"{folder}/board_id"))
        found[None, f"hca.{hca}.type"] = text(tree.read(f"{folder}/hca_type"))


def _memory_slots(tree: Tree, found: dict[Key, str | None]) -> None:
    root = "sys/devices/system/edac/mc"
    for controller in tree.listdir(root):
        for part in tree.listdir(f"{root}/{controller}"):
            for name in tree.listdir(f"{root}/{controller}/{part}"):
                if name.endswith("dimm_label"):
                    place = name.removesuffix("dimm_label").rstrip("_")
                    where = f"{part}.{place}" if place else part
                    found[None, f"edac.{controller}.{where}.slot"] = text(
                        tree.read(f"{root}/{controller}/{part}/{name}")
                    )


def _governors(tree: Tree) -> str | None:
    """Return the governors in use, sorted; one name when all CPUs agree."""
    root = "sys/devices/system/cpu/cpufreq"
    names = {text(tree.read(f"{root}/{policy}/scaling_governor")) for policy in tree.listdir(root)}
    return ",".join(sorted(name for name in names if name)) or None


def _chosen(words: str | None) -> str | None:
    """Return "madvise" of "always [madvise] never"."""
    return next((word.strip("[]") for word in (words or "").split() if word.startswith("[")), None)


def _distribution(content: bytes | None) -> str | None:
    for line in (content or b"").split(b"\n"):
        if line.startswith(b"PRETTY_NAME="):
            return text(line[12:].strip().strip(b'"'))
    return None


def _cpu_model(content: bytes | None) -> str | None:
    for line in (content or b"")[:4096].split(b"\n"):
        if line.startswith(b"model name"):
            return text(line.partition(b":")[2])
    return None


def _kernel_option(command_line: str | None, option: str) -> str | None:
    """Return one option of the kernel command line; the rest may hold secrets and is not stored."""
    values = [word for word in (command_line or "").split() if word.startswith((f"{option}=", f"intel_{option}=",
                                                                                f"amd_{option}="))]  # fmt: skip
    return " ".join(values) or None


class FactsCollector:
    """Configuration of this node and what other collectors offered about its devices."""

    name = "facts"

    def __init__(self, environment: Environment, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self.interval_seconds = environment.settings.facts_interval_seconds
        self._environment = environment
        self._monotonic_s = monotonic_s
        self._repeat_s = environment.settings.facts_repeat_seconds
        self._sent: dict[Key, str] = {}
        self._sent_all_at = float("-inf")

    def collect(self, now_ms: int) -> Iterable[Row]:
        """Return changed facts, or all when it is time. Raises NoData when nothing is known."""
        facts = {**host_facts(self._environment.tree), **self._environment.facts.all()}
        if not facts:
            raise NoData("no configuration is readable")
        now_s = self._monotonic_s()
        everything = now_s - self._sent_all_at >= self._repeat_s
        if everything:
            self._sent_all_at = now_s
        changed = {key: value for key, value in facts.items() if everything or self._sent.get(key) != value}
        self._sent = facts
        return [
            Row("config_facts", {"ts": now_ms, "device": device, "name": name, "value": value})
            for (device, name), value in changed.items()
        ]
