"""What the dashboard shows is what the ledger holds: the same numbers as in the admin API and in `gateway usage`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver

from gateway.records import Usage
from tests.browser.chromium import ESCAPE, LEFT, Page
from tests.browser.conftest import ATTACK, ago
from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import stalled_stream
from tests.flows.gateway_process import ADMIN_TOKEN, COMPLETIONS, Gateway, eventually, run, settings
from tests.flows.planted import plant, record

NOTHING = "\u2013"
COLUMNS = {
    "Requests": "requests", "Prompt": "prompt_tokens", "Cached": "cached_tokens", "Completion": "completion_tokens",
    "Reasoning": "reasoning_tokens", "Cost": "cost_usd", "Failed": "errors", "Estimated": "estimated_percent",
}  # fmt: skip
TOLD = ("prompt_tokens", "completion_tokens", "cost_usd")


@pytest.fixture
def gateway(either: Gateway) -> Gateway:
    """Numbers are compared on each of the stores."""
    return either


def numbers(row: dict[str, Any]) -> dict[str, float | None]:
    """A row of the page as the report has it; what has no number is unknown."""
    return {
        name: float(row[title]) if row[title].replace(".", "").replace("e-", "").isdigit() else None
        for title, name in COLUMNS.items()
    }


def reported(rows: list[dict[str, Any]], group: str) -> dict[str, dict[str, float | None]]:
    return {row[group]: {name: row[name] for name in COLUMNS.values()} for row in rows}


def shown(page: Page, group: str) -> dict[str, dict[str, float | None]]:
    title = group.capitalize()
    found = page.rows("section[aria-labelledby=who-title] table")
    return {"" if row[title] == NOTHING else row[title]: numbers(row) for row in found}


RANGES = [("today", 0), ("7d", 6), ("30d", 29)]


@pytest.mark.parametrize(("period", "days"), RANGES)
def test_sums_are_those_of_the_report(admin: Page, gateway: Gateway, period: str, days: int) -> None:
    admin.click(f"[data-choice='{period}']")
    for group in ("key", "team", "model", "upstream"):
        admin.click(f"[data-choice={group}]")
        known = reported(gateway.usage(group_by=group, since=ago(days)), group)
        admin.until(lambda group=group, known=known: shown(admin, group) == known)  # type: ignore[misc]
    command = ("usage", "--config", str(gateway.file), "--by", "upstream", "--since", ago(days), "--format", "json")
    assert shown(admin, "upstream") == reported(json.loads(run(*command).stdout), "upstream")


@pytest.mark.parametrize(("period", "days"), RANGES)
def test_totals_are_those_of_the_report(admin: Page, gateway: Gateway, period: str, days: int) -> None:
    (whole,) = gateway.usage(group_by="", since=ago(days))
    admin.click(f"[data-choice='{period}']")

    def total(name: str) -> float:
        return admin.value(f'[data-sum="{name}"] b')

    admin.until(lambda: {name: round(total(name), 9) for name in TOLD} == {name: whole[name] for name in TOLD})
    cost = admin.text('[data-sum="cost_usd"] b')
    assert admin.text("section[aria-labelledby=usage-title] .readout").endswith(f"Cost {cost}"), (
        "the range by the metric"
    )
    unpriced = f"{whole['unpriced']} request{'' if whole['unpriced'] == 1 else 's'}"
    assert f"and {unpriced} unknown" in admin.text('[data-sum="cost_usd"]')


def test_chart_says_in_words_and_in_a_table_what_it_draws(admin: Page, gateway: Gateway) -> None:
    label = admin.attribute("aria-label", "section[aria-labelledby=usage-title] svg.chart") or ""
    (whole,) = gateway.usage(group_by="", since=ago(29))
    assert f"{whole['requests']:,} requests" in label
    admin.click("section[aria-labelledby=usage-title] details.as-table summary")
    known = reported(gateway.usage(group_by="day", since=ago(29)), "day")
    found = {
        row["Day"]: numbers(row) for row in admin.rows("section[aria-labelledby=usage-title] details.as-table table")
    }
    assert found == known
    assert len(admin.all("section[aria-labelledby=usage-title] svg.chart .mark")) == 30
    admin.run("document.querySelector('section[aria-labelledby=usage-title] svg.chart').focus()")
    admin.press(LEFT, LEFT)
    yesterday = next(row for row in gateway.usage(group_by="day") if row["day"] == ago(1))
    assert f"{yesterday['prompt_tokens']:,} prompt" in admin.text("section[aria-labelledby=usage-title] .readout")
    assert len(admin.all("section[aria-labelledby=usage-title] svg.chart .mark.on")) == 1


def test_an_unknown_cost_is_shown_as_unknown_and_not_as_0(admin: Page, gateway: Gateway) -> None:
    rows = {row["model"]: row for row in gateway.usage(group_by="model", since=ago(29))}
    unpriced = [name for name, row in rows.items() if row["cost_usd"] is None]
    assert unpriced
    for name in unpriced:
        admin.see(f"main tr[data-name={json.dumps(name, ensure_ascii=False)}] .unknown", "unknown")
        assert shown(admin, "model")[name]["cost_usd"] is None


def test_live_numbers_are_those_of_the_metrics(admin: Page, gateway: Gateway) -> None:
    received = int(gateway.metric("gateway_requests_total"))
    admin.see("[data-tile=requests]", f"{received:,} since the start")
    attempts = {labels["outcome"]: value for name, labels, value in gateway.metrics() if "attempts_total" in name}
    failed = int(sum(value for outcome, value in attempts.items() if outcome not in ("ok", "refused", "client_gone")))
    admin.see('[data-upstream="main"]', f"{int(attempts['ok'])} attempts answered, {failed} failed")
    admin.see('[data-upstream="main"] .pill')


@pytest.mark.changes
def test_rates_come_of_two_samples(admin: Page, gateway: Gateway, upstream: ScriptedUpstream) -> None:
    admin.until(lambda: admin.text("[data-tile=requests] .figure") != NOTHING)
    upstream.answer_with(always=stalled_stream([]))
    with gateway.stream("carol"):
        admin.until(lambda: admin.text("[data-tile=in-flight] .figure") == "1")
        admin.until(lambda: float(admin.text("[data-tile=requests] .figure")) >= 0)
    admin.until(lambda: admin.text("[data-tile=in-flight] .figure") == "0")


# -------------------------------------------------------------------------------------------------------------- quotas


def test_bars_are_those_of_the_ledger(admin: Page, gateway: Gateway) -> None:
    admin.go("quotas")
    admin.see("main table")
    rows = gateway.admin("quotas").json["data"]
    assert admin.text('.quota[data-scope="gateway"]').startswith("requests per month")
    for kind in ("key", "team"):
        admin.click(f"main [data-choice={kind}]")
        held: dict[str, list[dict[str, Any]]] = {}
        for row in rows:
            if row["scope"].startswith(f"{kind}:"):
                held.setdefault(row["scope"].partition(":")[2], []).append(row)
        for name, windows in held.items():
            admin.click(f"main tr[data-name='{name}'] .opener")
            for row in windows:
                bar = f".below .quota[data-scope='{kind}:{name}'][data-unit={row['unit']}]"
                assert f"{row['used']:,}" in admin.text(bar) or row["unit"] == "usd"
                assert admin.attribute("aria-valuenow", f"{bar} [role=meter]") == str(min(row["used"], row["limit"]))
            admin.click(f"main tr[data-name='{name}'] .opener")
            admin.gone(".below")
    admin.click("main tr[data-name=crew] .opener")
    assert "resets in" in admin.text('.quota[data-scope="team:crew"]')
    assert [row["Key"] for row in admin.rows(".below table")] == ["alice"]


@pytest.mark.changes
def test_what_a_running_call_has_reserved_is_drawn(admin: Page, gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(stalled_stream([]))
    with gateway.stream("alice", max_tokens=4000):
        admin.go("keys/alice")
        bar = "dialog .quota[data-scope^=key][data-unit=usd]"
        admin.see(bar, " reserved")
        (row,) = [row for row in gateway.admin("quotas", key="alice").json["data"] if row["unit"] == "usd"]
        width = admin.run(f"return document.querySelector('{bar} .reserved').getBoundingClientRect().width")
        whole = admin.run(f"return document.querySelector('{bar} .bar-track').getBoundingClientRect().width")
        assert width / whole == pytest.approx(row["reserved"] / row["limit"], abs=0.01)
        assert width > 1


# --------------------------------------------------------------------------------------------------------------- calls


def listed(page: Page) -> list[str]:
    """The request ids of the list."""
    found: list[str] = page.run(
        "return [...document.querySelectorAll('section[aria-labelledby=calls-title] tbody tr')]"
        ".map((row) => row.dataset.name ?? '')"
    )
    return found


def test_filters_are_closed_on_a_phone_unless_one_is_set(page: Page) -> None:
    page.resize(390, 844)
    page.open("calls", ADMIN_TOKEN)
    page.see("main table tbody tr th a")
    assert not page.all("input[name=key]")[0].is_displayed()
    page.click("main .filter-box summary", "Filters")
    page.type("input[name=key]", "alice")
    page.until(lambda: {row["Key"] for row in page.rows()} == {"alice"})
    page.open("calls?key=bob", ADMIN_TOKEN)
    assert page.attribute("value", "input[name=key]") == "bob"


@pytest.mark.changes
def test_a_refused_model_is_shown_as_the_client_named_it(admin: Page, gateway: Gateway) -> None:
    refused = gateway.chat("carol", model="nick").headers["x-request-id"]
    eventually(lambda: refused in ids(gateway, "refusals", model="nick"))
    admin.go(f"calls?id={refused}")
    admin.see(f"main tr[data-name={refused}]", "nick")
    assert [row["Model"] for row in admin.rows()] == ["nick"]
    admin.click(f"main tr[data-name={refused}] th a")
    admin.see("dialog .facts", "nick")


def ids(gateway: Gateway, path: str, **query: Any) -> set[str]:
    return {row["id"] for row in gateway.admin(path, limit="1000", **query).json["data"]}


def test_calls_and_refusals_are_one_list(admin: Page, gateway: Gateway) -> None:
    admin.go("calls")
    admin.see("main table tbody tr th a")
    known = {call["id"]: call for call in gateway.calls(limit=1000)}
    refused = {row["id"]: row for row in gateway.admin("refusals", limit="1000").json["data"]}
    assert set(listed(admin)) == set(known) | set(refused)
    assert [each for each in listed(admin) if each in known] == [call["id"] for call in gateway.calls(limit=1000)]
    assert [each for each in listed(admin) if each in refused] == list(refused)
    for each, row in zip(listed(admin), admin.rows("main table"), strict=True):
        if each in known:
            call = known[each]
            assert int(row["Tokens"]) == call["prompt_tokens"] + call["completion_tokens"]
        else:
            assert (refused[each]["code"] in row["Outcome"], row["Cost"]) == (True, NOTHING)
    admin.choose("select[name=outcome]", "failed")
    admin.until(lambda: [row["Key"] for row in admin.rows("main table")] == ["carol", "bob", "alice"])
    admin.click("main table tbody tr th a")
    assert "The upstream main failed" in admin.text("dialog .why")
    admin.see("dialog .attempts", "error status")
    admin.press(ESCAPE)
    admin.gone("dialog")


def test_the_list_begins_at_the_minute_that_is_chosen(page: Page, gateway: Gateway) -> None:
    page.open(f"calls?until={ago(12)}T12:00", ADMIN_TOKEN)
    wanted = ids(gateway, "calls", until=f"{ago(12)}T12:00:59Z")
    assert 0 < len(wanted) < len(ids(gateway, "calls"))
    page.until(lambda: set(listed(page)) == wanted)
    assert all(row["Began"].startswith(ago(29)[5:]) or len(row["Began"]) > 8 for row in page.rows("main table"))
    assert page.attribute("value", "input[name=until]") == f"{ago(12)}T12:00"
    page.run(
        "const f = document.querySelector('input[name=until]'); f.value = ''; f.dispatchEvent(new Event('change'))"
    )
    page.until(lambda: set(listed(page)) == ids(gateway, "calls") | ids(gateway, "refusals"))


def test_the_list_is_filtered_by_the_api_and_by_its_address(page: Page, gateway: Gateway) -> None:
    page.open("calls", ADMIN_TOKEN)
    page.see("main table tbody tr th a")
    for name, value in (("key", "alice"), ("team", "crew"), ("model", COMPLETIONS)):
        page.type(f"input[name={name}]", value)
        wanted = ids(gateway, "calls", **{name: value}) | ids(gateway, "refusals", **{name: value})
        assert wanted
        page.until(lambda wanted=wanted: set(listed(page)) == wanted)  # type: ignore[misc]
        page.until(lambda end=f"#calls?{name}={value}": page.driver.current_url.endswith(end))  # type: ignore[misc]
        page.type(f"input[name={name}]", "")
        page.until(lambda: page.driver.current_url.endswith("#calls"))
    page.type("input[name=upstream]", "former")
    page.until(lambda: [row["Upstream"] for row in page.rows("main table")] == ["former"])
    page.open("calls?code=insufficient_quota", ADMIN_TOKEN)
    page.until(lambda: set(listed(page)) == ids(gateway, "refusals", code="insufficient_quota"))
    page.click("main table tbody tr th a")
    assert "quota" in page.text("dialog .why")
    page.press(ESCAPE)
    some = gateway.calls(limit=1)[0]["id"]
    page.open(f"calls?id={some}", ADMIN_TOKEN)
    page.until(lambda: listed(page) == [some])
    page.open("calls?outcome=429", ADMIN_TOKEN)
    page.until(lambda: set(listed(page)) == ids(gateway, "refusals", status="429"))
    page.choose("select[name=outcome]", "")
    for status in ("400", "5xx"):
        page.type("input[name=status]", status)
        wanted = ids(gateway, "calls", status=status) | ids(gateway, "refusals", status=status)
        assert wanted
        page.until(lambda wanted=wanted: set(listed(page)) == wanted)  # type: ignore[misc]
    assert page.driver.current_url.endswith("#calls?status=5xx")


def test_pages_have_no_end(driver: webdriver.Chrome, start_gateway: StartsGateways, tmp_path: Path) -> None:
    url = f"embedded:{tmp_path / 'data'}"
    plant(url, [record(ago(place // 120), "alice") for place in range(300)])
    page = Page(driver, start_gateway(settings("http://127.0.0.1:9/v1", store={"url": url})).url)
    page.forget()
    page.open("calls", ADMIN_TOKEN)
    page.see(".note", "The newest 100.")
    page.click("#older")
    page.see(".note", "The newest 200.")
    page.click("#older")
    page.see(".note", "All 300.")
    page.gone("#older")


def test_one_call_shows_when_its_attempts_were_and_its_cost_as_a_sum(
    driver: webdriver.Chrome, start_gateway: StartsGateways, tmp_path: Path
) -> None:
    url = f"embedded:{tmp_path / 'data'}"
    repeated = record(
        ago(0), "alice", upstream="far", attempts=2, failed="near:status", duration_s=2.0,
        timeline=":0:500: near:500:1000:status far:1000:2000:",
        usage=Usage(1000, 500, 400, source="reported"), cost_nusd=3_600_000, price="2 1 4",
    )  # fmt: skip
    older = record(ago(1), "bob", upstream="far", attempts=2, failed="near:timeout")  # a gateway that kept no times
    plant(url, [older, repeated])
    page = Page(driver, start_gateway(settings("http://127.0.0.1:9/v1", store={"url": url})).url)
    page.forget()
    page.open(f"calls?id={repeated.id}", ADMIN_TOKEN)
    page.click("main table tbody tr th a")
    page.see("dialog .attempts li")
    steps = [" ".join(each.text.split()) for each in page.all("dialog .attempts li")]
    assert steps == [
        "waited for room 500 ms, from 0 ms to 500 ms", "near error status 500 ms, from 500 ms to 1.0 s",
        "far answered 1.0 s, from 1.0 s to 2.0 s",
    ]  # fmt: skip
    bars = "return [...document.querySelectorAll('dialog .attempts .bar-track')].map((track) => {"
    bars += "const [all, part] = [track, track.firstChild].map((each) => each.getBoundingClientRect());"
    bars += "return [part.left - all.left, part.width].map((size) => Math.round(100 * size / all.width)); })"
    assert page.run(bars) == [[0, 25], [25, 25], [50, 50]]
    lines = [" ".join(each.text.split()) for each in page.all("dialog .cost-sum tr")]
    assert lines == [
        "prompt 600 \u00d7 $2.00 per million $0.0012", "cached 400 \u00d7 $1.00 per million $0.0004",
        "completion 500 \u00d7 $4.00 per million $0.002", "Total $0.0036",
    ]  # fmt: skip
    page.press(ESCAPE)
    page.open(f"calls?id={older.id}", ADMIN_TOKEN)
    page.click("main table tbody tr th a")
    page.see("dialog .attempts li")
    steps = [" ".join(each.text.split()) for each in page.all("dialog .attempts li")]
    assert steps == ["near timed out", "far answered"]
    assert not page.all("dialog .cost-sum")


def test_why_a_user_got_a_429(admin: Page) -> None:
    admin.go("calls")
    admin.see("#refused [data-reason=insufficient_quota]", "Last: You exceeded the quota of your key")
    admin.see("#refused [data-reason=integer_above_max_value]", "Last: ")
    row = next(row for row in admin.rows("#refused table") if row["Key"] == "bob")
    assert (row["Status"], row["Model"], row["Times"]) == ("429", COMPLETIONS, "3")
    admin.click("#refused table a", "bob")
    assert "3 \u00d7 429" in admin.text("#why-refused")
    assert "A full bar below" in admin.text("#why-refused")
    admin.see("dialog .quota.full", "spent")


def test_what_a_client_made_up_stays_text(admin: Page) -> None:
    admin.go("calls")
    admin.type("input[name=model]", ATTACK)
    admin.until(lambda: [row["Model"] for row in admin.rows("main table")] == [ATTACK])
    admin.click("main table tbody tr th a")
    assert ATTACK in admin.text("dialog .facts")
    assert admin.run("return document.querySelectorAll('main img, dialog img, main script, dialog script').length") == 0
    assert "owned" not in admin.driver.title
