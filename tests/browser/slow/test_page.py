"""The page itself: its token, policy, keyboard, sizes and colours; and what it does when others are away."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver

from tests.browser.chromium import ENTER, ESCAPE, TAB, Page
from tests.browser.conftest import VIEWER_TOKEN, check_requests
from tests.browser.stores import days, fill_embedded, large
from tests.conftest import StartsGateways, StartsProcesses
from tests.fakes.redis_servers import RedisServer
from tests.flows.gateway_process import ADMIN_TOKEN, Gateway, settings

NOWHERE_URL = "http://127.0.0.1:9/v1"
LIVE_EVERY_S = 2.0
VIEWS = [
    "overview", "calls", "quotas", "keys", "audit", "keys/alice", "teams", "teams/crew", "models", "upstreams/main",
    "playground",
]  # fmt: skip


# ------------------------------------------------------------------------------------------------------------ requests


def test_two_files_alone_delay_the_first_paint(admin: Page) -> None:
    """And none of the admin API's answers."""
    admin.until(lambda: not admin.all("[aria-busy], .bone"))
    blocking = admin.run(
        "return performance.getEntriesByType('resource').filter((each) => each.renderBlockingStatus === 'blocking')"
        ".map((each) => each.name.split('/').at(-1))"
    )
    assert sorted(blocking) == ["style.css", "theme.js"]


def test_the_overview_asks_for_few_reports(admin: Page) -> None:
    """Days in two parts, those that are over and the newest; hours for the comparison are not asked for."""
    admin.until(lambda: not admin.all("[aria-busy], .bone"))
    asked = [
        request["url"].partition("/admin/api/")[2] for request in admin.requested() if "/admin/api/" in request["url"]
    ]
    kinds = Counter(url.partition("?")[0] for url in asked)
    kinds.pop("live", None)  # again and again
    assert kinds == {
        "session": 1,
        "usage": 6,
        "latency": 5,
        "quotas": 1,
        "refusals": 1,
        "money": 1,
        "problems": 1,
        "events": 1,
    }


# --------------------------------------------------------------------------------------------------------------- token


def test_token_of_the_address_is_read_once_and_gone(page: Page) -> None:
    page.open(token=ADMIN_TOKEN)
    assert page.driver.current_url == f"{page.address}/dashboard"
    assert page.run("return {...sessionStorage}") == {"gateway-token": ADMIN_TOKEN}
    assert page.run("return {...localStorage}") == {}
    assert page.run("return document.cookie") == ""
    asked = [request for request in page.requested() if "/admin/" in request["url"]]
    assert asked
    assert {request["headers"]["Authorization"] for request in asked} == {f"Bearer {ADMIN_TOKEN}"}
    assert not [request for request in asked if request["headers"].get("Referer")]


def test_token_is_asked_for_and_a_wrong_one_is_reported(page: Page) -> None:
    page.open()
    page.until(lambda: page.focused["id"] == "token")
    assert not [each for each in page.all("#nav") if each.is_displayed()]
    page.type("#token", "certainly-not-the-token")
    page.press(ENTER)
    page.see(".trouble", "This token is not right.")
    assert page.run("return sessionStorage.length") == 0
    page.type("#token", VIEWER_TOKEN)
    page.press(ENTER)
    page.see("#role", "viewer")
    page.see("[data-tile=requests]")
    page.click("#leave")
    page.see("#token")
    assert page.run("return sessionStorage.length") == 0


def test_another_tab_needs_no_sign_in_and_none_is_left_signed_in(page: Page) -> None:
    page.open(token=ADMIN_TOKEN)
    page.driver.refresh()
    page.see("[data-tile=requests]")
    first = page.driver.current_window_handle
    page.driver.switch_to.new_window("tab")
    try:
        page.driver.get(f"{page.address}/dashboard#keys/alice")
        page.see("dialog h2", "alice")
        assert page.run("return {...localStorage}") == {}
        page.press(ESCAPE)
        page.click("#leave")
        page.see("#token")
        second = page.driver.current_window_handle
        page.driver.switch_to.window(first)
        page.see("#token")
        page.see(".trouble", "You signed out in another tab.")
        page.driver.switch_to.window(second)
        page.driver.refresh()
        page.see("#token")
    finally:
        page.driver.close()
        page.driver.switch_to.window(first)


