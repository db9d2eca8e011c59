"""The JSON of a notice in the form of each receiver. Pure.

Sources: Slack, docs.slack.dev (text objects, formatting of messages); Mattermost, docs.mattermost.com (incoming
webhooks); Teams, learn.microsoft.com (webhooks of Workflows take a message with Adaptive Cards); PagerDuty,
github.com/PagerDuty/api-schema (Events API v2: fields, and which answers are tried again).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import sha256
from html import escape
from typing import Any, NamedTuple

from .routing import Subject, addresses_of
from .settings import AlertReceiver

MAX_TEXT = 3000
"""Characters of a text in Slack; other receivers take more."""
MAX_SUMMARY = 1024
"""Characters of `summary` at PagerDuty."""
MAX_DEDUP_KEY = 255
SHOWN = ("key", "team", "person", "label", "unit", "per", "used", "limit", "resets_at", "gateway")
"""The facts beside the sentence, in this order."""
SEVERITY = {"store": "critical", "upstream": "error", "ledger": "warning"}
"""PagerDuty's severity of incidents; a spent quota is a warning, a part of it only information."""


class Notice(NamedTuple):
    """A message for a receiver, without a form."""

    subject: Subject
    text: str
    """One or two sentences for a person."""
    facts: Mapping[str, Any]
    """The JSON for programs; its `text` is escaped as Slack wants it."""
    name: str
    """The same for the beginning and the end of one matter."""
    is_over: bool = False


def body_of(notice: Notice, receiver: AlertReceiver, addresses: Mapping[str, str]) -> dict[str, Any]:
    """The JSON to post; for e-mail the parts of the mail."""
    if receiver.email:
        return _mail(notice, addresses_of(receiver, notice.subject, addresses))
    match receiver.form:
        case "slack":
            return _slack(notice)
        case "mattermost":
            return {"text": _markdown(notice.text)}
        case "teams":
            return _teams(notice)
        case "pagerduty":
            assert receiver.routing_key is not None
            return _pagerduty(notice, receiver.routing_key.get_secret_value())
    return dict(notice.facts)


def _shown(notice: Notice) -> list[tuple[str, str]]:
    known = [(name.replace("_", " "), value) for name in SHOWN if (value := notice.facts.get(name)) is not None]
    return [(name, f"{value:.12g}" if isinstance(value, float) else str(value)) for name, value in known]


def _slack(notice: Notice) -> dict[str, Any]:
    """`text` is for the notification, the blocks for the channel. A mention begins with `<`, so a name makes none."""
    text = escape(notice.text[: MAX_TEXT // 5], quote=False)
    facts = ", ".join(f"{name}: {value}" for name, value in _shown(notice))[:MAX_TEXT]
    section = {"type": "section", "text": {"type": "mrkdwn", "text": text, "verbatim": True}}
    context = {"type": "context", "elements": [{"type": "plain_text", "text": facts, "emoji": False}]}
    return {"text": text, "blocks": [section, *([context] if facts else [])]}


def _markdown(text: str) -> str:
    """The text as it is, in Markdown: no link, no mention (`@all`), no picture of a name that others choose."""
    return re.sub(r"([\\`*_{}\[\]()#+!|~<>:])", r"\\\1", text).replace("@", "@\u200b")


def _teams(notice: Notice) -> dict[str, Any]:
    facts = [{"title": name, "value": _markdown(value)} for name, value in _shown(notice)]
    card = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": [
            {"type": "TextBlock", "text": _markdown(notice.text), "wrap": True},
            *([{"type": "FactSet", "facts": facts}] if facts else []),
        ],
    }
    attachment = {"contentType": "application/vnd.microsoft.card.adaptive", "contentUrl": None, "content": card}
    return {"type": "message", "attachments": [attachment]}


def _pagerduty(notice: Notice, routing_key: str) -> dict[str, Any]:
    gateway = str(notice.facts.get("gateway"))
    dedup_key = f"completions-gateway/{gateway}/{notice.name}"
    if len(dedup_key) > MAX_DEDUP_KEY:
        dedup_key = f"completions-gateway/{sha256(dedup_key.encode()).hexdigest()}"
    event = {"routing_key": routing_key, "dedup_key": dedup_key}
    if notice.is_over:
        return event | {"event_action": "resolve"}
    payload = {
        "summary": notice.text[:MAX_SUMMARY],
        "source": gateway,
        "severity": SEVERITY.get(notice.subject.kind, "warning" if notice.facts.get("level") == 100 else "info"),
        "component": "completions-gateway",
        "class": notice.subject.kind,
        "custom_details": dict(_shown(notice)),
    }
    return event | {"event_action": "trigger", "payload": payload}


def _mail(notice: Notice, to: list[str]) -> dict[str, Any]:
    facts = "".join(f"{name}: {value}\n" for name, value in _shown(notice))
    return {"to": to, "subject": notice.text.split(". ")[0].rstrip(".")[:200], "text": f"{notice.text}\n\n{facts}"}
