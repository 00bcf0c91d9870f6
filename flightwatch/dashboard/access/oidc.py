"""Logging in at an OpenID Connect provider: authorization code with PKCE, state and nonce.

Every call to the provider goes through the one client for outgoing URLs. Keys and addresses of the provider are kept
for an hour and read again when a token is signed by an unknown key.
"""

from __future__ import annotations

import base64
import json
import secrets
import threading
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from authlib.oauth2.rfc6749.parameters import prepare_grant_uri
from authlib.oauth2.rfc7636 import create_s256_code_challenge
from authlib.oidc.core import CodeIDToken
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from flightwatch.core.clock import Clock, SystemClock
from flightwatch.core.errors import ConfigError, FlightwatchError, TransientError
from flightwatch.dashboard.access.denied import Denied
from flightwatch.dashboard.access.groups import grants_of_groups
from flightwatch.dashboard.access.settings import AccessSettings
from flightwatch.incidents.outgoing import Answer, Outgoing
from flightwatch.pipeline.control.roles import Grant
from flightwatch.pipeline.control.sessions import PendingLogin, Sessions

#: Signatures that providers use; "none" and shared secrets are not among them.
ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
_KEEP_SECONDS = 3_600.0
#: Clocks of provider and server may differ by so much.
LEEWAY_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Identity:
    """Who logged in.

    Attributes
    ----------
    grants: roles by groups; None: the provider says nothing about groups.
    """

    subject: str
    name: str
    grants: tuple[Grant, ...] | None


@dataclass(frozen=True, slots=True)
class _Provider:
    authorize: str
    token: str
    userinfo: str | None
    basic: bool
    keys: KeySet


