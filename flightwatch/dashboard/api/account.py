"""Who am I; API tokens; people and their roles; the audit log."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Query
from pydantic import BaseModel, Field

from flightwatch.core.errors import ConfigError, NotFound
from flightwatch.dashboard.access.denied import Denied
from flightwatch.dashboard.access.viewer import Viewer
from flightwatch.dashboard.api.documents import details_model, document_of, model_of, page_model, page_of
from flightwatch.dashboard.api.inputs import Cursor, Id, Limit, Sentence, Word, cursor_of, parse_cursor
from flightwatch.dashboard.api.parts import Parts
from flightwatch.dashboard.api.routes import Asker, Routes, check_tenant
from flightwatch.pipeline.control.audit import AuditEntry
from flightwatch.pipeline.control.people import Person
from flightwatch.pipeline.control.roles import Grant, Role, within
from flightwatch.pipeline.control.tokens import Token

GrantModel = model_of(Grant)
TokenModel = model_of(Token)
TokenList = details_model("TokenList", "Tokens, the newest first.", {}, {"items": TokenModel})
PersonModel = model_of(Person)
PersonList = details_model("PersonList", "People by subject.", {}, {"items": PersonModel})
AuditPage = page_model(model_of(AuditEntry), "AuditPage")
Scope = Literal["read", "sql", "write", "admin", "metrics", "alerts"]


class Me(BaseModel):
    """Who you are here, and what a browser must send back in X-CSRFToken with every write."""

    subject: str
    name: str
    role: str
    grants: list[GrantModel]  # type: ignore[valid-type]
    via: str
    scopes: list[str] | None
    csrf: str


class NewGrant(BaseModel):
    """A role, everywhere or for the jobs of one tenant."""

    role: Role
    tenant: Word | None = None


class NewToken(BaseModel):
    """A token of your own: it may do no more than you. Without `grants`: what you may."""

    name: Word
    scopes: list[Scope] = Field(["read"], min_length=1, max_length=6)
    grants: list[NewGrant] = Field([], max_length=50)
    days: int = Field(90, ge=1, le=3650)


class MadeToken(BaseModel):
    """A new token and its text, which is shown this once."""

    token: TokenModel  # type: ignore[valid-type]
    secret: str


class NewAccount(BaseModel):
    """An account on a chat service whose buttons act for a person."""

    service: Literal["slack", "feishu", "dingtalk", "discord", "telegram"]
    account: Word


class Disabled(BaseModel):
    """Whether a person is kept out."""

    disabled: bool
    reason: Sentence | None = None


def routes(parts: Parts) -> Routes:
    """Build the routes `/me`, `/tokens`, `/people`, `/audit`."""
    api = Routes("access")

    @api.get("/me", Role.VIEWER, response_model=Me)
    def get_me(viewer: Asker) -> dict[str, Any]:
        """Say who you are here."""
        return {
            "subject": viewer.subject, "name": viewer.name, "role": viewer.role.value, "via": viewer.via,
            "grants": [document_of(grant) for grant in viewer.grants], "csrf": viewer.csrf,
            "scopes": None if viewer.scopes is None else sorted(viewer.scopes),
        }  # fmt: skip

    _tokens(api, parts)
    _people(api, parts)

    @api.get("/audit", Role.ADMIN, "admin", response_model=AuditPage)
    def list_audit(
        viewer: Asker,
        actor: Annotated[Word | None, Query()] = None,
        action: Annotated[Word | None, Query()] = None,
        ok: Annotated[bool | None, Query(description="done, or denied and failed")] = None,
        cursor: Cursor | None = None,
        limit: Limit = 100,
    ) -> dict[str, Any]:
        """List writes and denied attempts of the last days, the newest first."""
        check_tenant(viewer, Role.ADMIN, None)
        before = parse_cursor(cursor, int)
        found = parts.audit.page(
            before=None if before is None else before[0], limit=limit + 1, actor=actor, action=action, ok=ok
        )
        following = cursor_of(found[limit - 1].sequence) if len(found) > limit else None
        return page_of(map(document_of, found[:limit]), following)

    return api


def _tokens(api: Routes, parts: Parts) -> None:
    @api.get("/tokens", Role.VIEWER, "admin", response_model=TokenList)
    def list_tokens(viewer: Asker) -> dict[str, Any]:
        """List your tokens; administrators see everybody's."""
        owner = None if viewer.may(Role.ADMIN) else viewer.subject
        return {"items": [document_of(token) for token in parts.tokens.all(owner)]}

    @api.post("/tokens", Role.VIEWER, "admin", status_code=201, response_model=MadeToken)
    def create_token(viewer: Asker, new: NewToken) -> dict[str, Any]:
        """Make a token."""
        if viewer.via in ("local", "anonymous") and not viewer.may(Role.ADMIN):
            raise Denied(403, "forbidden", "log in first: a token belongs to somebody")
        longest = parts.access.settings.token_days
        if new.days > longest:
            raise ConfigError(f"a token lives at most {longest} days here (access.token_days)")
        asked = [Grant(one.role, one.tenant) for one in new.grants] or list(viewer.grants)
        grants = within(asked, viewer.grants)
        if set(grants) != set(within(asked, asked)):
            raise Denied(403, "forbidden", "a token may do no more than who makes it", "grants")
        token, secret = parts.tokens.create(new.name, viewer.subject, grants, new.scopes, new.days)
        parts.done(viewer, "token.create", token.name, f"{token.id}: {' '.join(sorted(token.scopes))}")
        return {"token": document_of(token), "secret": secret}

    @api.delete("/tokens/{id}", Role.VIEWER, "admin", response_model=TokenModel)
    def revoke_token(viewer: Asker, id: Id) -> dict[str, Any]:  # noqa: A002 - the name in the path
        """End a token now: your own, or as an administrator any."""
        found = parts.tokens.get(id)
        if found is None or not (viewer.may(Role.ADMIN) or found.owner == viewer.subject):
            raise NotFound(f"there is no token {id}")
        token = parts.tokens.revoke(id)
        parts.access.forget()
        parts.done(viewer, "token.revoke", token.name, token.id)
        return document_of(token)


