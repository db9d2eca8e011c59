"""Fallbacks to another model: when another one serves, who may have it, and what it costs."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from tests.conftest import Stage, StartsGateways
from tests.fakes.scripted import Behaviour, Request, Wire, answer, dead_port, error_json, ok_json, stream

from .house import Gateway, eventually, key, model, settings

TOO_LONG = error_json(
    400, message="This model's maximum context length is 10 tokens.", type="invalid_request_error",
    code="context_length_exceeded",
)  # fmt: skip
BUSY = error_json(503, message="overloaded")
EVENT = {"id": "c", "object": "text_completion", "choices": [{"index": 0, "text": "a", "finish_reason": "stop"}]}
BIG = {"requests": 5, "per": "day", "model": "big"}


@pytest.fixture(scope="module")
def house(gateways: StartsGateways, theatre: Stage) -> Gateway:
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
    return gateways(settings(theatre.url, upstreams=upstreams, models=models, keys=keys, aliases={"fast": "small"}))


def asked(upstream: Stage) -> list[str]:
    requests: list[Request] = upstream.requests
    return [request.json["model"] for request in requests]


@pytest.mark.parametrize("refusal", [TOO_LONG, error_json(400, message="prompt is too long: 9 tokens > 8 maximum")])
def test_a_prompt_that_is_too_long_goes_to_another_model(house: Gateway, upstream: Stage, refusal: Behaviour) -> None:
    upstream.play(refusal, ok_json())
    found = house.complete(model="small")
    assert (found.status, found.headers["x-gateway-model"], found.headers["x-gateway-attempts"]) == (200, "big", "2")
    assert asked(upstream) == ["small", "big"]
    record = house.call(found.headers["x-request-id"])
    assert (record["model"], record["served_model"], record["routed_model"]) == ("small", "big", "big")
    assert (record["cost_usd"], record["price"]["input"]) == (20e-6, 10)


def test_a_model_whose_routes_all_fail_is_replaced(house: Gateway, upstream: Stage) -> None:
    upstream.play(ok_json(), BUSY, BUSY, ok_json())
    assert house.complete(model="lost").headers["x-gateway-model"] == "big"
    found = house.complete(model="fast")  # an alias has the fallbacks of its model
    assert (found.status, found.headers["x-gateway-model"]) == (200, "huge")
    assert asked(upstream) == ["big", "small", "big", "huge"]
    record = house.call(found.headers["x-request-id"])
    assert (record["model"], record["served_model"], record["attempts"]) == ("fast", "huge", 3)


def test_the_last_error_is_the_client_s(house: Gateway, upstream: Stage) -> None:
    upstream.play(TOO_LONG, BUSY, error_json(400, message="no", code="bad_thing"))
    found = house.complete(model="small")
    assert (found.status, found.json["error"]["code"]) == (400, "bad_thing")
    record = house.call(found.headers["x-request-id"])
    assert (record["served_model"], record["ended"], record["cost_usd"]) == ("huge", "error", 0)


@pytest.mark.parametrize(
    ("behaviour", "status"),
    [
        (error_json(400, message="bad", code="bad_thing"), 400),  # another model would refuse it, too
        (answer(b"not json"), 502),  # which may have been billed
    ],
)
def test_other_errors_do_not_fall_back(house: Gateway, upstream: Stage, behaviour: Behaviour, status: int) -> None:
    upstream.play(behaviour)
    found = house.complete(model="small")
    assert (found.status, "x-gateway-model" in found.headers) == (status, False)


def test_a_model_without_fallbacks_has_none_and_those_of_a_fallback_do_not_count(
    house: Gateway, upstream: Stage
) -> None:
    upstream.play(TOO_LONG, TOO_LONG, TOO_LONG)
    assert house.complete(model="alone").status == 400
    assert house.complete(model="chain").status == 400
    assert asked(upstream) == ["alone", "chain", "small"]


def test_a_key_needs_both_models(house: Gateway, upstream: Stage) -> None:
    upstream.play(TOO_LONG, ok_json())
    assert house.complete("bob", model="small").headers["x-gateway-model"] == "huge"
    assert asked(upstream) == ["small", "huge"]


def test_a_model_that_cannot_take_the_call_is_left_out(house: Gateway, upstream: Stage) -> None:
    upstream.play(TOO_LONG, TOO_LONG)
    assert house.complete(model="n-small", n=2).status == 400
    assert house.complete(model="chat-next").status == 400
    assert asked(upstream) == ["n-small", "chat-next"]


def test_a_stream_falls_back_before_its_first_byte(house: Gateway, upstream: Stage) -> None:
    upstream.play(BUSY, stream([EVENT]))
    with house.stream(model="small") as raw:
        assert raw.read_head().headers["x-gateway-model"] == "big"
        assert b'"a"' in raw.read_chunks()
    upstream.play(stream([EVENT, {"error": {"message": "gone", "code": 502}}]))
    with house.stream(model="small") as raw:
        raw.read_head()
        raw.read_chunks()
    assert asked(upstream) == ["small"]


def test_an_error_as_the_first_event_of_a_stream_falls_back(house: Gateway, upstream: Stage) -> None:
    broken = stream([{"error": {"message": "overloaded", "code": 503}}])
    upstream.play(broken, stream([EVENT]), broken, broken, broken)
    with house.stream(model="small") as raw:
        assert raw.read_head().headers["x-gateway-model"] == "big"
        assert b'"a"' in raw.read_chunks()
    with house.stream(model="small") as raw:
        assert raw.read_head().headers["x-gateway-model"] == "huge"
        assert b"error" in raw.read_chunks()
    assert asked(upstream) == ["small", "big", "small", "big", "huge"]


def test_nothing_falls_back_behind_a_comment(gateway: StartsGateways, upstream: Stage) -> None:
    has_begun = threading.Event()

    async def fail_late(wire: Wire) -> None:
        await asyncio.to_thread(has_begun.wait)
        await BUSY(wire)

    upstream.play(fail_late)
    models = {"small": model("completions", fallbacks=["big"], max_attempts=1), "big": model("completions")}
    house = gateway(settings(upstream.url, models=models, server={"keepalive_comment_s": 0.05}))
    with house.stream(model="small") as raw:
        assert raw.read_head().status == 200  # sent with the comment
        has_begun.set()
        assert b"error" in raw.read_chunks()
    assert asked(upstream) == ["small"]


def test_a_quota_of_the_fallback_is_used_only_when_it_serves(house: Gateway, upstream: Stage) -> None:
    def used() -> tuple[int, int]:
        (quota,) = house.get("/v1/key", key="carol").json["quotas"]
        return quota["used"], quota["reserved"]

    upstream.play(ok_json())
    house.complete("carol", model="small")
    assert eventually(lambda: (seen := used()) == (0, 0) and [seen])
    upstream.play(TOO_LONG, ok_json())
    house.complete("carol", model="small")
    assert eventually(lambda: used() == (1, 0))


def test_the_dearest_model_that_fits_is_reserved(house: Gateway, upstream: Stage) -> None:
    """16 tokens at 100 USD a million (`huge`) are more than the whole quota; at 10 (`big`) they are reserved."""
    seen: list[Any] = []

    async def look(wire: Wire) -> None:
        seen.append(await asyncio.to_thread(lambda: house.get("/v1/key", key="poor").json["quotas"][0]))
        await TOO_LONG(wire)

    upstream.play(look, TOO_LONG)
    assert house.complete("poor", model="small").status == 400
    assert asked(upstream) == ["small", "big"]
    assert seen[0]["reserved"] > 16 * 10e-6
    assert seen[0]["reserved"] < 60 * 10e-6
