"""What is left of a key whose team has spent its quota: the pages say what refuses its calls."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from selenium import webdriver

from tests.browser.chromium import ESCAPE, Page
from tests.browser.conftest import check_requests
from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import ok_json
from tests.flows.gateway_process import ADMIN_TOKEN, Gateway, key, secret, settings


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream, store_url: str) -> Gateway:
    """The team of ada has spent its quota; ada and the other team have not."""
    keys = [
        key("ada", team="research", quotas=[{"requests": 100, "per": "day"}]),
        key("shade", team="research", quotas=[{"requests": 100, "per": "day"}], on_exceeded="shadow"),
        key("grace", team="sales", quotas=[{"requests": 100, "per": "day"}]),
    ]
    teams = {
        "research": {"quotas": [{"requests": 1, "per": "month"}]},
        "sales": {"quotas": [{"requests": 9, "per": "month"}]},
    }
    config = settings(
        shared_upstream.url,
        keys=keys,
        teams=teams,
        quotas=[{"requests": 1000, "per": "month"}],
        store={"url": store_url},
    )
    made = start_shared_gateway(config)
    with shared_upstream.answering(ok_json()):
        assert [made.complete("ada").status for _ in range(2)] == [200, 429]
    return made


@pytest.fixture
def admin(driver: webdriver.Chrome, gateway: Gateway) -> Iterator[Page]:
    page = Page(driver, gateway.url)
    page.forget()
    page.open(token=ADMIN_TOKEN)
    yield page
    check_requests(page)


def test_a_key_shows_the_quotas_of_its_team_and_of_the_gateway(admin: Page, gateway: Gateway) -> None:
    admin.go("keys/ada")
    admin.see("dialog .quota.full[data-scope='team:research']", "spent")
    admin.see("dialog .quota[data-scope='key:ada']", "99 left")
    admin.see("dialog .quota[data-scope=gateway]")
    admin.see("#why-refused", "A full bar below")
    admin.see("dialog h3", "Shared by the team research")
    assert len(admin.all("dialog .quota")) == len(gateway.admin("quotas", key="ada", binding="true").json["data"])


def test_a_key_sees_its_team_and_no_page_that_it_cannot_open(driver: webdriver.Chrome, gateway: Gateway) -> None:
    page = Page(driver, gateway.url)
    page.forget()
    page.open(token=secret("ada"))
    page.see("[data-figure=near] li", "research 100 %")
    assert not page.all("[data-figure=near] a[href*=teams]")
    page.go("quotas")
    page.see("main table tbody tr td", "research")
    assert not [each for each in page.all("main [data-choice=team]") if each.is_displayed()]
    assert not page.all("main a[href*=teams]")
    page.go("keys/ada")
    page.see("dialog h3", "Shared by the team research")
    page.see("dialog .facts", "research")
    assert not page.all("dialog a[href*=teams]")
    check_requests(page)


def test_the_limits_of_a_person_are_found_however_her_name_is_written(
    driver: webdriver.Chrome, upstream: ScriptedUpstream, start_gateway: StartsGateways
) -> None:
    people = {"lisa@example.org": {"quotas": [{"requests": 1, "per": "month"}]}}
    made = start_gateway(settings(upstream.url, keys=[key("lisa", owner="Lisa@Example.org")], people=people))
    upstream.answer_with(ok_json())
    assert [made.complete("lisa").status for _ in range(2)] == [200, 429]
    page = Page(driver, made.url)
    page.forget()
    page.open(token=ADMIN_TOKEN)
    page.go("keys")
    page.see("main tr[data-name=lisa] .blocked", "of person lisa@example.org: spent")
    page.go("keys?by=owner")
    row = "main tr[data-name='lisa@example.org']"
    page.see(f"{row} .limit-words", "of 1 request per month")
    page.see(f"{row} .blocked", "1 key stopped")
    assert [row["Person"] for row in page.rows()] == ["lisa@example.org"]
    check_requests(page)


def test_on_a_phone_the_page_of_a_key_begins_with_its_quotas_and_usage(admin: Page) -> None:
    def order() -> list[str]:
        return sorted(
            (".quotas", ".subject-report", ".facts", "footer"),
            key=lambda css: admin.see(f"dialog {css}").rect["y"],
        )

    admin.go("keys/ada")
    admin.see("dialog .facts")
    assert order() == [".quotas", ".facts", "footer", ".subject-report"]
    admin.press(ESCAPE)
    admin.resize(360, 800)
    admin.go("keys/grace")
    admin.see("dialog .facts")
    assert order() == [".quotas", ".subject-report", ".facts", "footer"]


def test_the_quotas_of_keys_say_what_their_team_has_spent(admin: Page) -> None:
    admin.go("quotas")
    admin.see("tr[data-name='ada'] .blocked", "requests per month of team research: spent")
    for other in ("shade", "grace"):
        admin.see(f"tr[data-name='{other}']")
        assert not admin.all(f"tr[data-name='{other}'] .blocked")
    assert admin.text("main .note.spent") == "Spent: one of team research. What needs more gets 429."
