"""The first screen answers two questions: shall we stay in budget, and what is wrong now?"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver

from tests.browser.chromium import LEFT, Page
from tests.browser.conftest import ago, check_requests
from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import error_json, ok_json
from tests.flows.gateway_process import ADMIN_TOKEN, COMPLETIONS, Gateway, eventually, key, model, settings
from tests.flows.planted import plant, record

MONEY = "section[aria-labelledby=money-title]"
NOW = "section[aria-labelledby=now-title]"
TEAMS = {"crew": {"quotas": [{"usd": 9, "per": "month"}]}, "lab": {"quotas": [{"usd": 1, "per": "month"}]}, "idle": {}}
LEAD = "lead-token-0123456789-0123456789"


@pytest.fixture
def ours(upstream: ScriptedUpstream, start_gateway: StartsGateways) -> Gateway:
    """A gateway with teams, budgets and a month of spend."""
    config = settings(
        upstream.url, models={COMPLETIONS: model("completions", price={"input": 2, "output": 4})}, teams=TEAMS,
        keys=[key("alice", team="crew"), key("bob", team="lab", quotas=[{"requests": 1, "per": "day"}]), key("own")],
        admin={"tokens": {"head": {"token": LEAD, "role": "lead", "team": "crew"}}},
    )  # fmt: skip
    made = start_gateway(config)
    spent = {"alice": ("crew", 10_000_000), "bob": ("lab", 200_000_000), "own": (None, 5_000_000)}
    plant(made.config["store"]["url"], [
        record(ago(back), name, team=team, cost_nusd=nusd)
        for back in range(1, 41) for name, (team, nusd) in spent.items()
    ])  # fmt: skip
    return made


@pytest.fixture
def here(driver: webdriver.Chrome, ours: Gateway) -> Iterator[Page]:
    """The browser at this gateway; afterwards checks the requests of the page."""
    made = Page(driver, ours.url)
    made.forget()
    yield made
    check_requests(made)


def money(gateway: Gateway) -> Mapping[str, Any]:
    found: Mapping[str, Any] = gateway.admin("money").json
    return found


def test_the_month_its_budget_and_its_forecast(here: Page, ours: Gateway) -> None:
    here.open(token=ADMIN_TOKEN)
    known = money(ours)
    here.until(lambda: here.value("[data-figure=spend] .figure") == pytest.approx(known["spent_usd"]))
    assert here.value("[data-figure=spend] .more b") == pytest.approx(known["end_usd"], rel=0.01)
    assert float(here.attribute("data-budget", "[data-budget]") or 0) == known["budget_usd"] == 10
    drawn = here.run(f"return [...document.querySelectorAll('{MONEY} svg > [class]')].map((each) => each.classList[0])")
    assert {"spent", "ghost", "cone", "likely", "budget"} <= set(drawn)
    rows = {row["Team"]: row for row in here.rows(".answer-teams table")}
    assert set(rows) == {"crew", "lab", "no team"}
    for row in known["teams"]:
        assert float(rows[row["team"] or "no team"]["Spent"]) == pytest.approx(row["spent_usd"])
    here.click(f"{MONEY} details summary")
    days = {row["Day"]: row for row in here.rows(f"{MONEY} details table")}
    assert len(days) == len(known["days"])
    for each in known["days"]:
        if each["spent_usd"] is not None:
            assert float(days[each["day"]]["This month"]) == pytest.approx(each["spent_usd"])
    here.run(f"document.querySelector('{MONEY} svg').focus()")
    here.press(LEFT)
    here.see(f"{MONEY} .readout", "by then")
    here.see(".answer-teams tr[data-name=crew] th a").click()
    here.see("dialog", "Team crew")


def test_a_lead_has_the_month_of_her_team(here: Page, ours: Gateway) -> None:
    here.open(token=LEAD)
    here.until(lambda: [row["Team"] for row in here.rows(".answer-teams table")] == ["crew"])
    assert float(here.attribute("data-budget", "[data-budget]") or 0) == 9


@pytest.mark.parametrize(
    ("sums", "kind"),
    [
        ({"spent_usd": 5, "end_usd": 8, "low_usd": 7, "high_usd": 9, "budget_usd": 9}, "fine"),
        ({"spent_usd": 5, "end_usd": 8, "low_usd": 7, "high_usd": 10, "budget_usd": 9}, "near"),
        ({"spent_usd": 5, "end_usd": 9.5, "low_usd": 7, "high_usd": 10, "budget_usd": 9}, "near"),
        ({"spent_usd": 5, "end_usd": 9.9, "low_usd": 9.5, "high_usd": 10, "budget_usd": 9}, "full"),
        ({"spent_usd": 9, "end_usd": 9, "low_usd": 9, "high_usd": 9, "budget_usd": 9}, "full"),
        ({"spent_usd": 9, "end_usd": 9, "low_usd": 9, "high_usd": 9, "budget_usd": None}, None),
    ],
)
def test_the_verdict_is_that_of_the_range(page: Page, sums: dict[str, float | None], kind: str | None) -> None:
    page.open()
    script = """
        const done = arguments[arguments.length - 1];
        const [address, sums] = arguments;
        import(`${address}/dashboard/money.js`).then((it) => done(it.verdict(sums)?.[0] ?? null), done);
    """
    assert page.driver.execute_async_script(script, page.address, sums) == kind


def test_nothing_is_wrong_and_when_that_was_seen(here: Page, ours: Gateway) -> None:
    here.open(token=ADMIN_TOKEN)
    here.see(NOW, "Nothing is wrong")
    here.see(NOW, "last checked")


def test_an_upstream_that_fails_is_first_with_its_status(here: Page, ours: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(always=error_json(500, message="The engine is overloaded"))
    assert {ours.complete("alice").status for _ in range(4)} == {502}
    eventually(lambda: ours.admin("problems").json["data"])
    here.open(token=ADMIN_TOKEN)
    here.see(f"{NOW} [data-problem=upstream]", "status 500")
    (run,) = ours.admin("problems").json["upstreams"]
    here.see(f"{NOW} [data-problem=upstream]", f"{run['failures']} of {run['attempts']} attempts failed")
    here.see(f"{NOW} [data-problem=upstream]", f"since {run['since'][11:16]}")
    here.see(f"{NOW} [data-problem=upstream]", 'It reports: "The engine is overloaded"')
    here.see("[data-upstream=main] .pill", "failing")
    here.see("[data-upstream=main] .said", "The engine is overloaded")
    here.go("models")
    here.see("[data-circuit=failing]", "status 500")
    here.see("[data-circuit=failing] .said", "The engine is overloaded")
    here.go("overview")
    here.see(f"{NOW} [data-problem=upstream] a").click()
    here.see("dialog", "Upstream main")


def test_a_spent_quota_has_its_refusals(here: Page, ours: Gateway, upstream: ScriptedUpstream) -> None:
    usage = {"prompt_tokens": 10, "completion_tokens": 5}
    upstream.answer_with(always=ok_json({"model": "m", "choices": [], "usage": usage}))
    assert [ours.complete("bob").status for _ in range(3)] == [200, 429, 429]
    eventually(lambda: len(ours.admin("refusals").json["data"]) == 2)
    here.open(token=ADMIN_TOKEN)
    here.see(f"{NOW} [data-subject='key:bob']", "requests per day is spent: 2 requests refused")
    here.click(f"{NOW} [data-subject='key:bob'] a", "The refusals")
    here.until(lambda: [row["Key"] for row in here.rows()] == ["bob", "bob"])


def test_the_file_of_the_month_has_its_forecast(here: Page, tmp_path: Path) -> None:
    here.driver.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    here.open(token=ADMIN_TOKEN)
    here.click(".answer-teams .csv")
    file = tmp_path / "spend-of-teams-this-month.csv"
    eventually(file.exists)
    assert {"month", "budget_usd", "end_usd", "low_usd"} <= set(next(csv.DictReader(io.StringIO(file.read_text()))))


def test_a_person_at_several_times_her_usual_day_has_no_key_that_is(
    driver: webdriver.Chrome, upstream: ScriptedUpstream, start_gateway: StartsGateways
) -> None:
    owned = {"owner": "ann@example.org"}
    made = start_gateway(settings(upstream.url, keys=[key("old", **owned), key("new", **owned), key("calm")]))
    plant(made.config["store"]["url"], [
        *[record(ago(back), name, cost_nusd=20_000_000) for back in range(10) for name in ("old", "calm")],
        record(ago(0), "new", cost_nusd=80_000_000),
    ])  # fmt: skip
    here = Page(driver, made.url)
    here.forget()
    here.open(token=ADMIN_TOKEN)
    here.see(f"{NOW} [data-subject='person:ann@example.org']", "spent $0.10 today, 5 times the usual day of $0.02")
    here.see(f"{NOW} [data-subject='person:ann@example.org']", "with the keys new, old")
    assert len(here.all(f"{NOW} [data-problem=spend]")) == 1
    here.click(f"{NOW} [data-problem=spend] a", "Today by key")
    here.until(
        lambda: {row["Key"] for row in here.rows("section[aria-labelledby=who-title] table")} == {"old", "new", "calm"}
    )
    check_requests(here)
