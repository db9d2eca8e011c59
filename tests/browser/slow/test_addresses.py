"""What is shown has an address: a link shows it, and Back leads to what was there before."""

from __future__ import annotations

from pathlib import Path

import pytest
from selenium import webdriver

from tests.browser.chromium import ESCAPE, Page
from tests.browser.conftest import ago
from tests.conftest import StartsGateways
from tests.flows.gateway_process import ADMIN_TOKEN, Gateway, secret, settings
from tests.flows.planted import plant, record

FIRST = "main table tbody tr:first-child th a"


def test_back_closes_a_call_and_leaves_the_list_as_it_was(admin: Page, gateway: Gateway) -> None:
    admin.go("calls?outcome=failed")
    first = admin.see(FIRST)
    row = str(admin.attribute("data-name", "main table tbody tr"))
    admin.click(FIRST)
    admin.see("dialog .why")
    assert admin.driver.current_url.endswith(f"#calls?outcome=failed&call={row}")
    admin.driver.back()
    admin.gone("dialog")
    assert admin.driver.current_url.endswith("#calls?outcome=failed")
    assert first.is_displayed()  # the same row, not one that was drawn anew
    admin.driver.forward()
    admin.see("dialog .facts", row)
    admin.press(ESCAPE)
    admin.gone("dialog")
    assert admin.driver.current_url.endswith("#calls?outcome=failed")


@pytest.mark.parametrize("kind", ["calls", "refusals"])
def test_the_address_of_a_call_or_refusal_shows_it(page: Page, gateway: Gateway, kind: str) -> None:
    row = gateway.admin(kind, limit="1").json["data"][0]["id"]
    page.open(f"calls?call={row}", ADMIN_TOKEN)
    page.see("dialog h2", "One call" if kind == "calls" else "One refused request")
    page.see("dialog .facts", row)
    page.press(ESCAPE)
    page.gone("dialog")
    page.see(FIRST)
    page.open("calls?call=no-such-call", ADMIN_TOKEN)
    page.see("dialog .empty", "There is no call and no refusal with the id")


def test_a_refusal_opens_on_the_page_of_a_member(page: Page, gateway: Gateway) -> None:
    page.open(token=secret("alice"))
    page.click("section[aria-labelledby=refused-title] tbody th a")
    page.see("dialog .why", gateway.get("/admin/api/refusals?limit=1", key="alice").json["data"][0]["message"])
    page.driver.back()
    page.gone("dialog")
    page.see("section[aria-labelledby=usage-title]")


@pytest.mark.changes
def test_a_change_has_an_address(admin: Page, gateway: Gateway) -> None:
    bearer = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
    gateway.send("POST", "/admin/api/keys", {"id": "changed-once"}, key=None, headers=bearer)
    admin.go("audit")
    row = str(admin.attribute("data-name", "main table tbody tr"))
    admin.click(FIRST)
    admin.see("dialog .before-after")
    assert admin.driver.current_url.endswith(f"#audit/{row}")
    admin.driver.back()
    admin.gone("dialog")
    admin.open(f"audit/{row}", ADMIN_TOKEN)
    admin.see("dialog .before-after")


@pytest.mark.parametrize("width", [820, 1024, 1920])
def test_one_long_name_hides_no_other(
    driver: webdriver.Chrome, start_gateway: StartsGateways, tmp_path: Path, width: int
) -> None:
    """A Bedrock ARN has a hundred characters."""
    long = "arn:aws:bedrock:eu-central-1:123456789012:inference-profile/eu.anthropic.claude-sonnet-4-5-v1:0"
    names = ["gpt-4o-mini", "claude-sonnet-5", long]
    url = f"embedded:{tmp_path / 'data'}"
    plant(url, [record(ago(0), "alice", model=name, label_model=name) for name in names])
    page = Page(driver, start_gateway(settings("http://127.0.0.1:9/v1", store={"url": url})).url)
    page.forget()
    page.resize(width, 900)
    page.open("overview?group=model", ADMIN_TOKEN)
    page.see(f"main table tr[data-name='{names[0]}']")
    shown = page.run(
        """
        const cells = [...document.querySelectorAll("main .scroll tr[data-name] > th")];
        return cells.map((cell) => {
          const [own, around] = [cell.getBoundingClientRect(), cell.closest(".scroll").getBoundingClientRect()];
          return [cell.textContent, own.left >= around.left, own.right <= around.right, cell.title];
        });
        """
    )
    seen = {text: (begins, ends, title) for text, begins, ends, title in shown}
    assert {name: seen[name] for name in names} == {name: (True, True, name) for name in names}
