"""Captures as they are really handed in: coloured, in another encoding, recorded by `script`, cut off anywhere."""

from __future__ import annotations

import gzip
import json
import math
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from flightwatch.collectors.inspect import Inspection
from flightwatch.core.protocols import Note, Row
from flightwatch.core.vocabulary import ExitCode

SAMPLES = sorted(path for path in Path(__file__).parent.glob("*/samples/*") if path.is_file() and not path.is_symlink())
#: Its lengths are binary: nothing may be taken away from it.
TEXTS = [path for path in SAMPLES if path.name != "journal.export"]
#: Worst, mean or total over what was read, or what stands for a more exact line that was cut off.
OVER_ALL_READ = {
    *("ts", "read_ms", "write_ms", "pfc_rx_pause_total", "pfc_tx_pause_total", "optics_bias_ma", "queue_depth"),
    *("rx_packets_total", "tx_packets_total", "read_ops_total", "write_ops_total", "rx_bytes_total", "tx_bytes_total"),
    *("fan_rpm_min", "psu_w", "inlet_c", "outlet_c", "coolant_c", "coolant_lpm", "io_read_ms", "io_write_ms"),
    *("fs_read_ms", "fs_write_ms", "edac_corrected_total", "edac_uncorrected_total", "io_queue_depth"),
    *("link_rx_bytes_total", "link_tx_bytes_total", "link_errors_total", "count", "nonfinite_count", "steps"),
}
XID = b"[Mon Nov  2 10:00:00 2026] NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n"


def inspected(path: Path, data: bytes) -> tuple[list[Row], list[Note], ExitCode]:
    path.write_bytes(data)
    inspection = Inspection(1_700_000_000_000, "n1")
    items = [item.what for item in inspection.run([str(path)])]
    rows = [what for what in items if isinstance(what, Row)]
    return rows, [what for what in items if isinstance(what, Note)], inspection.exit_code


def keyed(rows: list[Row]) -> Counter[str]:
    return Counter(json.dumps([row.table, row.values], sort_keys=True) for row in rows)


def coloured(data: bytes) -> bytes:
    return b"\n".join(b"\x1b[1;32m" + line + b"\x1b(B\x1b[m" if line else line for line in data.split(b"\n"))


def recorded(data: bytes) -> bytes:
    begin = b'Script started on 2026-11-01 10:00:00+00:00 [TERM="xterm" TTY="/dev/pts/0" COLUMNS="80" LINES="24"]\n'
    return begin + data + b'\nScript done on 2026-11-01 10:00:05+00:00 [COMMAND_EXIT_CODE="0"]\n'


def windows(data: bytes) -> bytes:
    return data.decode("utf-8", "replace").replace("\n", "\r\n").encode("utf-16")


WAYS: dict[str, Callable[[bytes], bytes]] = {
    "coloured": coloured,
    "byte-order mark": lambda data: b"\xef\xbb\xbf" + data,
    "utf-16 with CRLF": windows,
    "never written": lambda data: data + b"\0" * 4096,
    "cut under its writer": lambda data: b"\0" * 200_000 + data,
    "recorded by script": recorded,
    "compressed": gzip.compress,
    "blanks at its end": lambda data: data + b"   ",
}


@pytest.mark.parametrize("way", WAYS)
def test_what_terminals_editors_and_disks_add_changes_no_row(way: str, tmp_path: Path) -> None:
    different = []
    for sample in TEXTS:
        data = sample.read_bytes()
        path = tmp_path / sample.name
        plain, _, _ = inspected(path, data)
        rows, _, code = inspected(path, WAYS[way](data))
        if keyed(rows) != keyed(plain) or code == ExitCode.UNRECOGNISED:
            different.append(sample.name)
    assert not different


@pytest.mark.parametrize("encoding", ["utf-16-be", "utf-16-le", "utf-16"])
def test_utf_16_is_read_with_and_without_its_mark(encoding: str, tmp_path: Path) -> None:
    text = "NIC statistics:\n     rx_packets: 31162\n     tx_packets: 34512\n"
    rows, _, code = inspected(tmp_path / "ethtool.txt", text.encode(encoding))
    assert [row.values["rx_packets_total"] for row in rows] == [31162]
    assert code == ExitCode.DONE


