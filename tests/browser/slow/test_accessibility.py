"""axe-core finds nothing on any view or dialog, in both themes; controls are reached by keyboard; charts have tables.

Members and leads after sign-in are in test_sign_in.py.
"""

from __future__ import annotations

from uuid import uuid4

import pytest
from selenium import webdriver

from tests.browser.axe import check
from tests.browser.chromium import ENTER, ESCAPE, TAB, Page
from tests.browser.conftest import check_requests
from tests.conftest import ScriptedUpstream, StartsProcesses
from tests.fakes.scripted import ok_json
from tests.flows.gateway_process import ADMIN_TOKEN, CHAT, Gateway, secret

VIEWS = [
    "overview",
    "overview?range=24h&group=key",
    "calls",
    "quotas",
    "keys?by=owner",
    "teams",
    "models",
    "bills",
    "statement",
    "audit",
]


@pytest.fixture(params=["light", "dark"])
def themed(page: Page, request: pytest.FixtureRequest) -> Page:
    page.prefer(request.param, is_still=True)
    return page


def test_every_view_of_an_operator(themed: Page) -> None:
    themed.open(token=ADMIN_TOKEN)
    for view in VIEWS:
        themed.go(view)
        themed.see("main table tbody tr")
        check(themed, view)


SIZES = {"1920": (1920, 1080, 1), "200 %": (640, 450, 2)}


@pytest.mark.parametrize("size", SIZES)
def test_every_view_at_every_width(themed: Page, size: str) -> None:
    width, height, scale = SIZES[size]
    themed.resize(width, height, scale)
    themed.open(token=ADMIN_TOKEN)
    for view in [*VIEWS, "overview?range=1h&metric=requests", "playground"]:
        themed.go(view)
        themed.see("main table, main .playground")
        themed.until(lambda: not themed.all("[aria-busy], main .bone"))
        check(themed, f"{view} at {size}")
        assert themed.run("return document.documentElement.scrollWidth <= innerWidth"), f"{view} at {size} sticks out"


def test_every_dialog(themed: Page) -> None:
    themed.open(token=ADMIN_TOKEN)
    for view in ("keys/alice", "teams/crew", "models/gpt-3.5-turbo-instruct", "upstreams/main"):
        themed.go(view)
        themed.see("dialog .facts")
        themed.see("dialog section[aria-labelledby=subject-latency] .flush tbody tr")
        check(themed, view)
        themed.press(ESCAPE)
        themed.gone("dialog")
    themed.go("keys/alice")
    for button in ("Top up", "Reset", "Pause"):
        themed.click("dialog button", button)
        themed.until(lambda: len(themed.all("dialog[open]")) == 2)
        check(themed, button)
        themed.press(ESCAPE)
        themed.until(lambda: len(themed.all("dialog[open]")) == 1)
    themed.press(ESCAPE)
    themed.gone("dialog")
    themed.resize(360, 800)
    for view in ("keys/alice", "overview"):
        themed.go(view)
        themed.see("dialog .facts" if "/" in view else "main table tbody tr")
        check(themed, f"{view} on a phone")
    themed.resize(1280, 900)
    themed.go("playground")
    themed.see("input[name=key]")
    check(themed, "playground")
    themed.go("models")
    themed.click("#reload")
    themed.see("dialog .why")
    check(themed, "reload")
    themed.press(ESCAPE)
    themed.gone("dialog")
    for view, button in (("keys", "#new-key"), ("teams", "#new-team")):
        themed.go(view)
        themed.click(button)
        themed.click("dialog fieldset button", "Add a quota")
        check(themed, button)
        themed.press(ESCAPE)
        themed.gone("dialog")
    for outcome in ("calls", "refused"):
        themed.go(f"calls?outcome={outcome}")
        themed.click("main table tbody tr th a")
        themed.see("dialog .facts")
        check(themed, f"one of {outcome}")
        themed.press(ESCAPE)
        themed.gone("dialog")


def test_sign_in_and_the_page_of_a_member(themed: Page) -> None:
    themed.open()
    themed.see("#token")
    check(themed, "sign-in")
    themed.open(token=secret("alice"))
    themed.see("[data-key=alice] .quota")
    check(themed, "a member's page")


USAGE = {"prompt_tokens": 1, "completion_tokens": 1}
SAID = ok_json({"model": CHAT, "choices": [{"index": 0, "message": {"content": "Hello."}}], "usage": USAGE})


@pytest.mark.changes
def test_the_playground_with_an_answer(themed: Page, gateway: Gateway, upstream: ScriptedUpstream) -> None:
    themed.open(token=secret("alice"))
    themed.go("playground")
    themed.until(lambda: themed.attribute("value", "input[name=model]"))
    themed.click("input[type=checkbox]")
    upstream.answer_with(SAID)
    themed.click("main button.primary", "Send")
    themed.see("[data-cost]")
    check(themed, "an answer")


