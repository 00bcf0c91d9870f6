"""`flightwatch status`: what runs, lag, rows per second, last row per table, disk, coverage."""

from __future__ import annotations

import argparse
import json
from typing import Any

from flightwatch.cli.common_settings import CommonSettings
from flightwatch.cli.local_client import LocalClient
from flightwatch.cli.sections import load_agent_settings
from flightwatch.core.vocabulary import ExitCode

HELP = "Show what the running instance does: parts, lag, rows per second, last row per table, disk, coverage."
EPILOG = "example:\n  flightwatch status\n  flightwatch status --format json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare arguments."""
    parser.add_argument("--config", help="configuration file (default: FLIGHTWATCH_CONFIG or /etc/flightwatch)")
    parser.add_argument("--data-dir", help="data folder of the instance (default: flightwatch.data_dir)")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="default: text")


def run(arguments: argparse.Namespace) -> int:
    """Ask the instance and print."""
    common = load_agent_settings(arguments.config).section(CommonSettings)
    status = LocalClient(arguments.data_dir or common.data_dir).get_json("/status")
    print(json.dumps(status, indent=2, ensure_ascii=False) if arguments.format == "json" else status_text(status))
    return ExitCode.DONE


def status_text(status: dict[str, Any]) -> str:
    """Render a status for a terminal; unknown values say so."""
    cover, disk = status["coverage"], status["disk"]
    parts = ", ".join(f"{name} {state}" for name, state in status["components"].items())
    nodes = f"{cover['nodes_reporting']} of {cover['nodes_known']} known nodes"
    where = disk["path"] or "on servers"
    lines = [
        f"Flightwatch {status['version']}, cluster {status['cluster']}, up {_age(status['uptime_seconds'])}",
        f"parts     {parts}",
        f"rows      {status['rows_per_second']:.1f} per second; newest {_age(status['newest_row_age_seconds'])} old",
        f"behind    {_age(status['lag_seconds'])}{_share(status['retention_share'])}",
        f"coverage  {nodes}, {cover['devices_reporting']} accelerators in the last minute",
        f"holes     {status['data_gaps_24h']} batches missing, {status['dead_letters_24h']} records put aside, 24 h",
        f"disk      {_size(disk['used_bytes'])} used, {_size(disk['free_bytes'])} free ({where})",
        "",
        f"{'table':20} {'rows/s':>9} {'newest row':>12}",
    ]
    for table in sorted(status["tables"], key=lambda row: row["table"]):
        if table["age_seconds"] is not None:
            lines.append(f"{table['table']:20} {table['rows_per_second']:>9.2f} {_age(table['age_seconds']):>8} ago")
    silent = [row["table"] for row in status["tables"] if row["age_seconds"] is None]
    if silent:
        lines.append(f"no row in the last hour: {', '.join(sorted(silent))}")
    lines += [f"! {notice}" for notice in status["notices"]]
    return "\n".join(lines)


def _age(seconds: float | None) -> str:
    if seconds is None:
        return "unknown"
    for limit, divisor, unit in ((60, 1, "s"), (3600, 60, "min"), (86400, 3600, "h")):
        if seconds < limit:
            return f"{seconds / divisor:.1f} {unit}"
    return f"{seconds / 86400:.1f} d"


def _share(share: float | None) -> str:
    return "" if share is None else f", {share:.1%} of the time that the bus keeps rows"


def _size(count: float | None) -> str:
    if count is None:
        return "unknown"
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
