"""Settings: merging, refusals by path, secrets, template."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

from flightwatch.core.errors import ConfigError
from flightwatch.core.settings import load, named_sections, setting, template


@dataclass(frozen=True)
class Demo:
    """A section for the tests."""

    name: str = setting("plain", "a word")
    period_seconds: float = setting(2.0, "a period", minimum=0.1)
    count: int = setting(3, "a number", minimum=1)
    enabled: bool = setting(True, "a switch")
    hosts: tuple[str, ...] = setting((), "a list")
    limit: int | None = setting(None, "optional")
    password: str = setting("", "a secret", secret=True)


KINDS = {"demo": Demo}


def write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "flightwatch.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_defaults_without_file_or_environment() -> None:
    loaded = load(KINDS, None, {})
    assert loaded.section(Demo) == Demo()
    assert {origin.source for origin in loaded.origins} == {"default"}


def test_environment_beats_file_beats_default(tmp_path: Path) -> None:
    file = write(tmp_path, '[demo]\nname = "file"\ncount = 5\nhosts = ["a", "b"]\nlimit = 7\n')
    loaded = load(KINDS, file, {"FLIGHTWATCH_DEMO_NAME": "env", "FLIGHTWATCH_DEMO_ENABLED": "off"})
    section = loaded.section(Demo)
    assert (section.name, section.count, section.enabled, section.hosts, section.limit) == (
        "env",
        5,
        False,
        ("a", "b"),
        7,
    )
    origins = {origin.path: origin.source for origin in loaded.origins}
    assert origins["demo.name"] == "environment FLIGHTWATCH_DEMO_NAME"
    assert origins["demo.count"] == str(file)
    assert origins["demo.period_seconds"] == "default"


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("[demo]\nnmae = 'x'\n", "unknown key demo.nmae"),
        ("[dmeo]\nname = 'x'\n", "unknown section [dmeo]"),
        ("[demo]\ncount = 'x'\n", "demo.count must be int, not 'x'"),
        ("[demo]\ncount = true\n", "demo.count must be int, not True"),
        ("[demo]\ncount = 0\n", "demo.count = 0 is below the minimum 1"),
        ("[demo]\nhosts = [1]\n", "demo.hosts[0] must be str, not 1"),
        ("[demo]\npassword = 'hunter2'\n", "demo.password is a secret"),
        ("demo = 3\n", "demo must be a section"),
        ("[demo\n", "not valid TOML"),
    ],
)
def test_mistakes_are_refused_naming_file_and_key(tmp_path: Path, text: str, part: str) -> None:
    file = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load(KINDS, file, {})
    assert part in str(caught.value)
    assert str(file) in str(caught.value)


def test_environment_of_the_wrong_type_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"environment FLIGHTWATCH_DEMO_COUNT: demo\.count must be int"):
        load(KINDS, None, {"FLIGHTWATCH_DEMO_COUNT": "many"})


def test_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the configuration: No such file"):
        load(KINDS, tmp_path / "absent.toml", {})


def test_secret_from_environment_or_file(tmp_path: Path) -> None:
    assert load(KINDS, None, {"FLIGHTWATCH_DEMO_PASSWORD": "s3"}).section(Demo).password == "s3"
    secret = tmp_path / "secret"
    secret.write_text("from-file\n", encoding="utf-8")
    loaded = load(KINDS, None, {"FLIGHTWATCH_DEMO_PASSWORD_FILE": str(secret)})
    assert loaded.section(Demo).password == "from-file"
    with pytest.raises(ConfigError, match="cannot read"):
        load(KINDS, None, {"FLIGHTWATCH_DEMO_PASSWORD_FILE": str(tmp_path / "absent")})


def test_template_is_toml_that_changes_nothing_and_shows_every_key(tmp_path: Path) -> None:
    text = template(KINDS)
    assert load(KINDS, write(tmp_path, text), {}).section(Demo) == Demo()
    for key in ("name", "period_seconds", "count", "enabled", "hosts", "limit"):
        assert f"# {key} =" in text
    uncommented = "\n".join(
        line[2:] if line.startswith("# ") and " = " in line and "not set" not in line else line
        for line in text.splitlines()
    )
    assert tomllib.loads(uncommented)["demo"]["count"] == 3


def test_a_misspelt_variable_is_refused_and_kubernetes_own_are_not() -> None:
    with pytest.raises(ConfigError, match=r"environment FLIGHTWATCH_DEMO_NMAE: there is no key demo\.nmae; known: .*"):
        load(KINDS, None, {"FLIGHTWATCH_DEMO_NMAE": "x"})
    others = {
        "FLIGHTWATCH_DEMO_SERVICE_HOST": "10.0.0.1",
        "FLIGHTWATCH_DEMO_SERVICE_PORT_HTTP": "80",
        "FLIGHTWATCH_DEMO_PORT_80_TCP_ADDR": "10.0.0.1",
        "FLIGHTWATCH_ELSEWHERE_KEY": "x",
        "FLIGHTWATCH_DEMO_NAME": "given",
    }
    assert load(KINDS, None, others).section(Demo) == Demo(name="given")


@named_sections
@dataclass(frozen=True)
class Door:
    """A sub-table for the tests."""

    url: str = setting("", "where")
    secret_url: str = setting("", "where, with a credential in it", secret=True)
    hosts: tuple[str, ...] = setting((), "a list")


DOORS = {"doors": Door}


def test_named_sections_keep_the_order_of_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, '[doors.zulu]\nurl = "z"\n[doors.alpha-1]\nhosts = ["a"]\n')
    doors = load(DOORS, file, {"FLIGHTWATCH_DOORS_ALPHA_1_URL": "from env"}).named(Door)
    assert list(doors) == ["zulu", "alpha-1"]
    assert doors == {"zulu": Door(url="z"), "alpha-1": Door(url="from env", hosts=("a",))}


def test_a_named_section_may_stand_in_the_environment_alone(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("https://s/x\n", encoding="utf-8")
    env = {"FLIGHTWATCH_DOORS_ON_CALL_SECRET_URL_FILE": str(secret), "FLIGHTWATCH_DOORS_ON_CALL_HOSTS": "a, b"}
    loaded = load(DOORS, None, env)
    assert loaded.named(Door) == {"on_call": Door(secret_url="https://s/x", hosts=("a", "b"))}
    assert {origin.path for origin in loaded.origins if origin.secret} == {"doors.on_call.secret_url"}


@pytest.mark.parametrize(
    ("text", "env", "named"),
    [
        ("[doors]\nurl = 'x'\n", {}, "doors.url must be a table"),
        ("[doors.a]\nhost = 'x'\n", {}, "unknown key doors.a.host"),
        ("[doors.a]\nsecret_url = 'x'\n", {}, "FLIGHTWATCH_DOORS_A_SECRET_URL"),
        ("[doors.'A B']\nurl = 'x'\n", {}, "names are small letters"),
        ("[doors.a-b]\n[doors.a_b]\n", {}, "share their environment variables"),
        ("", {"FLIGHTWATCH_DOORS_A_COLOUR": "red"}, "FLIGHTWATCH_DOORS_A_COLOUR"),
        ("", {"FLIGHTWATCH_DOORS_URL": "x"}, "FLIGHTWATCH_DOORS_URL"),
    ],
)
def test_wrong_named_sections_are_refused(tmp_path: Path, text: str, env: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        load(DOORS, write(tmp_path, text), env)


def test_the_template_shows_named_sections() -> None:
    text = template(DOORS)
    assert "[doors.NAME]" in text
    assert "FLIGHTWATCH_DOORS_<NAME>_SECRET_URL_FILE" in text
    assert tomllib.loads(text) == {}
