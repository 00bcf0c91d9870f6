"""Commands that messages tell people to paste exist and take these arguments."""

from __future__ import annotations

import shlex

import pytest

from flightwatch.cli import main
from flightwatch.incidents.facts import next_command
from tests.incidents.scenarios import SCENES

COMMANDS = sorted(
    {next_command(scene.incident, scene.facts) for scene in SCENES.values()} | {"flightwatch alerts test ops"}
)


@pytest.mark.parametrize("command", COMMANDS)
def test_it_can_be_pasted(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    program, *arguments = shlex.split(command)
    assert program == "flightwatch"
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--help"])
    assert ended.value.code == 0
    assert "usage" in capsys.readouterr().out


def test_several_kinds_of_commands_are_told() -> None:
    assert {command.split()[1] for command in COMMANDS} == {"action", "alerts", "incident", "profile", "status"}
