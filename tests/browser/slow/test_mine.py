"""The page of a member: what is hers alone, and what she can do, signed in with her key or with her account."""

from __future__ import annotations

from typing import Any

import pytest

from tests.browser.chromium import Page
from tests.browser.conftest import ago
from tests.conftest import ScriptedUpstream
from tests.fakes.scripted import ok_json
from tests.flows.gateway_process import ADMIN_TOKEN, CHAT, COMPLETIONS, Gateway, secret

VIEWS = ["Your usage", "Calls", "Keys", "Playground"]
TABLE = "section[aria-labelledby=usage-title] .flush table"


@pytest.fixture
def gateway(either: Gateway) -> Gateway:
    """Numbers are compared on each of the stores."""
    return either


@pytest.fixture
def alice(page: Page) -> Page:
    """Signed in with her key."""
    page.open(token=secret("alice"))
    page.see(f"{TABLE} tbody tr[data-name]")
    return page


def hers(gateway: Gateway, path: str) -> Any:
    """What the admin API gives to the key itself."""
    answer = gateway.get(f"/admin/api/{path}", key="alice")
    assert answer.status == 200
    return answer.json


def test_numbers_are_those_of_the_own_key(alice: Page, gateway: Gateway) -> None:
    assert [each.text for each in alice.all("#nav a") if each.is_displayed()] == VIEWS
    (known,) = hers(gateway, f"usage?group_by=&since={ago(29)}")["data"]
    assert known["requests"] < gateway.usage(group_by="", since=ago(29))[0]["requests"]
    for name in ("prompt_tokens", "completion_tokens", "cost_usd"):
        assert round(alice.value(f'[data-sum="{name}"] b'), 9) == known[name]
    by_model = {
        row["model"]: row["prompt_tokens"] for row in hers(gateway, f"usage?since={ago(29)}&group_by=model")["data"]
    }
    assert {row["Model"]: int(row["Prompt"]) for row in alice.rows(TABLE)} == by_model
    assert {each.text for each in alice.all("section[aria-labelledby=usage-title] .legend span")} == set(by_model)
    alice.click("section[aria-labelledby=usage-title] details.as-table summary")
    by_day = {row["day"]: row["requests"] for row in hers(gateway, f"usage?since={ago(29)}&group_by=day")["data"]}
    shown_days = alice.rows("section[aria-labelledby=usage-title] details.as-table table")
    assert {row["Day"]: int(row["Requests"]) for row in shown_days} == by_day
    assert "bob" not in alice.driver.page_source


def test_percentiles_are_those_of_the_own_calls(alice: Page, gateway: Gateway) -> None:
    known = {row["model"]: row for row in hers(gateway, f"latency?group_by=model&since={ago(29)}")["data"]}
    table = "section[aria-labelledby=latency-title] .flush table"
    alice.until(lambda: {row["Model"] for row in alice.rows(table)} == set(known))
    for row in alice.rows(table):
        received = known[row["Model"]]
        assert int(row["Requests"]) == received["requests"]
        seconds = received["duration_p95_s"]
        assert row["Duration p95"] == ("\u2013" if seconds is None else str(seconds))
    assert "newest 2,000 calls" in alice.text("section[aria-labelledby=latency-title] .note")


def test_the_fullest_limit_is_named_in_the_first_row(alice: Page, gateway: Gateway) -> None:
    """Even where none is near: the first question is what is left."""
    shared = [row for row in hers(gateway, "quotas?key=alice&binding=true")["data"] if row["key"] is None]
    rows = [*hers(gateway, "quotas")["data"], *shared]
    fullest = max(rows, key=lambda row: (row["used"] + row["reserved"]) / row["limit"])
    assert fullest["used"] > 0
    alice.see("[data-figure=near] .more", fullest["scope"].rpartition(":")[2])
    share = 100 * (fullest["used"] + fullest["reserved"]) / fullest["limit"]
    assert f"{share:.1f}"[:2].rstrip(".") in alice.text("[data-figure=near] .more")


def test_what_is_left_and_when_it_is_free(alice: Page, gateway: Gateway) -> None:
    rows = [row for row in hers(gateway, "quotas")["data"] if row["scope"] == "key:alice"]
    assert len(rows) == 2
    for row in rows:
        bar = alice.see(f"[data-key=alice] .quota[data-unit={row['unit']}]")
        assert f"{row['used']}" in [each.get_attribute("data-value") for each in alice.all(".quota-foot b")]
        assert "left" in bar.text
        assert "resets in" in bar.text
    shared = [row for row in hers(gateway, "quotas?key=alice&binding=true")["data"] if row["key"] is None]
    assert {row["scope"] for row in shared} == {"team:crew", "gateway"}
    for row in shared:
        bar = alice.see(f".shared[data-scope='{row['scope']}'] .quota[data-unit={row['unit']}]")
        assert "left" in bar.text


def test_kept_content_is_named(alice: Page) -> None:
    alice.see("#kept-content", "alice: 12.5% of the calls to none-*, in files of the gateway, for 30 days")


def test_last_refusals_have_their_reason(alice: Page, gateway: Gateway) -> None:
    known = hers(gateway, "refusals?limit=20")["data"]
    assert known
    found = alice.until(lambda: alice.rows("section[aria-labelledby=refused-title] table"))
    assert [row["Why"] for row in found] == [row["message"] for row in known]
    assert known[0]["code"] in found[0]["Refused with"]


