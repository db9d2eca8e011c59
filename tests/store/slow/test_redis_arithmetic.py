"""The script computes as `quota/windows` does, to the last unit, where a double is too short for a product too."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.quota import windows as limits
from gateway.records import Claim, Window, WindowState
from gateway.store.redis.connection import Script
from tests.fakes.redis_servers import RedisServer

PRELUDE = """
local floor, max, min, match, EXACT = math.floor, math.max, math.min, string.match, 9007199254740992
local SUMS_S, now = 0, 0
"""

ASKED = """
local told = {}
for i, text in ipairs(ARGV) do
  local window, starts, shape, amount, actual, charged, age
  window, starts, shape, amount, actual, charged, age, now = unpack(cjson.decode(text))
  window = { used = window[1], reserved = window[2], at = window[3], starts = starts }
  if shape[2] > 0 then
    leak(shape, window)
  end
  local function after(change, ...)
    local copy = { used = window.used, reserved = window.reserved, at = window.at, starts = starts }
    change(shape, copy, ...)
    return string.format('%.0f %.0f %.0f', copy.used, copy.reserved, copy.at)
  end
  local function after_draw(_, copy)
    draw(copy, amount)
  end
  told[i] = table.concat({
    after(function() end), after(after_draw), after(settle, amount, actual, age), after(settle, amount, 0, age),
    after(charge, actual, age), after(correct, charged, actual, age), after(reopen, amount, charged, age),
  }, '|')
end
return told
"""

few = st.integers(0, 100)
much = st.integers(0, 2**51)
units = few | much | st.integers(0, 10**9)
# Up to a century and a half of microseconds; Unix times of today are 2^50.6.
spans = st.integers(-(2**30), 2**52) | st.integers(0, 10**9) | few
periods_s = st.sampled_from((1, 60, 3600, 86_400, 90, 604_800, 31_536_000)) | st.integers(1, 2**31)
periods_us = periods_s.map(lambda seconds: seconds * 1_000_000)
limits_ = st.integers(1, 100) | st.integers(1, 10**9) | st.integers(2**53 - 100, 2**53 - 1) | st.integers(1, 2**53 - 1)


@st.composite
def cases(draw: st.DrawFn) -> tuple[WindowState, Window, int, int, int, int, int]:
    at_us = draw(st.integers(0, 2**51))
    starts, period_us = draw(st.sampled_from((("", 0), ("2026-11", 0), ("", 1), ("", 1), ("", 1))))
    window = Window("w", "s", "tokens", "p", None, draw(limits_), period_us and draw(periods_us), starts=starts)
    state = WindowState(draw(units), draw(units), at_us)
    return state, window, draw(units), draw(units), draw(units), draw(spans), at_us + draw(spans)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[redis.Redis]:
    with RedisServer(tmp_path_factory.mktemp("redis")) as server, redis.Redis.from_url(server.url) as client:
        yield client


def ask(client: redis.Redis, question: str, *arguments: str) -> Sequence[bytes]:
    found = client.eval(PRELUDE + Script.read("apply_limits.lua").text + question, 0, *arguments)
    assert isinstance(found, list)
    return found


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(asked=st.lists(cases(), min_size=1, max_size=20))
def test_every_change_of_a_window_is_that_of_limits(
    client: redis.Redis, asked: list[tuple[WindowState, Window, int, int, int, int, int]]
) -> None:
    spelt = [
        json.dumps([
            [*state], window.starts, [window.limit, window.period_us, 1], amount, actual, charged, age_us, now_us,
        ])
        for state, window, amount, actual, charged, age_us, now_us in asked
    ]  # fmt: skip
    for received, (state, window, amount, actual, charged, age_us, now_us) in zip(
        ask(client, ASKED, *spelt), asked, strict=True
    ):
        leaked, claim = limits.leak(window, state, now_us), Claim(window, amount)
        changed = [
            limits.settle(claim, leaked, actual, age_us), limits.void(claim, leaked, age_us),
            limits.charge(window, leaked, actual, age_us), limits.correct(window, leaked, charged, actual, age_us),
            limits.reopen(claim, leaked, charged, age_us),
        ]  # fmt: skip
        expected = [leaked, limits.draw(claim, leaked)]
        # What has leaked of the next unit is no credit for a rate that is empty.
        expected += [state if state.used else limits.leak(window, state, now_us) for state in changed]
        assert [WindowState(*map(int, text.split())) for text in received.split(b"|")] == expected


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    asked=st.lists(
        st.tuples(st.integers(0, 2**52), st.integers(1, 2**53 - 1), periods_us),
        min_size=20, max_size=20,
    )
)  # fmt: skip
def test_a_product_beyond_a_double_is_divided_exactly(client: redis.Redis, asked: list[tuple[int, int, int]]) -> None:
    question = """
    local told = {}
    for i, text in ipairs(ARGV) do told[i] = string.format('%.0f %.0f', scaled(unpack(cjson.decode(text)))) end
    return told
    """
    # As many microseconds as make no more units than a window may hold; beyond that only the remainder matters.
    asked = [(us % (period_us * 2**53 // limit), limit, period_us) for us, limit, period_us in asked]
    for received, (us, limit, period_us) in zip(ask(client, question, *map(json.dumps, asked)), asked, strict=True):
        assert tuple(map(int, received.split())) == divmod(us * limit, period_us)


def test_days_weeks_and_months_end_when_the_calendar_says(client: redis.Redis) -> None:
    question = "local told = {} for i, day in ipairs(ARGV) do told[i] = forgotten_at(day) end return told"
    days = [date(1999, 12, 25) + timedelta(days=1) * number for number in range(0, 37_000, 5)]
    times = [datetime(day.year, day.month, day.day, 12, tzinfo=UTC).timestamp() for day in days]
    for per in ("day", "week", "month"):
        windows = [limits.calendar_window(per, time) for time in times]
        received = ask(client, question, *[name for name, _ in windows])
        assert received == [ends_us // 1_000_000 for _, ends_us in windows]
