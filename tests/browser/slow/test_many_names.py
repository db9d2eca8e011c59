"""A gateway with many names, and one with none: what stays readable, what is suggested, and what comes first."""

from __future__ import annotations

import asyncio
import csv
import io
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from urllib.parse import quote

import pytest
from selenium import webdriver

from gateway.config import StoreSettings
from gateway.store.opening import open_store
from gateway.wings.answers.events import PLACE, Note, written
from tests.browser.chromium import LEFT, Page
from tests.browser.conftest import ago, check_requests
from tests.conftest import ScriptedUpstream, StartsGateways
from tests.flows.gateway_process import ADMIN_TOKEN, COMPLETIONS, Gateway, eventually, key, model, settings
from tests.flows.planted import plant, record

USAGE = "section[aria-labelledby=usage-title]"
KEYS = 70
TOP = 7


@pytest.fixture
def empty(upstream: ScriptedUpstream, start_gateway: StartsGateways) -> Gateway:
    """A gateway that was never called."""
    models = {COMPLETIONS: model("completions", price={"input": 2, "output": 4})}
    keys = [key("k00", owner="ann@example.org"), key("unused")]
    return start_gateway(settings(upstream.url, models=models, keys=keys))


@pytest.fixture
def many(empty: Gateway) -> Gateway:
    """One with more keys than a chart is asked for at once; each spends more than the one before."""
    plant(empty.config["store"]["url"], [
        record(ago(back), f"k{number:02}", cost_nusd=(number + 1) * 1_000_000_000)
        for number in range(KEYS) for back in (1, 2)
    ])  # fmt: skip
    return empty


def visited(driver: webdriver.Chrome, gateway: Gateway) -> Iterator[Page]:
    made = Page(driver, gateway.url)
    made.forget()
    made.open(token=ADMIN_TOKEN)
    yield made
    check_requests(made)


@pytest.fixture
def new(driver: webdriver.Chrome, empty: Gateway) -> Iterator[Page]:
    yield from visited(driver, empty)


@pytest.fixture
def here(driver: webdriver.Chrome, many: Gateway) -> Iterator[Page]:
    yield from visited(driver, many)


def test_a_chart_has_the_largest_names_and_the_others_of_any_number(here: Page) -> None:
    here.click("[data-choice=key]")
    legend = f"{USAGE} .legend .pick, {USAGE} .legend span"
    largest = [f"k{number:02}" for number in range(KEYS - 1, KEYS - 1 - TOP, -1)]
    here.until(lambda: [each.text for each in here.all(legend)] == [*largest, f"{KEYS - TOP} others"])
    bars = here.run(
        f"return [...document.querySelectorAll('{USAGE} svg .mark:nth-last-child(2) .bar')].map((each) => "
        "[each.classList[1], each.height.baseVal.value])"
    )
    assert len(bars) == TOP + 1
    heights = dict(bars)
    others = sum(range(1, KEYS - TOP + 1)) / sum(range(KEYS - TOP + 1, KEYS + 1))
    assert heights["c0"] / sum(tall for name, tall in bars if name != "c0") == pytest.approx(others, rel=0.1)


def note(gateway: Gateway, notes: list[Note]) -> None:
    """Put notes of deploys and reloads into the store of a gateway."""

    async def put() -> None:
        store = await open_store(StoreSettings(url=gateway.config["store"]["url"]))
        for number, each in enumerate(notes):
            await store.exchange(PLACE, f"test-{number}", written(each), 3600)
        await store.close()

    asyncio.run(put())


def test_a_chart_has_marks_of_deploys_and_reloads(here: Page, many: Gateway) -> None:
    noon = datetime.fromisoformat(f"{ago(1)}T12:30:00+00:00").timestamp()
    note(many, [Note(noon - 86_400, "0.1", "a"), Note(noon, "0.1", "b"), Note(noon + 60, "0.2", "b")])
    known = many.admin("events").json["data"]
    assert [(row["kind"], row["time"]) for row in known][:2] == [
        ("reload", f"{ago(1)}T12:30:00Z"), ("deploy", f"{ago(1)}T12:31:00Z"),
    ]  # fmt: skip
    here.open(token=ADMIN_TOKEN)
    title = f"{USAGE} svg.chart .event title"
    here.until(lambda: len(here.all(title)) >= 1)
    said = here.run("return document.querySelector(arguments[0]).textContent", title)
    assert said == "reload at 12:30, deploy of 0.2 at 12:31"
    assert "marks of deploys and reloads" in (here.attribute("aria-label", f"{USAGE} svg.chart") or "")
    here.run(f"document.querySelector('{USAGE} svg.chart').focus()")
    here.press(LEFT, LEFT)
    here.see(f"{USAGE} .readout", "deploy of 0.2 at 12:31")
    here.until(lambda: said in texts(here, "section[aria-labelledby=latency-title] svg.chart .event title"))
    here.open("keys/k00", token=ADMIN_TOKEN)
    for each in ("subject-usage", "subject-latency"):
        of_subject = f"section[aria-labelledby={each}] svg.chart .event title"
        here.until(lambda title=of_subject: said in texts(here, title))  # type: ignore[misc]


def texts(page: Page, selector: str) -> list[str]:
    found: list[str] = page.run(
        "return [...document.querySelectorAll(arguments[0])].map((each) => each.textContent)", selector
    )
    return found


