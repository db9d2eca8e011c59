"""The playground: a prompt, the answer as it streams, its headers, tokens and cost; and nothing that is kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from selenium import webdriver

from tests.browser.chromium import ENTER, Page
from tests.browser.conftest import check_requests
from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import cut_stream, error_json, ok_json, stalled_stream, stream
from tests.flows.gateway_process import ADMIN_TOKEN, CHAT, Gateway, key, model, secret, settings

PROMPT = "What is the answer to everything?"
USAGE = {"prompt_tokens": 100, "completion_tokens": 50}


def piece(text: str, **more: Any) -> dict[str, Any]:
    return {"model": CHAT, "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}], **more}


ENDED = {"model": CHAT, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
SAID = [piece("Forty-"), piece("two <b>"), ENDED, {"model": CHAT, "choices": [], "usage": USAGE}]


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream, store_url: str) -> Gateway:
    """A gateway with a priced model for chats, on each of the stores."""
    models = {CHAT: model("chat", price={"input": 2, "output": 4}), "other-model": model("chat", unpriced="allow")}
    keys = [key("alice"), key("spent", quotas=[{"requests": 1, "per": "day"}])]
    return start_shared_gateway(settings(shared_upstream.url, models=models, keys=keys, store={"url": store_url}))


@pytest.fixture
def page(driver: webdriver.Chrome, gateway: Gateway) -> Iterator[Page]:
    made = Page(driver, gateway.url)
    made.forget()
    yield made
    check_requests(made)


def test_a_streamed_answer_with_its_tokens_cost_and_headers(
    page: Page, gateway: Gateway, upstream: ScriptedUpstream
) -> None:
    page.open(token=secret("alice"))
    page.go("playground")
    page.until(lambda: page.attribute("value", "input[name=model]"))
    page.type("input[name=model]", CHAT)
    page.type("textarea", PROMPT)
    upstream.answer_with(stream(SAID))
    page.click("main button.primary", "Send")
    page.see(".answer", "Forty-two <b>")
    page.see("[data-cost]")
    request_id = page.text("main .facts a")
    call = gateway.admin(f"requests/{request_id}").json["call"]
    assert (call["key"], call["stream"], call["prompt_tokens"]) == ("alice", True, 100)
    assert float(page.attribute("data-cost", "[data-cost]") or "nan") == call["cost_usd"] == 0.0004
    assert page.attribute("data-usage", "[data-usage]") == "100 50"
    headers = {row["Header"]: row["Value"] for row in page.rows("main table")}
    assert headers["x-request-id"] == request_id
    assert upstream.requests[-1].json["messages"][0]["content"] == PROMPT


@pytest.mark.changes
def test_a_key_that_was_made_here_is_tried_at_once(page: Page, gateway: Gateway, upstream: ScriptedUpstream) -> None:
    """Without typing it, until the user signs out; the page's memory alone has it."""
    page.open(token=ADMIN_TOKEN)
    page.go("keys")
    page.click("#new-key")
    made = f"tried-{uuid4()}"
    page.type("#field-id", made)
    page.click("dialog button[type=submit]")
    shown = page.text("#secret")
    page.click("#try-key")
    page.gone("dialog")
    page.see("[data-param=key] small", made)
    page.until(lambda: page.see("main button.primary").is_enabled())
    page.type("input[name=model]", CHAT)
    upstream.answer_with(stream(SAID))
    page.click("main button.primary", "Send")
    page.see(".answer", "Forty-two")
    page.see("[data-cost]")
    assert gateway.admin(f"requests/{page.text('main .facts a')}").json["call"]["key"] == made
    page.go("overview")
    page.see("main .tile")
    page.go("playground")
    page.see("[data-param=key] small", made)
    assert shown not in page.run("return JSON.stringify([{...sessionStorage}, {...localStorage}, history.state])")
    page.click("#leave")
    page.see("#token")
    page.type("#token", ADMIN_TOKEN)
    page.press(ENTER)
    page.see("#nav a[aria-current]")
    page.go("playground")
    assert not page.attribute("value", "input[name=key]")


def test_a_typed_key_is_not_stored(page: Page, gateway: Gateway, upstream: ScriptedUpstream) -> None:
    page.open(token=ADMIN_TOKEN)
    page.go("playground")
    assert not page.see("main button.primary").is_enabled()
    page.type("input[name=key]", "sk-wrong-key-of-nobody")
    page.click("textarea")
    page.see("main .why.bad", "API key")
    page.type("input[name=key]", secret("alice"))
    page.click("textarea")
    page.until(lambda: page.see("main button.primary").is_enabled())
    page.click("input[type=checkbox]")
    message = {"role": "assistant", "content": "In one piece."}
    upstream.answer_with(
        ok_json({"model": CHAT, "choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": USAGE})
    )
    page.type("input[name=model]", CHAT)
    page.click("main button.primary", "Send")
    page.see(".answer", "In one piece.")
    page.see("[data-cost]")
    kept = page.run(
        "return JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie, location.href, history.state])"
    )
    assert secret("alice") not in kept
    assert PROMPT not in kept
    page.go("keys")
    page.see("main table tbody tr")
    page.go("playground")
    assert page.attribute("value", "input[name=key]") == ""
    assert not page.see("main button.primary").is_enabled()
    assert "In one piece" not in page.driver.page_source


def test_refusals_errors_and_broken_streams_are_shown(page: Page, gateway: Gateway, upstream: ScriptedUpstream) -> None:
    page.open(token=secret("spent"))
    page.go("playground")
    page.until(lambda: page.attribute("value", "input[name=model]"))
    upstream.answer_with(cut_stream([piece("The be")]))
    page.click("main button.primary", "Send")
    page.see(".answer", "The be")
    page.see("main .why.bad")
    page.see("[data-status='200']")
    page.see("[data-cost]")
    upstream.answer_with()
    page.click("main button.primary", "Send")
    page.see("[data-status='429']")
    page.see("main .why.bad", "quota")
    page.open(token=secret("alice"))
    page.go("playground")
    page.until(lambda: page.attribute("value", "input[name=model]"))
    upstream.answer_with(error_json(400, message="The upstream says no."))
    page.click("main button.primary", "Send")
    page.see("main .why.bad", "The upstream says no.")


def test_an_answer_is_stopped(page: Page, gateway: Gateway, upstream: ScriptedUpstream) -> None:
    page.open(token=secret("alice"))
    page.go("playground")
    page.until(lambda: page.attribute("value", "input[name=model]"))
    upstream.answer_with(stalled_stream([piece("One and")]))
    page.click("main button.primary", "Send")
    page.see(".answer", "One and")
    page.click("main button", "Stop")
    page.see("main .why.bad", "Stopped.")
    page.until(lambda: gateway.calls(limit=1)[0]["ended"] == "client_gone")