def _people(api: Routes, parts: Parts) -> None:
    def changed(viewer: Viewer, action: str, subject: str, detail: str) -> dict[str, Any]:
        parts.access.forget()
        parts.done(viewer, action, subject, detail)
        person = parts.people.get(subject)
        if person is None:
            raise NotFound(f"nobody is called {subject}")
        return document_of(person)

    @api.get("/people", Role.ADMIN, "admin", response_model=PersonList)
    def list_people(viewer: Asker) -> dict[str, Any]:
        """List everybody who may come in, or once did."""
        check_tenant(viewer, Role.ADMIN, None)
        return {"items": [document_of(person) for person in parts.people.all()]}

    @api.put("/people/{id}/grants", Role.ADMIN, "admin", response_model=PersonModel)
    def grant_role(viewer: Asker, id: Id, new: NewGrant) -> dict[str, Any]:  # noqa: A002
        """Give a person a role; it replaces the one given by hand before."""
        check_tenant(viewer, Role.ADMIN, None)
        parts.people.grant(id, Grant(new.role, new.tenant), viewer.subject)
        return changed(viewer, "person.grant", id, f"{new.role.value} {new.tenant or 'everywhere'}")

    @api.delete("/people/{id}/grants", Role.ADMIN, "admin", response_model=PersonModel)
    def withdraw_role(
        viewer: Asker,
        id: Id,  # noqa: A002
        tenant: Annotated[Word | None, Query(description="absent: the role held everywhere")] = None,
    ) -> dict[str, Any]:
        """Take a role away that was given by hand."""
        check_tenant(viewer, Role.ADMIN, None)
        parts.people.withdraw(id, tenant)
        return changed(viewer, "person.withdraw", id, tenant or "everywhere")

    @api.put("/people/{id}/disabled", Role.ADMIN, "admin", response_model=PersonModel)
    def disable_person(viewer: Asker, id: Id, wanted: Disabled) -> dict[str, Any]:  # noqa: A002
        """Keep a person out, with sessions and tokens, or let them in again."""
        check_tenant(viewer, Role.ADMIN, None)
        parts.people.disable(id, disabled=wanted.disabled)
        return changed(viewer, "person.disable" if wanted.disabled else "person.enable", id, wanted.reason or "")

    @api.put("/people/{id}/accounts", Role.ADMIN, "admin", response_model=PersonModel)
    def link_account(viewer: Asker, id: Id, new: NewAccount) -> dict[str, Any]:  # noqa: A002
        """Say which account on a chat service is a person's."""
        check_tenant(viewer, Role.ADMIN, None)
        parts.people.link(id, new.service, new.account)
        return changed(viewer, "person.link", id, f"{new.service} {new.account}")