def numbers(row: Row) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in row.values.items()
        if isinstance(value, (int, float)) and name not in OVER_ALL_READ and not math.isnan(value)
    }


#: Which device or rank an event names follows from lines after it.
PLACES = {("events", "device"), ("events", "rank"), ("inventory", "device")}


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: str(path.name))
def test_no_number_is_read_from_the_place_where_a_capture_was_cut(sample: Path, tmp_path: Path) -> None:
    data = sample.read_bytes()
    whole, _, _ = inspected(tmp_path / sample.name, data)
    known: dict[tuple[str, str], set[float]] = {}
    for row in whole:
        for name, value in numbers(row).items():
            known.setdefault((row.table, name), set()).add(value)
    chance = random.Random(sample.name)
    for at in sorted(chance.sample(range(1, len(data)), min(25, len(data) - 1))):
        rows, _, _ = inspected(tmp_path / sample.name, data[:at])
        for row in rows:
            for name, value in numbers(row).items():
                if (row.table, name) not in PLACES:
                    assert value in known.get((row.table, name), ()), f"{row.table}.{name} of {data[:at][-60:]!r}"


@pytest.mark.parametrize("name", ["nvidia_nvlink.txt", "rocm_smi_a.txt", "ipmi_sensor.txt", "beegfs_client.txt",
                                  "ras_summary.txt", "nfsiostat.txt", "stacks.txt", "slurm_job.txt"])  # fmt: skip
def test_a_capture_that_only_lost_its_last_line_end_loses_nothing(name: str, tmp_path: Path) -> None:
    (sample,) = [path for path in SAMPLES if path.name == name]
    plain, _, code = inspected(tmp_path / name, sample.read_bytes())
    rows, _, code_now = inspected(tmp_path / name, sample.read_bytes().rstrip(b"\r\n"))
    assert (keyed(rows), code_now) == (keyed(plain), code)


def test_a_cut_line_is_told_and_leaves_the_rest_alone(tmp_path: Path) -> None:
    text = b"NIC statistics:\n     rx_packets: 31162\n     tx_packets: 345"
    rows, notes, code = inspected(tmp_path / "ethtool.txt", text)
    assert [row.values["rx_packets_total"] for row in rows] == [31162]
    assert rows[0].values["tx_packets_total"] is None
    assert [(note.level, note.where) for note in notes if "ends inside" in note.text] == [("warning", "line 3")]
    assert code == ExitCode.DONE


def test_a_number_at_the_end_of_a_log_that_ends_in_a_line_is_none(tmp_path: Path) -> None:
    rows, notes, _ = inspected(tmp_path / "dmesg.log", XID + XID[: XID.index(b"79") + 1])
    assert [row.values["code"] for row in rows] == ["xid:79"]
    assert any("its last number '7' was not used" in note.text for note in notes)
    rows, notes, _ = inspected(tmp_path / "whole.log", XID.rstrip(b"\n"))
    assert [row.values["code"] for row in rows] == ["xid:79"]
    assert not notes


def test_the_last_cell_of_a_table_without_line_end_is_unknown_unless_its_unit_follows(tmp_path: Path) -> None:
    head = b"index, name, temperature.gpu, power.draw [W]\n0, NVIDIA H100, 41, 250.10 W\n"
    rows, notes, code = inspected(tmp_path / "a.csv", head + b"1, NVIDIA H100, 42, 25")
    device = [row.values for row in rows if row.table == "device_samples"]
    assert [(values["temp_c"], values["power_w"]) for values in device] == [(41, 250.1), (42, None)]
    assert code == ExitCode.DONE
    assert any("its last number '25'" in note.text for note in notes)
    rows, _, _ = inspected(tmp_path / "b.csv", head.rstrip(b"\n"))
    assert [row.values["power_w"] for row in rows if row.table == "device_samples"] == [250.1]


