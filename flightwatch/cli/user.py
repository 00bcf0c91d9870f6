"""`flightwatch user`: people's roles, who is kept out, and their accounts on chat services."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from flightwatch.cli.access_records import AccessRecords, add_where, open_records
from flightwatch.cli.output import add_format
from flightwatch.core.clock import iso_utc
from flightwatch.core.errors import Refused
from flightwatch.core.vocabulary import ExitCode

if TYPE_CHECKING:
    from flightwatch.pipeline.control.people import Person

HELP = "People who may come in: roles, chat accounts, who is kept out."
EPILOG = (
    "example:\n"
    "  flightwatch user grant alice@example.com operator\n"
    "  flightwatch user grant bob@example.com viewer --tenant team-a\n"
    "  flightwatch user link alice@example.com slack U01ABCDEF\n"
    "  flightwatch user disable mallory@example.com"
)
SERVICES = ("slack", "feishu", "dingtalk", "discord", "telegram")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare arguments."""
    verbs = parser.add_subparsers(dest="verb", required=True)
    listed = verbs.add_parser("list", help="everybody, by name")
    add_format(listed)
    add_where(listed)
    for verb, text in (
        ("grant", "give a role"), ("withdraw", "take a role away that was given by hand"),
        ("disable", "keep out, with sessions and tokens"), ("enable", "let in again"),
        ("link", "say which account on a chat service is a person's"), ("unlink", "forget such an account"),
    ):  # fmt: skip
        one = verbs.add_parser(verb, help=text)
        if verb != "unlink":
            one.add_argument("subject", help="person, as the login names them")
        if verb == "grant":
            one.add_argument("role", choices=("viewer", "operator", "admin"), help="role")
        if verb in ("grant", "withdraw"):
            one.add_argument("--tenant", help="only for the jobs of this tenant (default: everywhere)")
        if verb in ("link", "unlink"):
            one.add_argument("service", choices=SERVICES, help="chat service")
            one.add_argument("account", help="the person's id there")
        add_format(one)
        add_where(one)


def run(arguments: argparse.Namespace) -> int:
    """Run the verb."""
    with open_records(arguments) as records:
        if arguments.verb == "list":
            people = records.people.all()
            for person in people:
                _print(person, arguments.format)
            if not people and arguments.format == "text":
                print("nobody", file=sys.stderr)
            return ExitCode.DONE
        _change(records, arguments)
        if arguments.verb == "unlink":
            return ExitCode.DONE
        person_now = records.people.get(arguments.subject)
        if person_now is None:
            raise Refused(f"nobody is called {arguments.subject}")
        _print(person_now, arguments.format)
    return ExitCode.DONE


def _change(records: AccessRecords, arguments: argparse.Namespace) -> None:
    from flightwatch.pipeline.control.roles import Grant, role_of

    verb, people = arguments.verb, records.people
    if verb == "grant":
        people.grant(arguments.subject, Grant(role_of(arguments.role), arguments.tenant), records.actor)
        records.done("person.grant", arguments.subject, f"{arguments.role} {arguments.tenant or 'everywhere'}")
    elif verb == "withdraw":
        people.withdraw(arguments.subject, arguments.tenant)
        records.done("person.withdraw", arguments.subject, arguments.tenant or "everywhere")
    elif verb in ("disable", "enable"):
        people.disable(arguments.subject, disabled=verb == "disable")
        if verb == "disable":
            records.sessions.close_all(arguments.subject)
        records.done(f"person.{verb}", arguments.subject)
    elif verb == "link":
        people.link(arguments.subject, arguments.service, arguments.account)
        records.done("person.link", arguments.subject, f"{arguments.service} {arguments.account}")
    else:
        people.unlink(arguments.service, arguments.account)
        records.done("person.unlink", arguments.account, arguments.service)


def _print(person: Person, form: str) -> None:
    grants = [{"role": grant.role.value, "tenant": grant.tenant} for grant in person.grants]
    if form == "json":
        print(json.dumps({
            "subject": person.subject, "name": person.name, "grants": grants, "disabled": person.disabled,
            "accounts": [{"service": service, "account": account} for service, account in person.accounts],
            "seen_at": iso_utc(person.seen_at_ms),
        }, ensure_ascii=False))  # fmt: skip
        return
    roles = ", ".join(f"{one['role']} {one['tenant'] or 'everywhere'}" for one in grants) or "no role"
    accounts = "".join(f"  {service}:{account}" for service, account in person.accounts)
    print(f"{person.subject}  {roles}{accounts}{'  kept out' if person.disabled else ''}")
