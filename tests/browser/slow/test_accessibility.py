"""axe-core finds nothing on any view or dialog, in both themes. `make servers` installs it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.browser.chromium import ESCAPE, Page
from tests.fakes.redis_servers import ROOT
from tests.flows.house import ADMIN_TOKEN, secret

AXE = ROOT / ".venv" / "servers" / "axe-core" / "node_modules" / "axe-core" / "axe.min.js"
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
VIEWS = ["overview", "overview?range=24h&group=key", "calls", "quotas", "keys", "teams", "models", "audit"]


def check(page: Page, where: str) -> None:
    """What axe-core finds on the page as it is."""
    page.run("if (!window.axe) { const module = undefined; " + AXE.read_text() + " }")
    found: list[dict[str, Any]] = page.driver.execute_async_script(
        "const done = arguments[1];"
        "axe.run(document, {runOnly: arguments[0]}).then((told) => done(told.violations.map((each) =>"
        "({rule: each.id, at: each.nodes.map((node) => node.html.slice(0, 200)).slice(0, 3)}))))",
        RULES,
    )
    assert not found, f"{where}: {found}"


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


def test_every_dialog(themed: Page) -> None:
    themed.open(token=ADMIN_TOKEN)
    for view in ("keys/alice", "teams/crew", "models/gpt-3.5-turbo-instruct", "upstreams/main"):
        themed.go(view)
        themed.see("dialog .facts")
        themed.see("dialog section[aria-labelledby=subject-latency] .flush tbody tr")
        check(themed, view)
        themed.press(ESCAPE)
        themed.gone("dialog")
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
        themed.click("main table tbody tr th button")
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