def test_the_demo_leads_here(driver: webdriver.Chrome, process: StartsProcesses) -> None:
    demo = process("demo", "--port", "0", "--empty")
    found = demo.wait_for(r"(http://127\.0\.0\.1:\d+)/dashboard#token=(\S+)")
    page = Page(driver, found[1])
    page.forget()
    driver.get(found[0])
    page.see("[data-tile=requests]")
    assert driver.current_url == f"{page.address}/dashboard"
    page.go("keys/demo")
    page.see("dialog .quota", "1,000,000 tokens")
    check_requests(page)


# -------------------------------------------------------------------------------------------------------------- policy


def test_policy_refuses_scripts_styles_and_strangers(admin: Page) -> None:
    admin.run(
        """
        const script = document.createElement('script');
        try { script.textContent = "window.ran = true"; } catch (error) { window.refused = error.name; }
        document.body.append(script);
        const style = document.createElement('style');
        style.textContent = "main { display: none }";
        document.head.append(style);
        fetch("http://127.0.0.1:9/").catch(() => { window.alone = true; });
        """
    )
    admin.until(lambda: admin.run("return window.alone"))
    assert admin.run("return [window.ran, window.refused]") == [None, "TypeError"]
    assert admin.see("main").is_displayed()
    violations = admin.until(lambda: [line for line in admin.logged() if "Content Security Policy" in line])
    assert len(violations) >= 2


def test_page_cannot_be_framed(driver: webdriver.Chrome, admin: Page) -> None:
    headers = admin.run("return fetch('dashboard').then((answer) => answer.headers.get('content-security-policy'))")
    assert "frame-ancestors 'none'" in headers


# ------------------------------------------------------------------------------------------------------------ keyboard


