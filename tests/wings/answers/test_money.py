"""The spend of a month, its forecast and its budget."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from gateway.config import build
from gateway.quota.issued import Overlay, SeenValues
from gateway.quota.window_status import shared_windows
from gateway.quota.windows import LimitTable
from gateway.wings.answers.money import COLUMNS, Budgets, budgets_of, first_day, format_money_csv, money

NOW = datetime(2026, 11, 21, 6, tzinfo=UTC)
NO_BUDGET = Budgets(None, {})


def row(day: str, cost: float | None, team: str = "crew", unpriced: int = 0) -> dict[str, Any]:
    return {"day": day, "team": team, "cost_usd": cost, "unpriced": unpriced}


def of_team(answer: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any]
    (found,) = [each for each in answer["teams"] if each["team"] == name]
    return found


def test_a_month_with_its_forecast() -> None:
    rows = [row(f"2026-10-{day:02}", 1.0) for day in range(1, 32)]
    rows += [row(f"2026-11-{day:02}", 2.0) for day in range(1, 22)]
    answer = money(rows, NO_BUDGET, NOW)
    assert answer["month"] == "2026-11"
    assert answer["spent_usd"] == 42.0
    assert answer["end_usd"] == pytest.approx(42 + 2 * 9.75)
    assert answer["low_usd"] == pytest.approx(42 + 1 * 9.75)  # the week of 24 to 30 October
    assert answer["high_usd"] == answer["end_usd"]
    assert (answer["compared_usd"], answer["before_usd"]) == (40.0, 20.0)
    assert (answer["budget_usd"], answer["budget_of"]) == (None, None)


def test_the_curve_ends_today_and_the_ghost_with_its_month() -> None:
    days = money([row("2026-10-31", 4.0), row("2026-11-02", 1.5)], NO_BUDGET, NOW)["days"]
    assert len(days) == 30
    assert [each["spent_usd"] for each in days[:3]] == [0.0, 1.5, 1.5]
    assert days[20] == {"day": "2026-11-21", "spent_usd": 1.5, "before_usd": 0.0}
    assert days[21]["spent_usd"] is None
    march = money([row("2026-02-28", 4.0)], NO_BUDGET, datetime(2026, 3, 31, 12, tzinfo=UTC))["days"]
    assert [each["before_usd"] for each in march[26:30]] == [0.0, 4.0, None, None]


def test_only_quotas_of_the_whole_gateway_and_of_whole_teams_are_budgets() -> None:
    of_label = {"usd": 7, "per": "month", "label": "project"}
    others: list[Any] = [of_label, "3 USD/day", "900 tokens/month", {"usd": 2, "per": "month", "model": "m"}]
    up: dict[str, Any] = {"base_url": "http://127.0.0.1:9/v1", "quotas": ["5 USD/month"]}
    made = build({
        "upstreams": {"up": up},
        "models": {"m": {"routes": [{"upstream": "up"}], "max_output_tokens": 10, "price": {"input": 1, "output": 2}}},
        "quotas": ["90 USD/month", *others],
        "teams": {"crew": {"quotas": ["20 USD/month", *others]}, "lab": {"quotas": others}},
    })  # fmt: skip
    seen = Overlay(seen=SeenValues("2026-11", {"web": "k"}))
    overlays = dict.fromkeys(["tag:project", "team_tag:crew/project", "team_tag:lab/project"], seen)
    budgets = {name: each.quotas for name, each in made.upstreams.items()}
    terms = LimitTable(made.quotas, made.teams, overlays, upstreams=budgets)
    windows = [each.window for each in shared_windows(terms, NOW.timestamp())]
    assert {"tag:project=web", "team_tag:lab/project=web", "upstream:up"} <= {each.scope for each in windows}
    assert budgets_of(windows) == Budgets(90, {"crew": 20})


@pytest.mark.parametrize(
    ("budgets", "usd", "whose"),
    [
        (Budgets(None, {"crew": 6.0, "lab": 14.0}), 20.0, "teams"),
        (Budgets(9.0, {"crew": 6.0}), 9.0, "gateway"),
        (Budgets(9.0, {}), 9.0, "gateway"),
    ],
)
def test_the_budget_is_the_gateways_or_the_sum_of_the_teams(budgets: Budgets, usd: float, whose: str) -> None:
    answer = money([], budgets, NOW)
    assert (answer["budget_usd"], answer["budget_of"]) == (usd, whose)
    assert [each["team"] for each in answer["teams"]] == sorted(budgets.teams)  # also those that spent nothing


def test_teams_are_in_the_order_of_their_spend() -> None:
    rows = [row("2026-11-03", 1.0, "crew", 2), row("2026-11-03", 3.0, "lab"), row("2026-11-04", None, "", 1)]
    answer = money([*rows, row("2026-10-04", 9.0, "crew", 5)], Budgets(None, {"crew": 6.0}), NOW)
    assert [each["team"] for each in answer["teams"]] == ["lab", "crew", ""]
    assert of_team(answer, "crew")["budget_usd"] == 6.0
    assert of_team(answer, "crew")["unpriced"] == 2
    assert answer["unpriced"] == 3
    assert of_team(answer, "crew")["before_usd"] == 9.0
    sums = [sum(each[name] for each in answer["teams"]) for name in ("spent_usd", "compared_usd", "before_usd")]
    assert sums == [answer["spent_usd"], answer["compared_usd"], answer["before_usd"]]


def test_the_days_that_are_read_hold_four_weeks() -> None:
    assert first_day(NOW) == "2026-10-01"
    assert first_day(datetime(2027, 1, 1, tzinfo=UTC)) == "2026-12-01"
    assert first_day(datetime(2026, 3, 1, tzinfo=UTC)) == "2026-02-01"


def test_the_file_has_a_line_for_all_and_for_each_team() -> None:
    answer = money([row("2026-11-03", 0.00001)], Budgets(None, {"crew": 6.0}), NOW)
    lines = format_money_csv(answer).splitlines()
    assert lines[0] == ",".join(COLUMNS)
    assert [line.split(",")[:5] for line in lines[1:]] == [
        ["2026-11", "(all)", "0.00001", "0", "6"],
        ["2026-11", "crew", "0.00001", "0", "6"],
    ]
