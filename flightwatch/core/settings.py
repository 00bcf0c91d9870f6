"""Settings: one TOML file plus environment, typed by the parts that own them.

Each part declares a frozen dataclass whose fields have defaults, and describes each field with
`setting(default, "meaning", ...)`. `load` merges, in rising order: defaults, the file, environment
variables `FLIGHTWATCH_<SECTION>_<KEY>`. A class marked with `@named_sections` describes sub-tables
`[section.NAME]`, one for each thing that people name themselves (a channel, a route); their variables are
`FLIGHTWATCH_<SECTION>_<NAME>_<KEY>`. Unknown keys are refused by path. Secrets never stand in the
file: a field marked `secret=True` is read from the environment, or from the file named by the
environment variable with `_FILE` appended.

Dataclasses over tomllib, no pydantic: the agent pays for every megabyte it imports.
"""

from __future__ import annotations

import dataclasses
import os
import re
import tomllib
import types
import typing
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from flightwatch.core.errors import ConfigError

ENVIRONMENT_PREFIX = "FLIGHTWATCH"
T = TypeVar("T")
#: Names of sub-tables.
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")
#: Variables that Kubernetes sets in every container for a service called flightwatch-<section>.
_KUBERNETES = re.compile(r"_(SERVICE_HOST|SERVICE_PORT\w*|PORT_\d+_(TCP|UDP|SCTP)\w*)$")


def setting(default: Any, meaning: str, *, secret: bool = False, minimum: float | None = None) -> Any:
    """Declare one field of a settings section.

    Parameters
    ----------
    default: immutable default value (tuples for lists).
    meaning: one phrase, shown by `config init` and in the documentation.
    secret: only from the environment or a file named by it; never printed.
    minimum: smallest allowed number.
    """
    return dataclasses.field(default=default, metadata={"meaning": meaning, "secret": secret, "minimum": minimum})


def named_sections(kind: type[T]) -> type[T]:
    """Mark a settings class: its section holds any number of sub-tables of this class, by name, in the file's order."""
    kind.__flightwatch_named__ = True  # type: ignore[attr-defined]
    return kind


