"""Teams made, changed and deleted in the page; and what a team's keys spend together."""

from __future__ import annotations

from typing import Any

import pytest

from tests.browser.chromium import ENTER, ESCAPE, TAB, Page
from tests.browser.conftest import VIEWER_TOKEN
from tests.conftest import ScriptedUpstream
from tests.fakes.scripted import ok_json
from tests.flows.gateway_process import Gateway, eventually

from .test_steering import complete, make

pytestmark = pytest.mark.changes


@pytest.fixture(autouse=True)
def answering(upstream: ScriptedUpstream) -> None:
    upstream.answer_with(always=ok_json())


def received(gateway: Gateway, team: str) -> dict[str, Any]:
    found: dict[str, Any] = gateway.admin(f"teams/{team}").json
    return found


def make_team(page: Page, name: str, requests: int = 5) -> None:
    """A team with one quota, made by hand."""
    page.go("teams")
    page.click("#new-team")
    page.type("#field-name", name)
    page.click("dialog fieldset button", "Add a quota")
    page.type("dialog .quota-rows .amount", str(requests))
    page.choose("dialog .quota-rows select", "requests")
    page.click("dialog button[type=submit]")
    page.gone("dialog")
    page.see(f"main tr[data-name={name}]", f"{requests} requests per day")


def test_a_team_of_the_page_binds_its_keys(admin: Page, gateway: Gateway) -> None:
    make_team(admin, "pair", requests=2)
    assert received(gateway, "pair")["quotas"] == [{"requests": 2, "per": "day"}]
    secret = make(admin, "one-of-pair")
    admin.click("main tr[data-name=one-of-pair] .link")
    admin.click("dialog footer button", "Edit")
    admin.until(lambda: "pair" in admin.text("#field-team"))
    admin.choose("#field-team", "pair")
    admin.click("dialog form button[type=submit]")
    eventually(lambda: gateway.admin("keys/one-of-pair").json["team"] == "pair")
    eventually(lambda: complete(gateway, secret).status == 429)
    admin.click("dialog .facts a", "pair")
    admin.see("dialog h2", "Team pair")
    admin.see("dialog .quota.full", "2 of 2 requests")
    assert [each.text for each in admin.all("dialog .members a")] == ["one-of-pair"]
    admin.click("dialog .members a")
    admin.see("dialog h2", "one-of-pair")


def test_a_team_shows_what_its_keys_have_spent_and_who_they_are(operator: Page, either: Gateway) -> None:
    operator.go("teams")
    operator.click("main tr[data-name=crew] th a")
    (row,) = [row for row in either.admin("quotas", team="crew").json["data"] if row["scope"] == "team:crew"]
    bar = operator.see('dialog .quota[data-scope="team:crew"]', f"{row['used']:,} of 5,000 tokens")
    assert "resets in" in bar.text
    assert len(operator.all("dialog .quota")) == 1, "those of its keys are shown with them"
    operator.see("dialog h3", "1 key")
    assert [each.text for each in operator.all("dialog .members a")] == ["alice"]
    assert "the configuration file" in operator.text("dialog .facts")
    assert not operator.all("dialog footer button"), "what stands in the file is changed there"
    operator.press(ESCAPE)
    operator.gone("dialog")
    operator.until(lambda: operator.driver.current_url.endswith("#teams"))


def test_a_team_is_changed_topped_up_and_counted_anew(operator: Page, either: Gateway) -> None:
    make_team(operator, "growing")
    operator.click("main tr[data-name=growing] th a")
    operator.click("dialog footer button", "Edit")
    operator.type("dialog .quota-rows .amount", "9")
    operator.click("dialog fieldset button", "Add a quota")
    operator.type("dialog .quota-rows li:nth-child(2) .amount", "2.5")
    operator.choose("dialog .quota-rows li:nth-child(2) select", "usd")
    operator.click("dialog form button[type=submit]")
    eventually(
        lambda: received(either, "growing")["quotas"] == [{"requests": 9, "per": "day"}, {"usd": 2.5, "per": "day"}]
    )
    change = either.admin("audit", limit="1").json["data"][0]
    assert (change["action"], change["kind"], change["name"]) == ("update", "team", "growing")
    operator.see("dialog .quota", "of 9 requests")
    operator.click("dialog .quota button", "Top up")
    operator.type("dialog.small input[name=more]", "3")
    operator.click("dialog.small button[type=submit]")
    operator.see("dialog .quota", "of 12 requests")


