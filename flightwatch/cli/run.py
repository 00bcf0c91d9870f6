"""`flightwatch run -- COMMAND`: a training command with the probe in it, and nothing else changed."""

from __future__ import annotations

import argparse
import os
import sys

from flightwatch.cli.agent import receiver_settings
from flightwatch.cli.common_settings import CommonSettings
from flightwatch.cli.doctor import profiler_environment
from flightwatch.cli.sections import load_agent_settings
from flightwatch.core.errors import ConfigError

HELP = "Start a training command (torchrun, srun, python) with the probe in every process of it."
EPILOG = (
    "examples:\n  flightwatch run -- torchrun --nproc-per-node 8 train.py\n"
    "  flightwatch run --data-dir .demo --job llama -- torchrun --nproc-per-node 2 train.py\n"
    "Flightwatch must be installed in the command's Python (pip install flightwatch has no dependencies);\n"
    "torch >= 2.5 loads it by itself, with an older torch call flightwatch.attach() after importing torch."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare arguments."""
    parser.add_argument("--config", help="configuration file (default: FLIGHTWATCH_CONFIG or /etc/flightwatch)")
    parser.add_argument("--data-dir", help="data folder of the agent to send to (default: flightwatch.data_dir)")
    parser.add_argument("--job", help="name of the job (default: what the scheduler or torchrun says)")
    parser.add_argument("--attempt", help="attempt of the job, the column `run` (default: restart count)")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="command and its arguments")


def run(arguments: argparse.Namespace) -> int:
    """Replace this process by the command: its output, signals and exit code are its own."""
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not command:
        raise ConfigError("nothing to run: flightwatch run -- COMMAND")
    if arguments.data_dir:
        os.environ["FLIGHTWATCH_FLIGHTWATCH_DATA_DIR"] = os.path.abspath(arguments.data_dir)
    settings = load_agent_settings(arguments.config)
    common = settings.section(CommonSettings)
    path = receiver_settings(settings, common).socket
    environment = os.environ | {"FLIGHTWATCH": "1", "FLIGHTWATCH_SOCKET": os.path.abspath(path)}
    environment |= profiler_environment(settings, common)
    if arguments.job:
        environment["FLIGHTWATCH_JOB"] = arguments.job
    if arguments.attempt:
        environment["FLIGHTWATCH_RUN"] = arguments.attempt
    sys.stdout.flush()
    try:
        os.execvpe(command[0], command, environment)
    except OSError as error:
        raise ConfigError(f"{command[0]}: cannot be started: {error.strerror}") from error
