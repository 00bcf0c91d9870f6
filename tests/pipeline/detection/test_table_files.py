from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flightwatch.core.errors import BadRecord, ConfigError
from flightwatch.pipeline.detection.files import read_table


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_times_numbers_words_and_empty_cells(tmp_path: Path) -> None:
    text = "step,rank,ts,node,compute_us,mode\n1,0,2026-11-29T19:10:13.250Z,a,5.5,sync\n2,0,1764443413250,,,\n"
    read = read_table("rank_steps", write(tmp_path / "x.csv", text))
    assert read.problems == []
    assert read.frame["ts"].tolist() == [1795979413250.0, 1764443413250.0]
    assert read.frame["compute_us"].isna().tolist() == [False, True]
    assert read.frame["node"].astype(object).where(read.frame["node"].notna(), None).tolist() == ["a", None]


def test_a_time_without_zone_is_utc_and_digits_may_differ(tmp_path: Path) -> None:
    text = "step,rank,ts\n1,0,2026-01-01T00:00:00\n2,0,2026-01-01T00:00:00.5+00:00\n3,0,2026-01-01 01:00:00+01:00\n"
    frame = read_table("rank_steps", write(tmp_path / "x.csv", text)).frame
    assert (frame["ts"] - frame["ts"].iloc[0]).tolist() == [0.0, 500.0, 0.0]


def test_maps_are_flattened_from_csv_and_parquet(tmp_path: Path) -> None:
    text = 'step,rank,comm_by_axis_us\n1,0,"{""dp"": 3.5, ""tp"": 1}"\n2,0,"{\'dp\': 4}"\n3,0,\n'
    frame = read_table("rank_steps", write(tmp_path / "x.csv", text)).frame
    assert np.array_equal(frame["comm_by_axis_us.dp"], [3.5, 4.0, np.nan], equal_nan=True)
    kind = pa.map_(pa.string(), pa.float64())
    table = pa.table({"step": [1, 2], "rank": [0, 0], "comm_by_axis_us": pa.array([[("dp", 2.0)], None], type=kind)})
    pq.write_table(table, tmp_path / "x.bin")
    assert read_table("rank_steps", tmp_path / "x.bin").frame["comm_by_axis_us.dp"].tolist()[0] == 2.0


def test_parquet_timestamps_dictionaries_and_booleans(tmp_path: Path) -> None:
    table = pa.table(
        {
            "ts": pa.array([1_700_000_000_123], type=pa.timestamp("ms", tz="UTC")),
            "node": pa.array(["a"]).dictionary_encode(),
            "device": pa.array([3], type=pa.uint16()), "remap_pending": [True],
            "ecc_corrected_total": pa.array([2**64 - 1], type=pa.uint64()),
        }
    )  # fmt: skip
    pq.write_table(table, tmp_path / "d.parquet")
    row = read_table("device_samples", tmp_path / "d.parquet").frame.iloc[0]
    assert (row["ts"], row["node"], row["device"], row["remap_pending"]) == (1_700_000_000_123.0, "a", 3.0, 1.0)
    assert row["ecc_corrected_total"] == float(2**64 - 1)


def test_bad_cells_are_unknown_and_reported(tmp_path: Path) -> None:
    text = "step,rank,compute_us,ts\n1,0,abc,2026-01-01\n2,0,4,soon\n3,0,nan,\n"
    read = read_table("rank_steps", write(tmp_path / "x.csv", text))
    assert read.frame["compute_us"].isna().tolist() == [True, False, True]
    assert len(read.problems) == 2
    assert "'abc'" in read.problems[0] + read.problems[1]


def test_ragged_lines_are_left_out_and_reported(tmp_path: Path) -> None:
    read = read_table("rank_steps", write(tmp_path / "x.csv", "step,rank\n1,0\n2\n3,0,9\n4,0\n"))
    assert read.frame["step"].tolist() == [1.0, 4.0]
    assert len(read.problems) == 1


def test_unknown_columns_are_a_remark_and_order_does_not_matter(tmp_path: Path) -> None:
    read = read_table("rank_steps", write(tmp_path / "x.csv", "rank,colour,step\n0,red,7\n"))
    assert (read.frame["step"].tolist(), read.problems) == ([7.0], [])
    assert "colour" in read.remarks[0]


@pytest.mark.parametrize("content", [b"", b"PAR1 not really", b"\xff\xfe\x00binary\x00", b"step\n1\n", b"a,b\n1,2\n"])
def test_files_without_a_usable_table(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(BadRecord):
        read_table("rank_steps", tmp_path / "x")


def test_usage_errors(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no table 'steps'"):
        read_table("steps", tmp_path / "x")
    with pytest.raises(ConfigError, match="cannot read"):
        read_table("rank_steps", tmp_path / "absent.csv")


def test_a_header_alone_is_an_empty_table(tmp_path: Path) -> None:
    read = read_table("rank_steps", write(tmp_path / "x.csv", "step,rank,ts\n"))
    assert isinstance(read.frame, pd.DataFrame)
    assert read.frame.empty


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_table_that_a_spreadsheet_saved_is_read(encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    path.write_bytes("step,rank,step_us\n1,0,1000\n1,1,1001\n".encode(encoding))
    read = read_table("rank_steps", path)
    assert read.frame["step_us"].tolist() == [1000, 1001]
    assert not read.problems


def test_json_lines_are_read(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    rows = ['{"step": 1, "rank": 0, "comm_by_axis_us": {"dp": 5}}', '{"step": 1, "rank": 1, "step_us": null}']
    path.write_text("\n".join(rows))
    frame = read_table("rank_steps", path).frame
    assert frame["rank"].tolist() == [0, 1]
    assert frame["comm_by_axis_us.dp"].tolist()[0] == 5


def test_bytes_that_are_no_text_are_told_and_the_rest_is_read(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    path.write_bytes(b"step,rank,node\n1,0,caf\xe9\n\xe9\n1,1,b\n")
    read = read_table("rank_steps", path)
    assert read.frame["rank"].tolist() == [0, 1]
    assert "byte 22 is not UTF-8 text" in read.problems[0]


def test_a_file_of_random_bytes_is_one_printable_sentence(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    path.write_bytes(bytes(random.Random(3).randrange(256) for _ in range(50_000)))
    with pytest.raises(BadRecord) as refused:
        read_table("rank_steps", path)
    assert str(refused.value).isprintable()
