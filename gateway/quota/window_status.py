"""Rows of limits for display: to a key its own, to an operator all. One row per window."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from gateway.records import Key, Unit, Window, WindowStatus

from .pricing import usd
from .scopes import is_of_label, member_of
from .windows import LimitTable, format_time


class Owned(NamedTuple):
    """A window and its owner: a key (and the team it is in), a team, a person (of a team, or with all her keys), or
    none of them: the whole gateway."""

    window: Window
    key: str | None = None
    team: str | None = None
    person: str | None = None


def shared_windows(terms: LimitTable, now: float) -> Iterator[Owned]:
    """Those of the gateway, of upstreams and of every team, which are enforced for everyone but shadow keys."""
    yield from (Owned(limit.window(now)) for limits in terms.of_upstreams.values() for limit in limits)
    # Without an own limit, the limits of the team and of the gateway apply.
    yield from (Owned(term.window(now)) for term in terms.of(Key("")))
    for name in terms.teams:
        for term in terms.of(Key("", team=name)):
            if term.scope != "gateway":
                yield Owned(term.window(now), team=name)
    yield from (Owned(limit.window(now), team=team) for team, limit in terms.of_labels(now))


def own_windows(terms: LimitTable, keys: Iterable[Key], now: float, seen: set[str] | None = None) -> Iterator[Owned]:
    """Those of these keys, and those of their owners and labels, each once: but for the ones that were `seen`, to which
    they are added."""
    seen = set() if seen is None else seen
    for key in keys:
        for owned in binding_windows(terms, key, now):
            if owned.key is not None:
                yield owned
            elif (owned.person is not None or is_of_label(owned.window.scope)) and owned.window.id not in seen:
                seen.add(owned.window.id)
                yield owned


def binding_windows(terms: LimitTable, key: Key, now: float) -> Iterator[Owned]:
    """Those of a key, of its owner, of its team and of the gateway."""
    for term in terms.of(key):
        is_own = term.scope.startswith("key:")
        yield Owned(term.window(now), *((key.id, key.team) if is_own else (None, *member_of(term.scope))))


def row(status: WindowStatus, now: float) -> dict[str, Any]:
    """The state of a window at the Unix time `now`. Money in USD, all else in units.

    `reset_at` is when the whole limit will be free again, in UTC; None where there is nothing to wait for.
    """
    window = status.window
    return {
        "scope": window.scope,
        "unit": window.unit,
        "per": window.per or None,
        "model": window.model,
        "limit": shown_amount(window.unit, window.limit),
        "used": shown_amount(window.unit, status.used),
        "reserved": shown_amount(window.unit, status.reserved),
        "remaining": shown_amount(window.unit, status.remaining),
        "reset_s": round(status.reset_us / 1e6, 3),
        "reset_at": format_time(window.resets_us or int(now * 1e6) + status.reset_us) if status.reset_us else None,
        "enforced": window.is_enforced,
    }


def shown_amount(unit: Unit, amount: int) -> int | float:
    """An amount of a window as it is shown: money in USD."""
    return usd(amount) if unit == "usd" else amount
