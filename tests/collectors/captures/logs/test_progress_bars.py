"""Lightning's progress bar: a log whose only lines are bars, rewritten in place."""

from __future__ import annotations

import io

import pytest

from flightwatch.collectors.captures.registry import parsers
from flightwatch.core.protocols import CaptureContext, Row


@pytest.mark.parametrize("name", ["train_loss", "train_loss_step", "loss", "train/loss"])
@pytest.mark.parametrize("end", ["\n", "\r"])
def test_bars_alone_are_a_training_log(name: str, end: str) -> None:
    bars = "".join(
        f"Epoch 3:  {step // 10}%|#2        | {step}/1000 [01:00<07:20,  2.00it/s, v_num=0, {name}={loss}]{end}"
        for step, loss in ((120, "1.234"), (121, "nan"))
    ).encode()
    parser = next(parser for parser in parsers() if parser.recognise(bars))
    rows = [row.values for row in parser.parse(io.BytesIO(bars), CaptureContext("x")) if isinstance(row, Row)]
    assert [(row["step"], row["name"], str(row["value"])) for row in rows] == [
        (120, "loss", "1.234"),
        (121, "loss", "nan"),
    ]


def test_a_bar_without_a_loss_is_no_log() -> None:
    bar = b"Downloading:  12%|#2        | 120/1000 [01:00<07:20,  2.00it/s]\n"
    assert not any(parser.recognise(bar) for parser in parsers())
