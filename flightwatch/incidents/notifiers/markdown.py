"""Messages as plain Markdown, for services that read it."""

from __future__ import annotations

import re

from flightwatch.incidents.contract import Alert
from flightwatch.incidents.notifiers.base import link_label

_MARKUP = re.compile(r"([\\`*_\[\]<>#~|])")


def escaped(text: str) -> str:
    """Escape what Markdown reads as markup."""
    return _MARKUP.sub(r"\\\1", text)


def message_body(alert: Alert, newline: str = "\n") -> str:
    """Return the lead, the facts as a list, and the link."""
    lines = [escaped(line) for line in alert.lead.splitlines()]
    parts = [newline.join(lines)]
    if alert.facts:
        parts.append("\n".join(f"- **{escaped(label)}**: {escaped(value)}" for label, value in alert.facts))
    if alert.link:
        parts.append(f"[{link_label(alert)}]({alert.link})")
    return "\n\n".join(parts)
