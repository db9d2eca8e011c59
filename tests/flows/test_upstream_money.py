"""What may be spent at an upstream: where it is spent, another route serves, or the call is refused with the reason."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import Wire, error_json, ok_json

from .client import Answer
from .gateway_process import ADMIN_TOKEN, Gateway, eventually, key, run, settings

USED = {"prompt_tokens": 10, "completion_tokens": 5}
COST = 15_000  # USD 0.000015 at a dollar for a million tokens, in billionths
PRICE = {"input": 1, "output": 1}
DEAR = {"input": 100, "output": 100}
TOO_LONG = error_json(400, message="Too long.", type="invalid_request_error", code="context_length_exceeded")
TOKEN = {"Authorization": f"Bearer {ADMIN_TOKEN}"}


def limited(url: str, *quotas: str, **more: Any) -> dict[str, Any]:
    return {"base_url": url, "api_key": "sk-up", "quotas": [*quotas], **more}


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream, store_url: str) -> Gateway:
    url = shared_upstream.url
    upstreams = {
        # One call reserves 50 tokens of output and its prompt: at most 0.0001 USD.
        "first": limited(url, "0.0001 USD/day"),
        "second": {"base_url": url},
        "alone": limited(url, "0.0001 USD/month", "1M tokens/day"),
        "tried": limited(url, "1 USD/day"),
        "poor": limited(url, "0.0001 USD/day"),
        "small": limited(url, "0.000001 USD/day"),
        "tight": limited(url, "0.001 USD/day"),
        "wide": limited(url, "1 USD/day"),
        "held": limited(url, "0.0001 USD/day"),
        "counted": limited(url, "1M tokens/day"),
    }
    routes = {
        "pair": ["first", "second"], "alone": ["alone"], "falls": ["poor"], "retried": ["tried", "second"],
        "small": ["small"], "other": ["second"], "tight": ["tight"], "wide": ["wide"],
        "held": ["held"], "free-last": ["second", "wide"], "free-first": ["wide", "counted", "second"],
        "free-alone": ["wide", "tight"],
    }  # fmt: skip
    models: dict[str, Any] = {
        f"gpt-{name}": {
            "routes": [{"upstream": up, "priority": place} for place, up in enumerate(names, 1)],
            "max_output_tokens": 50, "price": PRICE,
        }
        for name, names in routes.items()
    }  # fmt: skip
    models["gpt-falls"]["fallbacks"] = models["gpt-held"]["fallbacks"] = ["gpt-other"]
    for name in ("tight", "wide"):  # a cheap model and a dear one at one upstream
        models[f"gpt-{name}"]["fallbacks"] = [f"gpt-dear-{name}"]
        models[f"gpt-dear-{name}"] = {**models[f"gpt-{name}"], "price": DEAR, "fallbacks": []}
    for name in ("free-last", "free-first", "free-alone"):
        models[f"gpt-{name}"]["price"] = None
    config = settings(url, store={"url": store_url}, upstreams=upstreams, models=models, keys=[key("alice")])
    return start_shared_gateway(config)


@pytest.fixture(autouse=True)
def good_upstream(upstream: ScriptedUpstream) -> Iterator[None]:
    upstream.answer_with(always=ok_json({"model": "up", "usage": USED}))
    yield
    upstream.answer_with()


def ask(gateway: Gateway, model: str, **more: Any) -> Answer:
    return gateway.chat(model=f"gpt-{model}", **more)


def window(gateway: Gateway, upstream: str, unit: str = "usd") -> dict[str, Any]:
    rows = gateway.admin("quotas").json["data"]
    (row,) = [row for row in rows if row["scope"] == f"upstream:{upstream}" and row["unit"] == unit]
    return dict(row)


def test_another_route_serves_where_the_money_is_spent(gateway: Gateway) -> None:
    served = [ask(gateway, "pair").headers["x-gateway-upstream"] for _ in range(9)]
    assert served[0] == "first"
    assert served[-1] == "second"
    assert served == sorted(served)
    row = window(gateway, "first")
    assert (row["used"], row["reserved"]) == (served.count("first") * COST / 1e9, 0)
    assert row["used"] <= row["limit"]


def test_the_refusal_names_the_upstream_and_its_reason(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    answers = [ask(gateway, "alone") for _ in range(9)]
    hits = upstream.hits
    refused = ask(gateway, "alone")
    assert answers[0].status == 200
    assert upstream.hits == hits
    assert (refused.status, refused.error["code"]) == (503, "upstream_quota_spent")
    assert refused.headers["x-gateway-limit"] == "upstream:alone; unit=usd; per=month; raised-by=operator"
    assert int(refused.headers["retry-after"]) > 0
    assert refused.headers["x-should-retry"] == "false"
    assert "operator" in refused.error["message"]
    logged = eventually(lambda: gateway.admin("refusals", id=refused.headers["x-request-id"]).json["data"])
    assert [(row["status"], row["code"]) for row in logged] == [(503, "upstream_quota_spent")]
    (status,) = [row for row in gateway.admin("upstreams").json["data"] if row["name"] == "alone"]
    assert {(limit["unit"], limit["configured"]) for limit in status["limits"]} == {
        ("usd", 0.0001), ("tokens", 1_000_000),
    }  # fmt: skip


def test_a_top_up_and_a_reset_let_calls_go_there_again(gateway: Gateway) -> None:
    while ask(gateway, "alone").status == 200:
        pass
    topped = gateway.send(
        "POST", "/admin/api/quotas/top_up", {"scope": "upstream:alone", "usd": 1, "per": "month"}, headers=TOKEN
    )
    assert topped.status == 200, topped
    eventually(lambda: window(gateway, "alone")["limit"] == 1.0001)
    eventually(lambda: ask(gateway, "alone").status == 200)
    (state,) = [row for row in gateway.admin("upstreams").json["data"] if row["name"] == "alone"]
    assert {row["limit"] for row in state["limits"] if row["unit"] == "usd"} == {1.0001}
    env = {"GATEWAY_TOKEN": ADMIN_TOKEN}
    done = run("quotas", "reset", "upstream:alone", "--unit", "usd", "--url", gateway.url, env=env)
    assert done.returncode == 0, done.stderr
    assert window(gateway, "alone")["used"] == 0
    (entry, *_) = gateway.admin("audit").json["data"]
    assert (entry["kind"], entry["name"], entry["action"]) == ("upstream", "alone", "reset")
    for scope in ("upstream:none", "nothing"):
        missing = gateway.send("POST", "/admin/api/quotas/reset", {"scope": scope}, headers=TOKEN)
        assert missing.status == 404


def test_another_model_serves_where_the_money_of_the_first_is_spent(gateway: Gateway) -> None:
    answers = [ask(gateway, "falls") for _ in range(9)]
    assert {answer.status for answer in answers} == {200}
    assert answers[0].headers.get("x-gateway-upstream") == "poor"
    assert (answers[-1].headers["x-gateway-upstream"], answers[-1].headers["x-gateway-model"]) == (
        "second",
        "gpt-other",
    )


def test_another_model_serves_where_a_running_call_holds_the_money_of_the_first(
    gateway: Gateway, upstream: ScriptedUpstream
) -> None:
    inside, leave, answers = threading.Event(), threading.Event(), list[Answer]()
    good = ok_json({"model": "up", "usage": USED})

    async def hold(wire: Wire) -> None:
        inside.set()
        await asyncio.to_thread(leave.wait)
        await good(wire)

    upstream.answer_with(hold, always=good)
    caller = threading.Thread(target=lambda: answers.append(ask(gateway, "held")))
    caller.start()
    try:
        inside.wait()
        answers.append(ask(gateway, "held"))
    finally:
        leave.set()
        caller.join()
    assert [(each.status, each.headers.get("x-gateway-upstream")) for each in answers] == [
        (200, "second"), (200, "held"),
    ]  # fmt: skip


def test_a_failed_attempt_leaves_nothing_reserved(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    good = ok_json({"model": "up", "usage": USED})
    upstream.answer_with(error_json(500), good, always=good)
    assert ask(gateway, "retried").headers["x-gateway-upstream"] == "second"
    row = window(gateway, "tried")
    assert (row["used"], row["reserved"]) == (0, 0)
    assert ask(gateway, "retried").headers["x-gateway-upstream"] == "tried"
    assert window(gateway, "tried")["used"] == COST / 1e9


def test_a_call_that_costs_more_than_the_whole_is_not_sent_there(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    hits = upstream.hits
    assert ask(gateway, "small").refusal[0] == 503
    assert upstream.hits == hits


def test_a_dearer_model_is_reserved_at_the_upstream_where_a_cheap_one_was(
    gateway: Gateway, upstream: ScriptedUpstream
) -> None:
    """The cheap model refuses the prompt: what the dear one may cost more has to be there before it is asked."""
    upstream.answer_with(TOO_LONG, always=ok_json({"model": "up", "usage": USED}))
    hits = upstream.hits
    refused = ask(gateway, "tight")
    assert (refused.status, refused.error["code"], upstream.hits - hits) == (503, "upstream_quota_spent", 1)
    row = window(gateway, "tight")
    assert (row["used"], row["reserved"]) == (0, 0)


def test_a_dearer_model_at_the_same_upstream_is_charged_once(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(TOO_LONG, always=ok_json({"model": "up", "usage": USED}))
    assert ask(gateway, "wide").headers["x-gateway-model"] == "gpt-dear-wide"
    row = window(gateway, "wide")
    assert (row["used"], row["reserved"]) == (100 * COST / 1e9, 0)


def test_a_route_whose_money_is_counted_is_left_out_where_the_price_is_not_known(
    gateway: Gateway, upstream: ScriptedUpstream
) -> None:
    good = ok_json({"model": "up", "usage": USED})
    assert ask(gateway, "free-last").headers["x-gateway-upstream"] == "second"
    assert ask(gateway, "free-first").headers["x-gateway-upstream"] == "counted"
    upstream.answer_with(error_json(500), good, always=good)
    assert ask(gateway, "free-first").headers["x-gateway-upstream"] == "second"
    upstream.answer_with(always=error_json(500))
    assert ask(gateway, "free-last").status == 503  # and not what an operator would have to mend
    upstream.answer_with(always=good)
    refused = ask(gateway, "free-alone")
    assert (refused.status, refused.error["code"]) == (403, "model_not_priced")
    assert window(gateway, "wide")["reserved"] == 0
