from __future__ import annotations

from pathlib import Path

import pytest

from flightwatch.cli import main

GOOD = """
[flightwatch]
bus = "kafka://a:9092,b:9092"
store = "clickhouse://default@ch:8123/flightwatch"
control = "postgresql://flightwatch@pg:5432/flightwatch"
[channels.ops]
service = "webhook"
url = "https://hooks.example.com/x"
[actions]
mode = "approve"
"""


def _check(tmp_path: Path, text: str) -> int:
    file = tmp_path / "flightwatch.toml"
    file.write_text(text)
    return main(["config", "check", "--config", str(file)])


def test_a_right_file_is_printed_with_origins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _check(tmp_path, GOOD) == 0
    shown = capsys.readouterr().out
    assert "kafka://a:9092,b:9092" in shown
    assert "actions.mode" in shown


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (("kafka://a:9092,b:9092", "kafka://a:9092,b:99999"), "flightwatch.bus"),
        (("kafka://a:9092,b:9092", "amqp://a"), "flightwatch.bus"),
        (("clickhouse://default@ch:8123/flightwatch", "clickhouse://ch:port/flightwatch"), "flightwatch.store"),
        (("postgresql://", "mysql://"), "flightwatch.control"),
        (('service = "webhook"', 'service = "pigeon"'), "channels.ops"),
        (('mode = "approve"', 'mode = "yes"'), "actions.mode"),
        (('mode = "approve"', 'scheduler = "kubernetes"\nkubernetes_url = ""'), "actions.kubernetes_url"),
    ],
)
def test_what_only_its_user_knows_is_checked_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], wrong: tuple[str, str], named: str
) -> None:
    assert _check(tmp_path, GOOD.replace(*wrong)) == 2
    said = capsys.readouterr().err
    assert named in said
    assert "Traceback" not in said
