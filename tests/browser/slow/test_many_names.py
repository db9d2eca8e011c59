"""A gateway with many names, and one with none: what stays readable, what is suggested, and what comes first."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver

from tests.browser.chromium import Page
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
    here.until(lambda: len(here.rows()) == 2)
    rows = {row["Key"]: row for row in here.rows()}
    assert (rows["k00"]["Owner"], float(rows["k00"]["30 days"]), rows["k00"]["Last used"]) == (
        "ann@example.org", 2.0, ago(1),
    )  # fmt: skip
    assert (float(rows["unused"]["30 days"]), rows["unused"]["Last used"]) == (0.0, "\u2013")


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