def test_a_team_says_what_its_members_may_do(operator: Page, either: Gateway) -> None:
    make_team(operator, "lab")
    assert received(either, "lab")["members"] is None
    operator.click("main tr[data-name=lab] th a")
    assert "no keys" in operator.text("dialog .facts")
    operator.click("dialog footer button", "Edit")
    assert not operator.see("dialog form input[name=members]").is_selected()
    assert not operator.see("dialog form").find_element("name", "members.max_keys").is_displayed()
    operator.click("dialog form input[name=members]")
    operator.type("#field-members-max_keys", "2")
    operator.type("#field-members-models", "gpt-*, other-1")
    operator.click("dialog form input[name='by_key.rotate']")
    operator.click("dialog form button[type=submit]")
    operator.see("dialog .facts", "2 keys each, for gpt-*, other-1; a key may rotate itself")
    members = {"max_keys": 2, "models": ["gpt-*", "other-1"], "by_key": ["rotate"]}
    assert received(either, "lab")["members"] == members
    assert received(either, "lab")["quotas"] == [{"requests": 5, "per": "day"}]
    operator.click("dialog footer button", "Edit")
    assert operator.attribute("value", "#field-members-models") == "gpt-*, other-1"
    operator.type("#field-members-max_keys", "")
    operator.click("dialog form input[name=members]")
    operator.click("dialog form button[type=submit]")
    operator.see("dialog .facts", "no keys")
    assert received(either, "lab")["members"] is None


def test_faults_of_a_team_are_shown_beside_their_field(admin: Page) -> None:
    admin.go("teams")
    admin.click("#new-team")
    assert admin.focused["id"] == "field-name"
    admin.type("#field-name", "crew")
    admin.press(ENTER)
    admin.see("dialog form > .trouble", "There is a team 'crew' already.")
    admin.type("#field-name", "wrong")
    for _ in range(2):
        admin.click("dialog fieldset button", "Add a quota")
    admin.type("dialog .quota-rows li:nth-child(1) .amount", "5")
    admin.type("dialog .quota-rows li:nth-child(2) .amount", "0.5")  # of a token
    admin.click("dialog button[type=submit]")
    admin.see("dialog [data-param=quotas] .trouble", "quotas[1]")
    invalid = admin.all("dialog [aria-invalid]")
    assert [each.get_attribute("value") for each in invalid] == ["0.5"], "the line that is wrong is marked"
    admin.press(ESCAPE)
    admin.gone("dialog")


def test_a_team_is_deleted_once_it_has_no_keys(admin: Page, gateway: Gateway) -> None:
    make_team(admin, "passing")
    issued = gateway.send(
        "POST", "/admin/api/keys", {"id": "stays", "team": "passing"}, key=None,
        headers={"Authorization": f"Bearer {gateway.config['admin']['token']}"},
    )  # fmt: skip
    assert issued.status == 201
    admin.click("main tr[data-name=passing] th a")
    admin.click("dialog footer button", "Delete")
    assert admin.focused["text"] == "Cancel"
    admin.click("dialog.small button.danger")
    admin.see("dialog.small .trouble", "keys belong to the team 'passing' (stays)")
    admin.press(ESCAPE)
    admin.gone("dialog.small")
    admin.go("keys/stays")
    admin.click("dialog footer button", "Revoke")
    admin.click("dialog.small button.danger")
    admin.see("dialog .why", "This key is revoked")
    admin.go("teams/passing")
    admin.click("dialog footer button", "Delete")
    admin.click("dialog.small button.danger")
    admin.see("dialog h2", "stays")  # from where the page of the team was opened
    admin.go("teams")
    admin.see("main tr[data-name=crew]")
    admin.gone("main tr[data-name=passing]")
    assert gateway.admin("teams/passing").status == 404


def test_a_team_is_made_without_a_mouse(admin: Page, gateway: Gateway) -> None:
    admin.go("teams")
    admin.see("main tr[data-name=crew]")
    admin.run("document.querySelector('#new-team').focus()")
    admin.press(ENTER)
    admin.see("dialog #field-name")
    admin.press("typed")
    while admin.focused["text"] != "Create":
        admin.press(TAB)
    admin.press(ENTER)
    admin.gone("dialog")
    admin.see("main tr[data-name=typed]", "none")
    assert received(gateway, "typed")["quotas"] == []


def test_what_is_gone_is_not_asked_for_again(admin: Page) -> None:
    for view in ("teams/passed-away", "keys/passed-away"):
        admin.go(view)
        admin.see("dialog .empty-title", "Not found")
        assert not admin.all("dialog .empty button")
        admin.press(ESCAPE)
        admin.gone("dialog")


def test_a_viewer_sees_teams_and_changes_none(page: Page) -> None:
    page.open("teams", VIEWER_TOKEN)
    page.see("main tr[data-name=crew]", "5,000 tokens per month")
    assert not page.all("#new-team")
    page.go("teams/crew")
    page.see("dialog .quota")
    page.see("dialog .members a", "alice")
    assert not page.all("dialog footer button, dialog .quota button")
