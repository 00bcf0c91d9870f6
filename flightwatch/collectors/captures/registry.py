"""All capture parsers, most specific first: the first that recognises a capture reads it.

Each entry is a name and where the class lives; modules are imported one by one while a capture is being
recognised, so that the command starts quickly. Third parties add parsers through the entry point group
`flightwatch.captures`; these are asked after the built-in ones.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from functools import cache
from typing import cast

from flightwatch.collectors.captures.base import Parser, TreeParser

ENTRY_POINTS = "flightwatch.captures"
_HERE = "flightwatch.collectors.captures."

#: Devices of every vendor and exporters' text.
DEVICE_PARSERS: tuple[tuple[str, str], ...] = (
    ("nvidia-smi-xml", "nvidia_smi_xml:NvidiaSmiXml"),
    ("mthreads-gmi-q", "mthreads:MthreadsGmiQuery"),
    ("mthreads-gmi", "mthreads:MthreadsGmi"),
    ("mx-smi-show", "metax:MxSmiShow"),
    ("mx-smi", "metax:MxSmi"),
    ("mx-smi-list", "metax:MxSmiList"),
    ("cnmon", "cambricon:Cnmon"),
    ("ixsmi", "iluvatar:Ixsmi"),
    ("npu-smi-info", "ascend:NpuSmiInfo"),
    ("npu-smi-type", "ascend:NpuSmiType"),
    ("nvidia-smi-q", "nvidia_smi_text:NvidiaSmiText"),
    ("nvidia-smi-table", "nvidia_smi_tables:NvidiaSmiTable"),
    ("nvidia-smi-csv", "nvidia_smi_csv:NvidiaSmiCsv"),
    ("nvidia-dmon", "nvidia_smi_tables:NvidiaDmon"),
    ("nvidia-nvlink", "nvidia_smi_tables:NvidiaNvlink"),
    ("nvidia-smi-list", "nvidia_smi_tables:NvidiaList"),
    ("nvidia-topo", "nvidia_smi_tables:NvidiaTopology"),
    ("detector-topology-json", "gpustack:DetectorTopologyJson"),
    ("detector-json", "gpustack:DetectorJson"),
    ("xpu-smi-json", "intel:XpuSmiJson"),
    ("amd-smi-json", "amd_smi:AmdSmiJson"),
    ("amd-smi-table", "amd_smi:AmdSmiTable"),
    ("amd-smi-text", "amd_smi:AmdSmiText"),
    ("hy-smi-json", "hygon:HySmi"),
    ("rocm-smi-json", "rocm:RocmSmi"),
    ("rocm-smi-text", "rocm:RocmSmiText"),
    ("rocm-smi-table", "rocm:ConciseTable"),
    ("xpu-smi-dump", "intel:XpuSmiDump"),
    ("amd-smi-csv", "device_csv:AmdSmiCsv"),
    ("dcgm-counter-list", "dcgm:DcgmCounterList"),
    ("openmetrics", "openmetrics:OpenMetrics"),
)
#: Ports, hosts, storage, topology.
HOST_PARSERS: tuple[tuple[str, str], ...] = (
    ("rdma-statistic", "rdma_statistic:RdmaStatisticParser"),
    ("nicctl-port-statistics", "nicctl:NicctlParser"),
    ("mlxlink", "mlxlink:MlxlinkParser"),
    ("ethtool", "ethtool:EthtoolParser"),
    ("perfquery", "perfquery:PerfqueryParser"),
    ("ibswinfo", "ibswinfo:IbswinfoParser"),
    ("ibnetdiscover", "ibnetdiscover:IbnetdiscoverParser"),
    ("redfish-facility", "facility:FacilityRedfishParser"),
    ("redfish", "redfish:RedfishParser"),
    ("kubernetes", "kubernetes:KubernetesParser"),
    ("netq-topology", "netq:NetqParser"),
    ("nccl-topo", "nccl_topo:NcclTopoParser"),
    ("slurm-job", "slurm:SlurmJobParser"),
    ("slurm-topology", "slurm:SlurmTopologyParser"),
    ("ipmi", "ipmi:IpmiParser"),
    ("rasdaemon", "rasdaemon:RasdaemonParser"),
    ("mountstats", "storage_files:MountstatsParser"),
    ("diskstats", "storage_files:DiskstatsParser"),
    ("nfsiostat", "nfsiostat:NfsiostatParser"),
    ("gpfs-mmpmon", "gpfs:GpfsParser"),
    ("beegfs", "beegfs:BeegfsParser"),
    ("lustre-lctl", "lustre:LustreParamParser"),
    ("inventory-csv", "inventory_csv:InventoryCsvParser"),
    ("facility-csv", "facility:FacilityCsvParser"),
    ("mce", "mce:MceParser"),
)
#: Logs come last: almost any text has lines that look like one.
LOG_PARSERS: tuple[tuple[str, str], ...] = (
    ("kineto-trace", "trace_rows:KinetoTrace"),
    ("flight-recorder", "dump_rows:FlightRecorderDump"),
    ("ncclras", "comm.ras:NcclRas"),
    ("nccl-inspector", "comm.inspector:NcclInspector"),
    ("py-spy", "comm.stacks:PySpyDump"),
    ("hf-trainer-state", "trainer_state:TrainerState"),
    ("superbench", "superbench:SuperBenchResults"),
    ("journal", "journal_export:JournalExport"),
    ("nccl-tests", "nccl_tests:NcclTests"),
    ("log", "text_log:TextLog"),
    ("tool-failure", "tool_failures:ToolFailure"),
)

PARSERS: tuple[tuple[str, str], ...] = (*DEVICE_PARSERS, *HOST_PARSERS, *LOG_PARSERS)

#: Parsers of folder trees (/sys, /proc).
TREE_PARSERS: tuple[tuple[str, str], ...] = (
    ("sysfs-infiniband", "sysfs_tree:InfinibandTreeParser"),
    ("sysfs-edac", "sysfs_tree:EdacTreeParser"),
    ("sysfs-hwmon", "sysfs_tree:HwmonTreeParser"),
    ("lustre-tree", "lustre:LustreTreeParser"),
)


@cache
def load(target: str) -> object:
    """Return the one instance of a parser named "module:Class"; parsers keep nothing between captures."""
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(_HERE + module), name)()


def parsers() -> Iterator[Parser]:
    """Yield every parser in order, importing each only when it is reached; third parties' ones last."""
    for _, target in PARSERS:
        yield cast(Parser, load(target))
    yield from _third_party()


def tree_parsers() -> Iterator[TreeParser]:
    """Yield every tree parser in order."""
    for _, target in TREE_PARSERS:
        yield cast(TreeParser, load(target))


@cache
def _third_party() -> tuple[Parser, ...]:
    from importlib.metadata import entry_points  # slow to import, needed only when no built-in parser matched

    return tuple(cast(Parser, entry.load()()) for entry in entry_points(group=ENTRY_POINTS))
