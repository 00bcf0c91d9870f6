from __future__ import annotations

from pathlib import Path

import pytest

from flightwatch.cli import main
from flightwatch.cli.agent_enroll import control_is_local, enroll
from flightwatch.cli.common_settings import CommonSettings
from flightwatch.collectors.identity import load_identity
from flightwatch.core.errors import ConfigError, TransientError
from flightwatch.pipeline.control.database import open_control
from flightwatch.pipeline.control.settings import ControlSettings


def _config(tmp_path: Path) -> str:
    path = tmp_path / "flightwatch.toml"
    path.write_text(f'[flightwatch]\ndata_dir = "{tmp_path}/data"\nnode = "node-1"\n[store]\n')
    return str(path)


def test_a_key_travels_from_the_node_to_the_control_database(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = _config(tmp_path)
    assert main(["agent", "enroll", "--config", config]) == 0
    words = capsys.readouterr().out.split()
    identity = load_identity(f"{tmp_path}/data/agent")
    assert identity is not None
    assert words == ["flightwatch", "agent", "enroll", "--node", "node-1", "--public-key", identity.public_key.hex()]
    assert main([*words[1:], "--config", config]) == 0
    assert capsys.readouterr().out == "node-1: enrolled\n"
    assert main([*words[1:], "--config", config]) == 0
    assert "enrolled already" in capsys.readouterr().out
    control = open_control(f"sqlite:///{tmp_path}/data/control.db", ControlSettings())
    assert control.agent_keys.valid() == {"node-1": frozenset([identity.public_key.hex()])}
    control.close()
    # Now that the database is there, a node beside it enrolls itself, with the key it has.
    assert main(["agent", "enroll", "--config", config]) == 0
    assert capsys.readouterr().out == "node-1: enrolled\n"


def test_when_the_database_does_not_answer_the_line_for_an_admin_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def away(node: str, public_key: str) -> bool:
        raise TransientError("the control database did not answer")

    common = CommonSettings(data_dir=str(tmp_path), node="node-1")
    assert enroll(common, None, None, away, is_local=True) == 0
    printed = capsys.readouterr()
    assert "did not answer" in printed.err
    assert printed.out.startswith("flightwatch agent enroll --node node-1 --public-key ")
    with pytest.raises(TransientError):
        enroll(common, "node-2", "00" * 32, away, is_local=True)


@pytest.mark.parametrize("node", ["a;reboot", "$(id)", "-x"])
def test_a_node_name_with_shell_characters_is_refused(tmp_path: Path, node: str) -> None:
    common = CommonSettings(data_dir=str(tmp_path), node=node)
    with pytest.raises(ConfigError, match="is not a node name"):
        enroll(common, None, None, lambda name, key: True, is_local=False)
    assert not (tmp_path / "agent").exists()


def test_where_the_control_database_is(tmp_path: Path) -> None:
    common = CommonSettings(data_dir=str(tmp_path))
    assert not control_is_local(common)
    (tmp_path / "control.db").touch()
    assert control_is_local(common)
    assert control_is_local(CommonSettings(control="postgresql://user@db/flightwatch"))


def test_enrolment_in_a_folder_of_ones_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLIGHTWATCH_FLIGHTWATCH_DATA_DIR", str(tmp_path / "unused"))
    assert main(["agent", "enroll", "--node", "n1", "--data-dir", str(tmp_path / "demo")]) == 0
    assert capsys.readouterr().out.startswith("flightwatch agent enroll --node n1")
    assert (tmp_path / "demo" / "agent").is_dir()
    assert not (tmp_path / "unused").exists()


def test_a_revoked_key_is_withdrawn_and_a_node_without_keys_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = _config(tmp_path)
    assert main(["agent", "revoke", "--config", config]) == 1
    assert "run this where the control database is" in capsys.readouterr().err
    for digits in ("aa", "bb"):
        assert main(["agent", "enroll", "--public-key", digits * 32, "--config", config]) == 0
    assert main(["agent", "revoke", "--public-key", "cc" * 32, "--config", config]) == 1
    assert "no valid key with these digits" in capsys.readouterr().err
    assert main(["agent", "revoke", "--config", config]) == 0
    assert "node-1: 2 keys revoked" in capsys.readouterr().out
    assert main(["agent", "revoke", "--config", config]) == 1
    control = open_control(f"sqlite:///{tmp_path}/data/control.db", ControlSettings())
    assert control.agent_keys.valid() == {"node-1": frozenset()}
    control.close()
