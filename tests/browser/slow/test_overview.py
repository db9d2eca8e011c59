"""The overview: its settings in the address, what it compares and expects, and what it gives as files."""

from __future__ import annotations

import csv
import io
from calendar import monthrange
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver

from tests.browser.chromium import ESCAPE, LEFT, Page
from tests.browser.conftest import ago, check_requests
from tests.conftest import ScriptedUpstream, StartsGateways
from tests.flows.gateway_process import ADMIN_TOKEN, COMPLETIONS, Gateway, eventually, key, settings
from tests.flows.planted import plant, record

TABLE = "section[aria-labelledby=who-title] table"


@pytest.fixture
def gateway(either: Gateway) -> Gateway:
    """Numbers are compared on each of the stores."""
    return either


def costs(gateway: Gateway) -> dict[str, float]:
    return {row["day"]: row["cost_usd"] or 0 for row in gateway.usage(group_by="day")}


def names(page: Page, title: str) -> list[str]:
    return [row[title] for row in page.rows(TABLE)]


def test_spend_of_the_month_and_its_forecast(admin: Page, gateway: Gateway) -> None:
    now, known = datetime.now(UTC), costs(gateway)
    month = [cost for day, cost in known.items() if day[:7] == now.strftime("%Y-%m")]
    admin.until(lambda: admin.value("[data-figure=spend] .figure") == pytest.approx(sum(month)))
    whole = [known.get(ago(back), 0) for back in range(1, 8)]
    days = monthrange(now.year, now.month)[1]
    ends = datetime(now.year, now.month, 1, tzinfo=UTC) + timedelta(days=days)
    expected = sum(month) + sum(whole) / 7 * ((ends - now) / timedelta(days=1))
    assert admin.value("[data-figure=spend] .more b") == pytest.approx(expected, rel=0.01)
    answer = gateway.admin("money").json
    rows = {row["Team"]: row for row in admin.rows(".answer-teams table")}
    assert set(rows) == {team["team"] or "no team" for team in answer["teams"]}
    for team in answer["teams"]:
        row = rows[team["team"] or "no team"]
        assert float(row["Spent"]) == pytest.approx(team["spent_usd"])
        assert float(row["Expected at the end"]) == pytest.approx(team["end_usd"], rel=0.01)
        share = team["compared_usd"] / team["before_usd"] if team["before_usd"] else None
        assert row["Change"] == "\u2013" or float(row["Change"]) == pytest.approx(share)


def test_problems_are_those_of_the_api(admin: Page, gateway: Gateway) -> None:
    """The gateway has calls of a model without a price, and a key that is refused."""
    problems = gateway.admin("problems").json["data"]
    assert {"price", "quota"} <= {each["kind"] for each in problems}
    admin.until(lambda: len(admin.all("[data-problem]")) == len(problems))
    for each, shown in zip(problems, admin.all("[data-problem]"), strict=True):
        assert (shown.get_attribute("data-problem"), shown.get_attribute("data-subject")) == (
            each["kind"], each["subject"],
        )  # fmt: skip
        assert each["text"] in shown.text
        assert each["since"][11:16] in shown.text


def test_range_is_compared_with_the_period_before(admin: Page, gateway: Gateway) -> None:
    admin.click("[data-choice='7d']")
    (now,) = gateway.usage(group_by="", since=ago(6))
    admin.until(lambda: admin.value("[data-figure=requests-in-range] .figure") == now["requests"])
    (part,) = gateway.usage(group_by="", since=ago(6), until=ago(1))  # without today, which is not over
    (before,) = gateway.usage(group_by="", since=ago(13), until=ago(8))
    share = (part["requests"] - before["requests"]) / before["requests"] * 100
    assert f"+{share:.0f}" in admin.text("[data-figure=requests-in-range]").replace(",", "")
    assert f"{now['errors']} of {now['requests']} requests" in admin.text("[data-figure=errors-in-range]")


