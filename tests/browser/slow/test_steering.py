"""Keys made, changed, given another secret and revoked in the page, and used for real calls in between."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.browser.chromium import ESCAPE, Page
from tests.browser.conftest import VIEWER_TOKEN
from tests.conftest import ScriptedUpstream
from tests.fakes.scripted import ok_json
from tests.flows.client import Answer, request
from tests.flows.gateway_process import COMPLETIONS, Gateway, eventually

DIES_WITHIN_S = 15.0

pytestmark = pytest.mark.changes


@pytest.fixture(autouse=True)
def answering(upstream: ScriptedUpstream) -> None:
    upstream.answer_with(always=ok_json())


def complete(gateway: Gateway, secret: str) -> Answer:
    headers = {"Authorization": f"Bearer {secret}", "Content-Type": "application/json"}
    body = f'{{"model": "{COMPLETIONS}", "prompt": "Hi"}}'.encode()
    return request(gateway.port, "POST", "/v1/completions", body, headers)


def received(gateway: Gateway, key: str) -> dict[str, Any]:
    found: dict[str, Any] = gateway.admin(f"keys/{key}").json
    return found


def make(page: Page, name: str, requests: int = 5) -> str:
    """A key with one quota, made by hand; its secret."""
    page.go("keys")
    page.click("#new-key")
    page.type("#field-id", name)
    page.type("#field-models", "gpt-*")
    page.click("dialog fieldset button", "Add a quota")
    page.type("dialog .quota-rows .amount", str(requests))
    page.choose("dialog .quota-rows select", "requests")
    page.click("dialog button[type=submit]")
    secret = page.text("#secret")
    page.click("dialog button", "Done")
    page.gone("#secret")
    return secret


def test_a_key_of_the_page_works_and_is_what_was_asked_for(admin: Page, gateway: Gateway) -> None:
    secret = make(admin, "fresh")
    assert secret.startswith("sk-gw-fresh-")
    assert complete(gateway, secret).status == 200
    key = received(gateway, "fresh")
    assert (key["models"], key["quotas"]) == (["gpt-*"], [{"requests": 5, "per": "day"}])
    admin.see("main tr[data-name=fresh]", "active")
    assert secret not in admin.driver.page_source
    storage = admin.run("return JSON.stringify([{...localStorage}, {...sessionStorage}])")
    assert secret not in storage


TABS = ("curl", "python", "node", "environment", "codex", "claude", "continue", "webui")


def test_a_made_key_is_in_every_tab_and_a_test_call_turns_green(admin: Page, gateway: Gateway) -> None:
    admin.go("keys")
    admin.click("#new-key")
    admin.type("#field-id", "connected")
    admin.click("dialog button[type=submit]")
    secret = admin.text("#secret")
    assert tuple(each.get_attribute("data-choice") for each in admin.all("dialog [data-choice]")) == TABS
    for tab in TABS:
        admin.click(f"dialog [data-choice={tab}]")
        admin.see("dialog .settings", secret)
        assert gateway.url in admin.text("dialog .settings")
    admin.click("dialog .test-call button")
    admin.see("dialog [data-test].good", "It works")
    eventually(lambda: [call["key"] for call in gateway.calls(limit=1)] == ["connected"])


def test_faults_of_a_new_key_are_shown_beside_their_field(admin: Page) -> None:
    admin.go("keys")
    admin.click("#new-key")
    admin.type("#field-id", "alice")
    admin.click("dialog button[type=submit]")
    admin.until(lambda: "alice" in admin.text("dialog .trouble"))
    admin.type("#field-id", "somebody")
    assert "alice" not in " ".join(each.text for each in admin.all("dialog .trouble"))
    admin.type("#field-ips", "everywhere-but-here")
    admin.click("dialog button[type=submit]")
    admin.until(lambda: admin.text('[data-param="ips"] .trouble'))
    assert admin.attribute("aria-invalid", "#field-ips") is not None
    admin.type("#field-ips", "10.0.0.0/8")
    admin.gone('[data-param="ips"] .trouble')
    assert admin.attribute("aria-invalid", "#field-ips") is None
    admin.press(ESCAPE)
    admin.gone("dialog")


def test_a_team_is_chosen_from_the_list_or_made_with_the_key(admin: Page, gateway: Gateway) -> None:
    admin.go("keys")
    admin.click("#new-key")
    admin.until(lambda: "crew" in admin.text("#field-team"))
    assert not [each for each in admin.all("input[name=new-team]") if each.is_displayed()]
    admin.choose("#field-team", "+new")
    admin.type("input[name=new-team]", "fresh-team")
    admin.type("#field-id", "alice")
    admin.click("dialog button[type=submit]")
    admin.until(lambda: "alice" in admin.text("dialog .trouble"))  # the team is made, and stays chosen
    admin.type("#field-id", "of-fresh-team")
    admin.click("dialog button[type=submit]")
    admin.see("#secret")
    assert received(gateway, "of-fresh-team")["team"] == "fresh-team"
    assert gateway.admin("teams/fresh-team").status == 200


def test_no_quota_is_said_in_red(admin: Page, gateway: Gateway) -> None:
    admin.go("keys")
    admin.see("main tr[data-name=carol] .bad", "no quota")
    assert not admin.all("main tr[data-name=bob] .bad")
    admin.click("#new-key")
    admin.see("dialog .no-quota", "No quota")
    admin.click("dialog fieldset button", "Add a quota")
    admin.gone("dialog .no-quota")
    admin.click("dialog .quota-rows button")
    admin.see("dialog .no-quota", "No quota")


def test_a_key_has_an_owner_a_note_labels_and_a_place_in_the_queue(admin: Page, gateway: Gateway) -> None:
    admin.go("keys")
    admin.click("#new-key")
    admin.type("#field-id", "owned")
    admin.type("#field-owner", "ada@example.org")
    admin.type("#field-note", "for the nightly build")
    admin.type("#field-labels", "cost-center: 4711, project: atlas")
    admin.choose("#field-priority", "batch")
    admin.type("#field-weight", "3")
    admin.click("dialog button[type=submit]")
    admin.see("#secret")
    admin.click("dialog button", "Done")
    key = received(gateway, "owned")
    assert (key["owner"], key["note"]) == ("ada@example.org", "for the nightly build")
    assert key["labels"] == {"cost-center": "4711", "project": "atlas"}
    assert (key["priority"], key["weight"]) == ("batch", 3)
    admin.type("main .filter", "ada@")
    admin.until(lambda: [row["Key"] for row in admin.rows("main table")] == ["owned"])
    admin.click("main tr[data-name=owned] th a")
    facts = admin.text("dialog .facts")
    for word in ("ada@example.org", "for the nightly build", "cost-center: 4711, project: atlas", "batch"):
        assert word in facts
    admin.click("dialog footer button", "Edit")
    admin.type("#field-labels", "cost-center: 4712")
    admin.type("#field-owner", " ")
    admin.click("dialog form button[type=submit]")
    eventually(lambda: received(gateway, "owned")["labels"] == {"cost-center": "4712"})
    assert received(gateway, "owned")["owner"] is None
    assert received(gateway, "owned")["note"] == "for the nightly build"
    admin.click("dialog footer button", "Edit")
    admin.type("#field-labels", "Cost Center")
    admin.click("dialog form button[type=submit]")
    admin.until(lambda: admin.text('[data-param="labels"] .trouble'))


def test_a_preset_fills_in_quotas_and_an_expiry(admin: Page, gateway: Gateway) -> None:
    admin.go("keys")
    admin.click("#new-key")
    admin.type("#field-id", "newcomer")
    admin.choose("select[name=preset]", "intern")
    admin.until(lambda: len(admin.all("dialog .quota-rows li")) == 2)
    admin.click("dialog button[type=submit]")
    admin.see("#secret")
    key = received(gateway, "newcomer")
    assert key["quotas"] == [{"requests": 20, "per": "minute"}, {"usd": 0.5, "per": "day"}]
    left = datetime.fromisoformat(key["expires"]) - datetime.now(UTC)
    assert timedelta(days=89) < left <= timedelta(days=90)


def test_a_key_is_changed_and_only_in_what_was_touched(admin: Page, gateway: Gateway) -> None:
    make(admin, "changing")
    admin.click("main tr[data-name=changing] th a")
    admin.click("dialog footer button", "Edit")
    admin.type("#field-max_parallel", "7")
    admin.type("dialog .quota-rows .amount", "9")
    admin.click("dialog form button[type=submit]")
    eventually(lambda: received(gateway, "changing")["max_parallel"] == 7)
    key = received(gateway, "changing")
    assert (key["quotas"], key["models"], key["expires"]) == ([{"requests": 9, "per": "day"}], ["gpt-*"], None)
    changes = gateway.admin("audit", limit="1").json["data"][0]
    assert (changes["action"], changes["name"]) == ("update", "changing")
    admin.see("dialog .quota", "of 9 requests")


def test_rotating_gives_a_new_secret_and_ends_the_old_one(admin: Page, gateway: Gateway) -> None:
    old = make(admin, "turning")
    assert complete(gateway, old).status == 200
    admin.click("main tr[data-name=turning] th a")
    admin.click("dialog footer button", "Rotate")
    admin.choose("select[name=overlap]", "0")
    admin.click("dialog form button[type=submit]")
    new = admin.text("#secret")
    assert new != old
    assert complete(gateway, new).status == 200
    eventually(lambda: complete(gateway, old).status == 401, DIES_WITHIN_S)


def test_revoking_asks_first_and_is_for_ever(admin: Page, gateway: Gateway) -> None:
    secret = make(admin, "going")
    admin.click("main tr[data-name=going] th a")
    admin.click("dialog footer button", "Revoke")
    admin.see("dialog.small", "Refuse going for ever?")
    assert admin.focused["text"] == "Cancel"
    admin.press(ESCAPE)
    admin.gone("dialog.small")
    assert complete(gateway, secret).status == 200
    admin.click("dialog footer button", "Revoke")
    admin.click("dialog.small button.danger")
    eventually(lambda: complete(gateway, secret).status == 401, DIES_WITHIN_S)
    admin.see("dialog .why", "This key is revoked")
    admin.gone("dialog footer .danger")


def test_a_spent_quota_is_topped_up_and_counted_anew(operator: Page, either: Gateway) -> None:
    secret = make(operator, "spending", requests=1)
    assert [complete(either, secret).status for _ in range(2)] == [200, 429]
    operator.click("main tr[data-name=spending] th a")
    operator.see("dialog .quota.full", "1 of 1 request")
    operator.click("dialog .quota button", "Top up")
    operator.type("dialog.small input[name=more]", "1")
    operator.click("dialog.small button[type=submit]")
    operator.see("dialog .quota", "1 of 2 requests")
    eventually(lambda: complete(either, secret).status == 200, DIES_WITHIN_S)
    operator.see("dialog .quota.full", "2 of 2 requests")
    operator.click("dialog .quota button", "Reset")
    operator.click("dialog.small button.danger")
    operator.see("dialog .quota.fine", "0 of 2 requests")
    assert complete(either, secret).status == 200


def test_keys_of_the_file_are_not_edited_here(admin: Page) -> None:
    admin.go("keys/alice")
    admin.see("dialog footer button", "Revoke")
    assert [each.text for each in admin.all("dialog footer button")] == ["Pause", "Revoke"]
    assert "the configuration file" in admin.text("dialog .facts")


def test_audit_log_says_who_changed_what(admin: Page) -> None:
    make(admin, "noted")
    admin.go("audit")
    admin.until(lambda: [row["Of"] for row in admin.rows("main table")][:1] == ["key noted"])
    assert admin.rows("main table")[0]["By"] == "admin.token from 127.0.0.1"
    admin.click("main table tbody th a")
    before, after = [each.text for each in admin.all("dialog pre")]
    assert before == "nothing"
    assert '"id": "noted"' in after
    assert "sk-gw-" not in after


def test_a_viewer_sees_everything_and_can_change_nothing(page: Page, gateway: Gateway) -> None:
    page.open("keys", VIEWER_TOKEN)
    page.see("#role", "viewer")
    page.see("main tr[data-name=alice]")
    assert not [each for each in page.all("#new-key, #nav a[href='#audit']") if each.is_displayed()]
    page.go("keys/alice")
    page.see("dialog .quota")
    assert not page.all("dialog footer button, dialog .quota button")
    page.press(ESCAPE)
    page.go("quotas")
    page.see("main table")
    page.see(".quota")
    assert not page.all(".quota button")
    page.go("calls")
    page.see("main table tbody th a")
    page.go("audit")  # typed by hand
    page.see("[data-tile=requests]")
    headers = {"Authorization": f"Bearer {VIEWER_TOKEN}"}
    for method, path in [("POST", "/admin/api/keys"), ("DELETE", "/admin/api/keys/alice"), ("GET", "/admin/api/audit")]:
        assert gateway.send(method, path, b"{}", key=None, headers=headers).status == 403