def test_the_page_of_a_person_has_the_usage_of_her_keys(here: Page, many: Gateway) -> None:
    here.open(f"people/{quote('ann@example.org')}", token=ADMIN_TOKEN)
    here.see("section[aria-labelledby=subject-usage] [data-sum=requests]", "2")
    here.see("section[aria-labelledby=subject-usage] [data-sum=cost_usd]", "$2")
    here.click("section[aria-labelledby=subject-usage] [data-choice=key]")
    table = "section[aria-labelledby=subject-usage] .flush table"
    here.until(lambda: [row.get("Key") for row in here.rows(table)] == ["k00"])
    here.click("dialog a", "Its calls")
    here.until(lambda: [row["Key"] for row in here.rows("section[aria-labelledby=calls-title] table")] == ["k00"] * 2)


def test_a_table_is_grouped_by_two_names_at_once(here: Page, many: Gateway) -> None:
    here.click("[data-choice=key]")
    here.choose("select[name=then]", "model")
    table = "section[aria-labelledby=who-title] table"
    known = many.usage(group_by="key,model", since=ago(29))
    here.see(f"{table} tfoot", f"Total of {len(known)}")
    rows = here.until(lambda: [row for row in here.rows(table) if row["Model"] == "m"])
    assert {(row["Key"], float(row["Cost"])) for row in rows} <= {(row["key"], row["cost_usd"]) for row in known}
    assert "then=model" in here.driver.current_url
    here.click("[data-choice=user]")
    names = "return [...document.querySelector('select[name=then]').options].map((each) => each.value)"
    here.until(lambda: here.run(names) == ["", "key", "owner", "team", "model"])
    here.choose("select[name=then]", "")
    here.until(lambda: "then=" not in here.driver.current_url)


def test_a_name_keeps_its_colour(here: Page) -> None:
    script = """
        const done = arguments[arguments.length - 1];
        import(`${arguments[0]}/dashboard/stack.js`).then((it) => done(arguments[1].map((names) => Object.fromEntries(
            it.stacked(names.map((model) => ({ model })), [], "model", { of: () => 1 }).map((part) => [part.name, part.class])))), done);
    """  # noqa: E501
    names = ["gpt-4o-mini", "claude-sonnet-5", "deepseek-reasoner"]
    one, turned, few = here.driver.execute_async_script(script, here.address, [names, names[::-1], names[:1]])
    assert one == turned
    assert len(set(one.values())) == len(names)
    assert few["gpt-4o-mini"] == one["gpt-4o-mini"]


def test_pointing_at_a_chart_does_not_move_it(here: Page) -> None:
    here.click("[data-choice=key]")
    here.until(lambda: len(here.all(f"{USAGE} .legend .pick")) == TOP)
    place = f"return document.querySelector('{USAGE} svg.chart').getBoundingClientRect().top"
    before = here.run(place)
    here.run(f"document.querySelector('{USAGE} svg.chart').focus({{preventScroll: true}})")
    here.run(
        f"document.querySelector('{USAGE} svg.chart').dispatchEvent(new KeyboardEvent('keydown', {{key: 'ArrowLeft'}}))"
    )
    here.until(lambda: here.run(f"return document.querySelectorAll('{USAGE} .mark.on').length") == 1)
    assert here.run(place) == before


def test_keys_have_their_spend_their_last_day_and_their_owner(here: Page) -> None:
    here.go("keys")
    here.see("main .pager", f"1 to 50 of {KEYS + 1}")  # with those that are gone and have spent
    rows = {}
    for name in ("k00", "k69", "unused"):
        here.type("main .filter", name)
        here.until(lambda name=name: [row["Key"] for row in here.rows()] == [name])  # type: ignore[misc]
        (rows[name],) = here.rows()
    assert (rows["k00"]["Owner"], float(rows["k00"]["30 days"]), rows["k00"]["Last call"]) == (
        "ann@example.org", 2.0, ago(1),
    )  # fmt: skip
    assert (rows["k69"]["Status"], float(rows["k69"]["30 days"])) == ("gone", 140.0)
    assert (float(rows["unused"]["30 days"]), rows["unused"]["Last call"]) == (0.0, "\u2013")


def test_filters_of_calls_suggest_explain_and_are_reset(here: Page) -> None:
    here.go("calls")
    here.until(lambda: here.run("return document.querySelectorAll('#known-key option').length") == KEYS)
    here.type("input[name=status]", "abc")
    here.see(".trouble", "A status is a number such as 429, or 5xx.")
    here.click("#reset")
    here.until(lambda: here.run("return document.querySelector('input[name=status]').value") == "")
    here.gone("#reset")
    assert "status" not in here.driver.current_url


def test_it_is_shown_who_is_signed_in(here: Page) -> None:
    here.see("#role", "admin.token · admin")


def test_the_first_steps_where_nothing_was_called(new: Page) -> None:
    new.see("#first-steps", "Make a key")
    new.click("#first-steps a", "Make a key")
    new.see("#new-key")


def test_there_are_no_first_steps_after_the_first_call(here: Page) -> None:
    here.see("[data-figure=requests-in-range]", str(2 * KEYS))
    assert not here.all("#first-steps")


def test_the_file_of_calls_has_all_of_them(here: Page, tmp_path: Path) -> None:
    here.driver.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    here.go("calls")
    here.see("main .note", "The newest 100.")
    here.click("main .csv")
    file = tmp_path / "newest-calls-and-refusals.csv"
    eventually(file.exists)
    rows = list(csv.DictReader(io.StringIO(file.read_text())))
    assert len(rows) == 2 * KEYS
    assert {"id", "time", "prompt_tokens", "completion_tokens", "cost_usd"} <= set(rows[0])