@pytest.mark.within_an_hour
@pytest.mark.parametrize(("name", "days"), [("24h", None), ("today", 0), ("7d", 6)])
def test_hours_are_those_of_the_report(admin: Page, gateway: Gateway, name: str, days: int | None) -> None:
    admin.click(f"[data-choice='{name}']")
    now = datetime.now(UTC)
    hours = 24 if days is None else 24 * days + now.hour + 1
    since = (now - timedelta(hours=hours - 1)).strftime("%Y-%m-%dT%H")
    known = {row["model"]: row["requests"] for row in gateway.usage(group_by="model", since=since)}
    admin.until(lambda: {row["Model"]: int(row["Requests"]) for row in admin.rows(TABLE)} == known)
    assert len(admin.all("section[aria-labelledby=usage-title] svg.chart .mark")) == hours
    assert admin.value("[data-figure=requests-in-range] .figure") == sum(known.values())
    admin.click("section[aria-labelledby=usage-title] details.as-table summary")
    shown = {
        row["Hour"]: int(row["Requests"])
        for row in admin.rows("section[aria-labelledby=usage-title] details.as-table table")
    }
    assert shown == {
        row["hour"].replace("T", " "): row["requests"] for row in gateway.usage(group_by="hour", since=since)
    }


def test_latency_is_that_of_the_report(admin: Page, gateway: Gateway) -> None:
    table = "section[aria-labelledby=latency-title] .flush table"
    for group in ("model", "upstream"):
        admin.click(f"[data-choice={group}]")
        known = {row[group]: row for row in gateway.admin("latency", group_by=group, since=ago(29)).json["data"]}
        admin.until(lambda: {row[group.capitalize()] for row in admin.rows(table)} == set(known))  # noqa: B023
        for row in admin.rows(table):
            received = known[row[group.capitalize()]]
            assert int(row["Requests"]) == received["requests"]
            assert int(row["Failed attempts"]) == received["failed_attempts"]
            for title, name in (("First token p95", "first_token_p95_s"), ("Duration p50", "duration_p50_s")):
                assert row[title] == ("\u2013" if received[name] is None else str(received[name]))
    (whole,) = gateway.admin("latency", group_by="", since=ago(29)).json["data"]
    assert whole["first_token_count"] == 1
    assert admin.value("[data-figure=first-token-p95] .figure") == whole["first_token_p95_s"]


LATENCY = "section[aria-labelledby=latency-title]"
BARS = f"""
return [...document.querySelectorAll("{LATENCY} svg.chart .mark")].map((mark) => Object.fromEntries(
  [...mark.querySelectorAll(".bar")].map((bar) => [bar.classList[1], bar.height.baseVal.value])));
"""


def test_percentiles_over_time_are_drawn(admin: Page, gateway: Gateway) -> None:
    rows = {row["day"]: row for row in gateway.admin("latency", group_by="day", since=ago(29)).json["data"]}
    assert rows[ago(1)]["duration_p50_s"] < rows[ago(1)]["duration_p99_s"]
    admin.click(f"{LATENCY} [data-choice=duration]")
    admin.until(lambda: [each.text for each in admin.all(f"{LATENCY} .legend span")] == ["p50", "p95", "p99"])
    bars = admin.run(BARS)
    assert len(bars) == 30
    scale = sum(bars[-2].values()) / rows[ago(1)]["duration_p99_s"]
    for back in (1, 12, 29):
        received, drawn = rows[ago(back)], bars[-1 - back]
        assert drawn["c1"] == pytest.approx(scale * received["duration_p50_s"], abs=1.5)
        assert drawn["c1"] + drawn["c2"] == pytest.approx(scale * received["duration_p95_s"], abs=2.5)
    assert sum(map(len, bars)) == 3 * len(rows)
    admin.click(f"{LATENCY} [data-choice=speed]")
    admin.until(lambda: [each.text for each in admin.all(f"{LATENCY} .legend span")] == ["p5", "p50", "p95"])
    drawn = {day: bar for day, bar in zip(map(ago, range(29, -1, -1)), admin.run(BARS), strict=True) if bar}
    fastest = max(drawn, key=lambda day: sum(drawn[day].values()))
    received = rows[fastest]
    assert received["tokens_per_s_p95"] == max(row["tokens_per_s_p95"] or 0 for row in rows.values())
    part = drawn[fastest]["c1"] / sum(drawn[fastest].values())
    assert part == pytest.approx(received["tokens_per_s_p5"] / received["tokens_per_s_p95"], abs=0.05)
    received = rows[ago(1)]
    admin.run(f"document.querySelector('{LATENCY} svg.chart').focus()")
    admin.press(LEFT, LEFT)
    admin.see(f"{LATENCY} .readout", f"p95 {received['tokens_per_s_p95']:,.0f}")