def test_every_tool_has_its_settings(alice: Page, gateway: Gateway) -> None:
    assert alice.text(".base-url") == f"{gateway.url}/v1"
    models = {model["id"]: model for model in gateway.get("/v1/models", key="alice").json["data"]}
    listed = {row["Model"]: row for row in alice.rows(".may-call table")}
    assert set(listed) == set(models) >= {CHAT, COMPLETIONS}
    assert models[CHAT]["price"] is None
    assert [listed[CHAT][title] for title in ("Input", "Cached", "Output")] == ["\u2013"] * 3
    assert models[COMPLETIONS]["price"] == {"input": 2, "cached_input": 1, "output": 4}
    assert [listed[COMPLETIONS][title] for title in ("Input", "Cached", "Output")] == ["2", "1", "4"]
    for tool, sign in {
        "curl": f"curl {gateway.url}/v1/chat/completions", "python": f'base_url="{gateway.url}/v1"',
        "node": f'baseURL: "{gateway.url}/v1"', "environment": f"OPENAI_BASE_URL={gateway.url}/v1",
        "codex": 'wire_api = "responses"', "claude": f"ANTHROPIC_BASE_URL={gateway.url}",
        "continue": f"apiBase: {gateway.url}/v1", "webui": f"OPENAI_API_BASE_URL={gateway.url}/v1",
    }.items():  # fmt: skip
        alice.click(f"[data-choice={tool}]")
        alice.see(".settings", sign)
        if tool in ("codex", "claude"):
            alice.see(".settings", "None of the models that this key may call serves")
        elif tool not in ("environment", "webui"):
            alice.see(".settings", CHAT)
        assert secret("alice") not in alice.text(".settings")


@pytest.mark.changes
def test_a_new_members_page_begins_with_what_leads_to_the_first_call(
    page: Page, gateway: Gateway, upstream: ScriptedUpstream
) -> None:
    made = gateway.send(
        "POST", "/admin/api/keys", {"id": "first-day"}, key=None, headers={"Authorization": f"Bearer {ADMIN_TOKEN}"}
    ).json
    page.open(token=made["secret"])
    page.see("#no-calls-yet")
    titles = [each.text for each in page.all("main h2")]
    assert titles == ["Connect a tool", "Your keys, and what is left", "Your last refusals"]
    page.see(".may-call tr[data-name]", COMPLETIONS)
    assert not page.all("main svg.chart")
    upstream.answer_with(
        always=ok_json({"model": "m", "choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}})
    )
    page.click(".test-call button")
    request_id = page.text("[data-test].good", "It works").rpartition("(")[2].rstrip(").")
    page.until(lambda: gateway.admin(f"requests/{request_id}").status == 200)
    page.open(token=made["secret"])
    page.see("[data-figure=requests-in-range] .figure", "1")
    assert page.all("main h2")[0].text == "Your usage"
    assert not page.see("section[aria-labelledby=connect-title]").find_elements(
        "css selector", "#no-calls-yet:not([hidden])"
    )


@pytest.mark.changes
def test_a_test_call_turns_green_or_says_why_not(alice: Page, gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(
        always=ok_json({"model": "m", "choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}})
    )
    alice.click(".test-call button")
    said = alice.text("[data-test].good", "It works")
    request_id = said.rpartition("(")[2].rstrip(").")
    alice.until(lambda: gateway.admin(f"requests/{request_id}").status == 200)
    assert hers(gateway, f"requests/{request_id}")["call"]["key"] == "alice"
    alice.click("#leave")
    alice.see("#token")
    alice.open(token=secret("bob"))  # whose quota of the day is spent
    alice.click(".test-call button")
    alice.see("[data-test].bad", "quota")


def test_a_key_changes_nothing(alice: Page) -> None:
    alice.see("[data-key=alice]")
    assert not alice.all("#new-key, .own-key footer button")
    alice.go("keys/alice")
    alice.see("dialog .quota")
    assert not alice.all("dialog footer button, dialog .quota button")


@pytest.mark.changes
def test_a_key_rotates_and_pauses_itself_where_its_team_says_so(page: Page, gateway: Gateway) -> None:
    """The page goes on with the new secret."""

    def made(path: str, body: dict[str, Any]) -> Any:
        answer = gateway.send(
            "POST", f"/admin/api/{path}", body, key=None, headers={"Authorization": f"Bearer {ADMIN_TOKEN}"}
        )
        assert answer.status == 201, answer
        return answer.json

    made("teams", {"name": "own-keys", "members": {"by_key": ["pause", "rotate"]}})
    first, _ = (made("keys", {"id": name, "team": "own-keys", "owner": "ann"})["secret"] for name in ("ours", "sister"))
    page.open(token=first)
    page.see("[data-key=sister]")
    assert not page.all("[data-key=sister] button")
    page.click("[data-key=ours] button", "Rotate")
    assert [each.text for each in page.all("select[name=overlap] option")] == ["not at all: it is dead at once"]
    page.click("dialog button[type=submit]")
    second = page.text("#secret")
    assert second != first
    page.click("dialog button", "Done")
    page.click("[data-key=ours] button", "Pause")
    page.click("dialog button.danger", "Pause")
    page.until(lambda: gateway.admin("keys/ours").json["status"] == "paused")
    assert gateway.admin("keys/sister").json["status"] == "active"
