"""The last hours by minute: calls, failures and latency, on each of the stores."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.browser.axe import check
from tests.browser.chromium import LEFT, Page
from tests.conftest import ScriptedUpstream
from tests.fakes.scripted import ok_json
from tests.flows.gateway_process import Gateway

CHART = "section[aria-labelledby=usage-title]"
LATENCY = "section[aria-labelledby=latency-title]"


def minute(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M")


def calls(gateway: Gateway) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = gateway.admin("calls", since="59m", limit="1000").json["data"]
    return found


def by_minute(page: Page) -> dict[str, tuple[int, int]]:
    """Requests and failed ones of the table behind the chart."""
    rows = page.rows(f"{CHART} details table")
    return {row["Minute"]: (int(row["Requests"]), int(row["Failed"])) for row in rows}


@pytest.mark.parametrize("range_", ["1h", "3h"])
def test_a_bar_for_each_minute(operator: Page, either: Gateway, range_: str) -> None:
    operator.go(f"overview?range={range_}&metric=requests&group=key")
    operator.see(f"{CHART} svg.chart g.mark")
    operator.click(f"{CHART} details summary")
    known = calls(either)
    requests = Counter(minute(call["time"]) for call in known)
    failed = Counter(minute(call["time"]) for call in known if call["ended"] == "error")
    operator.until(lambda: by_minute(operator) == {each: (requests[each], failed[each]) for each in requests})
    assert len(operator.all(f"{CHART} svg.chart g.mark")) == {"1h": 60, "3h": 180}[range_]
    keys = {row["Key"]: int(row["Requests"]) for row in operator.rows("section[aria-labelledby=who-title] table")}
    assert keys == Counter(call["key"] for call in known)
    operator.run(f"document.querySelector('{CHART} svg.chart').focus()")
    operator.press(LEFT)
    operator.see(f"{CHART} .readout b", datetime.now(UTC).strftime("%A"))
    operator.until(lambda: not operator.all("[aria-busy]"))
    check(operator, "an hour by minute")


def test_latency_has_the_same_minutes(operator: Page, either: Gateway) -> None:
    operator.go("overview?range=1h&metric=requests")
    operator.click(f"{LATENCY} details summary")
    found = either.admin("minutes", group_by="minute").json["data"]
    rows = operator.until(lambda: operator.rows(f"{LATENCY} details table"))
    shown = {row["Minute"].replace(" ", "T"): row["Duration p95"] for row in rows}
    assert {minute: float(seconds) for minute, seconds in shown.items() if seconds != "\u2013"} == {
        row["minute"]: row["duration_p95_s"] for row in found if row["duration_p95_s"] is not None
    }
    assert sum(row["requests"] for row in found) == len(calls(either))


def test_the_page_of_a_key_has_minutes(operator: Page, either: Gateway) -> None:
    operator.go("keys/alice?range=1h")
    operator.see("dialog svg.chart g.mark")
    assert operator.value("dialog [data-sum=requests] b") == sum(call["key"] == "alice" for call in calls(either))
    assert len(operator.all("dialog section[aria-labelledby=subject-usage] svg.chart g.mark")) == 60


def test_what_has_no_minutes_has_hours(operator: Page) -> None:
    operator.go("overview?range=1h&group=user")
    operator.see("[data-figure=requests-in-range] h3", "since ")
    operator.see(f"{CHART} svg.chart g.mark")
    assert len(operator.all(f"{CHART} svg.chart g.mark")) == 2


@pytest.mark.changes
def test_a_call_is_in_its_minute_soon(operator: Page, either: Gateway, upstream: ScriptedUpstream) -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 1}
    upstream.answer_with(always=ok_json({"model": "m", "choices": [], "usage": usage}))
    before = sum(row["requests"] for row in either.admin("minutes").json["data"])
    assert either.complete("alice").status == 200
    operator.until(lambda: sum(row["requests"] for row in either.admin("minutes").json["data"]) > before)
    made = sum(call["key"] == "alice" for call in calls(either))
    operator.until(lambda: either.admin("minutes", group_by=",", key="alice").json["data"][0]["requests"] == made)
    assert either.admin("minutes", since="yesterday").status == 400
    assert either.admin("minutes", group_by="day").json["error"]["param"] == "group_by"