def test_warnings_before_a_document_are_left_out_and_told(tmp_path: Path) -> None:
    sample = next(path for path in SAMPLES if path.name == "redfish_thermal.json")
    plain, _, _ = inspected(tmp_path / "a.json", sample.read_bytes())
    rows, notes, code = inspected(tmp_path / "b.json", b"WARNING: certificate has expired\n" + sample.read_bytes())
    assert keyed(rows) == keyed(plain)
    assert code == ExitCode.DONE
    assert any("'WARNING: certificate has expired'" in note.text for note in notes)


def test_a_ras_report_without_its_list_is_not_healthy(tmp_path: Path) -> None:
    text = b"NCCL version 2.26.2 compiled with CUDA 12.8\n\nCommunicators... (0.00s)\n=============\n"
    rows, _, code = inspected(tmp_path / "ras.txt", text)
    assert not rows
    assert code == ExitCode.MALFORMED


def test_nul_bytes_are_told(tmp_path: Path) -> None:
    _, notes, _ = inspected(tmp_path / "dmesg.log", b"\0" * 100_000 + XID + b"\0" * 50)
    assert [note.text[:15] for note in notes if "NUL" in note.text] == ["100050 NUL byte"]


@pytest.mark.parametrize(
    ("text", "code", "address"),
    [
        ("No devices were found", "device:none_found", None),
        ("Failed to initialize NVML: Driver/library version mismatch", "device:no_driver", None),
        ("ERROR:root:Driver not initialized (amdgpu not found in modules)", "device:no_driver", None),
        ("dcmi model initialized failed, because the device is used. ret is -8020", "device:no_driver", None),
        (
            "Unable to determine the device handle for GPU0000:3B:00.0: Unknown Error",
            "device:unreadable",
            "0000:3B:00.0",
        ),
        ("bash: rocm-smi: command not found", "tool:not_installed", None),
    ],
)
def test_a_tool_without_devices_says_why(text: str, code: str, address: str | None, tmp_path: Path) -> None:
    rows, _, exit_code = inspected(tmp_path / "x.txt", text.encode() + b"\n")
    assert exit_code == ExitCode.DONE
    (event,) = (row.values for row in rows)
    assert (event["code"], event["message"]) == (code, text)
    assert isinstance(event["attrs"], dict)
    assert event["attrs"].get("pci_bus_id") == address


def test_a_lost_device_inside_a_table_is_told_and_is_no_row(tmp_path: Path) -> None:
    lost = b"Unable to determine the device handle for GPU 0000:3B:00.0: GPU is lost.\n"
    rows, notes, code = inspected(tmp_path / "x.csv", b"index, name, temperature.gpu\n0, NVIDIA H100, 40\n" + lost)
    assert [row.values["device"] for row in rows if row.table == "device_samples"] == [0]
    assert [row.values["code"] for row in rows if row.table == "events"] == ["device:unreadable"]
    assert code == ExitCode.MALFORMED
    assert any("GPU is lost" in note.text for note in notes)


@pytest.mark.parametrize(
    "table",
    [
        '"index","name","power.draw [W]"\n"0","NVIDIA, H100","250.5 W"\n',
        "index;name;power.draw [W]\n0;NVIDIA, H100;250,5 W\n",
        "index\tname\tpower.draw [W]\n0\tNVIDIA, H100\t250.5 W\n",
    ],
)
def test_a_table_that_a_spreadsheet_saved_anew_is_read(table: str, tmp_path: Path) -> None:
    rows, _, code = inspected(tmp_path / "x.csv", table.encode())
    values = next(row.values for row in rows if row.table == "device_samples")
    assert (values["device"], values["model"], values["power_w"]) == (0, "NVIDIA, H100", 250.5)
    assert code == ExitCode.DONE


