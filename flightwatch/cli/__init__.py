"""The command line: one file a command, each imported only when it is called.

Parsing, inspection and the agent run without third-party packages, so this module imports nothing
heavy. A command module offers `HELP` (one line), `EPILOG` (an example), `add_arguments(parser)` and
`run(arguments) -> int` (an ExitCode).
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Protocol, cast

from flightwatch import __version__
from flightwatch.cli.registry import COMMANDS
from flightwatch.core.errors import ConfigError, FlightwatchError
from flightwatch.core.vocabulary import ExitCode


class CommandModule(Protocol):
    """What a module in `flightwatch/cli/` offers."""

    HELP: str
    EPILOG: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare arguments."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Do it; return an exit code."""


def _usage() -> str:
    width = max(len(name) for name, _, _ in COMMANDS)
    lines = [f"  {name:{width}}  {help_line}" for name, _, help_line in COMMANDS]
    return (
        "usage: flightwatch COMMAND [ARGUMENTS]\n\n"
        "Observability and anomaly detection for large AI-training clusters.\n\ncommands:\n"
        + "\n".join(lines)
        + "\n\n`flightwatch COMMAND --help` shows arguments and an example."
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code (see vocabulary.ExitCode)."""
    _open_standard_streams()
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help", "help"):
        print(_usage())
        return ExitCode.DONE if words else ExitCode.USAGE
    if words[0] in ("-V", "--version", "version"):
        print(f"flightwatch {__version__}")
        return ExitCode.DONE
    modules = {name: module for name, module, _ in COMMANDS}
    if words[0] not in modules:
        print(f"flightwatch: there is no command {words[0]!r}; `flightwatch --help` lists them", file=sys.stderr)
        return ExitCode.USAGE
    environment = dict(os.environ)
    try:
        return _run(words[0], modules[words[0]], words[1:])
    except KeyboardInterrupt:
        return 130
    finally:
        # `--data-dir` reaches a command's parts and children as environment; a caller in Python keeps its own.
        os.environ.clear()
        os.environ.update(environment)


def _open_standard_streams() -> None:
    """Put /dev/null where a standard stream is closed: the next file opened would take its number, and its output."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
            setattr(sys, name, open(number, "r" if number == 0 else "w", encoding="utf-8", closefd=False))  # noqa: SIM115 - it stays open


def _run(name: str, module_name: str, words: list[str]) -> int:
    try:
        module = cast(CommandModule, importlib.import_module(module_name))
        parser = argparse.ArgumentParser(
            prog=f"flightwatch {name}",
            description=module.HELP,
            epilog=module.EPILOG,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(parser)
        return int(module.run(parser.parse_args(words)))
    except ModuleNotFoundError as error:
        # Commands import their parts when they are called; the base install has no third-party package.
        if error.name is None or error.name.partition(".")[0] == "flightwatch":
            raise
        print(
            f"flightwatch {name}: needs the Python package {error.name!r}: pip install 'flightwatch[server]'",
            file=sys.stderr,
        )
        return ExitCode.FAILED
    except ConfigError as error:
        print(f"flightwatch {name}: {error}", file=sys.stderr)
        return ExitCode.USAGE
    except FlightwatchError as error:
        print(f"flightwatch {name}: {error}", file=sys.stderr)
        return ExitCode.FAILED
    except BrokenPipeError:
        # The reader (head, less) closed the pipe: not an error, and nothing more can be printed.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.DONE
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"flightwatch {name}: {where}{error.strerror or error}", file=sys.stderr)
        # What is left in the buffer of a full disk would fail once more at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.FAILED
