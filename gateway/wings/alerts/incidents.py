"""Alerts for operators besides quotas: an upstream fails, the store is away, the ledger is in doubt. Pure.

Each is open while its cause lasts. It is reported when the cause has lasted for a while, and its end when the cause has
been gone for a while, so that what comes and goes is reported once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from typing import Any, NamedTuple

from gateway.quota.windows import format_time
from gateway.upstream.status import UpstreamReport

from .forms import Notice
from .routing import Subject

LASTS_S: Mapping[str, float] = {"upstream": 60.0, "store": 60.0, "ledger": 0.0}
"""How long a cause lasts before it is reported, by kind."""
CALM_S = 120.0
"""How long it is gone before its end is reported."""
DOUBT_S = 3600.0
"""How long a doubt about the ledger lasts after the last event that caused it."""

LOST, IMPLAUSIBLE = "gateway_lost_changes_total", "gateway_usage_implausible_total"
TEXTS = {
    LOST: "Changes of keys, teams or quotas are lost: the store came back without them, and the gateway could not make "
    "all of them again. The log names each.",
    IMPLAUSIBLE: "An upstream reports usage that cannot be true. Such calls are charged up to a ceiling and marked as "
    "estimated. The log names upstream and model.",
}


class Cause(NamedTuple):
    """A fault, while it lasts and is not yet over."""

    kind: str
    subject: str
    since: float
    text: str

    @property
    def name(self) -> str:
        return f"{self.kind}/{self.subject}"


def of_upstreams(reports: Iterable[UpstreamReport], now: float) -> list[Cause]:
    """One for each upstream whose circuit is not closed."""
    return [
        Cause(
            "upstream", report.name, now - report.state_s,
            f"Upstream {report.name} fails ({(report.last_fault or 'unknown').replace('_', ' ')}): calls avoid it.",
        )
        for report in reports
        if report.state
    ]  # fmt: skip


def of_ledger(risen_at: Mapping[str, float], now: float) -> list[Cause]:
    """One for each metric that has risen lately; the values are Unix times."""
    return [Cause("ledger", name, at, TEXTS[name]) for name, at in risen_at.items() if now - at < DOUBT_S]


def of_store(since: float, namespace: str) -> Cause:
    """The store does not answer."""
    text = "The store does not answer. Nothing is lost: what ends is kept in the journal."
    return Cause("store", namespace, since, text)


def merged(causes: Iterable[Cause]) -> dict[str, Cause]:
    """Each by its name, with the earliest time at which one of the workers saw it."""
    found: dict[str, Cause] = {}
    for cause in causes:
        known = found.get(cause.name)
        found[cause.name] = cause if known is None or cause.since < known.since else known
    return found


def is_due(cause: Cause, now: float) -> bool:
    """Whether it has lasted long enough to be reported."""
    return now - cause.since >= LASTS_S[cause.kind]


def notice(cause: Cause, namespace: str, now: float, *, is_over: bool) -> Notice:
    """Returns the notice of a cause, or of its end."""
    text = f"It is over: {cause.text}" if is_over else cause.text
    facts: dict[str, Any] = {
        "text": escape(text, quote=False),
        "type": "incident",
        "state": "over" if is_over else "open",
        "kind": cause.kind,
        "subject": cause.subject,
        "since": None if is_over else format_time(int(cause.since * 1e6)),
        "gateway": namespace,
        "time": format_time(int(now * 1e6)),
    }
    return Notice(Subject(cause.kind), text, facts, cause.name, is_over)