@pytest.mark.parametrize(("word", "total"), [("Unknown Error", None), ("N/A", 1)])
def test_a_sum_with_a_part_that_could_not_be_read_is_unknown(word: str, total: int | None, tmp_path: Path) -> None:
    table = f"index, remapped_rows.correctable, remapped_rows.uncorrectable\n0, 1, [{word}]\n"
    rows, _, _ = inspected(tmp_path / "x.csv", table.encode())
    assert [row.values["remapped_rows_total"] for row in rows if row.table == "device_samples"] == [total]


def test_supplies_of_which_one_gives_no_reading_have_no_sum(tmp_path: Path) -> None:
    limits = " | na" * 6
    table = f"PSU1 Input | na | Watts | na{limits}\nPSU2 Input | 1510.000 | Watts | ok{limits}\n"
    rows, _, _ = inspected(tmp_path / "x.txt", table.encode())
    assert not [row for row in rows if row.table == "node_samples" and row.values["psu_w"] is not None]


TABLE = "index, name, temperature.gpu, power.draw [W]\n0, NVIDIA H100, 4{0}, 250.5 W\n1, NVIDIA H100, 5{0}, 260.5 W\n"


def test_output_of_several_hosts_is_read_host_by_host(tmp_path: Path) -> None:
    printed = [[f"gpu-{host}: {line}" for line in TABLE.format(host).splitlines()] for host in (1, 2)]
    mixed = [line for pair in zip(*printed, strict=True) for line in pair]
    rows, notes, code = inspected(
        tmp_path / "x.txt", "\n".join([*mixed, "gpu-3: ssh exited with exit code 255", ""]).encode()
    )
    device = [row.values for row in rows if row.table == "device_samples"]
    assert [(values["node"], values["device"], values["temp_c"]) for values in device] == [
        ("gpu-1", 0, 41), ("gpu-1", 1, 51), ("gpu-2", 0, 42), ("gpu-2", 1, 52),
    ]  # fmt: skip
    assert code == ExitCode.DONE
    assert any("not recognised" in note.text for note in notes)


def test_a_log_whose_lines_bear_hosts_stays_a_log(tmp_path: Path) -> None:
    text = b"gpu-1: NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n"
    rows, _, _ = inspected(tmp_path / "x.log", text + text.replace(b"gpu-1", b"gpu-2"))
    assert [row.values["code"] for row in rows] == ["xid:79", "xid:79"]


def test_two_lists_of_sensors_in_one_text_make_no_node(tmp_path: Path) -> None:
    listed = "Inlet Temp | 04h | ok | 7.1 | 25 degrees C\nPS1 Input | 30h | ok | 10.1 | 110 Watts\n"
    listed += "Fan1 | 31h | ok | 7.1 | 5040 RPM\n"
    rows, _, _ = inspected(tmp_path / "one.txt", listed.encode())
    assert [row.values["psu_w"] for row in rows if row.table == "node_samples"] == [110]
    rows, notes, _ = inspected(tmp_path / "two.txt", listed.encode() * 2)
    assert not [row for row in rows if row.table == "node_samples"]
    assert any("listed 2 times" in note.text for note in notes)


@pytest.mark.parametrize(("end", "loss"), [(b"2.25", 2.25), (b"2.2", None)])
def test_a_last_number_as_long_as_those_above_it_is_whole(end: bytes, loss: float | None, tmp_path: Path) -> None:
    log = b"2026-01-01 00:00:00,123 INFO step 1 loss 2.75\n2026-01-01 00:00:01,123 INFO step 2 loss " + end
    rows, _, _ = inspected(tmp_path / "train.log", log)
    losses = {row.values["step"]: row.values["value"] for row in rows if row.values.get("name") == "loss"}
    assert losses.get(2) == loss
    table = b"index, clocks.sm [MHz]\n0, 1980\n1, 2010" if loss else b"index, clocks.sm [MHz]\n0, 1980\n1, 201"
    rows, _, _ = inspected(tmp_path / "clocks.csv", table)
    clocks = [row.values["sm_clock_mhz"] for row in rows if row.table == "device_samples"]
    assert clocks == [1980, 2010 if loss else None]