def is_named(kind: type[Any]) -> bool:
    """Say whether a settings class describes sub-tables."""
    return bool(getattr(kind, "__flightwatch_named__", False))


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the value of one setting came from, for `flightwatch config check`."""

    path: str
    value: Any
    source: str
    secret: bool


@dataclass(frozen=True)
class Loaded:
    """Typed sections by name, and the origin of every value."""

    sections: Mapping[str, Any]
    origins: tuple[Origin, ...]

    def section(self, kind: type[T]) -> T:
        """Return the section of dataclass `kind`."""
        for value in self.sections.values():
            if isinstance(value, kind):
                return value
        raise KeyError(kind.__name__)

    def named(self, kind: type[T]) -> dict[str, T]:
        """Return the sub-tables of the marked dataclass `kind` by name; those of the file first, in its order."""
        for value in self.sections.values():
            if isinstance(value, _Named) and value.kind is kind:
                return dict(value.tables)
        raise KeyError(kind.__name__)


@dataclass(frozen=True, slots=True)
class _Named:
    kind: type[Any]
    tables: Mapping[str, Any]


def load(
    kinds: Mapping[str, type[Any]],
    file: Path | None,
    environment: Mapping[str, str] | None = None,
    elsewhere: Collection[str] = (),
) -> Loaded:
    """Read all sections.

    Parameters
    ----------
    kinds: section name to settings dataclass.
    file: TOML file, or None for defaults and environment alone.
    elsewhere: names of sections that other processes read from the same file; they are passed over.

    Raises
    ------
    ConfigError: file unreadable, unknown section, key or variable, wrong type, value below its minimum, secret in the
        file.
    """
    env = os.environ if environment is None else environment
    document = _read(file)
    where = str(file) if file else ""
    for name, value in document.items():
        if name in elsewhere:
            continue
        if name not in kinds:
            raise ConfigError(f"{where}: unknown section [{name}]; known: {', '.join(sorted(kinds))}")
        if not isinstance(value, dict):
            raise ConfigError(f"{where}: {name} must be a section [{name}], not a value")
    _refuse_unknown_variables(kinds, env)
    sections: dict[str, Any] = {}
    origins: list[Origin] = []
    for name, kind in kinds.items():
        load_one = _load_named if is_named(kind) else _load_section
        sections[name] = load_one(name, kind, document.get(name, {}), where, env, origins)
    return Loaded(sections, tuple(origins))


def _read(file: Path | None) -> dict[str, Any]:
    if file is None:
        return {}
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{file}: cannot read the configuration: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: not valid TOML: {error}") from error


def _load_section(
    name: str, kind: type[Any], given: Mapping[str, Any], where: str, env: Mapping[str, str], origins: list[Origin]
) -> Any:
    hints = typing.get_type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    for key in given:
        if key not in fields:
            raise ConfigError(f"{where}: unknown key {name}.{key}; known: {', '.join(sorted(fields))}")
    values: dict[str, Any] = {}
    for key, field in fields.items():
        path = f"{name}.{key}"
        secret = bool(field.metadata.get("secret"))
        value, source = field.default, "default"
        if key in given:
            if secret:
                raise ConfigError(
                    f"{where}: {path} is a secret: set {_variable(name, key)} or {_variable(name, key)}_FILE instead"
                )
            value, source = _checked(path, given[key], hints[key], where), where
        from_env = _environment(name, key, secret, env)
        if from_env is not None:
            text, source = from_env
            value = _checked(path, _parse(text, hints[key]), hints[key], source)
        minimum = field.metadata.get("minimum")
        if minimum is not None and value is not None and value < minimum:
            raise ConfigError(f"{source}: {path} = {value} is below the minimum {minimum}")
        values[key] = value
        origins.append(Origin(path, value, source, secret))
    return kind(**values)


def _load_named(
    name: str, kind: type[Any], given: Mapping[str, Any], where: str, env: Mapping[str, str], origins: list[Origin]
) -> _Named:
    """Load all sub-tables of a section; one that only the environment names is made too."""
    forms: dict[str, str] = {}
    for own, value in given.items():
        if not isinstance(value, dict):
            raise ConfigError(f"{where}: {name}.{own} must be a table [{name}.{own}], not a value")
        if not _NAME.fullmatch(own):
            raise ConfigError(f"{where}: [{name}.{own}]: names are small letters, digits, - and _, at most 40")
        other = forms.setdefault(_variable(own, "")[:-1], own)
        if other != own:
            raise ConfigError(f"{where}: [{name}.{own}] and [{name}.{other}] share their environment variables")
    for variable in sorted(env):
        found = _named_variable(name, kind, variable, forms)
        if found and found not in forms.values():
            forms[_variable(found, "")[:-1]] = found
    tables = {
        own: _load_section(f"{name}.{own}", kind, given.get(own, {}), where, env, origins) for own in forms.values()
    }
    return _Named(kind, tables)


def _named_variable(section: str, kind: type[Any], variable: str, forms: Mapping[str, str]) -> str | None:
    """Return the name of the sub-table to which a variable belongs, None when it belongs to none."""
    start = _variable(section, "")
    if not variable.startswith(start) or _KUBERNETES.search(variable):
        return None
    rest = variable[len(start) :]
    fields = sorted(dataclasses.fields(kind), key=lambda field: -len(field.name))
    keys = [(f.name.upper(), bool(f.metadata.get("secret"))) for f in fields]
    ends = [f"_{key}{tail}" for key, secret in keys for tail in (("", "_FILE") if secret else ("",))]
    names = [rest.removesuffix(end) for end in ends if rest.endswith(end) and len(rest) > len(end)]
    known = [forms[prefix] for name in names if (prefix := f"{ENVIRONMENT_PREFIX}_{name}") in forms]
    made = next((name.lower() for name in names if _NAME.fullmatch(name.lower())), None)
    return known[0] if known else made


def _variable(section: str, key: str) -> str:
    return re.sub(r"[.-]", "_", f"{ENVIRONMENT_PREFIX}_{section}_{key}").upper()


def _refuse_unknown_variables(kinds: Mapping[str, type[Any]], env: Mapping[str, str]) -> None:
    """Refuse variables that name a key no section has: a misspelt setting must not be passed over."""
    for variable in sorted(env):
        if _KUBERNETES.search(variable):
            continue
        for name, kind in kinds.items():
            if not variable.startswith(_variable(name, "")):
                continue
            fields = dataclasses.fields(kind)
            if is_named(kind):
                if _named_variable(name, kind, variable, {}) is None:
                    raise ConfigError(
                        f"environment {variable}: write {_variable(name, '')}<NAME>_<KEY>;"
                        f" keys: {', '.join(sorted(field.name for field in fields))}"
                    )
                continue
            known = {_variable(name, field.name) for field in fields}
            known |= {f"{_variable(name, field.name)}_FILE" for field in fields if field.metadata.get("secret")}
            if variable not in known:
                raise ConfigError(
                    f"environment {variable}: there is no key {name}.{variable[len(_variable(name, '')) :].lower()};"
                    f" known: {', '.join(sorted(field.name for field in fields))}"
                )


def _environment(section: str, key: str, secret: bool, env: Mapping[str, str]) -> tuple[str, str] | None:
    variable = _variable(section, key)
    if variable in env:
        return env[variable], f"environment {variable}"
    if secret and f"{variable}_FILE" in env:
        path = env[f"{variable}_FILE"]
        try:
            return Path(path).read_text(encoding="utf-8").strip(), f"file {path}"
        except OSError as error:
            raise ConfigError(f"environment {variable}_FILE: cannot read {path}: {error.strerror}") from error
    return None


def _options(hint: Any) -> tuple[Any, ...]:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return tuple(option for option in typing.get_args(hint))
    return (hint,)


def _parse(text: str, hint: Any) -> Any:
    for option in _options(hint):
        if option is type(None) and text == "":
            return None
        if option is bool and text.lower() in ("1", "true", "yes", "on", "0", "false", "no", "off"):
            return text.lower() in ("1", "true", "yes", "on")
        if option in (int, float):
            try:
                return option(text)
            except ValueError:
                continue
        if typing.get_origin(option) is tuple:
            return [part.strip() for part in text.split(",") if part.strip()]
    return text


def _checked(path: str, value: Any, hint: Any, source: str) -> Any:
    for option in _options(hint):
        origin = typing.get_origin(option)
        if option is type(None) and value is None:
            return None
        if option is float and isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
        if option in (int, str, bool) and type(value) is option:
            return value
        if origin is tuple and isinstance(value, (list, tuple)):
            item = typing.get_args(option)[0]
            return tuple(_checked(f"{path}[{i}]", part, item, source) for i, part in enumerate(value))
        if origin is dict and isinstance(value, dict):
            item = typing.get_args(option)[1]
            return {key: _checked(f"{path}.{key}", part, item, source) for key, part in value.items()}
    expected = " or ".join(getattr(option, "__name__", str(option)) for option in _options(hint))
    raise ConfigError(f"{source}: {path} must be {expected}, not {value!r}")


def template(kinds: Mapping[str, type[Any]]) -> str:
    """Return a commented TOML file with every key at its default (secrets as environment names)."""
    lines = ["# Flightwatch configuration. Every key is shown with its default; remove the # to change one."]
    for name, kind in kinds.items():
        lines += ["", f"# [{name}.NAME]   (any number of them)" if is_named(kind) else f"[{name}]"]
        section = f"{name}_<NAME>" if is_named(kind) else name
        for field in dataclasses.fields(kind):
            lines.append(f"# {field.metadata.get('meaning', '')}")
            if field.metadata.get("secret"):
                lines.append(
                    f"#   secret: environment {_variable(section, field.name)} or {_variable(section, field.name)}_FILE"
                )
            elif field.default is None:
                lines.append(f"# {field.name} =   (not set)")
            else:
                lines.append(f"# {field.name} = {_toml(field.default)}")
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_toml(part) for part in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(part)}" for key, part in value.items()) + "}"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return repr(value)
