"""What is wrong now, and when it is over."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.quota.scopes import SCOPES
from gateway.store import RefusalEntry
from gateway.wings.answers.problems import (
    Problem,
    of_prices,
    of_quotas,
    of_spend,
    of_store,
    of_upstreams,
    rows_of,
    usual_day,
)

NOW = 1_800_000_000.0  # 2027-01-15 08:00:00 UTC
TODAY = "2027-01-15"
USUAL = {f"2027-01-{day:02}": 1.0 for day in range(5, 15)}


def refused(ago_s: float, limit: str = "key:ci tokens per day", code: str = "insufficient_quota") -> RefusalEntry:
    return RefusalEntry("req_1", NOW - ago_s, "ci", "crew", "chat", "/v1/chat/completions", "m", 429, code, None,
                        "Spent.", limit, None, None)  # fmt: skip


def test_an_upstream_that_fails_is_named_with_its_status() -> None:
    run = {
        "upstream": "shaky", "failing": True, "since": NOW - 40, "last": NOW, "failures": 14, "attempts": 16,
        "kinds": [{"fault": "status", "status": 503, "count": 11}, {"fault": "timeout", "status": None, "count": 3}],
    }  # fmt: skip
    run["message"] = ""
    (problem,) = of_upstreams([run, run | {"upstream": "main", "failing": False}])
    assert problem.subject == "shaky"
    assert problem.text == "status 503 (11 times), timeout (3 times): 14 of 16 attempts failed"
    assert (problem.since, problem.number) == (NOW - 40, 14)
    (problem,) = of_upstreams([run | {"message": "Overloaded"}])
    assert problem.text.endswith('16 attempts failed. It reports: "Overloaded"')


def test_a_spent_quota_counts_its_refusals() -> None:
    refusals = [refused(30), refused(700), refused(20, "team:crew usd per month"), refused(10, code="rate_limit")]
    key, team = sorted(of_quotas(refusals, (), NOW))
    assert (key.subject, key.since, key.last, key.number) == ("key:ci", NOW - 700, NOW - 30, 2)
    assert key.text == "the quota of tokens per day is spent: 2 requests refused"
    assert (team.subject, team.text) == ("team:crew", "the quota of usd per month is spent: 1 request refused")


def test_a_limit_of_every_kind_of_scope_keeps_its_owner() -> None:
    names = {"member": "crew/ann b", "label": "a=web shop", "team_label": "crew/a=web shop"}
    for kind in SCOPES:
        scope = "gateway" if kind == "gateway" else f"{kind}:{names.get(kind, 'x')}"
        for what in ("US dollars per month for models gpt-4*", "parallel requests"):
            (problem,) = of_quotas([refused(30, f"{scope} {what}")], (), NOW)
            assert (problem.subject, problem.text) == (scope, f"the quota of {what} is spent: 1 request refused")


@pytest.mark.parametrize(
    ("ago_s", "spent", "is_shown"), [(500, (), True), (5000, (), False), (5000, ("key:ci tokens per day",), True)]
)
def test_a_quota_that_was_spent_is_over_when_it_has_room(ago_s: float, spent: tuple[str, ...], is_shown: bool) -> None:
    assert bool(of_quotas([refused(ago_s)], spent, NOW)) == is_shown
    assert bool(of_quotas([refused(ago_s, "tokens per day")], spent, NOW)) == is_shown


def test_a_key_at_several_times_its_usual_day() -> None:
    hours = {f"{TODAY}T05": 2.5, f"{TODAY}T06": 1.0, f"{TODAY}T07": 0.5}
    problem = of_spend("ci", USUAL | {TODAY: 4.0}, hours, NOW)
    assert problem is not None
    assert problem.text == "spent $4.00 today, 4 times its usual day of $1.00"
    assert rows_of([problem])[0]["since"] == f"{TODAY}T06:00:00Z"


def test_a_person_with_several_keys_at_several_times_the_usual_day() -> None:
    problem = of_spend("ann@example.org", USUAL | {TODAY: 4.0}, {}, NOW, ["one", "two"])
    assert problem is not None
    assert problem.subject == "person:ann@example.org"
    assert problem.text == "spent $4.00 today, 4 times the usual day of $1.00, with the keys one, two"


@pytest.mark.parametrize(
    "by_day",
    [
        USUAL | {TODAY: 2.9},
        {day: amount / 1000 for day, amount in (USUAL | {TODAY: 9.0}).items()},
        {"2027-01-14": 1.0, TODAY: 40.0},
        {TODAY: 40.0},
        {},
    ],
)
def test_other_days_are_usual(by_day: dict[str, float]) -> None:
    assert of_spend("ci", by_day, {}, NOW) is None


def test_the_usual_day_leaves_out_days_without_use() -> None:
    assert usual_day(USUAL | {"2027-01-02": 0.0, TODAY: 99.0}, TODAY) == 1.0
    assert usual_day({"2027-01-14": 1.0}, TODAY) is None


def test_an_unknown_price_is_named_once() -> None:
    def row(day: str, unpriced: int, model: str = "new") -> dict[str, Any]:
        return {"day": day, "model": model, "unpriced": unpriced}

    (problem,) = of_prices([row("2027-01-13", 2), row("2027-01-14", 3), row("2027-01-14", 0, "old")])
    assert (problem.subject, problem.number) == ("new", 5)
    assert rows_of([problem])[0]["since"] == "2027-01-13T00:00:00Z"


def test_rows_are_in_the_order_of_their_beginning() -> None:
    problems = [of_store(NOW - 60, NOW, 3), Problem("price", "new", NOW - 900, NOW, 5, "calls without a cost", "t")]
    rows = rows_of([*reversed(problems)])
    assert [each["kind"] for each in rows] == ["store", "price"]
    assert rows[0] == {
        "kind": "store", "subject": "store", "since": "2027-01-15T07:59:00Z", "last": "2027-01-15T08:00:00Z",
        "count": 3, "what": "records not in the store", "text": "the store does not answer",
    }  # fmt: skip
