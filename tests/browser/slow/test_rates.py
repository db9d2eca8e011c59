"""Rates and quantiles, reckoned in the browser that will reckon them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from selenium import webdriver

from gateway.wings.answers.forecast import daily_use, expected
from tests.browser.chromium import Page
from tests.flows.gateway_process import Gateway


def reckon(page: Page, module: str, expression: str, *arguments: Any) -> Any:
    """What an expression over the exports `it` and the arguments `a` of a module comes to."""
    script = f"""
        const done = arguments[arguments.length - 1], a = [...arguments].slice(0, -1);
        import("{page.address}/dashboard/{module}").then((it) => done({expression}), (error) => done(String(error)));
    """
    return page.driver.execute_async_script(script, *arguments)


@pytest.fixture(scope="module")
def here(browser: webdriver.Chrome, gateway_on: Callable[..., Gateway]) -> Page:
    made = Page(browser, gateway_on("embedded").url)
    made.forget()
    made.open()
    return made


def sample(time: float, requests: int, counts: list[int] = [0, 0, 0]) -> dict[str, Any]:  # noqa: B006 - read only
    return {"time": time, "requests": requests, "first": {"le": [0.1, 1.0], "counts": counts}}


@pytest.mark.parametrize(
    ("samples", "rate"),
    [
        ([sample(0, 5)], None),
        ([sample(0, 5), sample(2, 25)], 10),
        ([sample(0, 0), sample(20, 5), sample(30, 25)], 2),  # only the last ten seconds count
        ([sample(0, 25), sample(2, 5)], None),  # it has restarted
    ],
)
def test_rate_per_second(here: Page, samples: list[Any], rate: float | None) -> None:
    assert reckon(here, "rates.js", "it.perSecond(a[0], (each) => each.requests)", samples) == rate


@pytest.mark.parametrize(
    ("counts", "share", "seconds"),
    [
        ([0, 0, 0], 0.5, None),
        ([10, 10, 10], 0.5, 0.05),  # as Prometheus: inside a bucket, linearly
        ([5, 15, 20], 0.5, 0.55),
        ([5, 15, 20], 0.99, 1.0),  # beyond the last bound, that bound
    ],
)
def test_quantile_of_what_was_observed_lately(
    here: Page, counts: list[int], share: float, seconds: float | None
) -> None:
    samples = [sample(0, 0, [7, 7, 7]), sample(2, 9, [7 + number for number in counts])]
    found = reckon(here, "rates.js", "it.quantile(a[0], (each) => each.first, a[1])", samples, share)
    assert found == (seconds if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("it.usd(null)", "unknown"), ("it.usd(0)", "$0"), ("it.usd(1234.5)", "$1,234.50"),
        ("it.usd(0.0123)", "$0.0123"), ("it.usd(0.25)", "$0.25"), ("it.usd(0.219)", "$0.219"), ("it.usd(0.2)", "$0.20"),
        ("it.usd(0.0000012)", "$0.000001"), ("it.usd(0.0000000012)", "< $0.000001"),
        ("it.percent(0, 0)", "0 %"), ("it.percent(1, 10000)", "< 0.1 %"), ("it.percent(9999, 10000)", "99.9 %"),
        ("it.percent(997, 1000)", "99.7 %"), ("it.percent(994, 1000)", "99 %"),
        ("it.percent(11, 10)", "110 %"), ("it.span(0.25)", "250 ms"), ("it.span(86399)", "24 h 0 min"),
        ("it.span(200000)", "2 d 7 h"), ("it.count(1234567)", "1,234,567"), ("it.compact(1234567)", "1.23M"),
        ("it.amount('requests', 1)", "1 request"), ("it.quotaName({unit: 'tokens', per: '90', model: 'a*'})",
                                                   "tokens per 90 s for a*"),
    ],
)  # fmt: skip
def test_numbers_in_words(here: Page, expression: str, text: str) -> None:
    assert reckon(here, "format.js", expression) == text


@pytest.mark.within_an_hour
@pytest.mark.parametrize(
    ("name", "now", "before", "unit"),
    [
        ("1h", (59, 1), (119, 61), "minute"),
        ("24h", (23, 1), (47, 25), "hour"),
        ("7d", (6, 1), (13, 8), "day"),
        ("30d", (29, 1), (59, 31), "day"),
    ],
)
def test_a_range_is_compared_with_an_equal_part_of_the_one_before(
    here: Page, name: str, now: tuple[int, int], before: tuple[int, int], unit: str
) -> None:
    """The running minute, hour or day is in neither."""
    at, form = datetime.now(UTC), {"minute": "%Y-%m-%dT%H:%M", "hour": "%Y-%m-%dT%H", "day": "%Y-%m-%d"}[unit]

    def bounds(ago: tuple[int, int]) -> dict[str, str]:
        since, until = [(at - timedelta(**{f"{unit}s": number})).strftime(form) for number in ago]
        return {"since": since, "until": until}

    found = reckon(here, "range.js", "it.readRange(new URLSearchParams({range: a[0]})).compared", name)
    assert found == {"unit": unit, "now": bounds(now), "before": bounds(before)}


@pytest.mark.within_an_hour
def test_last_month_is_compared_with_the_one_before(here: Page) -> None:
    until = datetime.now(UTC).replace(day=1) - timedelta(days=1)
    before = until.replace(day=1) - timedelta(days=1)
    found = reckon(here, "range.js", "it.readRange(new URLSearchParams({range: 'last'}))")
    assert (found["unit"], found["since"], found["until"]) == ("day", f"{until:%Y-%m}-01", f"{until:%Y-%m-%d}")
    assert len(found["steps"]) == until.day
    assert found["compared"]["now"] == {"since": found["since"], "until": found["until"]}
    last = min(before.day, until.day)
    assert found["compared"]["before"] == {"since": f"{before:%Y-%m}-01", "until": f"{before:%Y-%m}-{last:02}"}


@pytest.mark.within_an_hour
def test_today_is_compared_with_the_same_hours_of_yesterday(here: Page) -> None:
    at = datetime.now(UTC)
    found = reckon(here, "range.js", "it.readRange(new URLSearchParams({range: 'today'})).compared")
    last = at - timedelta(hours=1)
    assert found["now"] == {"since": at.strftime("%Y-%m-%dT00"), "until": last.strftime("%Y-%m-%dT%H")}
    assert found["before"]["until"] == (last - timedelta(days=1)).strftime("%Y-%m-%dT%H")
    rows = [{"hour": found["now"]["since"], "requests": 1}]
    early = {"now": {"since": "2026-11-26T00", "until": "2026-11-25T23"}, "before": {"since": "", "until": ""}}
    assert reckon(here, "spending.js", "it.comparison(a[0], a[1])", rows, early) is None


@pytest.mark.parametrize(
    ("module", "formats", "names"),
    [
        ("sums.js", "it.MEASURES.cost.format", ["$0.00", "$0.25", "$0.50", "$0.75", "$1.00"]),
        ("sums.js", "it.MEASURES.requests.format", ["0", "", "", "", "1"]),
        ("format.js", "it.axisSpan", ["0 ms", "250 ms", "500 ms", "750 ms", "1000 ms"]),
    ],
)
def test_the_names_of_an_axis_have_as_many_digits_as_its_steps(
    here: Page, module: str, formats: str, names: list[str]
) -> None:
    assert reckon(here, module, f"[0, 1, 2, 3, 4].map((line) => {formats}(line / 4, 0.25))") == names


def test_an_axis_of_seconds(here: Page) -> None:
    names = reckon(here, "format.js", "[0, 1, 2, 3, 4].map((line) => it.axisSpan(line * 0.75, 0.75))")
    assert names == ["0.00 s", "0.75 s", "1.50 s", "2.25 s", "3.00 s"]


@pytest.mark.parametrize(("most", "top"), [(0, 1), (1, 1), (43, 60), (4, 4), (401, 600), (0.02, 0.02)])
def test_scale_has_room_for_the_highest_bar(here: Page, most: float, top: float) -> None:
    assert reckon(here, "chart.js", "it.scaleTop(a[0])", most) == pytest.approx(top)


@pytest.mark.parametrize(
    ("call", "word"),
    [
        ({"ended": "done", "status": 200}, "Answered in full."),
        ({"ended": "client_gone", "status": 499}, "The client left"),
        ({"ended": "lost", "status": 500}, "The worker that carried this call died"),
        ({"ended": "error", "status": 200, "truncated": True}, "broke off or sent an error"),
        ({"ended": "error", "status": 429}, "because of its own rate limit"),
        ({"ended": "error", "status": 504}, "did not answer in time"),
        ({"ended": "error", "status": 503, "upstream": ""}, "No upstream was asked"),
        ({"ended": "done", "status": 200, "attempts": 2}, "It took 2 attempts."),
        ({"ended": "done", "status": 200, "usage_source": "estimated"}, "they are an estimate"),
        ({"ended": "done", "status": 200, "cost_usd": None}, "Its cost is unknown"),
    ],
)
def test_every_end_of_a_call_is_explained(here: Page, call: dict[str, Any], word: str) -> None:
    plain = {"truncated": False, "attempts": 1, "usage_source": "reported", "cost_usd": 0, "upstream": "main"}
    assert word in reckon(here, "words.js", "it.explain(a[0]).join(' ')", plain | call)


NOON = "2026-11-16T12:00:00Z"  # a Monday
DAILY = {"mean": 2, "low": 1, "high": 4}


@pytest.mark.parametrize(
    ("row", "end", "spent"),
    [
        ({"per": "month", "used": 31, "limit": 46, "reset_s": 14.5 * 86400}, 60, "2026-11-24T00:00:00.000Z"),
        ({"per": "month", "used": 31, "limit": 61, "reset_s": 14.5 * 86400}, 60, None),  # not before its end
        ({"per": "month", "used": 31, "reserved": 9, "limit": 54, "reset_s": 14.5 * 86400}, 60,
         "2026-11-23T12:00:00.000Z"),
        ({"per": "month", "used": 0, "limit": 46, "reset_s": 14.5 * 86400}, 29, None),
        ({"per": "week", "used": 10, "limit": 12, "reset_s": 6.5 * 86400}, 23, "2026-11-17T12:00:00.000Z"),
        ({"per": "day", "used": 10, "limit": 15, "reset_s": 43200}, 11, None),
    ],
)  # fmt: skip
def test_what_will_be_used_of_a_window(here: Page, row: dict[str, Any], end: float, spent: str | None) -> None:
    found = reckon(here, "spending.js", EXPECTED, {"reserved": 0} | row, DAILY, NOON)
    assert (found["end"], found["spent"]) == (end, spent)
    assert found["low"] < found["end"] < found["high"]


EXPECTED = """
    ((found) => found && {...found, spent: found.spent?.toISOString() ?? null})(
        it.expectedOf(a[0], a[1], new Date(a[2])))
