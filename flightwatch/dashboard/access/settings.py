"""The section `[access]`: who may come in."""

from __future__ import annotations

from dataclasses import dataclass

from flightwatch.core.settings import setting


@dataclass(frozen=True)
class AccessSettings:
    """Authentication, sessions and limits. Without OIDC, a proxy or `required` there is no login, on loopback only."""

    required: bool = setting(
        False, "everyone needs a login or a token, on loopback too; OIDC and a proxy header turn it on by themselves"
    )
    public_url: str = setting(
        "", "address that people type (https://flightwatch.example.com); needed for OIDC, other Host names are refused"
    )
    oidc_issuer: str = setting("", "OpenID Connect issuer, without /.well-known/openid-configuration")
    oidc_client_id: str = setting("", "client id at the issuer")
    oidc_client_secret: str = setting("", "client secret at the issuer", secret=True)
    oidc_scopes: tuple[str, ...] = setting(("openid", "profile", "email"), "scopes asked for")
    oidc_user_claim: str = setting("email", "claim that names a person here and in the audit log")
    oidc_groups_claim: str = setting("groups", "claim with the groups of a person")
    viewer_groups: tuple[str, ...] = setting((), "groups whose members are viewers; GROUP=TENANT: for one tenant")
    operator_groups: tuple[str, ...] = setting((), "groups whose members are operators; GROUP=TENANT: for one tenant")
    admin_groups: tuple[str, ...] = setting((), "groups whose members are admins")
    default_role: str = setting("", "role of a person who logs in and has none; empty: refused")
    proxy_addresses: tuple[str, ...] = setting(
        (), "addresses or networks of proxies whose X-Forwarded-For, -Proto and user header are believed"
    )
    proxy_user_header: str = setting("", "header in which such a proxy names the person, e.g. X-Forwarded-User")
    proxy_groups_header: str = setting("", "header in which such a proxy lists the person's groups, comma-separated")
    session_hours: int = setting(12, "a browser session ends after so many hours", minimum=1)
    token_days: int = setting(365, "longest life of an API token", minimum=1)
    requests_per_second: int = setting(
        50, "API requests of one person or token, sustained; each process counts its own", minimum=1
    )
    writes_per_minute: int = setting(
        120, "API writes of one person or token, sustained; each process counts its own", minimum=1
    )
    slack_signing_secret: str = setting("", "signing secret of the Slack app whose buttons are obeyed", secret=True)
    discord_public_key: str = setting("", "public key of the Discord application whose buttons are obeyed")
    telegram_secret_token: str = setting("", "secret_token given to Telegram's setWebhook", secret=True)
    feishu_encrypt_key: str = setting("", "encrypt key of the Feishu/Lark app whose buttons are obeyed", secret=True)
    dingtalk_app_secret: str = setting("", "app secret of the DingTalk robot whose buttons are obeyed", secret=True)

    @property
    def login_required(self) -> bool:
        """Whether a request without a known person or token is refused."""
        return self.required or bool(self.oidc_issuer) or bool(self.proxy_user_header)
