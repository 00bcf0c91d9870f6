"""The login page: plain HTML, in English and Simplified Chinese, light and dark."""

from __future__ import annotations

from html import escape
from urllib.parse import quote

WORDS = {
    "en": {
        "title": "Sign in",
        "lead": "Observability for AI-training clusters",
        "oidc": "Sign in with your organisation",
        "token": "API token",
        "use": "Sign in with a token",
        "or": "or",
        "as": "Signed in as",
        "out": "Sign out",
        "console": "Open the console",
        "other": "中文",
    },
    "zh": {
        "title": "登录",
        "lead": "大规模训练集群的可观测平台",
        "oidc": "使用组织账号登录",
        "token": "API 令牌",
        "use": "使用令牌登录",
        "or": "或",
        "as": "当前登录身份",
        "out": "退出登录",
        "console": "打开控制台",
        "other": "English",
    },
}

STYLE = """
:root { color-scheme: light dark; --back: #f5f6f8; --card: #ffffff; --text: #16181d; --dim: #5c6470; --line: #d5d9e0;
  --accent: #1668c7; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --back: #0f1216; --card: #171b21; --text: #e8eaee; --dim: #9aa3b0;
  --line: #303743; --accent: #6cb2ff; --bad: #ff8a80; } }
* { box-sizing: border-box; }
body { margin: 0; min-height: 100vh; display: grid; place-items: center; background: var(--back); color: var(--text);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", "Noto Sans CJK SC", "PingFang SC", sans-serif; }
main { width: min(360px, calc(100vw - 32px)); padding: 32px 28px; background: var(--card);
  border: 1px solid var(--line); border-radius: 10px; }
h1 { margin: 0; font-size: 20px; font-weight: 650; letter-spacing: -0.01em; }
.lead { margin: 2px 0 24px; color: var(--dim); }
.error { margin: 0 0 16px; padding: 8px 12px; border-left: 3px solid var(--bad); color: var(--bad); }
.button, button { display: block; width: 100%; padding: 10px 12px; border: 1px solid var(--accent); border-radius: 6px;
  background: var(--accent); color: var(--card); font: inherit; font-weight: 600; text-align: center;
  text-decoration: none; cursor: pointer; }
.button:hover, button:hover { filter: brightness(1.08); }
button.second { background: transparent; color: var(--accent); }
label { display: block; margin: 0 0 4px; color: var(--dim); }
input { width: 100%; margin: 0 0 10px; padding: 9px 10px; border: 1px solid var(--line); border-radius: 6px;
  background: transparent; color: inherit; font: 14px ui-monospace, monospace; }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
.or { margin: 16px 0; color: var(--dim); text-align: center; }
footer { margin-top: 20px; font-size: 13px; text-align: right; } footer a { color: var(--dim); }
""".lstrip()

#: Sends the CSRF token with the logout: a link or a foreign form cannot.
_SIGN_OUT = (
    "fetch(this.dataset.url,{method:'POST',headers:{'X-CSRFToken':this.dataset.csrf}})"
    ".then(function(answer){location.href=answer.ok?answer.url:location.href})"
)


def language_of(chosen: str | None, remembered: str | None, accept: str) -> str:
    """Return "zh" or "en": what was chosen now or before, else what the browser asks for first."""
    for language in (chosen, remembered):
        if language in WORDS:
            return str(language)
    return "zh" if accept.strip().lower().startswith("zh") else "en"


def login_page(language: str, prefix: str, next_path: str, *, oidc: bool, error: str = "") -> str:
    """Return the page with the ways in that are set up."""
    words = WORDS[language]
    target = quote(next_path, safe="")
    parts = []
    if error:
        parts.append(f'<p class="error" role="alert">{escape(error)}</p>')
    if oidc:
        parts.append(f'<a class="button" href="{escape(prefix)}/login/start?next={target}">{words["oidc"]}</a>')
        parts.append(f'<p class="or">{words["or"]}</p>')
    kind = ' class="second"' if oidc else ""
    parts.append(
        f'<form method="post" action="{escape(prefix)}/login/token">'
        f'<input type="hidden" name="next" value="{escape(next_path)}">'
        f'<label for="token">{words["token"]}</label>'
        '<input id="token" name="token" type="password" autocomplete="off" spellcheck="false" required>'
        f"<button{kind}>{words['use']}</button></form>"
    )
    return _document(language, prefix, f"/login?next={target}&", "\n".join(parts))


def account_page(language: str, prefix: str, name: str, csrf: str) -> str:
    """Return the page that says who is signed in and offers to sign out."""
    words = WORDS[language]
    body = (
        f"<p>{words['as']} <strong>{escape(name)}</strong></p>"
        f'<p><a class="button" href="{escape(prefix)}/">{words["console"]}</a></p>'
        f'<button class="second" data-url="{escape(prefix)}/logout" data-csrf="{escape(csrf)}"'
        f' onclick="{_SIGN_OUT}">{words["out"]}</button>'
    )
    return _document(language, prefix, "/logout?", body)


def _document(language: str, prefix: str, here: str, body: str) -> str:
    words = WORDS[language]
    other, tag = ("zh", "en") if language == "en" else ("en", "zh-CN")
    return (
        f'<!doctype html><html lang="{tag}"><head><meta charset="utf-8"><title>{words["title"]} · Flightwatch</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="robots" content="noindex">'
        f'<link rel="icon" href="data:,"><link rel="stylesheet" href="{escape(prefix)}/login/style.css"></head>'
        f'<body><main><h1>Flightwatch</h1><p class="lead">{words["lead"]}</p>{body}'
        f'<footer><a href="{escape(prefix)}{escape(here)}lang={other}" lang="{other}">{words["other"]}</a></footer>'
        "</main></body></html>"
    )