"""


@pytest.mark.parametrize(
    ("row", "daily"),
    [
        ({"per": "month", "used": 46, "limit": 46, "reset_s": 86400}, DAILY),  # it is spent
        ({"per": "minute", "used": 10, "limit": 15, "reset_s": 30}, DAILY),
        ({"per": "month", "used": 10, "limit": 15, "reset_s": 86400}, None),
        ({"per": "month", "used": 10, "limit": 15, "reset_s": 86400}, {"mean": 0, "low": 0, "high": 1}),
    ],
)
def test_some_windows_have_no_forecast(here: Page, row: dict[str, Any], daily: dict[str, float] | None) -> None:
    assert reckon(here, "spending.js", EXPECTED, {"reserved": 0} | row, daily, NOON) is None


@pytest.mark.parametrize(
    "amounts",
    [
        [],
        [4.0],
        [4.0, 2.0],
        [1.0] * 7 + [9.0] * 3,
        [2.0] * 7 + [5.0] * 7 + [1.0] * 7 + [3.0] * 9,
        [0.0] * 7 + [7.0] * 8,
    ],
)
def test_the_page_and_the_api_have_one_forecast(here: Page, amounts: list[float]) -> None:
    now = datetime.fromisoformat(NOON)
    by_day = {(now - timedelta(days=ago)).date().isoformat(): used for ago, used in enumerate(amounts, 1)}
    by_day[now.date().isoformat()] = 3.0
    found = reckon(here, "spending.js", "it.dailyUse(new Map(Object.entries(a[0])), new Date(a[1]))", by_day, NOON)
    assert found == pytest.approx(daily_use(by_day, now)._asdict())
    found = reckon(here, "spending.js", "it.forecast(new Map(Object.entries(a[0])), new Date(a[1]))", by_day, NOON)
    spent = sum(used for day, used in by_day.items() if day.startswith("2026-11"))
    assert found == pytest.approx(expected(spent, daily_use(by_day, now), 14.5)._asdict())


@pytest.mark.parametrize(
    ("moment", "per", "words"),
    [
        ("2026-11-27T17:40:00Z", "month", "on the 27th"),
        ("2026-11-04T17:40:00Z", "month", "today"),
        ("2026-11-04T17:40:00Z", "week", "today"),
        ("2026-11-21T17:40:00Z", "month", "on the 21st"),
        ("2026-11-12T17:40:00Z", "month", "on the 12th"),
        ("2026-11-03T17:40:00Z", "month", "on the 3rd"),
        ("2026-11-27T17:40:00Z", "week", "on Friday"),
        ("2026-11-27T17:40:00Z", "day", "at 17:40"),
    ],
)
def test_a_moment_in_words(here: Page, moment: str, per: str, words: str) -> None:
    assert reckon(here, "format.js", "it.momentInWords(new Date(a[0]), a[1], '2026-11-04')", moment, per) == words
