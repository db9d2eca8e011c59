"""When an alert about a quota is sent (once per level), and its text."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.config import build
from gateway.quota import windows
from gateway.records import Window, WindowStatus
from gateway.wings.alerts import policy
from tests.store.changes import NOON, SECOND, Clock, claim, daily, money, parallel, slow, tokens
from tests.test_floors import complaints_of, impure

END_US = NOON + 43_200 * SECOND


def standing(window: Window, used: int, reserved: int = 0) -> WindowStatus:
    return WindowStatus(window, used, reserved, END_US - NOON)


def levels(
    window: Window, used: int, reserved: int = 0, refused: tuple[str, ...] = (), now_us: int = NOON
) -> list[int]:
    return [alert.level for alert in policy.reached([standing(window, used, reserved)], refused, now_us)]


@pytest.mark.parametrize(
    ("limit", "used", "expected"),
    [
        (100, 0, []),
        (100, 79, []),
        (100, 80, [80]),
        (100, 99, [80]),
        (100, 100, [80, 100]),
        (100, 250, [80, 100]),  # actual use may exceed the reservation
        (1, 0, []),
        (1, 1, [80, 100]),
        (3, 2, []),  # 66 %
        (4, 3, []),
        (5, 4, [80]),
        (6, 4, []),
        (2**53 - 1, 7_205_759_403_792_792, []),  # one less than 80 %: exact only in integers
        (2**53 - 1, 7_205_759_403_792_793, [80]),
        (2**53 - 1, 2**53 - 2, [80]),
    ],
)
def test_levels_of_what_is_used(limit: int, used: int, expected: list[int]) -> None:
    assert levels(tokens(limit).window, used) == expected


def test_reserved_is_not_spent() -> None:
    assert levels(tokens(100).window, 79, 21) == []
    assert levels(tokens(100).window, 80, 20) == [80]


def test_who_is_refused_for_good_is_at_100_percent_whatever_is_left() -> None:
    window = tokens(100).window
    assert levels(window, 30, refused=(window.id,)) == [80, 100]
    assert levels(window, 30, refused=("another",)) == []
    (first, _) = policy.reached([standing(window, 30)], {window.id}, NOON)
    assert first.is_refused
    assert not policy.reached([standing(window, 100)], {window.id}, NOON)[0].is_refused  # fully used, without a refusal


def test_shadow_windows_raise_alerts_too() -> None:
    assert levels(daily(10, is_enforced=False).window, 25) == [80, 100]


@pytest.mark.parametrize("claimed", [slow(60, 1), parallel(1), claim(1, unit="requests", per="hour", limit=1)])
def test_rates_raise_no_alerts(claimed: Any) -> None:
    assert levels(claimed.window, claimed.window.limit) == []


def test_an_ended_window_raises_no_alert() -> None:
    window = daily(10).window
    assert levels(window, 10, now_us=END_US - 1) == [80, 100]
    assert levels(window, 10, now_us=END_US) == []


def test_alerts_are_identified_by_window_limit_and_level() -> None:
    def names(*claims: Any) -> set[str]:
        found = policy.reached([standing(each.window, each.window.limit) for each in claims], (), NOON)
        return {alert.name for alert in found}

    different = [
        daily(10), tokens(10), money(10), daily(10, scope="key:j"), daily(10, scope="team:k"),
        daily(10, scope="gateway"), daily(10, model="gpt-*"), daily(11),
        daily(10, starts="2026-11-21"), daily(10, per="month", starts="2026-11"),
    ]  # fmt: skip
    assert len(names(*different)) == 2 * len(different)
    assert names(daily(10), daily(10, is_enforced=False), daily(10, amount=5)) == names(daily(10))


def test_only_quotas_of_a_day_or_month_are_counted() -> None:
    quotas = [{"requests": 1, "per": per} for per in ("second", "minute", "hour", 86_400, "day", "month")]
    config = build({
        "upstreams": {"up": {"base_url": "http://127.0.0.1:9/v1"}},
        "models": {"m": {"routes": [{"upstream": "up"}], "max_output_tokens": 1}},
        "quotas": quotas,
        "teams": {"crew": {"quotas": quotas}},
        "keys": [{"id": "k", "secret": "a-secret-of-28-characters-01", "quotas": quotas, "max_parallel": 1}],
    })  # fmt: skip
    assert policy.count_alerted(config) == 6


# --------------------------------------------------------------------------------------------------------------- words


ANEW = "It starts anew at 2026-11-21T00:00:00Z."
WRITTEN = {
    f"80 % of a quota: key k used 812,345 of 1,000,000 tokens in the day 2026-11-20. {ANEW}": (
        tokens(1_000_000), 812_345, False,
    ),
    "100 % of a quota counts as used, because a call was refused that needs more than is left: team red used 30 of 100 "
    f"tokens for models gpt-4* in the day 2026-11-20. {ANEW}": (
        tokens(100, scope="team:red", model="gpt-4*"), 30, True,
    ),
    f"100 % of a quota: the whole gateway used $50.21 of $50.00 in the month 2026-11. {ANEW}": (
        money(50 * 10**9, scope="gateway", per="month", starts="2026-11"), 50_219_999_999, False,
    ),
    f"80 % of a quota: key k used $0.00081 of $0.001 in the day 2026-11-20. {ANEW}": (money(10**6), 810_000, False),
    f"100 % of a quota: key k used 5 of 5 requests in the day 2026-11-20. {ANEW} It is not enforced.": (
        daily(5, is_enforced=False), 5, False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("text", WRITTEN)
def test_sentence(text: str) -> None:
    claimed, used, is_refused = WRITTEN[text]
    window = claimed.window
    found = policy.reached([standing(window, used)], {window.id} if is_refused else (), NOON)
    assert policy.sentence(found[-1]) == text


@pytest.mark.parametrize("kind", ["label", "team_label", "person", "member"])
def test_a_name_that_others_choose_is_text_to_slack(kind: str) -> None:
    scope = f"{kind}:a/b=<!channel> <https://evil.example/|Approve> R&D"
    (alert,) = policy.reached([standing(money(10**10, scope=scope).window, 8 * 10**9)], (), NOON)
    message = policy.message(alert, Clock().now, "acme", None)
    assert not {"<", ">", "R&D"} & {*message["text"], *message["text"].split()}
    assert "=&lt;!channel&gt; &lt;https://evil.example/|Approve&gt; R&amp;D" in message["text"]
    assert message["scope"] == scope  # data is as it is


def test_message() -> None:
    window = money(10**10, model="gpt-*").window
    (alert,) = policy.reached([standing(window, 8 * 10**9, 10**9)], (), NOON)
    message = policy.message(alert, Clock().now, "acme", "red")
    assert next(iter(message)) == "text"
    assert message.pop("text") == policy.sentence(alert)
    assert json.loads(json.dumps(message)) == {
        "type": "quota_alert", "level": 80, "scope": "key:k", "key": "k", "team": "red", "person": None, "unit": "usd",
        "per": "day",
        "model": "gpt-*", "limit": 10, "used": 8, "reserved": 1, "remaining": 1, "reset_s": 43_200,
        "reset_at": "2026-11-21T00:00:00Z", "resets_at": "2026-11-21T00:00:00Z", "enforced": True,
        "window": "2026-11-20", "gateway": "acme", "time": "2026-11-20T12:00:00Z",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("window", "owner", "enforced"),
    [
        (daily(5, is_enforced=False), ("k", None), False),
        (daily(5, scope="team:red", is_enforced=False), (None, "red"), True),  # for everyone but a shadow key
        (daily(5, scope="gateway", is_enforced=False), (None, None), True),
    ],
)
def test_message_says_whose_it_is_and_whether_it_is_enforced(
    window: Any, owner: tuple[str | None, str | None], enforced: bool
) -> None:
    alert = policy.reached([standing(window.window, 5)], (), NOON)[0]
    message = policy.message(alert, Clock().now, "acme", None)
    assert (message["key"], message["team"]) == owner
    assert message["enforced"] is enforced


def test_the_names_of_windows_are_those_that_calls_draw_on() -> None:
    window = windows.Limit("key:k", "tokens", "month", None, 5, is_calendar=True).window(Clock().now)
    assert levels(window, 5, now_us=NOON) == [80, 100]


# ---------------------------------------------------------------------------------------------------------- the webhook


@pytest.mark.parametrize("status", [None, 429, 500, 502, 503, 504, 599])
def test_what_may_pass_is_tried_again(status: int | None) -> None:
    assert policy.next_pause_s(status, None, 1, 0.1) == 1
    assert policy.next_pause_s(status, None, 2, 1.2) == 2


@pytest.mark.parametrize("status", [301, 302, 307, 308, 400, 401, 403, 404, 410, 413, 422])
def test_what_would_be_said_again_is_not_asked_again(status: int) -> None:
    assert policy.next_pause_s(status, 1.0, 1, 0.1) is None


def test_it_ends_after_some_ten_minutes() -> None:
    elapsed_s, attempts = 0.0, 1
    while (pause_s := policy.next_pause_s(503, None, attempts, elapsed_s)) is not None:
        elapsed_s, attempts = elapsed_s + pause_s, attempts + 1
    assert attempts == 12
    assert 500 < elapsed_s <= 700


def test_retry_after_is_obeyed_within_reason() -> None:
    assert policy.next_pause_s(429, 90, 1, 0.1) == 90
    assert policy.next_pause_s(429, 0.5, 3, 0.1) == 4  # shorter than the regular pause
    assert policy.next_pause_s(503, 3600, 1, 0.1) is None
    assert policy.next_pause_s(None, None, 3, policy.GIVE_UP_AFTER_S) is None


def test_the_policy_is_pure() -> None:
    assert complaints_of(impure, ["gateway.wings.alerts.policy"]) == ""
