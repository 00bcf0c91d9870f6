"""Scale-up links in exporters: one row a link and quantity, sums in the device's row."""

from __future__ import annotations

import io

from flightwatch.collectors.captures.openmetrics import OpenMetrics
from flightwatch.core.protocols import CaptureContext, Row

MLU = """\
# TYPE mlu_temperature gauge
mlu_temperature{mlu="0",node="c1",cluster=""} 52
# TYPE mlu_mlulink_status gauge
mlu_mlulink_status{mlu="0",link="0"} 1
mlu_mlulink_status{mlu="0",link="1"} 0
# TYPE mlu_mlulink_cntr_read_byte_total counter
mlu_mlulink_cntr_read_byte_total{mlu="0",link="0"} 9007199254740993
mlu_mlulink_cntr_read_byte_total{mlu="0",link="1"} 7
# TYPE mlu_mlulink_cntr_write_byte_total counter
mlu_mlulink_cntr_write_byte_total{mlu="0",link="0"} 11
# TYPE mlu_mlulink_err_crc24_total counter
mlu_mlulink_err_crc24_total{mlu="0",link="0"} 2
# TYPE mlu_mlulink_err_crc32_total counter
mlu_mlulink_err_crc32_total{mlu="0",link="0"} 3
# TYPE mlu_mlulink_err_replay_total counter
mlu_mlulink_err_replay_total{mlu="0",link="1"} 4
mlu_mlulink_err_replay_total{mlu="1",link="0"} NaN
"""


def test_mlu_links() -> None:
    rows = [row for row in OpenMetrics().parse(io.BytesIO(MLU.encode()), CaptureContext("x")) if isinstance(row, Row)]
    sensors = {
        (row.values["device"], row.values["label"], row.values["quantity"]): row.values
        for row in rows
        if row.table == "sensor_samples"
    }
    assert {values["chip"] for values in sensors.values()} == {"mlulink"}
    assert {key: values["counter"] for key, values in sensors.items() if values["counter"] is not None} == {
        (0, "0", "rx_bytes"): 9007199254740993,
        (0, "1", "rx_bytes"): 7,
        (0, "0", "tx_bytes"): 11,
        (0, "0", "crc_errors"): 5,
        (0, "1", "replays"): 4,
    }
    assert [sensors[0, link, "state"]["status"] for link in ("0", "1")] == ["up", "down"]
    device = next(row.values for row in rows if row.table == "device_samples" and row.values["device"] == 0)
    assert (device["temp_c"], device["link_rx_bytes_total"], device["link_tx_bytes_total"]) == (
        52.0, 9007199254741000, 11,
    )  # fmt: skip
    assert device["link_errors_total"] == 9