def test_failed_attempts_are_stacked_by_upstream(admin: Page, gateway: Gateway) -> None:
    admin.click("[data-choice=upstream]")
    admin.until(lambda: not admin.all("[aria-busy], .bone"))  # or the next button moves while it is clicked
    admin.click(f"{LATENCY} [data-choice=attempts]")
    known = gateway.admin("latency", group_by="upstream", since=ago(29)).json["data"]
    admin.until(lambda: {each.text for each in admin.all(f"{LATENCY} .legend span")} == {r["upstream"] for r in known})
    failed = {row["day"] for row in gateway.admin("latency", group_by="day,upstream", since=ago(29)).json["data"]
              if row["failed_attempts"]}  # fmt: skip
    assert failed
    assert len([bar for bar in admin.run(BARS) if bar]) == len(failed)
    admin.run(f"document.querySelector('{LATENCY} svg.chart').focus()")
    admin.press(LEFT)
    admin.see(f"{LATENCY} .readout", "main 1")


def test_who_is_near_a_limit(admin: Page, gateway: Gateway) -> None:
    rows = gateway.admin("quotas").json["data"]
    near = [row for row in rows if (row["used"] + row["reserved"]) / row["limit"] >= 0.8]
    admin.until(lambda: admin.value("[data-figure=near] .figure") == len(near))
    admin.click("[data-figure=near] a", "bob")
    admin.see("dialog h2", "bob")


def test_a_link_shows_what_its_sender_saw(admin: Page, gateway: Gateway) -> None:
    admin.see(f"{TABLE} tbody tr")
    for choice in ("7d", "tokens", "team"):
        admin.click(f"[data-choice='{choice}']")
    admin.click(f"{TABLE} tr[data-name=crew] .only")
    admin.see(".chip", "team: crew")
    admin.until(lambda: names(admin, "Team") == ["crew"])
    link = admin.driver.current_url
    assert link.endswith("#overview?range=7d&metric=tokens&group=team&team=crew")
    (known,) = [row for row in gateway.usage(group_by="team", since=ago(6)) if row["team"] == "crew"]
    seen = admin.text(".sums") + admin.text("[data-figure=requests-in-range]")
    admin.driver.get("about:blank")
    admin.driver.get(link)
    admin.see(".chip", "team: crew")
    admin.until(lambda: names(admin, "Team") == ["crew"])
    assert admin.text(".sums") + admin.text("[data-figure=requests-in-range]") == seen
    assert admin.value("[data-figure=requests-in-range] .figure") == known["requests"]
    for pressed in ("7d", "tokens", "team"):
        assert admin.attribute("aria-pressed", f"[data-choice='{pressed}']") == "true"
    admin.click(".chip")
    admin.until(lambda: len(admin.rows(TABLE)) > 1)
    assert admin.driver.current_url.endswith("#overview?range=7d&metric=tokens&group=team")


def test_own_dates(page: Page, gateway: Gateway) -> None:
    page.open(f"overview?range=custom&since={ago(12)}&until={ago(12)}", ADMIN_TOKEN)
    page.until(lambda: names(page, "Model"))
    (known,) = gateway.usage(group_by="", since=ago(12), until=ago(12))
    page.until(lambda: page.value("[data-figure=requests-in-range] .figure") == known["requests"])
    assert page.attribute("value", "input[name=since]") == ago(12)
    assert len(page.all("section[aria-labelledby=usage-title] svg.chart .mark")) == 24
    page.open(f"overview?range=custom&since={ago(29)}&until={ago(12)}", ADMIN_TOKEN)
    page.until(lambda: len(page.all("section[aria-labelledby=usage-title] svg.chart .mark")) == 18)