class OidcLogin:
    """Sends people to the provider and recognises them when they come back. Thread-safe.

    Parameters
    ----------
    redirect_uri: where the provider sends people back to.
    """

    def __init__(
        self,
        settings: AccessSettings,
        sessions: Sessions,
        outgoing: Outgoing,
        redirect_uri: str,
        clock: Clock | None = None,
    ) -> None:
        self._settings, self._sessions, self._outgoing = settings, sessions, outgoing
        self._redirect_uri = redirect_uri
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._known: tuple[float, _Provider] | None = None

    def begin(self, next_path: str, browser: str) -> str:
        """Return the provider's address to which a browser is sent.

        Parameters
        ----------
        next_path: page to show afterwards. browser: random value that stands in the browser's cookie.

        Raises
        ------
        Denied: 503, the provider or the control database does not answer.
        """
        provider = self._provider()
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        self._sessions.begin_login(state, browser, PendingLogin(nonce, verifier, next_path))
        return str(
            prepare_grant_uri(
                provider.authorize,
                client_id=self._settings.oidc_client_id,
                response_type="code",
                redirect_uri=self._redirect_uri,
                scope=" ".join(self._settings.oidc_scopes),
                state=state,
                nonce=nonce,
                code_challenge=create_s256_code_challenge(verifier),
                code_challenge_method="S256",
            )
        )

    def finish(self, state: str, code: str, browser: str, issuer: str | None) -> tuple[Identity, str]:
        """Return who came back, and the page to show.

        Parameters
        ----------
        issuer: `iss` of the callback, where the provider sends it (RFC 9207).

        Raises
        ------
        Denied: 403 when anything does not fit, 503 when the provider does not answer.
        """
        pending = self._sessions.finish_login(state, browser)
        if pending is None:
            raise Denied(403, "forbidden", "this login is not known here or took too long: start again", "state")
        if issuer is not None and issuer.rstrip("/") != self._settings.oidc_issuer.rstrip("/"):
            raise Denied(403, "forbidden", "another identity provider answered", "iss")
        provider = self._provider()
        tokens = self._tokens(provider, code, pending.verifier)
        claims = self._claims(str(tokens.get("id_token") or ""), pending.nonce, tokens.get("access_token"))
        return self._identity(self._completed(claims, provider, tokens.get("access_token"))), pending.next_path

    def _tokens(self, provider: _Provider, code: str, verifier: str) -> dict[str, Any]:
        fields = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self._redirect_uri,
            "code_verifier": verifier,
        }
        headers = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
        secret = self._settings.oidc_client_secret
        if secret and provider.basic:
            pair = f"{quote(self._settings.oidc_client_id, safe='')}:{quote(secret, safe='')}"
            headers["Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
        else:
            fields["client_id"] = self._settings.oidc_client_id
            if secret:
                fields["client_secret"] = secret
        answer = self._call("POST", provider.token, content=urlencode(fields).encode(), headers=headers)
        found = answer.json()
        if answer.status >= 500:
            raise Denied(503, "unavailable", "the identity provider failed: try again", None, 5)
        if not answer.ok or not isinstance(found, dict):
            raise Denied(403, "forbidden", "the identity provider refused the login", "code")
        return found

    def _claims(self, id_token: str, nonce: str, access_token: Any) -> dict[str, Any]:
        try:
            token = self._decoded(id_token)
            claims = CodeIDToken(
                token.claims,
                token.header,
                {
                    "iss": {"essential": True, "value": self._provider_issuer()},
                    "aud": {"essential": True, "value": self._settings.oidc_client_id},
                },
                {"nonce": nonce, "client_id": self._settings.oidc_client_id, "access_token": access_token},
            )
            claims.validate(now=self._clock.now_ms() // 1000, leeway=LEEWAY_SECONDS)
        except (JoseError, ValueError, TypeError, KeyError) as error:
            raise Denied(403, "forbidden", "the identity provider's statement is not valid", "id_token") from error
        return dict(claims)

    def _decoded(self, id_token: str) -> jwt.Token:
        """Return the checked token; an unknown key is looked for once more: providers change keys."""
        try:
            return jwt.decode(id_token, self._provider().keys, algorithms=ALGORITHMS)
        except (JoseError, ValueError):
            with self._lock:
                self._known = None
            return jwt.decode(id_token, self._provider().keys, algorithms=ALGORITHMS)

    def _completed(self, claims: dict[str, Any], provider: _Provider, access_token: Any) -> dict[str, Any]:
        """Add what only the userinfo endpoint says."""
        wanted = (self._settings.oidc_user_claim, self._settings.oidc_groups_claim)
        if all(name in claims for name in wanted) or provider.userinfo is None or not isinstance(access_token, str):
            return claims
        answer = self._call("GET", provider.userinfo, headers={"Authorization": f"Bearer {access_token}"})
        more = answer.json()
        if not answer.ok or not isinstance(more, dict) or more.get("sub") != claims["sub"]:
            return claims
        return more | claims

    def _identity(self, claims: dict[str, Any]) -> Identity:
        claim = self._settings.oidc_user_claim
        subject = claims.get(claim)
        if not isinstance(subject, str) or not subject:
            raise Denied(403, "forbidden", f"the identity provider says no {claim} of you", claim)
        if claim == "email":
            # Where anybody can write any address into an account, an unproven one is somebody else's name.
            if claims.get("email_verified", True) in (False, "false"):
                raise Denied(403, "forbidden", "the identity provider has not verified your e-mail address", claim)
            subject = subject.lower()
        groups = claims.get(self._settings.oidc_groups_claim)
        held = None
        if isinstance(groups, (list, str)):
            held = grants_of_groups(self._settings, [groups] if isinstance(groups, str) else map(str, groups))
        name = claims.get("name") or claims.get("preferred_username") or subject
        return Identity(subject, str(name), held)

    def _provider_issuer(self) -> str:
        return self._settings.oidc_issuer

    def _provider(self) -> _Provider:
        with self._lock:
            if self._known is not None and self._clock.monotonic_s() < self._known[0]:
                return self._known[1]
            provider = self._discovered()
            self._known = (self._clock.monotonic_s() + _KEEP_SECONDS, provider)
            return provider

    def _discovered(self) -> _Provider:
        issuer = self._settings.oidc_issuer
        document = self._json(f"{issuer.rstrip('/')}/.well-known/openid-configuration")
        if document.get("issuer") != issuer:
            raise Denied(503, "unavailable", "the identity provider calls itself otherwise than access.oidc_issuer")
        try:
            keys = KeySet.import_key_set({"keys": _signing(self._json(str(document["jwks_uri"])))})
            methods = document.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
            return _Provider(
                authorize=str(document["authorization_endpoint"]),
                token=str(document["token_endpoint"]),
                userinfo=document.get("userinfo_endpoint"),
                basic="client_secret_basic" in methods,
                keys=keys,
            )
        except (KeyError, TypeError, ValueError, JoseError) as error:
            raise Denied(503, "unavailable", "the identity provider's configuration cannot be read") from error

    def _json(self, url: str) -> dict[str, Any]:
        answer = self._call("GET", url)
        try:
            found = json.loads(answer.content)
        except (ValueError, RecursionError):
            found = None
        if not answer.ok or not isinstance(found, dict):
            raise Denied(503, "unavailable", "the identity provider does not answer as expected: try again", None, 5)
        return found

    def _call(self, method: str, url: str, **more: Any) -> Answer:
        try:
            return self._outgoing.request(method, url, **more)
        except (TransientError, ConfigError, FlightwatchError) as error:
            raise Denied(503, "unavailable", f"the identity provider cannot be asked: {error}", None, 5) from error


def _signing(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Return keys for signatures, of kinds that are known; a provider may have others beside them."""
    kinds = ("RSA", "EC", "OKP")
    return [key for key in document["keys"] if key.get("use", "sig") == "sig" and key.get("kty") in kinds]
