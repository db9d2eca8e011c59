"""What is shown has an address: a link shows it, and Back leads to what was there before."""

from __future__ import annotations

from pathlib import Path

import pytest
from selenium import webdriver

from tests.browser.chromium import ESCAPE, Page
from tests.browser.conftest import ago
from tests.conftest import StartsGateways
from tests.flows.gateway_process import ADMIN_TOKEN, COMPLETIONS, Gateway, secret, settings
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


@pytest.mark.parametrize(
    ("address", "shown"),
    [("keys/%", "%"), ("models/%E0%A4%A", "%E0%A4%A"), ("overview?range=constructor", "30 days")],
)
def test_an_address_that_was_written_by_hand_is_shown(admin: Page, address: str, shown: str) -> None:
    admin.go(address)
    admin.see("main", shown)
    admin.go("calls")
    admin.see(FIRST)


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


def test_names_in_rows_lead_to_their_pages(admin: Page) -> None:
    admin.go("calls?outcome=calls&key=alice")
    admin.see("main table tbody td a", "alice")
    row = "main table tbody tr:first-child td a"
    links = admin.run("return [...document.querySelectorAll(arguments[0])].map((each) => each.hash)", row)
    assert links == ["#keys/alice", f"#models/{COMPLETIONS}", "#upstreams/main"]
    admin.click(row, "main")
    admin.see("dialog h2", "Upstream main")


@pytest.mark.parametrize(
    "address", ["keys/alice", "teams/crew", "models/gpt-3.5-turbo-instruct", "upstreams/main", "calls?call={call}"]
)
def test_what_has_an_address_is_a_page_and_no_window(admin: Page, gateway: Gateway, address: str) -> None:
    call = gateway.admin("calls", limit="1").json["data"][0]["id"]
    admin.go(address.split("/")[0].split("?")[0])
    admin.see("#view table tbody tr")
    admin.run("document.querySelector('#view').style.minHeight = '3000px'; scrollTo(0, 700)")
    admin.go(address.format(call=call))
    admin.see("main > dialog .facts")
    assert admin.run("return [scrollY, document.querySelectorAll('dialog:modal').length]") == [0, 0]
    admin.gone("#view")
    admin.click("main > dialog > header button", "Back")
    admin.see("#view table tbody tr")
    assert admin.run("return scrollY") == 700
    admin.go(address.format(call=call))
    admin.see("main > dialog .facts")
    admin.click("#nav a", "Playground")  # the rest of the page can be used
    admin.see("#view .playground")
    admin.gone("dialog")


@pytest.mark.parametrize("width", [721, 820, 1024])
def test_all_views_are_in_sight(admin: Page, width: int) -> None:
    admin.resize(width, 900)
    admin.go("calls")
    admin.see("#refused table tbody tr")
    assert (
        admin.run(
            """
        return [...document.querySelectorAll("#nav a:not([hidden])")].filter((a) => {
          const [own, around] = [a.getBoundingClientRect(), a.parentElement.getBoundingClientRect()];
          return own.left < around.left || own.right > around.right;
        }).map((a) => a.textContent);
        """
        )
        == []
    )
    if width >= 820:
        refused = "const it = document.querySelector('#refused .scroll'); return it.scrollWidth <= it.clientWidth"
        assert admin.run(refused)


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

    def seen() -> dict[str, tuple[bool, bool, str]]:
        shown = page.run(
            """
            const cells = [...document.querySelectorAll("main .scroll tr[data-name] > th")];
            return cells.map((cell) => {
              const [own, around] = [cell.getBoundingClientRect(), cell.closest(".scroll").getBoundingClientRect()];
              return [cell.textContent, own.left >= around.left, own.right <= around.right, cell.title];
            });
            """
        )
        found = {text: (begins, ends, title) for text, begins, ends, title in shown}
        return {name: found[name] for name in names}

    assert page.until(seen) == {name: (True, True, name) for name in names}