def test_chart_is_stacked_by_the_group_and_narrows_the_page(admin: Page, gateway: Gateway) -> None:
    admin.click("[data-choice=requests]")
    admin.click("[data-choice=key]")
    known = {row["key"]: row["requests"] for row in gateway.usage(group_by="key", since=ago(29))}
    admin.until(lambda: {each.text for each in admin.all(".legend .pick")} == set(known))
    heights: dict[str, float] = admin.run(
        """
        const sums = {};
        for (const bar of document.querySelectorAll("section[aria-labelledby=usage-title] svg.chart .bar"))
          sums[bar.classList[1]] = (sums[bar.classList[1]] ?? 0) + bar.height.baseVal.value;
        return Object.fromEntries([...document.querySelectorAll(".legend .pick")].map((pick) =>
          [pick.textContent, sums[pick.querySelector("i").classList[1]]]));
        """
    )
    assert set(heights) == set(known)
    assert max(heights, key=heights.__getitem__) == max(known, key=known.__getitem__)
    admin.click(".legend .pick", "carol")
    admin.see(".chip", "key: carol")
    admin.until(lambda: admin.value("[data-figure=requests-in-range] .figure") == known["carol"])
    admin.click(".chip")
    admin.until(lambda: len(admin.all(".legend .pick")) == len(known))
    color = admin.run(
        "return [...document.querySelectorAll('.legend .pick')]"
        ".find((pick) => pick.textContent === 'alice').querySelector('i').classList[1]"
    )
    admin.click(f"section[aria-labelledby=usage-title] svg.chart .bar.{color}")
    admin.see(".chip", "key: alice")


def test_bars_of_the_table_follow_the_metric(admin: Page, gateway: Gateway) -> None:
    admin.click("[data-choice=upstream]")
    for metric, column in (("requests", "requests"), ("tokens", "total_tokens"), ("errors", "errors")):
        admin.click(f"[data-choice={metric}]")
        rows = {row["upstream"]: row[column] for row in gateway.usage(group_by="upstream", since=ago(29))}
        most = max(rows.values())

        def widths() -> Any:
            return admin.run(
                f"return [...document.querySelectorAll('{TABLE} tbody tr')].map((row) =>"
                "[row.dataset.name, parseFloat(row.querySelector('.share').style.width)])"
            )

        wanted = {name: round(100 * number / most, 3) for name, number in rows.items()}
        admin.until(lambda: {name: round(width, 3) for name, width in widths()} == wanted)  # noqa: B023


def test_refused_requests_of_the_range_are_counted_and_listed(admin: Page, gateway: Gateway) -> None:
    admin.click("[data-choice='7d']")
    refused = gateway.admin("refusals", limit="1000").json["data"]
    said = "[data-figure=errors-in-range] [data-refused]"
    admin.until(lambda: admin.text(said) == f"{len(refused)} refused by the gateway")
    assert admin.attribute("data-refused", said) == str(len(refused))
    admin.click("[data-choice='30d']")
    admin.see(
        "[data-figure=errors-in-range] [data-refused]", f"{len(refused)} refused by the gateway in the last 7 days"
    )
    admin.click("[data-choice='7d']")
    admin.click(f"[data-figure=errors-in-range] [data-refused][href*='{ago(6)}']")  # not that of the range before
    admin.until(lambda: len(admin.rows("section[aria-labelledby=calls-title] table")) == len(refused))
    assert admin.attribute("value", "input[name=from]") == f"{ago(6)}T00:00"
    day_after = (datetime.now(UTC) + timedelta(days=1)).strftime("%Y-%m-%dT00:00")
    admin.go(f"calls?outcome=refused&from={day_after}")
    admin.see("section[aria-labelledby=calls-title] .none")
    assert admin.attribute("value", "input[name=from]") == day_after


def test_the_page_of_one_has_the_range_of_the_page_that_leads_there(admin: Page, gateway: Gateway) -> None:
    for choice in ("7d", "tokens", "key"):
        admin.click(f"[data-choice='{choice}']")
    admin.click(f"{TABLE} tr[data-name=alice] a")
    admin.see("dialog [data-choice='7d'][aria-pressed=true]")
    admin.see("dialog [data-choice=tokens][aria-pressed=true]")
    admin.until(lambda: "from=" in (admin.attribute("href", "dialog footer a", "Its calls") or ""))


