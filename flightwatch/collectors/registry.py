"""All collectors. A new one is one file and one line in COLLECTORS:

    ("name", "module", "Class", "what it reads"),

- The class is a `core.protocols.Collector`. Its constructor takes one `Environment` and does no work: no
  file, library or command is touched before the first `collect`.
- `name` (class attribute) is the name below. `interval_seconds` comes from `environment.settings`:
  `library_interval_seconds` for libraries, `sysfs_interval_seconds` for files, `command_interval_seconds`
  for commands.
- `collect` raises NoData where the hardware is absent (asked again every minute), TransientError when the
  tool fails (backed off, one event), and never returns made-up values.
- A collector that runs a command sets `own_thread = True` and uses `environment.run_command`.
- Files are read through `environment.tree`. Live-only sources raise NoData when `environment.live` is False.
- Vendor libraries are imported inside the first `collect`, never at the top of the module.
- An optional `close()` is called when the agent stops.
- Columns of `node_samples` go through `environment.summary.offer`, configuration through
  `environment.facts.offer`.

`tests/contracts/test_collectors.py` checks every entry. Other packages add collectors through entry
points of the group `flightwatch.collectors`: name = collector name, value = module:Class.
The order matters: what offers parts of the node's row stands before "host".
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from dataclasses import dataclass

from flightwatch.collectors.environment import Environment
from flightwatch.core.errors import ConfigError
from flightwatch.core.protocols import Collector

COLLECTORS: tuple[tuple[str, str, str, str], ...] = (
    ("nvml", "flightwatch.collectors.nvml", "NvmlCollector", "NVIDIA devices through NVML"),
    ("nvidia-smi", "flightwatch.collectors.nvidia_smi", "NvidiaSmiCollector", "NVIDIA devices without NVML"),
    ("amd", "flightwatch.collectors.vendors.amd", "AmdCollector", "AMD devices (amdsmi, else a command)"),
    (
        "mthreads",
        "flightwatch.collectors.vendors.mthreads",
        "MthreadsCollector",
        "Moore Threads devices (MTML, command)",
    ),
    ("ascend", "flightwatch.collectors.vendors.ascend", "AscendCollector", "Huawei Ascend devices (npu-smi)"),
    ("metax", "flightwatch.collectors.vendors.metax", "MetaxCollector", "MetaX devices (mx-smi)"),
    ("cambricon", "flightwatch.collectors.vendors.cambricon", "CambriconCollector", "Cambricon devices (cnmon)"),
    ("iluvatar", "flightwatch.collectors.vendors.iluvatar", "IluvatarCollector", "Iluvatar devices (ixsmi)"),
    ("hygon", "flightwatch.collectors.vendors.hygon", "HygonCollector", "Hygon devices (hy-smi)"),
    ("intel", "flightwatch.collectors.vendors.intel", "IntelCollector", "Intel devices (xpu-smi)"),
    ("scrape", "flightwatch.collectors.scrape", "ScrapeCollector", "OpenMetrics exporters"),
    ("kernel", "flightwatch.collectors.kernel_log", "KernelLogCollector", "kernel log"),
    ("journal", "flightwatch.collectors.journal_live", "JournalCollector", "systemd's journal"),
    ("logs", "flightwatch.collectors.log_files", "LogFilesCollector", "log files named in the settings"),
    ("ethtool", "flightwatch.collectors.ethtool_live", "EthtoolCollector", "pause, FEC and optics of RDMA ports"),
    ("infiniband", "flightwatch.collectors.infiniband", "InfinibandCollector", "RDMA ports"),
    ("hwmon", "flightwatch.collectors.hwmon", "HwmonCollector", "temperatures, voltages, fans, power"),
    ("thermal", "flightwatch.collectors.thermal", "ThermalCollector", "thermal zones"),
    ("edac", "flightwatch.collectors.edac", "EdacCollector", "memory errors"),
    ("disks", "flightwatch.collectors.disks", "DiskCollector", "disks"),
    ("nfs", "flightwatch.collectors.mountstats", "NfsCollector", "NFS mounts"),
    ("lustre", "flightwatch.collectors.lustre_live", "LustreCollector", "Lustre targets"),
    ("ipmi", "flightwatch.collectors.ipmi_live", "IpmiCollector", "BMC sensors through ipmitool"),
    ("redfish", "flightwatch.collectors.redfish_live", "RedfishCollector", "BMC and facility over Redfish"),
    ("ownership", "flightwatch.collectors.ownership.collector", "OwnershipCollector", "which job owns each device"),
    ("job-exits", "flightwatch.collectors.job_exits", "JobExitsCollector", "how job steps and workers ended"),
    ("probe", "flightwatch.collectors.receiver", "ReceiverCollector", "what probes in training processes send"),
    ("host", "flightwatch.collectors.host", "HostCollector", "CPU, memory, load, clock offset, pressure"),
    ("facts", "flightwatch.collectors.facts", "FactsCollector", "configuration"),
    ("heartbeat", "flightwatch.collectors.heartbeat", "HeartbeatCollector", "the agent's own figures"),
)
ENTRY_POINT_GROUP = "flightwatch.collectors"


@dataclass(frozen=True, slots=True)
class Entry:
    """One available collector."""

    name: str
    module: str
    class_name: str

    def make(self, environment: Environment) -> Collector:
        """Import and construct it."""
        made: Collector = getattr(importlib.import_module(self.module), self.class_name)(environment)
        return made


def available(third_party: bool = True) -> tuple[Entry, ...]:
    """Return the built-in collectors, then those of other packages (a name already taken is ignored)."""
    entries = [Entry(name, module, class_name) for name, module, class_name, _ in COLLECTORS]
    if third_party:
        taken = {entry.name for entry in entries}
        entries.extend(entry for entry in _entry_points() if entry.name not in taken)
    return tuple(entries)


def make_collectors(environment: Environment, third_party: bool = True) -> list[Collector]:
    """Construct all collectors that the settings do not disable.

    Raises
    ------
    ConfigError: the settings disable a collector that does not exist.
    """
    entries = available(third_party)
    disabled = frozenset(environment.settings.disabled)
    unknown = disabled - {entry.name for entry in entries}
    if unknown:
        known = ", ".join(entry.name for entry in entries)
        raise ConfigError(f"agent.disabled names {', '.join(sorted(unknown))}; known: {known}")
    return [entry.make(environment) for entry in entries if entry.name not in disabled]


def _entry_points() -> Iterable[Entry]:
    # importlib.metadata costs 2 MB; its index is only opened when a file announces entry points of the group.
    from flightwatch.collectors.entry_points import find

    return [Entry(name, module, class_name) for name, module, class_name in find(ENTRY_POINT_GROUP)]
