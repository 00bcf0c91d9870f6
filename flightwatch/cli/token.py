"""`flightwatch token create|list|revoke`: API tokens, kept hashed in the control database."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from flightwatch.cli.access_records import add_where, open_records
from flightwatch.cli.output import add_format, fitted
from flightwatch.core.clock import SystemClock, iso_utc
from flightwatch.core.errors import ConfigError
from flightwatch.core.vocabulary import ExitCode

if TYPE_CHECKING:
    from flightwatch.pipeline.control.tokens import Token

HELP = "API tokens for programs, with a role, scopes and an end."
EPILOG = (
    "example:\n"
    "  flightwatch token create ci --role viewer --scope read --scope sql --days 90\n"
    "  flightwatch token create team-a --role operator --tenant team-a --scope read --scope write\n"
    "  flightwatch token list\n"
    "  flightwatch token revoke 1f2e3d4c5b6a"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare arguments."""
    verbs = parser.add_subparsers(dest="verb", required=True)
    create = verbs.add_parser("create", help="make a token; its text is shown once, on standard output")
    create.add_argument("name", help="name in lists and in the audit log")
    create.add_argument("--role", choices=("viewer", "operator", "admin"), default="viewer", help="default: viewer")
    create.add_argument("--tenant", action="append", help="only for the jobs of this tenant (default: everywhere)")
    create.add_argument("--scope", action="append", choices=("read", "sql", "write", "admin", "metrics", "alerts"),
                        help="what it may be used for (default: read)")  # fmt: skip
    create.add_argument("--days", type=float, default=90.0, help="until it expires (default: 90)")
    listed = verbs.add_parser("list", help="all tokens, the newest first")
    add_format(listed)
    revoke = verbs.add_parser("revoke", help="end a token now")
    revoke.add_argument("id", help="id of the token (see list)")
    add_format(create)
    add_format(revoke)
    for one in (create, listed, revoke):
        add_where(one)


def run(arguments: argparse.Namespace) -> int:
    """Run the verb."""
    return {"create": _create, "list": _list, "revoke": _revoke}[arguments.verb](arguments)


def _create(arguments: argparse.Namespace) -> int:
    from flightwatch.pipeline.control.roles import Grant, role_of

    grants = [Grant(role_of(arguments.role), tenant) for tenant in arguments.tenant or [None]]
    if arguments.days > 3650:
        raise ConfigError("--days is at most 3650")
    with open_records(arguments) as records:
        token, secret = records.tokens.create(
            arguments.name, records.actor, grants, arguments.scope or ["read"], arguments.days
        )
        records.done("token.create", token.name, f"{token.id}: {' '.join(sorted(token.scopes))}")
    if arguments.format == "json":
        print(json.dumps(_row(token, SystemClock().now_ms()) | {"secret": secret}, ensure_ascii=False))
        return ExitCode.DONE
    print(secret)
    print(f"token {token.id} ({token.name}), until {iso_utc(token.expires_at_ms)}", file=sys.stderr)
    return ExitCode.DONE


def _list(arguments: argparse.Namespace) -> int:
    now_ms = SystemClock().now_ms()
    with open_records(arguments) as records:
        tokens = records.tokens.all()
    for token in tokens:
        row = _row(token, now_ms)
        print(json.dumps(row, ensure_ascii=False) if arguments.format == "json" else _line(row))
    if not tokens and arguments.format == "text":
        print("no token", file=sys.stderr)
    return ExitCode.DONE


def _row(token: Token, now_ms: int) -> dict[str, Any]:
    state = "revoked" if token.revoked_at_ms is not None else "expired" if token.expires_at_ms <= now_ms else "valid"
    return {
        "id": token.id, "name": token.name, "owner": token.owner, "state": state,
        "grants": [{"role": grant.role.value, "tenant": grant.tenant} for grant in token.grants],
        "scopes": sorted(token.scopes), "created_at": iso_utc(token.created_at_ms),
        "expires_at": iso_utc(token.expires_at_ms), "used_at": iso_utc(token.used_at_ms),
    }  # fmt: skip


def _line(row: Mapping[str, Any]) -> str:
    grants = ", ".join(f"{one['role']} {one['tenant'] or 'everywhere'}" for one in row["grants"])
    used = f"used {row['used_at']}" if row["used_at"] else "never used"
    return fitted(
        f"{row['id']}  {row['name']}  {row['state']}  {grants}  [{' '.join(row['scopes'])}]  until {row['expires_at']}"
        f"  {used}"
    )


def _revoke(arguments: argparse.Namespace) -> int:
    with open_records(arguments) as records:
        token = records.tokens.revoke(arguments.id)
        records.done("token.revoke", token.name, token.id)
    if arguments.format == "json":
        print(json.dumps(_row(token, SystemClock().now_ms()), ensure_ascii=False))
    else:
        print(f"token {token.id} ({token.name}) is revoked")
    return ExitCode.DONE