def test_everything_can_be_reached_and_seen_by_keyboard(admin: Page) -> None:
    admin.see("main table tbody tr")
    admin.run("document.activeElement.blur()")
    seen = []
    for _ in range(80):
        admin.press(TAB)
        seen.append(admin.focused)
        if admin.focused["tag"] == "body":
            break  # it has been round
        outline = admin.run("return getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none", f"nobody sees that {admin.focused} has the focus"
    texts = [each["text"].strip() for each in seen]
    for wanted in ("Skip to the content", "Overview", "Changes", "Sign out", "Today", "30 days", "team", "Requests"):
        assert wanted in texts, f"{wanted} cannot be reached"
    assert "Filter by name" in [each["label"] for each in seen]
    assert "svg" in [each["tag"] for each in seen]


def test_slash_filters_and_escape_closes(admin: Page) -> None:
    admin.go("keys")
    admin.see("main tr[data-name=alice]")
    admin.press("/")
    admin.press("car")
    admin.until(lambda: [row["Key"] for row in admin.rows("main table")] == ["carol"])
    admin.press("/zz")  # which is a letter like any other in a field
    admin.see("main td.none", "Nothing matches “car/zz”.")
    admin.type("main .filter", "carol")
    admin.press(TAB, TAB)
    while admin.focused["text"] != "carol":
        admin.press(TAB)
    admin.press(ENTER)
    admin.see("dialog", "carol")
    admin.press(ESCAPE)
    admin.gone("dialog")
    admin.until(lambda: admin.driver.current_url.endswith("#keys"))


def test_columns_are_sorted_by_keyboard(admin: Page) -> None:
    admin.click("[data-choice=key]")
    admin.see("section[aria-labelledby=who-title] table tbody tr[data-name=alice]")
    table = "section[aria-labelledby=who-title] table"
    admin.run(f"document.querySelector('{table} th:nth-child(2) button').focus()")
    admin.press(ENTER)
    down = [int(row["Requests"]) for row in admin.rows(table)]
    assert down == sorted(down, reverse=True)
    assert admin.attribute("aria-sort", f"{table} th:nth-child(2)") == "descending"
    assert admin.focused["text"].startswith("Requests")
    admin.press(ENTER)
    assert [int(row["Requests"]) for row in admin.rows(table)] == sorted(down)


# -------------------------------------------------------------------------------------------------- sizes and colours


def overflow(page: Page) -> list[int]:
    found: list[int] = page.run(
        "return [document.documentElement.scrollWidth, document.body.scrollWidth, window.innerWidth]"
    )
    return found


@pytest.mark.parametrize("view", ["overview", "quotas", "models"])
def test_the_sorted_column_is_in_sight_on_a_phone(admin: Page, view: str) -> None:
    admin.resize(390, 844)
    admin.go(view)
    admin.see("main table tbody tr")
    admin.until(
        lambda: admin.run(
            """
            return [...document.querySelectorAll("main .scroll")].filter((box) => box.clientWidth).every((box) => {
              const cell = box.querySelector("th[aria-sort]");
              if (!cell) return true;
              const [inside, outside] = [cell.getBoundingClientRect(), box.getBoundingClientRect()];
              return inside.left >= outside.left - 1 && inside.right <= outside.right + 1;
            });
            """
        )
    )


def test_the_outcome_of_a_call_is_in_sight_on_a_phone(admin: Page) -> None:
    admin.resize(390, 844)
    admin.go("calls")
    pill = admin.see("main table .pill")
    assert pill.rect["x"] + pill.rect["width"] <= 390


CUT_OFF = """
return [...document.querySelectorAll("main *, dialog, dialog *")].filter((node) =>
    node.scrollWidth > node.clientWidth + 1 && !node.matches(".clip, .clip > a[title], .sr, th[title]")
    && ["hidden", "clip"].includes(getComputedStyle(node).overflowX)).map((node) => node.className);
"""
"""What is wider than its box, and cannot be scrolled there."""


@pytest.mark.parametrize("width", [360, 768])
def test_nothing_sticks_out_of_a_small_screen(admin: Page, width: int) -> None:
    admin.resize(width, 780)
    for view in VIEWS:
        admin.go(view)
        admin.see("main .quota, main table tbody tr, dialog .quota, main .playground")
        *widths, inside = overflow(admin)
        assert max(widths) <= inside == width, f"{view} is {widths} wide"
        assert not admin.run(CUT_OFF), f"{view} cuts something off"
    if width == 360:
        admin.press(ESCAPE)
        admin.go("keys")
        admin.click("#new-key")
        admin.click("dialog fieldset button", "Add a quota")
        assert max(overflow(admin)) <= 360
        inner = admin.run("const d = document.querySelector('dialog'); return [d.scrollWidth, d.clientWidth]")
        assert inner[0] <= inner[1]


def colours(page: Page) -> tuple[str, str]:
    found: list[str] = page.run(
        "const style = getComputedStyle(document.body); return [style.backgroundColor, style.color]"
    )
    return found[0], found[1]


def test_dark_and_light_as_in_the_system_or_as_chosen(admin: Page) -> None:
    light = colours(admin)
    admin.prefer("dark")
    dark = colours(admin)
    assert brightness(light[0]) > 0.8 > 0.3 > brightness(light[1])
    assert brightness(dark[0]) < 0.2 < 0.7 < brightness(dark[1])
    admin.click("#theme")
    assert colours(admin) == light
    admin.driver.refresh()
    admin.see("[data-tile=requests]")
    assert colours(admin) == light
    assert admin.run("return {...localStorage}") == {"gateway-theme": "light"}
    admin.click("#theme")
    assert colours(admin) == dark


def brightness(colour: str) -> float:
    """Relative luminance, as WCAG 2 has it."""
    red, green, blue = [int(part) / 255 for part in colour.partition("(")[2].rstrip(")").split(",")[:3]]
    parts = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in (red, green, blue)]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


