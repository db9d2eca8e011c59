"""Fallbacks to another model: when another one serves, who may have it, and what it costs."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import Behaviour, Request, Wire, answer, dead_port, error_json, ok_json, stream

from .gateway_process import Gateway, eventually, key, model, settings

TOO_LONG = error_json(
    400, message="This model's maximum context length is 10 tokens.", type="invalid_request_error",
    code="context_length_exceeded",
)  # fmt: skip
BUSY = error_json(503, message="overloaded")
EVENT = {"id": "c", "object": "text_completion", "choices": [{"index": 0, "text": "a", "finish_reason": "stop"}]}
BIG = {"requests": 5, "per": "day", "model": "big"}


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    def priced(usd: int, *fallbacks: str, **more: Any) -> dict[str, Any]:
        price = {"input": usd, "output": usd}
        return model("completions", price=price, fallbacks=[*fallbacks], max_attempts=1, **more)

    models = {
        "small": priced(1, "big", "huge"), "big": priced(10), "huge": priced(100), "chain": priced(1, "small"),
        "lost": priced(1, "big", routes=[{"upstream": "dead"}]), "strict": priced(1, "big", limits={"n": 1}),
        "n-small": priced(1, "strict"), "chat-next": priced(1, "chat"), "chat": model("chat"),
        "alone": priced(1),
    }  # fmt: skip
    keys = [
        key("alice"), key("bob", models=["small", "huge"]), key("carol", quotas=[BIG]),
        key("poor", quotas=[{"usd": 0.0005, "per": "day"}]),
    ]  # fmt: skip
    upstreams = {"dead": {"base_url": f"http://127.0.0.1:{dead_port()}/v1"}}
    return start_shared_gateway(
        settings(shared_upstream.url, upstreams=upstreams, models=models, keys=keys, aliases={"fast": "small"})
    )


def asked(upstream: ScriptedUpstream) -> list[str]:
    requests: list[Request] = upstream.requests
    return [request.json["model"] for request in requests]


@pytest.mark.parametrize("refusal", [TOO_LONG, error_json(400, message="prompt is too long: 9 tokens > 8 maximum")])
def test_a_prompt_that_is_too_long_goes_to_another_model(
    gateway: Gateway, upstream: ScriptedUpstream, refusal: Behaviour
) -> None:
    upstream.answer_with(refusal, ok_json())
    found = gateway.complete(model="small")
    assert (found.status, found.headers["x-gateway-model"], found.headers["x-gateway-attempts"]) == (200, "big", "2")
    assert asked(upstream) == ["small", "big"]
    record = gateway.call(found.headers["x-request-id"])
    assert (record["model"], record["served_model"], record["routed_model"]) == ("small", "big", "big")
    assert (record["cost_usd"], record["price"]["input"]) == (20e-6, 10)


def test_a_model_whose_routes_all_fail_is_replaced(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(ok_json(), BUSY, BUSY, ok_json())
    assert gateway.complete(model="lost").headers["x-gateway-model"] == "big"
    found = gateway.complete(model="fast")  # an alias has the fallbacks of its model
    assert (found.status, found.headers["x-gateway-model"]) == (200, "huge")
    assert asked(upstream) == ["big", "small", "big", "huge"]
    record = gateway.call(found.headers["x-request-id"])
    assert (record["model"], record["served_model"], record["attempts"]) == ("fast", "huge", 3)


def test_the_last_error_is_the_client_s(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(TOO_LONG, BUSY, error_json(400, message="no", code="bad_thing"))
    found = gateway.complete(model="small")
    assert (found.status, found.json["error"]["code"]) == (400, "bad_thing")
    record = gateway.call(found.headers["x-request-id"])
    assert (record["served_model"], record["ended"], record["cost_usd"]) == ("huge", "error", 0)


@pytest.mark.parametrize(
    ("behaviour", "status"),
    [
        (error_json(400, message="bad", code="bad_thing"), 400),  # another model would refuse it, too
        (answer(b"not json"), 502),  # which may have been billed
    ],
)
def test_other_errors_do_not_fall_back(
    gateway: Gateway, upstream: ScriptedUpstream, behaviour: Behaviour, status: int
) -> None:
    upstream.answer_with(behaviour)
    found = gateway.complete(model="small")
    assert (found.status, "x-gateway-model" in found.headers) == (status, False)


def test_a_model_without_fallbacks_has_none_and_those_of_a_fallback_do_not_count(
    gateway: Gateway, upstream: ScriptedUpstream
) -> None:
    upstream.answer_with(TOO_LONG, TOO_LONG, TOO_LONG)
    assert gateway.complete(model="alone").status == 400
    assert gateway.complete(model="chain").status == 400
    assert asked(upstream) == ["alone", "chain", "small"]


def test_a_key_needs_both_models(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(TOO_LONG, ok_json())
    assert gateway.complete("bob", model="small").headers["x-gateway-model"] == "huge"
    assert asked(upstream) == ["small", "huge"]


def test_a_model_that_cannot_take_the_call_is_left_out(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(TOO_LONG, TOO_LONG)
    assert gateway.complete(model="n-small", n=2).status == 400
    assert gateway.complete(model="chat-next").status == 400
    assert asked(upstream) == ["n-small", "chat-next"]


def test_a_stream_falls_back_before_its_first_byte(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(BUSY, stream([EVENT]))
    with gateway.stream(model="small") as raw:
        assert raw.read_head().headers["x-gateway-model"] == "big"
        assert b'"a"' in raw.read_chunks()
    upstream.answer_with(stream([EVENT, {"error": {"message": "gone", "code": 502}}]))
    with gateway.stream(model="small") as raw:
        raw.read_head()
        raw.read_chunks()
    assert asked(upstream) == ["small"]


def test_an_error_as_the_first_event_of_a_stream_falls_back(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    broken = stream([{"error": {"message": "overloaded", "code": 503}}])
    upstream.answer_with(broken, stream([EVENT]), broken, broken, broken)
    with gateway.stream(model="small") as raw:
        assert raw.read_head().headers["x-gateway-model"] == "big"
        assert b'"a"' in raw.read_chunks()
    with gateway.stream(model="small") as raw:
        assert raw.read_head().headers["x-gateway-model"] == "huge"
        assert b"error" in raw.read_chunks()
    assert asked(upstream) == ["small", "big", "small", "big", "huge"]


def test_nothing_falls_back_behind_a_comment(start_gateway: StartsGateways, upstream: ScriptedUpstream) -> None:
    has_begun = threading.Event()

    async def fail_late(wire: Wire) -> None:
        await asyncio.to_thread(has_begun.wait)
        await BUSY(wire)

    upstream.answer_with(fail_late)
    models = {"small": model("completions", fallbacks=["big"], max_attempts=1), "big": model("completions")}
    gateway = start_gateway(settings(upstream.url, models=models, server={"keepalive_comment_s": 0.05}))
    with gateway.stream(model="small") as raw:
        assert raw.read_head().status == 200  # sent with the comment
        has_begun.set()
        assert b"error" in raw.read_chunks()
    assert asked(upstream) == ["small"]


def test_a_quota_of_the_fallback_is_used_only_when_it_serves(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    def used() -> tuple[int, int]:
        (quota,) = gateway.get("/v1/key", key="carol").json["quotas"]
        return quota["used"], quota["reserved"]

    upstream.answer_with(ok_json())
    gateway.complete("carol", model="small")
    assert eventually(lambda: (seen := used()) == (0, 0) and [seen])
    upstream.answer_with(TOO_LONG, ok_json())
    gateway.complete("carol", model="small")
    assert eventually(lambda: used() == (1, 0))


def test_the_dearest_model_that_fits_is_reserved(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    """16 tokens at 100 USD a million (`huge`) are more than the whole quota; at 10 (`big`) they are reserved."""
    seen: list[Any] = []

    async def look(wire: Wire) -> None:
        seen.append(await asyncio.to_thread(lambda: gateway.get("/v1/key", key="poor").json["quotas"][0]))
        await TOO_LONG(wire)

    upstream.answer_with(look, TOO_LONG)
    assert gateway.complete("poor", model="small").status == 400
    assert asked(upstream) == ["small", "big"]
    assert seen[0]["reserved"] > 16 * 10e-6
    assert seen[0]["reserved"] < 60 * 10e-6