@pytest.mark.changes
@pytest.mark.parametrize("width", [1280, 360])
def test_a_new_secret_with_settings_for_tools(themed: Page, width: int) -> None:
    themed.resize(width, 900)
    themed.open(token=ADMIN_TOKEN)
    themed.go("keys")
    themed.click("#new-key")
    themed.type("#field-id", f"axe-{uuid4()}")
    themed.click("dialog button[type=submit]")
    themed.see("#secret")
    check(themed, "a new secret")


def test_the_reference_of_the_api(themed: Page, gateway: Gateway) -> None:
    themed.driver.get(f"{themed.address}/docs")
    themed.see("h2", "Calls")
    check(themed, "docs")


DEMO = [*VIEWS, "playground", "keys/notebooks", "teams/research", "models/claude-sonnet-5", "upstreams/shaky"]


def test_the_demo(driver: webdriver.Chrome, process: StartsProcesses) -> None:
    """With two months of calls: more rows, colours and states than the other tests have."""
    demo = process("demo", "--port", "0")
    found = demo.wait_for(r"(http://127\.0\.0\.1:\d+)/dashboard#token=(\S+)")
    page = Page(driver, found[1])
    for theme in ("light", "dark"):
        page.forget()
        page.prefer(theme, is_still=True)  # type: ignore[arg-type]
        page.open(token=found[2])
        for view in DEMO:
            page.go(view)
            page.until(lambda: not page.all("[aria-busy], main .bone"))
            page.see("main table, main .playground, main .empty:not(.bad)")
            check(page, f"{view} of the demo, {theme}")
            page.press(ESCAPE)
    check_requests(page)


PAGES = [
    "overview", "calls", "keys", "keys?by=owner", "teams", "models", "bills", "statement", "invoice", "audit",
    "playground", "keys/alice",
    "teams/crew", "models/gpt-3.5-turbo-instruct", "upstreams/main", "mine",
]  # fmt: skip
CHARTED = {"overview", "mine", "keys/alice", "teams/crew", "models/gpt-3.5-turbo-instruct", "upstreams/main"}


def opened(page: Page, view: str) -> None:
    """Opens a view as a member or operator, depending on the view."""
    page.open(token=secret("alice") if view == "mine" else ADMIN_TOKEN)
    page.go(view)
    page.see("dialog .facts" if "/" in view else "main table, main .playground, main .none, main form")
    page.until(lambda: not page.all("[aria-busy], .bone"))


CONTROLS = """
window.named = (node) => [node.tagName, node.ariaLabel ?? "", node.name ?? "", node.getAttribute("href") ?? "",
    node.matches("svg, .scroll") ? "" : node.textContent.trim().slice(0, 60)].join(" ");
window.reached = new Set();
document.addEventListener("focusin", ({ target }) => window.reached.add(window.named(target)));
"""
MISSED = """
const place = document.querySelector("dialog") ?? document.body;
const kinds = "a[href], button:enabled, input:enabled, select, textarea, summary, [tabindex='0']";
return [...place.querySelectorAll(kinds)]
  .filter((node) => node.checkVisibility() && !node.matches(".skip"))
  .map(window.named).filter((name) => !window.reached.has(name));
"""
MOST_TABS = 250


@pytest.mark.parametrize("view", PAGES)
def test_every_control_is_reached_by_keyboard(page: Page, view: str) -> None:
    opened(page, view)
    page.run(CONTROLS)
    page.run("document.activeElement.blur()")
    for _ in range(MOST_TABS // 10):
        page.press(TAB * 10)
        if not page.run(MISSED):
            break
    assert not page.run(MISSED)


@pytest.mark.parametrize("view", PAGES)
def test_who_wants_no_motion_sees_none(page: Page, view: str) -> None:
    page.prefer("light", is_still=True)
    opened(page, view)
    assert page.run("return document.getAnimations().length") == 0


@pytest.mark.parametrize("view", PAGES)
def test_every_chart_has_a_table(page: Page, view: str) -> None:
    opened(page, view)
    charts: list[bool] = page.run(
        """
        return [...document.querySelectorAll("svg.chart")].map((chart) => {
          const table = chart.closest(".panel").querySelector("details.as-table table");
          return Boolean(chart.getAttribute("aria-label")) && table.tBodies[0].querySelector("tr[data-name]") !== null;
        });
        """
    )
    assert all(charts)
    assert bool(charts) == (view in CHARTED)


def test_a_model_is_opened_and_left_by_keyboard(admin: Page) -> None:
    admin.go("models")
    admin.see("main table tbody tr")
    admin.run("document.querySelector('main table tbody th a').focus()")
    admin.press(ENTER)
    admin.see("dialog h2", "Model ")
    while admin.focused["text"] != "7 days":
        admin.press(TAB)
    admin.press(ENTER)
    admin.until(lambda: admin.driver.current_url.endswith("range=7d"))
    admin.press(ESCAPE)
    admin.gone("dialog")
    assert admin.driver.current_url.endswith("#models")