CONTRASTS = """
const seen = (node) => { const box = node.getBoundingClientRect(); return box.width && box.height; };
const back = (node) => {
  for (let at = node; at; at = at.parentElement) {
    const colour = getComputedStyle(at).backgroundColor;
    if (!/, 0\\)$|transparent/.test(colour)) return colour;
  }
  return "rgb(255, 255, 255)";
};
const found = [];
for (const node of document.querySelectorAll("body *")) {
  if (!seen(node) || node.closest("svg, .sr, .skip")) continue;
  if (![...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim())) continue;
  found.push([node.textContent.trim().slice(0, 40), getComputedStyle(node).color, back(node)]);
}
return found;
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_can_be_read(admin: Page, scheme: Any) -> None:
    admin.prefer(scheme, is_still=True)
    for view in [*VIEWS, "keys/bob", "models/gpt-3.5-turbo-instruct"]:
        admin.go(view)
        admin.see("main .tile, main table tbody tr, dialog .quota, main .playground")
        for text, colour, behind in admin.run(CONTRASTS):
            one, other = sorted([brightness(colour), brightness(behind)])
            assert (other + 0.05) / (one + 0.05) >= 4.5, f"{view}, {scheme}: {text!r} is {colour} on {behind}"


# ------------------------------------------------------------------------------------------------------ what is away


def test_shell_is_painted_before_any_number_is_there(page: Page) -> None:
    page.driver.execute_cdp_cmd("Network.enable", {})
    page.driver.execute_cdp_cmd("Network.setBlockedURLs", {"urls": ["*/admin/api/*"]})
    try:
        page.driver.get(f"{page.address}/dashboard#token={ADMIN_TOKEN}")
        page.see(".brand", "Gateway")
        painted = page.until(lambda: page.run("return performance.getEntriesByName('first-contentful-paint').length"))
        assert painted == 1
        page.see("main .empty.bad", "The gateway does not answer.")
    finally:
        page.driver.execute_cdp_cmd("Network.setBlockedURLs", {"urls": []})
    page.click("main .empty button", "Try again")
    page.see("[data-tile=requests]")
    page.logged()


def test_a_hidden_page_sends_no_requests(admin: Page) -> None:
    admin.see("[data-tile=requests]")
    admin.run(
        """
        window.isHidden = true;
        Object.defineProperty(document, "hidden", { get: () => window.isHidden });
        document.dispatchEvent(new Event("visibilitychange"));
        """
    )
    time.sleep(0.5)  # what is under way comes to its end
    admin.requested()
    time.sleep(2 * LIVE_EVERY_S)
    assert not [request for request in admin.requested() if "/admin/" in request["url"]]
    admin.run("window.isHidden = false; document.dispatchEvent(new Event('visibilitychange'))")
    admin.until(lambda: [request for request in admin.requested() if request["url"].endswith("/admin/api/live")])


def test_a_store_outage_is_shown_and_its_end_noticed(
    driver: webdriver.Chrome, start_gateway: StartsGateways, tmp_path: Path
) -> None:
    with RedisServer(tmp_path / "redis") as server:
        gateway = start_gateway(settings(NOWHERE_URL, store={"url": server.url}))
        page = Page(driver, gateway.url)
        page.forget()
        page.open(token=ADMIN_TOKEN)
        page.see("main table, main .none")
        page.go("keys")
        page.see("main tr[data-name=alice]")
        server.kill()
        page.go("calls")
        page.see("main .empty.bad", "The store does not answer")
        page.go("keys")
        page.see("main .empty.bad", "The store does not answer")
        assert page.text("#pulse")
        server.restart()
        page.see("main tr[data-name=alice]")  # by itself
        check_requests(page)


# ------------------------------------------------------------------------------------------------------------- a lot


def test_a_thousand_keys_are_paged_filtered_and_summed(
    driver: webdriver.Chrome, start_gateway: StartsGateways, tmp_path: Path
) -> None:
    fill_embedded(tmp_path / "data", large(1000, days(10)))
    gateway: Gateway = start_gateway(settings(NOWHERE_URL, store={"url": f"embedded:{tmp_path / 'data'}"}))
    page = Page(driver, gateway.url)
    page.forget()
    page.open("overview?group=key", ADMIN_TOKEN)
    page.see(".pager", "1 to 50 of 1,000")
    assert len(page.rows("section[aria-labelledby=who-title] table")) == 50
    page.click(".pager button", "Next")
    page.see(".pager", "51 to 100 of 1,000")
    page.type("main .filter", "key-0777")
    page.until(lambda: len(page.rows("section[aria-labelledby=who-title] table")) == 1)
    (known,) = [row for row in gateway.usage(group_by="key") if row["key"] == "key-0777"]
    (row,) = page.rows("section[aria-labelledby=who-title] table")
    assert int(row["Prompt"]) == known["prompt_tokens"]
    check_requests(page)