def test_closing_a_page_leads_back_to_where_its_reader_came_from(admin: Page, gateway: Gateway) -> None:
    for choice in ("7d", "tokens", "key"):
        admin.click(f"[data-choice='{choice}']")
    start = admin.driver.current_url
    assert start.endswith("#overview?range=7d&metric=tokens&group=key")
    admin.click(f"{TABLE} tr[data-name=alice] a")
    admin.see("dialog h2", "alice")
    admin.click("dialog .subject-report [data-choice='30d']")
    admin.click(f"dialog section[aria-labelledby=subject-usage] .flush tr[data-name='{COMPLETIONS}'] a")
    admin.see("dialog h2", f"Model {COMPLETIONS}")
    assert len(admin.all("dialog")) == 1
    admin.press(ESCAPE)
    admin.see("dialog h2", "alice")
    admin.see("dialog [data-choice='30d'][aria-pressed=true]")
    admin.press(ESCAPE)
    admin.gone("dialog")
    admin.see(f"{TABLE} tr[data-name=alice]")
    assert admin.driver.current_url == start
    assert {each.text for each in admin.all("main [aria-pressed=true]")} >= {"7 days", "Tokens", "key"}
    admin.driver.get("about:blank")
    admin.driver.get(f"{gateway.url}/dashboard#teams/crew")  # a link from elsewhere
    admin.see("dialog h2", "Team crew")
    admin.press(ESCAPE)
    admin.gone("dialog")
    admin.see("main tr[data-name=crew]")
    admin.until(lambda: admin.driver.current_url.endswith("#teams"))


def test_the_browsers_back_button_closes_a_page(admin: Page, gateway: Gateway) -> None:
    admin.go("keys")
    admin.click("main tr[data-name=carol] th a")
    admin.see("dialog h2", "carol")
    admin.driver.back()
    admin.gone("dialog")
    admin.see("main tr[data-name=carol]")


def test_every_table_is_downloaded_as_it_is_shown(admin: Page, gateway: Gateway, tmp_path: Path) -> None:
    admin.driver.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    admin.see(f"{TABLE} tbody tr")
    admin.click("section[aria-labelledby=who-title] .csv")
    eventually((tmp_path / "usage-by-model.csv").exists)
    rows = list(csv.DictReader(io.StringIO((tmp_path / "usage-by-model.csv").read_text())))
    known = {row["model"]: row for row in gateway.usage(group_by="model", since=ago(29))}
    assert {row["Model"]: int(row["Prompt"]) for row in rows} == {
        name: row["prompt_tokens"] for name, row in known.items()
    }
    assert {row["Model"]: row["Cost"] for row in rows if not row["Cost"]} == {
        name: "" for name, row in known.items() if row["cost_usd"] is None
    }
    for view in ("calls", "quotas", "keys", "teams", "audit"):
        admin.go(view)
        admin.see("main table tbody tr, main .none")
        if admin.all("main table tbody tr[data-name]"):
            admin.see("main .csv", "Download (CSV)")


@pytest.fixture(scope="module")
def attributed(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream, store_url: str) -> Gateway:
    """Calls with users and tags, by keys with a label, on each of the stores."""
    keys = [key("alice", labels={"center": "north"}), key("bob", labels={"center": "south"})]
    made = start_shared_gateway(settings(shared_upstream.url, keys=keys, store={"url": store_url}))
    calls = [("alice", "ada", "atlas"), ("alice", "ada", "zeus"), ("bob", "grace", "atlas"), ("bob", "", "")]
    plant(
        made.config["store"]["url"],
        [
            record(ago(1), owner, user=user, tags=f"project={project}" if project else "", upstream="main")
            for owner, user, project in calls
        ],
    )
    return made


@pytest.mark.parametrize("group", ["user", "tag:project", "label:center"])
def test_groups_that_clients_and_keys_name(driver: webdriver.Chrome, attributed: Gateway, group: str) -> None:
    page = Page(driver, attributed.url)
    page.forget()
    page.open(token=ADMIN_TOKEN)
    if group == "user":
        page.click("[data-choice=user]")
    else:
        page.type("input[name=group]", group + "\n")
    known = {row[group]: row["requests"] for row in attributed.usage(group_by=group, since=ago(29))}
    assert len(known) >= 2
    title = group[0].upper() + group[1:]
    page.until(lambda: {row[title].replace("\u2013", ""): int(row["Requests"]) for row in page.rows(TABLE)} == known)
    assert f"group={group.replace(':', '%3A')}" in page.driver.current_url
    page.until(lambda: {each.text for each in page.all(".legend *") if each.text} >= {name for name in known if name})
    if group.startswith("label"):
        assert not page.all(f"{TABLE} .only, .legend .pick")
    else:
        name = next(iter(known))
        page.click(f"{TABLE} tr[data-name={name}] .only")
        page.see("main input[name]")
        page.until(lambda: len(page.rows("main table")) == known[name])
    check_requests(page)
