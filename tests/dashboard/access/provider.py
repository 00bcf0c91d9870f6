"""A small OpenID Connect provider on loopback, strict where it matters: PKCE, redirect URI, one use of a code."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import RSAKey

CLIENT_ID, CLIENT_SECRET = "flightwatch", "s3cret"


class Provider:
    """The provider. What it says about the person and what it does wrong can be changed between logins.

    Attributes
    ----------
    claims: of the person. spoil: claims that replace correct ones in the id token. userinfo: of the endpoint.
    algorithm: "none" for an unsigned token. broken: every answer is 500.
    forge: sign with a key that is not the one shown, under its name.
    """

    def __init__(self, redirect_uri: str) -> None:
        self.redirect_uri = redirect_uri
        self.claims: dict[str, Any] = {
            "sub": "u-1", "email": "Alice@example.com", "email_verified": True, "name": "Alice", "groups": ["sre"],
        }  # fmt: skip
        self.spoil: dict[str, Any] = {}
        self.userinfo: dict[str, Any] = {}
        self.algorithm, self.broken, self.forge = "RS256", False, False
        self.key = RSAKey.generate_key(2048, {"kid": "k1", "use": "sig"})
        self.now_s = 1_795_990_000
        self._codes: dict[str, dict[str, str]] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.port = self._server.server_port
        self.issuer = f"http://127.0.0.1:{self.port}/realm"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(300)

    def rotate(self) -> None:
        """Sign with another key from now on."""
        self.key = RSAKey.generate_key(2048, {"kid": "k2", "use": "sig"})

    def authorize(self, url: str) -> dict[str, str]:
        """Do what a person does there: log in; return the query that comes back to the redirect URI."""
        query = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
        assert query["client_id"] == CLIENT_ID
        assert query["redirect_uri"] == self.redirect_uri
        assert query["response_type"] == "code"
        assert query["code_challenge_method"] == "S256"
        assert "openid" in query["scope"].split()
        code = secrets.token_urlsafe(16)
        self._codes[code] = query
        return {"code": code, "state": query["state"], "iss": self.issuer}

    def _document(self) -> dict[str, Any]:
        return {
            "issuer": self.issuer, "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token", "jwks_uri": f"{self.issuer}/keys",
            "userinfo_endpoint": f"{self.issuer}/userinfo",
        }  # fmt: skip

    def _token(self, form: dict[str, str], authorization: str) -> tuple[int, dict[str, Any]]:
        asked = self._codes.pop(form.get("code", ""), None)
        expected = "Basic " + base64.b64encode(f"{CLIENT_ID}:{CLIENT_SECRET}".encode()).decode()
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).decode().rstrip("=")
        if asked is None or authorization != expected or form.get("redirect_uri") != self.redirect_uri:
            return 400, {"error": "invalid_grant"}
        if challenge != asked["code_challenge"]:
            return 400, {"error": "invalid_grant"}
        claims = {
            "iss": self.issuer, "aud": CLIENT_ID, "iat": self.now_s, "exp": self.now_s + 300, "nonce": asked["nonce"],
        }  # fmt: skip
        claims |= self.claims | self.spoil
        if self.algorithm == "none":
            parts = [{"alg": "none"}, claims]
            text = ".".join(base64.urlsafe_b64encode(json.dumps(p).encode()).decode().rstrip("=") for p in parts) + "."
        else:
            key = RSAKey.generate_key(2048, {"kid": "k1"}) if self.forge else self.key
            text = jwt.encode({"alg": self.algorithm, "kid": self.key.kid}, claims, key)
        return 200, {"access_token": "at", "token_type": "Bearer", "id_token": text}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                known = {
                    "/realm/.well-known/openid-configuration": provider._document,
                    "/realm/keys": lambda: {"keys": [provider.key.as_dict(private=False)]},
                    "/realm/userinfo": lambda: provider.userinfo,
                }
                make: Callable[[], Any] | None = known.get(self.path)
                self._send(404 if make is None else 200, {} if make is None else make())

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                form = {name: values[0] for name, values in parse_qs(body).items()}
                self._send(*provider._token(form, self.headers.get("Authorization", "")))

            def _send(self, status: int, document: Any) -> None:
                content = json.dumps(document).encode()
                self.send_response(500 if provider.broken else status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: Any) -> None:
                return

        return Handler


def callback(query: dict[str, str]) -> str:
    """Return the address to which the provider sends a browser back."""
    return f"/login/callback?{urlencode(query)}"
