"""The status of limits: each once, in its own unit, with a reset time that is never too early."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gateway.api import auth
from gateway.config import build
from gateway.quota import window_status
from gateway.quota.windows import LimitTable
from gateway.records import Key, WindowStatus

NOW = 1_795_226_400.25  # 2026-11-21T02:00:00.25Z


def config(**changes: Any) -> Any:
    plain = {
        "upstreams": {"up": {"base_url": "http://127.0.0.1:9/v1"}},
        "models": {"m": {"routes": [{"upstream": "up"}], "max_output_tokens": 10, "price": {"input": 1, "output": 2}}},
    }
    return build(plain | changes)


def key(name: str, **more: Any) -> dict[str, Any]:
    return {"id": name, "secret": f"secret-of-{name}-0123456789abcdef", **more}


def every_window(terms: LimitTable, keys: Iterable[Key], now: float) -> list[window_status.Owned]:
    return [*window_status.shared_windows(terms, now), *window_status.own_windows(terms, keys, now)]


DAILY = [{"requests": 10, "per": "day"}]


def owned(settings: Any) -> list[tuple[str, str | None, str | None, str]]:
    indexed = auth.index(settings.keys).values()
    found = every_window(LimitTable(settings.quotas, settings.teams, {}), indexed, NOW)
    return [(each.window.scope, each.key, each.team, f"{each.window.unit} {each.window.per}".strip()) for each in found]


def test_every_limit_stands_once_however_many_keys_share_it() -> None:
    crew = [key(f"k{number}", team="crew", quotas=DAILY, max_parallel=2) for number in range(3)]
    settings = config(
        quotas=[{"tokens": 100, "per": "month"}],
        teams={"crew": {"quotas": [{"usd": 5, "per": "day"}]}, "nobody": {"quotas": DAILY}, "free": {}},
        keys=[*crew, key("alone", quotas=[{"requests": 5, "per": 30, "model": "m*"}]), key("unbound")],
    )
    assert owned(settings) == [
        ("gateway", None, None, "tokens month"),
        ("team:crew", None, "crew", "usd day"),
        ("team:nobody", None, "nobody", "requests day"),
        ("key:k0", "k0", "crew", "requests day"),
        ("key:k0", "k0", "crew", "parallel"),
        ("key:k1", "k1", "crew", "requests day"),
        ("key:k1", "k1", "crew", "parallel"),
        ("key:k2", "k2", "crew", "requests day"),
        ("key:k2", "k2", "crew", "parallel"),
        ("key:alone", "alone", None, "requests 30"),
    ]


def test_a_shown_window_is_the_one_that_calls_draw_on() -> None:
    """By its id: otherwise the report would show a window that no call fills."""
    settings = config(
        quotas=DAILY, teams={"crew": {"quotas": DAILY}}, keys=[key("k", team="crew", quotas=DAILY, max_parallel=1)]
    )
    (caller,) = auth.index(settings.keys).values()
    terms = LimitTable(settings.quotas, settings.teams, {})
    drawn = {term.window(NOW) for term in terms.of(caller)}
    assert {each.window for each in every_window(terms, [caller], NOW)} == drawn


def test_shadow_is_the_key_s_own_and_never_its_team_s() -> None:
    settings = config(
        teams={"crew": {"quotas": DAILY}}, keys=[key("k", team="crew", quotas=DAILY, on_exceeded="shadow")]
    )
    found = every_window(LimitTable(settings.quotas, settings.teams, {}), auth.index(settings.keys).values(), NOW)
    assert [(each.window.scope, each.window.is_enforced) for each in found] == [("team:crew", True), ("key:k", False)]


def shown(quota: dict[str, Any], used: int, reserved: int, reset_us: int, **more: Any) -> dict[str, Any]:
    settings = config(keys=[key("k", quotas=[quota] if quota else [], **more)])
    terms = LimitTable(settings.quotas, settings.teams, {})
    (found,) = every_window(terms, auth.index(settings.keys).values(), NOW)
    return window_status.row(WindowStatus(found.window, used, reserved, reset_us), NOW)


def test_row_of_a_calendar_window_ends_when_the_day_does() -> None:
    assert shown({"requests": 10, "per": "day", "model": "m*"}, 7, 2, 79_199_750_000) == {
        "scope": "key:k", "unit": "requests", "per": "day", "model": "m*", "limit": 10, "used": 7, "reserved": 2,
        "remaining": 1, "reset_s": 79199.75, "reset_at": "2026-11-22T00:00:00Z", "enforced": True,
    }  # fmt: skip


def test_row_of_a_rate_is_rounded_up_to_a_second() -> None:
    row = shown({"tokens": 100, "per": 90}, 120, 0, 1_500_000)
    assert (row["per"], row["remaining"], row["reset_s"], row["reset_at"]) == ("90", 0, 1.5, "2026-11-21T02:00:02Z")


def test_row_of_money_is_in_dollars() -> None:
    row = shown({"usd": 12.5, "per": "month"}, 2_000_000_001, 500_000_000, 1_000_000)
    assert (row["unit"], row["limit"], row["used"], row["reserved"]) == ("usd", 12.5, 2.000000001, 0.5)
    assert row["remaining"] == 9.999999999


def test_row_with_nothing_to_wait_for() -> None:
    row = shown({}, 1, 0, 0, max_parallel=3, on_exceeded="shadow")
    assert (row["unit"], row["per"], row["model"], row["remaining"]) == ("parallel", None, None, 2)
    assert (row["reset_s"], row["reset_at"], row["enforced"]) == (0, None, False)
