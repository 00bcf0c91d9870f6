"""Every file of the shared inputs through `flightwatch inspect`: recognised by the right parser, right exit code."""

from __future__ import annotations

import io
import json
import re
import tarfile
from pathlib import Path

import pytest

from flightwatch.cli import main
from flightwatch.collectors.inspect import Inspection
from flightwatch.core.catalogue import TABLES
from flightwatch.core.protocols import Note
from flightwatch.core.vocabulary import ExitCode

INPUTS = Path(__file__).resolve().parents[3] / "shared" / "inputs"
pytestmark = [
    pytest.mark.inputs,
    pytest.mark.skipif(not INPUTS.is_dir(), reason="the folder ../shared/inputs is not beside this checkout"),
]

#: Name patterns to the parser that must read them; None: not a capture. First match counts.
EXPECTED: tuple[tuple[str, str | None], ...] = (
    (r"a_nvidia_smi/.*\.xml", "nvidia-smi-xml"),
    (r"a_nvidia_smi/.*_q\.txt|a_nvidia_smi/q_.*", "nvidia-smi-q"),
    (r"a_nvidia_smi/.*\.csv", "nvidia-smi-csv"),
    (r"a_nvidia_smi/.*dmon", "nvidia-dmon"),
    (r"a_nvidia_smi/.*nvlink", "nvidia-nvlink"),
    (r"a_nvidia_smi/.*topo", "nvidia-topo"),
    (r"b_dcgm/(dcgm_default|netdata_all_fields)", "dcgm-counter-list"),
    (r"b_dcgm/|c_vendors/ascend_npu-exporter", "openmetrics"),
    (r"c_vendors/mthreads-gmi", "mthreads-gmi"),
    (r"c_vendors/mx-smi_show", "mx-smi-show"),
    (r"c_vendors/mx-smi", "mx-smi"),
    (r"c_vendors/cnmon", "cnmon"),
    (r"c_vendors/ixsmi", "ixsmi"),
    (r"c_vendors/npu-smi", "npu-smi-type"),
    (r"c_vendors/gpustack_detect", "detector-json"),
    (r"c_vendors/hy-smi", "hy-smi-json"),
    (r"c_vendors/amd-smi_metric_text", "amd-smi-text"),
    (r"c_vendors/amd-smi", "amd-smi-json"),
    (r"c_vendors/rocm-smi_.*\.json", "rocm-smi-json"),
    (r"d_rdma/perfquery_0x0002c90300000004", None),
    (r"d_rdma/perfquery", "perfquery"),
    (r"d_rdma/ibswinfo", "ibswinfo"),
    (r"d_rdma/.*ethtool", "ethtool"),
    (r"ibnetdiscover", "ibnetdiscover"),
    (r"e_hwmon_edac_ipmi/ipmitool", "ipmi"),
    (r"e_hwmon_edac_ipmi/redfish", "redfish"),
    (r"e_hwmon_edac_ipmi/ras-mc", "rasdaemon"),
    (r"e_hwmon_edac_ipmi/dmesg_mce", "mce"),
    (r"f_kernel/|g_hang/.*\.log", "log"),
    (r"g_hang/ncclras", "ncclras"),
    (r"g_hang/pyspy", "py-spy"),
    (r"g_hang/fr_dumps", "flight-recorder"),
    (r"h_traces/", "kineto-trace"),
    (r"i_storage/mountstats", "mountstats"),
    (r"i_storage/proc_diskstats", "diskstats"),
    (r"j_training/nccl", "nccl-tests"),
    (r"j_training/superbench_results", "superbench"),
    (r"j_training/", "log"),
    (r"k_topology/netq", "netq-topology"),
    (r"k_topology/nccl", "nccl-topo"),
    (r"k_topology/slurm", "slurm-topology"),
    (r"l_datasets/", None),
)
#: What is malformed, or cut off inside a device.
MALFORMED = re.compile(r"h_traces/malformed|c_vendors/mthreads-gmi_s5000")


def files() -> list[str]:
    return sorted(str(path.relative_to(INPUTS)) for path in INPUTS.glob("*/*")) if INPUTS.is_dir() else []


@pytest.mark.parametrize("name", files())
def test_every_input(name: str) -> None:
    inspection = Inspection()
    items = list(inspection.run([str(INPUTS / name)]))
    expected = next((parser for pattern, parser in EXPECTED if re.search(pattern, name)), "any")
    if expected is None:
        assert inspection.exit_code is ExitCode.UNRECOGNISED
        return
    assert inspection.recognised, name
    if expected != "any":
        assert set(inspection.recognised) == {expected}
    assert inspection.exit_code is (ExitCode.MALFORMED if MALFORMED.search(name) else ExitCode.DONE)
    if inspection.exit_code is ExitCode.MALFORMED:
        assert any(isinstance(i.what, Note) and i.what.level == "error" and i.what.where for i in items)


def test_the_whole_folder_prints_valid_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(INPUTS / "f_kernel"), str(INPUTS / "d_rdma")]) == ExitCode.DONE
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 100
    for line in lines:
        value = json.loads(line)
        assert set(value) in ({"source", "table", "row"}, {"source", "note"})
        if "row" in value:
            assert set(value["row"]) <= set(TABLES[value["table"]].column_names)


def test_the_summary_of_kernel_logs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(INPUTS / "f_kernel"), "--summary"]) == ExitCode.DONE
    text = capsys.readouterr().out
    for words in ("xid:64", "RMA", "xid:149", "xid:145", "consequences: xid:45", "power-cycle", "0000:1c:00.0",
                  "GPU Reset Required", "10.0.0.119", "triggered on purpose"):  # fmt: skip
        assert words in text
    assert "root: xid:45" not in text


def test_a_bundle_of_everything(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle.tar"
    with tarfile.open(bundle, "w") as archive:
        for name in files():
            if not name.startswith(("h_traces", "l_datasets")):
                data = (INPUTS / name).read_bytes()
                info = tarfile.TarInfo(f"node-7/{name}")
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    inspection = Inspection()
    assert sum(1 for _ in inspection.run([str(bundle)])) > 5000
    assert inspection.exit_code is ExitCode.MALFORMED
    assert len(inspection.recognised) > 30
