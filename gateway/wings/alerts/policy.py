"""The alert policy: an alert at each of some shares of a quota (80 % and 100 %), once for each window and limit.

Alerts cover the windows of a day, a week or a month. A rate refills by itself, and its level includes reservations of
running calls: alerts for rates would be noise. Only settled usage counts, not reservations; also a refused call counts
if the remainder after settled usage is too small for it. A higher level includes the lower ones: a lower alert is never
sent after the higher one.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from html import escape
from typing import Any, NamedTuple

from gateway.config import NUSD, Config, Quota
from gateway.quota.pricing import format_usd
from gateway.quota.scopes import member_of
from gateway.quota.window_status import row
from gateway.quota.windows import format_time
from gateway.records import Window, WindowStatus

LEVELS = (80, 100)
"""Levels in percent of the limit, where the file has no others."""

CENT = NUSD // 100

PAUSES_S = (1, 2, 4, 8, 15, 30, 60, 120, 120, 120, 120)
"""Seconds between the attempts at a webhook: twelve attempts over ten minutes."""

GIVE_UP_AFTER_S = 900.0
"""No attempt is made later than this after the first, even if a `Retry-After` asks for it."""


class Alert(NamedTuple):
    """A level that a window has reached."""

    level: int
    window_status: WindowStatus
    is_refused: bool = False
    """A call was refused, though the limit is not wholly used: what is left was too little for it."""

    @property
    def name(self) -> str:
        """The identity of an alert. It includes the limit: after a quota is raised, the new limit has its own alert."""
        window = self.window_status.window
        return f"{self.level}|{window.limit}|{window.id}"


def is_alerted(quota: Quota) -> bool:
    """Whether this quota has alerts."""
    return quota.per_s is None


def count_alerted(config: Config) -> int:
    """The number of configured quotas with alerts."""
    owners = [config.quotas, *[key.quotas for key in config.keys]]
    owners += [person.quotas for person in config.people.values()]
    owners += [quotas for team in config.teams.values() for quotas in (team.quotas, team.member_quotas)]
    return sum(is_alerted(quota) for quotas in owners for quota in quotas)


def reached(
    statuses: Iterable[WindowStatus], refused: Container[str], now_us: int, levels: Sequence[int] = LEVELS
) -> list[Alert]:
    """Those of the levels, in percent from the lowest, that these windows have reached, the lower one first.

    `refused` are the ids of windows on which a call was refused for good (`Refused.retry_after_us` is None). A window
    that is over at the Unix time `now_us` has no alert.
    """
    alerts = []
    for status in statuses:
        window = status.window
        if window.resets_us <= now_us:  # also what has no end, because it refills by itself
            continue
        is_refused = window.id in refused and status.used < window.limit
        alerts += [
            Alert(level, status, is_refused)
            for level in levels
            if is_refused or status.used * 100 >= level * window.limit
        ]
    return alerts


# -------------------------------------------------------------------------------------------------------- messages


def message(alert: Alert, now: float, namespace: str, team: str | None) -> dict[str, Any]:
    """An alert as it is posted at the Unix time `now`: one sentence, and the facts as `GET /v1/key` names them.

    `team` is the one that the key of the window is in, if any. Money in USD.
    """
    window = alert.window_status.window
    kind, _, name = window.scope.partition(":")
    return {
        "text": escape(sentence(alert), quote=False),  # links and mentions of Slack begin with `<`; clients choose tags
        "type": "quota_alert",
        "level": alert.level,
        "key": name if kind == "key" else None,
        "team": member_of(window.scope)[0] or team,
        "person": member_of(window.scope)[1],
        **row(alert.window_status, now),
        "enforced": is_enforced(window),
        "window": window.starts,
        "resets_at": format_time(window.resets_us),
        "gateway": namespace,
        "time": format_time(int(now * 1e6)),
    }


def sentence(alert: Alert) -> str:
    """An alert in one sentence for a person, or in two."""
    status, window = alert.window_status, alert.window_status.window
    used, limit = f"{status.used:,}", f"{window.limit:,}"
    if window.unit == "usd":
        step = 1 if window.limit % CENT else CENT  # rounded down, so that a level is never shown before it is reached
        used, limit = format_usd(status.used // step * step), format_usd(window.limit)
    unit = "" if window.unit == "usd" else f" {window.unit}"
    models = f" for models {window.model}" if window.model else ""
    why = ""
    if alert.is_refused:
        why = " counts as used, because a call was refused that needs more than is left"
    text = (
        f"{alert.level} % of a quota{why}: {_owner(window.scope)} used {used} of {limit}{unit}{models} in the "
        f"{window.per} {window.starts}. It starts anew at {format_time(window.resets_us)}."
    )
    return text if is_enforced(window) else f"{text} It is not enforced."


def _owner(scope: str) -> str:
    kind, _, name = scope.partition(":")
    team, person = member_of(scope)
    if team is not None and person is not None:
        return f"person {person} in team {team}"
    return f"{kind} {name}" if name else "the whole gateway"


def is_enforced(window: Window) -> bool:
    """Windows of teams and of the gateway are enforced for all keys except shadow keys."""
    return window.is_enforced or not window.scope.startswith(("key:", "person:"))


# ---------------------------------------------------------------------------------------------------------- the webhook


def next_pause_s(status: int | None, retry_after_s: float | None, attempts: int, elapsed_s: float) -> float | None:
    """Returns the seconds from a failed attempt at the webhook to the next one, or None if there is no further attempt.

    `status` is that of the answer, None if there was no answer; `attempts` have been made, the first `elapsed_s` ago. A
    status that blames the request (4xx except 429) or redirects it (3xx) is not tried again.
    """
    if status is not None and status != 429 and status < 500:
        return None
    if attempts > len(PAUSES_S):
        return None
    pause_s = max(PAUSES_S[attempts - 1], retry_after_s or 0.0)
    return pause_s if elapsed_s + pause_s <= GIVE_UP_AFTER_S else None
