"""What clients live through where calls wait for room at an upstream instead of being refused."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import Behaviour, Wire, ok_json, stream
from tests.flows.client import Answer, Raw
from tests.flows.gateway_process import Gateway, eventually, key, settings

USED = {"prompt_tokens": 10, "completion_tokens": 5}
CHOICE = {"index": 0, "delta": {"content": "x"}, "finish_reason": "stop"}
GOOD = ok_json({"model": "up", "usage": USED})
STREAM = stream([{"id": "c", "object": "chat.completion.chunk", "choices": [CHOICE]}])
WAITS_FOR = 3600


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    url = shared_upstream.url

    def limited(**limits: Any) -> dict[str, Any]:
        return {"base_url": url, "api_key": "sk-up", "limits": limits}

    upstreams = {
        "slots": limited(parallel=1), "rate": limited(requests="5/s"), "hour": limited(requests="1/2h"),
        "model": limited(parallel=1), "left": limited(parallel=1), "spoken": limited(parallel=1),
        "own": limited(parallel=1),
    }  # fmt: skip
    more: dict[str, dict[str, Any]] = {
        "brief": {"max_wait_s": "50ms"}, "patient": {"max_wait_s": "400ms"},
    }  # fmt: skip
    upstreams |= {"brief": limited(parallel=1), "patient": limited(parallel=1)}
    upstreams["both"] = limited(parallel=1, per_model={"rare": {"requests": "1/2h"}})
    upstreams["spoken"]["capabilities"] = {"messages": True}
    models = {
        f"m-{name}": {"routes": [{"upstream": name}], "max_output_tokens": 50, **more.get(name, {})}
        for name in upstreams
    }
    models["m-rare"] = {"routes": [{"upstream": "both", "model": "rare"}], "max_output_tokens": 50}
    keys = [
        key("alice"), key("batch", priority="batch"), key("human", priority="interactive"),
        key("hurried", max_wait_s=0), key("poor", quotas=[{"requests": 1, "per": "day"}]),
    ]  # fmt: skip
    queue = {"max_wait_s": WAITS_FOR, "max_calls": 6}
    server = {"keepalive_comment_s": 0.05, "workers": 1}  # what orders and positions are tested of
    return start_shared_gateway(
        settings(url, upstreams=upstreams, models=models, keys=keys, queue=queue, server=server)
    )


@pytest.fixture(autouse=True)
def good_upstream(upstream: ScriptedUpstream) -> Iterator[None]:
    upstream.answer_with(always=GOOD)
    yield
    upstream.answer_with()


class Held:
    """An upstream that serves one call at a time, on command."""

    def __init__(self) -> None:
        self.turn = threading.Semaphore(0)
        self.served: list[str] = []
        self.inside = threading.Semaphore(0)

    async def __call__(self, wire: Wire) -> None:
        self.served.append(wire.request.json["user"])
        self.inside.release()
        assert await asyncio.to_thread(self.turn.acquire, timeout=30)
        await (STREAM if wire.request.json.get("stream") else GOOD)(wire)


def ask(gateway: Gateway, model: str, who: str = "alice", headers: Mapping[str, str] = {}) -> Answer:
    body = {"model": f"m-{model}", "messages": [{"role": "user", "content": "Hello"}], "user": who}
    return gateway.post("/v1/chat/completions", body, key=who, headers=headers)


def waiting(gateway: Gateway) -> int:
    return sum(row["waiting"] for row in gateway.admin("upstreams").json["data"])


def test_a_call_waits_for_a_slot(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(always=(held := Held()))
    with ThreadPoolExecutor(8) as crowd:
        first = crowd.submit(ask, gateway, "slots")
        assert held.inside.acquire(timeout=30)
        second = crowd.submit(ask, gateway, "slots")
        eventually(lambda: waiting(gateway) == 1)
        assert len(held.served) == 1
        held.turn.release(2)
        assert [first.result().status, second.result().status] == [200, 200]
    assert waiting(gateway) == 0


def test_interactive_calls_go_before_a_backlog_of_batch_calls(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(always=(held := Held()))
    with ThreadPoolExecutor(8) as crowd:
        calls = [crowd.submit(ask, gateway, "model", "batch")]
        assert held.inside.acquire(timeout=30)
        for number in range(1, 5):
            calls.append(crowd.submit(ask, gateway, "model", "batch"))
            eventually(lambda number=number: waiting(gateway) == number)
        calls.append(crowd.submit(ask, gateway, "model", "human"))
        eventually(lambda: waiting(gateway) == 5)
        held.turn.release(6)
        assert [call.result().status for call in calls] == [200] * 6
    assert held.served.index("human") <= 2, held.served


def test_a_full_queue_takes_a_new_flow_in_the_place_of_the_longest(
    gateway: Gateway, upstream: ScriptedUpstream
) -> None:
    upstream.answer_with(always=(held := Held()))
    with ThreadPoolExecutor(12) as crowd:
        calls = [crowd.submit(ask, gateway, "slots", "batch")]
        assert held.inside.acquire(timeout=30)
        for number in range(1, 7):
            calls.append(crowd.submit(ask, gateway, "slots", "batch"))
            eventually(lambda number=number: waiting(gateway) == number)
        assert ask(gateway, "slots", "batch").refusal == (429, "requests", None, "upstream_rate_limited")
        human = crowd.submit(ask, gateway, "slots", "human")
        eventually(lambda: any(call.done() for call in calls))
        held.turn.release(7)
        assert human.result().status == 200
        assert sorted(call.result().status for call in calls) == [200] * 6 + [429]


def test_a_client_that_leaves_frees_its_place(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(always=(held := Held()))
    with ThreadPoolExecutor(4) as crowd:
        first = crowd.submit(ask, gateway, "left")
        assert held.inside.acquire(timeout=30)
        gone = gateway.stream(path="/v1/chat/completions", model="m-left", messages=[{"role": "user", "content": "hi"}])
        eventually(lambda: waiting(gateway) == 1)
        gone.close()
        eventually(lambda: waiting(gateway) == 0)
        held.turn.release(2)
        assert first.result().status == 200
        assert ask(gateway, "left").status == 200
    assert len(held.served) == 2


def test_a_wait_that_cannot_succeed_is_refused_at_once_with_the_true_time(gateway: Gateway) -> None:
    assert ask(gateway, "hour").status == 200
    got = ask(gateway, "hour")
    assert got.refusal == (429, "requests", None, "upstream_rate_limited")
    assert 7_000_000 < int(got.headers["retry-after-ms"]) <= 7_200_100  # rounded up


def test_a_wait_that_cannot_succeed_is_refused_at_once_while_others_wait(
    gateway: Gateway, upstream: ScriptedUpstream
) -> None:
    assert ask(gateway, "rare").status == 200
    upstream.answer_with(always=(held := Held()))
    with ThreadPoolExecutor(4) as crowd:
        calls = [crowd.submit(ask, gateway, "both")]
        assert held.inside.acquire(timeout=30)
        calls.append(crowd.submit(ask, gateway, "both"))
        eventually(lambda: waiting(gateway) == 1)
        got = ask(gateway, "rare")
        assert got.refusal == (429, "requests", None, "upstream_rate_limited")
        assert 7_000_000 < int(got.headers["retry-after-ms"]) <= 7_200_100  # rounded up
        assert waiting(gateway) == 1
        held.turn.release(2)
        assert [call.result().status for call in calls] == [200, 200]


def test_no_call_waits_longer_than_its_client(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(always=(held := Held()))
    with ThreadPoolExecutor(4) as crowd:
        first = crowd.submit(ask, gateway, "own")
        assert held.inside.acquire(timeout=30)
        got = ask(gateway, "own", headers={"X-Stainless-Read-Timeout": "1"})
        assert got.refusal == (429, "requests", None, "upstream_rate_limited")
        assert int(got.headers["retry-after-ms"]) > 0
        held.turn.release(1)
        assert first.result().status == 200


def test_the_caller_s_own_limit_refuses_at_once(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    assert ask(gateway, "own", "poor").status == 200
    assert ask(gateway, "own", "poor").refusal == (429, "insufficient_quota", None, "insufficient_quota")
    assert waiting(gateway) == 0


def test_a_rate_is_used_to_its_end_and_not_beyond(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    with ThreadPoolExecutor(6) as crowd:
        answers = list(crowd.map(lambda _: ask(gateway, "rate"), range(15)))
    assert [got.status for got in answers] == [200] * 15


def test_a_stream_that_waits_gets_comments(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(always=(held := Held()))
    with ThreadPoolExecutor(4) as crowd:
        first = crowd.submit(ask, gateway, "spoken")
        assert held.inside.acquire(timeout=30)
        chunk = {"id": "c", "object": "chat.completion.chunk", "choices": [CHOICE]}
        received: Behaviour = stream([chunk])
        upstream.answer_with(always=received)
        messages = [{"role": "user", "content": "hi"}]
        with gateway.stream(path="/v1/chat/completions", model="m-spoken", messages=messages, stream=True) as raw:
            eventually(lambda: waiting(gateway) == 1)
            raw.read_until(b": queued, position 1\n\n")
            held.turn.release(1)
            assert first.result().status == 200
            raw.read_until(b"[DONE]")


def wait_as_stream(gateway: Gateway, model: str, path: str = "/v1/chat/completions", **more: Any) -> Raw:
    messages = [{"role": "user", "content": "hi"}]
    return gateway.stream(path=path, model=f"m-{model}", messages=messages, user="alice", **more)


def test_a_stream_sees_its_position(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(always=(held := Held()))
    with ThreadPoolExecutor(4) as crowd:
        served = crowd.submit(ask, gateway, "spoken")
        assert held.inside.acquire(timeout=30)
        with wait_as_stream(gateway, "spoken") as first:
            eventually(lambda: waiting(gateway) == 1)
            with wait_as_stream(gateway, "spoken") as second:
                first.read_until(b": queued, position 1\n\n")
                second.read_until(b": queued, position 2\n\n")
                held.turn.release()
                assert held.inside.acquire(timeout=30)
                second.read_until(b": queued, position 1\n\n")
                first.read_until(b": keepalive\n\n")  # it waits for its upstream now
                held.turn.release(2)
                assert served.result().status == 200
                for stream_of in (first, second):
                    stream_of.read_until(b"[DONE]")


def test_messages_keep_their_own_keepalive_event(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(always=(held := Held()))
    with ThreadPoolExecutor(4) as crowd:
        served = crowd.submit(ask, gateway, "spoken")
        assert held.inside.acquire(timeout=30)
        with wait_as_stream(gateway, "spoken", "/v1/messages", max_tokens=5) as raw:
            eventually(lambda: waiting(gateway) == 1)
            assert b": queued" not in raw.read_until(b"event: ping")
        held.turn.release(2)
        assert served.result().status == 200


def test_a_refusal_behind_comments_is_an_error_event(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(always=(held := Held()))
    with ThreadPoolExecutor(4) as crowd:
        served = crowd.submit(ask, gateway, "patient")
        assert held.inside.acquire(timeout=30)
        with wait_as_stream(gateway, "patient") as raw:
            head = raw.read_head()
            body = raw.read_chunks()
        assert head.status == 200
        comment, *_, event = body.removesuffix(b"\n\n").split(b"\n\n")
        assert comment == b": queued, position 1"
        error = json.loads(event.removeprefix(b"data: "))["error"]
        assert (error["type"], error["code"]) == ("requests", "upstream_rate_limited")
        held.turn.release()
        assert served.result().status == 200


def test_a_key_or_a_model_has_a_wait_of_its_own(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(always=(held := Held()))
    with ThreadPoolExecutor(4) as crowd:
        calls = [crowd.submit(ask, gateway, name) for name in ("own", "brief")]
        assert held.inside.acquire(timeout=30)
        assert held.inside.acquire(timeout=30)
        for model, who in (("own", "hurried"), ("brief", "alice")):
            assert ask(gateway, model, who).refusal == (429, "requests", None, "upstream_rate_limited")
        held.turn.release(2)
        assert [call.result().status for call in calls] == [200, 200]
    assert gateway.metric("gateway_queue_wait_seconds_count", priority="normal", outcome="expired") >= 1
    assert gateway.metric("gateway_queue_depth", upstream="brief") == 0


@pytest.mark.parametrize("bad", ["urgent", ""])
def test_an_unknown_class_is_refused(gateway: Gateway, bad: str) -> None:
    got = ask(gateway, "rate", headers={"X-Gateway-Priority": bad})
    assert got.status == 400
    assert "X-Gateway-Priority" in got.error["message"]


@pytest.fixture(scope="module")
def reserving(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream, store_url: str) -> Gateway:
    upstreams = {"up": {"base_url": shared_upstream.url, "api_key": "sk-up", "limits": {"parallel": 3, "reserved": 1}}}
    models = {"m-up": {"routes": [{"upstream": "up"}], "max_output_tokens": 50}}
    keys = [key("alice"), key("batch", priority="batch"), key("human", priority="interactive")]
    queue, store = {"max_wait_s": WAITS_FOR}, {"url": store_url}
    return start_shared_gateway(
        settings(shared_upstream.url, upstreams=upstreams, models=models, keys=keys, queue=queue, store=store)
    )


def test_a_reserved_place_is_free_for_an_interactive_call_at_once(
    reserving: Gateway, upstream: ScriptedUpstream
) -> None:
    upstream.answer_with(always=(held := Held()))
    with ThreadPoolExecutor(8) as crowd:
        calls = [crowd.submit(ask, reserving, "up", who) for who in ("batch", "alice")]
        assert held.inside.acquire(timeout=30)
        assert held.inside.acquire(timeout=30)
        calls += [crowd.submit(ask, reserving, "up", who) for who in ("alice", "batch")]
        eventually(lambda: waiting(reserving) == 2)
        human = crowd.submit(ask, reserving, "up", "human")
        assert held.inside.acquire(timeout=30)
        assert held.served[2] == "human"
        again = crowd.submit(ask, reserving, "up", "human", {"X-Gateway-Priority": "batch"})
        eventually(lambda: waiting(reserving) == 3)
        held.turn.release(6)
        assert {call.result().status for call in [*calls, human, again]} == {200}


@pytest.fixture(scope="module")
def of_teams(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    upstreams = {"up": {"base_url": shared_upstream.url, "api_key": "sk-up", "limits": {"parallel": 1}}}
    models = {"m-up": {"routes": [{"upstream": "up"}], "max_output_tokens": 50}}
    keys = [*[key(f"red-{number}", team="red") for number in range(4)], key("blue", team="blue")]
    queue, server = {"max_wait_s": WAITS_FOR, "by": "team"}, {"workers": 1}
    teams: dict[str, Any] = {"red": {}, "blue": {}}
    return start_shared_gateway(
        settings(
            shared_upstream.url, upstreams=upstreams, models=models, keys=keys, teams=teams, queue=queue, server=server
        )
    )


def test_teams_share_fairly_however_many_keys_they_have(of_teams: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(always=(held := Held()))
    with ThreadPoolExecutor(12) as crowd:
        calls = [crowd.submit(ask, of_teams, "up", "red-0")]
        assert held.inside.acquire(timeout=30)
        for number, who in enumerate(["red-1", "red-2", "red-3"] * 2 + ["blue"] * 3, 1):
            calls.append(crowd.submit(ask, of_teams, "up", who))
            eventually(lambda number=number: waiting(of_teams) == number)
        held.turn.release(10)
        assert [call.result().status for call in calls] == [200] * 10
    by_turns = held.served[1:7]
    assert by_turns.count("blue") == 3, held.served  # by keys it is one of four, and its third call goes last
