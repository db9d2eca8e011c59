"""What a client lives through when a model has several routes: which one answers, and what it never notices.

One gateway for the file. Each test has upstreams of its own by name, so that none finds what another has left behind;
they all lead to the same two servers, `near` and `far`.
"""

from __future__ import annotations

import asyncio
import csv
import io
import re
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import (
    CHUNKED,
    Behaviour,
    Scripted,
    Wire,
    answer,
    chunk,
    close_without_answer,
    cut_mid_body,
    cut_stream,
    dead_port,
    error_json,
    event,
    not_http,
    ok_json,
    raw,
    silent,
    stream,
)

from .client import Answer, events
from .gateway_process import UPSTREAM_KEY, Gateway, eventually, key, model, secret, settings

KEYS = ["sk-first-key-that-nobody-may-see", "sk-second-key-that-nobody-may-see"]
FAR_NAME = "instruct-v2-0914"
TESTS = 60
QUOTAS = [{"requests": 100_000, "per": "day"}, {"tokens": 100_000_000, "per": "day"}]

EVENT = {"id": "c", "object": "text_completion", "choices": [{"index": 0, "text": "a", "finish_reason": None}]}
LAST_EVENT = {"id": "c", "object": "text_completion", "choices": [{"index": 0, "text": "b", "finish_reason": "stop"}]}


@dataclass
class Place:
    """What one test has for itself: the names of its upstreams and models end in a number of its own."""

    gateway: Gateway
    near: ScriptedUpstream
    far: ScriptedUpstream
    number: int

    def name(self, kind: str) -> str:
        return f"{kind}-{self.number}"

    def ask(self, kind: str = "two", **changes: Any) -> Answer:
        return self.gateway.complete(model=self.name(kind), **changes)

    def served_by(self, kind: str = "two") -> str:
        """The upstream that answers a call well, without its number."""
        got = self.ask(kind)
        assert got.status == 200, got
        return got.headers["x-gateway-upstream"].partition("-")[0]

    def state(self, upstream: str) -> float:
        return self.gateway.metric("gateway_upstream_state", upstream=self.name(upstream))

    def attempts(self, upstream: str) -> dict[str, float]:
        """How many ended in which way."""
        return {
            labels["outcome"]: value
            for name, labels, value in self.gateway.metrics()
            if name == "gateway_upstream_attempts_total" and labels["upstream"] == self.name(upstream)
        }

    def said(self) -> list[str]:
        """What the log says of this test's upstreams, without the calls' own lines."""
        lines = [line.partition(" gateway: ")[2] for line in self.gateway.stderr.splitlines()]
        return [line for line in lines if f"-{self.number}" in line.partition(":")[0] and ", call req_" not in line]


def _config(near: str, far: str) -> dict[str, Any]:
    upstreams: dict[str, Any] = {}
    models: dict[str, Any] = {}
    for n in range(TESTS):
        limits = {"timeouts": {"head_s": 3, "idle_s": 3}}
        upstreams |= {
            f"near-{n}": {"base_url": near, "api_key": UPSTREAM_KEY, **limits},
            f"far-{n}": {"base_url": far, "api_key": UPSTREAM_KEY, **limits},
            f"keys-{n}": {"base_url": near, "api_keys": KEYS, **limits},
        }
        first, second = {"upstream": f"near-{n}"}, {"upstream": f"far-{n}", "model": FAR_NAME, "priority": 2}
        models |= {
            f"two-{n}": model("completions", routes=[first, second]),
            f"again-{n}": model("completions", routes=[first, second], repeat_when_waiting=True),
            f"one-{n}": model("completions", routes=[first]),
            f"another-{n}": model("completions", routes=[first]),
            f"keys-{n}": model("completions", routes=[{"upstream": f"keys-{n}"}]),
            f"keys-first-{n}": model("completions", routes=[{"upstream": f"keys-{n}"}, second]),
        }
    weighted = [{"upstream": "near-0", "weight": 3}, {"upstream": "far-0", "weight": 1}]
    models["weighted-0"] = model("completions", routes=weighted)
    models["*"] = {"routes": [{"upstream": "near-0"}, {"upstream": "far-0", "priority": 2}], "max_output_tokens": 99}
    dead = {"base_url": f"http://127.0.0.1:{dead_port()}/v1"}
    upstreams |= {f"dead-{n}": dead for n in range(TESTS)}
    models |= {
        f"dead-first-{n}": model(
            "completions", routes=[{"upstream": f"dead-{n}"}, {"upstream": f"far-{n}", "priority": 2}]
        )
        for n in range(TESTS)
    }
    models |= {f"dead-{n}": model("completions", routes=[{"upstream": f"dead-{n}"}]) for n in range(TESTS)}
    return settings(near, upstreams=upstreams, models=models, keys=[key("alice", quotas=QUOTAS), key("bob")])


@pytest.fixture(scope="module")
def far_upstream() -> Iterator[ScriptedUpstream]:
    with ScriptedUpstream() as scripted:
        yield scripted


@pytest.fixture(scope="module")
def gateway(
    start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream, far_upstream: ScriptedUpstream
) -> Gateway:
    return start_shared_gateway(_config(shared_upstream.url, far_upstream.url))


@pytest.fixture(scope="module")
def numbers() -> Iterator[int]:
    return iter(range(1, TESTS))


@pytest.fixture
def place(
    gateway: Gateway, upstream: ScriptedUpstream, far_upstream: ScriptedUpstream, numbers: Iterator[int]
) -> Iterator[Place]:
    far_upstream.answer_with()
    yield Place(gateway, upstream, far_upstream, next(numbers))
    far_upstream.check()


# ------------------------------------------------------------------------------------------------- who is asked first


def test_first_priority_answers_as_long_as_it_is_well(place: Place) -> None:
    place.near.answer_with(always=ok_json())
    assert {place.served_by() for _ in range(20)} == {"near"}


def test_weights_are_shares_of_the_calls(place: Place) -> None:
    place.near.answer_with(always=ok_json())
    place.far.answer_with(always=ok_json())
    for _ in range(200):
        assert place.gateway.complete(model="weighted-0").status == 200
    assert 120 < place.near.hits < 180  # five standard deviations around 150


def test_route_has_its_own_name_for_the_model_and_the_record_says_so(place: Place) -> None:
    place.near.answer_with(error_json(500))
    place.far.answer_with(ok_json({"model": FAR_NAME, "usage": {"prompt_tokens": 1, "completion_tokens": 1}}))
    got = place.ask()
    assert [place.near.requests[0].json["model"], place.far.requests[0].json["model"]] == [place.name("two"), FAR_NAME]
    record = place.gateway.call(got.id)
    assert (record["model"], record["routed_model"], record["returned_model"]) == (
        place.name("two"),
        FAR_NAME,
        FAR_NAME,
    )
    assert (record["upstream"], record["attempts"], record["status"]) == (place.name("far"), 2, 200)


# ---------------------------------------------------------------------------------------------------------- failover

PAGE = answer(b"<html>Bad Gateway</html>", 502, [("Content-Type", "text/html")])

TIMED_OUT = error_json(504)
FAILS_OVER: list[tuple[str, Behaviour, str]] = [
    ("500", error_json(500), "status"),
    ("502 with a page", PAGE, "status"),
    ("503 with Retry-After", error_json(503, [("Retry-After", "9")]), "status"),
    ("504", TIMED_OUT, "status"),
    ("no channel", error_json(503, message="no channel for model", code="model_not_found"), "no_channel"),
    ("429", error_json(429), "rate_limited"),
    ("429 with Retry-After", error_json(429, [("Retry-After", "9")]), "rate_limited"),
    ("401", error_json(401, code="invalid_api_key"), "auth_failed"),
    ("403", error_json(403), "auth_failed"),
    ("a spent balance", error_json(403, code="insufficient_user_quota"), "balance_spent"),
    ("a redirect", answer(b"", 302, [("Location", "http://elsewhere")]), "redirect"),
    ("an error inside a 200", ok_json({"error": {"message": "x", "code": "503"}}), "status"),
]


@pytest.mark.parametrize(("behaviour", "outcome"), [pytest.param(*row[1:], id=row[0]) for row in FAILS_OVER])
def test_second_upstream_answers_when_the_first_refuses(place: Place, behaviour: Behaviour, outcome: str) -> None:
    place.near.answer_with(behaviour)
    place.far.answer_with(ok_json())
    before = _used(place.gateway)
    got = place.ask()
    assert (got.status, got.headers["x-gateway-upstream"]) == (200, place.name("far"))
    assert got.headers["x-gateway-attempts"] == "2"
    record = place.gateway.call(got.id)
    assert (record["upstream"], record["attempts"], record["ended"]) == (place.name("far"), 2, "done")
    assert (place.attempts("near"), place.attempts("far")) == ({outcome: 1}, {"ok": 1})
    # A proxy that stopped waiting may have cost the prompt and completions' default of 16; other refusals are free.
    refused = 2 + 16 if behaviour is TIMED_OUT else 0
    assert _used(place.gateway) == (before[0] + 1, before[1] + 2 + refused)


def _used(gateway: Gateway) -> tuple[int, int]:
    quotas = {quota["unit"]: quota for quota in gateway.get("/v1/key").json["quotas"]}
    assert {quota["reserved"] for quota in quotas.values()} == {0}
    return quotas["requests"]["used"], quotas["tokens"]["used"]


def test_the_second_upstream_answers_when_the_first_is_down(place: Place) -> None:
    place.far.answer_with(ok_json())
    got = place.ask("dead-first")
    assert (got.status, got.headers["x-gateway-upstream"], got.headers["x-gateway-attempts"]) == (
        200, place.name("far"), "2",
    )  # fmt: skip
    assert place.attempts("dead") == {"connect_failed": 1}


@pytest.mark.parametrize(
    ("behaviour", "status"), [(silent, 504), (cut_mid_body, 502), (not_http, 502), (close_without_answer, 502)]
)
def test_what_was_sent_is_sent_elsewhere_only_where_the_model_says_so(
    place: Place, behaviour: Behaviour, status: int
) -> None:
    place.near.answer_with(_on_a_new_connection(behaviour), _on_a_new_connection(behaviour))
    assert place.ask("two").status == status
    place.far.answer_with(ok_json())
    got = place.ask("again")
    assert (got.status, got.headers["x-gateway-attempts"]) == (200, "2")


def _on_a_new_connection(behaviour: Behaviour) -> Behaviour:
    """Each test's upstreams have connections of their own, and none has been left here."""

    async def checked(wire: Wire) -> None:
        assert wire.request.turn == 0
        await behaviour(wire)

    return checked


def test_stale_connection_is_no_reason_to_go_elsewhere(place: Place) -> None:
    place.near.answer_with(ok_json(), close_without_answer, ok_json())
    assert [place.served_by(), place.served_by()] == ["near", "near"]
    assert place.near.hits == 3
    assert place.attempts("near") == {"ok": 2, "cut": 1}


@pytest.mark.parametrize("status", [400, 404, 413, 422])
def test_errors_of_the_request_are_not_retried_elsewhere(place: Place, status: int) -> None:
    place.near.answer_with(error_json(status, message="no", type="invalid_request_error"))
    got = place.ask()
    assert (got.status, got.headers["x-gateway-attempts"]) == (status, "1")
    assert place.attempts("near") == {"refused": 1}


def test_both_fail_and_the_last_one_s_answer_is_relayed(place: Place) -> None:
    place.near.answer_with(error_json(500))
    place.far.answer_with(error_json(503, [("Retry-After", "7")]))
    got = place.ask()
    assert (got.status, got.error["code"], got.headers["retry-after"]) == (503, "upstream_error", "7")
    assert (got.headers["x-gateway-upstream"], got.headers["x-gateway-attempts"]) == (place.name("far"), "2")
    assert place.gateway.call(got.id)["upstream"] == place.name("far")


def test_rate_limits_of_both_are_a_429_that_says_when(place: Place) -> None:
    limited = error_json(429, [("Retry-After-Ms", "6500")])
    place.near.answer_with(limited)
    place.far.answer_with(limited)
    got = place.ask()
    assert (got.status, got.error["code"]) == (429, "upstream_rate_limited")
    assert (got.headers["retry-after"], got.headers["retry-after-ms"]) == ("7", "6500")


def test_sdk_does_not_notice_a_failover(place: Place) -> None:
    import openai

    place.near.answer_with(error_json(500))
    place.far.answer_with(ok_json())
    with openai.OpenAI(api_key=secret("alice"), base_url=f"{place.gateway.url}/v1") as client:
        done = client.completions.create(model=place.name("two"), prompt="Hello")
    assert done.choices[0].text == " world"
    assert place.far.requests[0].headers["x-stainless-retry-count"] == "0"


# ------------------------------------------------------------------------------------------------------------- streams


@pytest.mark.parametrize("is_stream", [False, True])
def test_the_first_byte_is_that_of_the_attempt_that_answers(place: Place, is_stream: bool) -> None:
    asked_at = 0.0

    async def answer_well(wire: Wire) -> None:
        nonlocal asked_at
        await asyncio.to_thread(eventually, lambda: place.attempts("near"))  # this and the next are well apart
        asked_at = time.time()
        await (stream([EVENT, LAST_EVENT]) if is_stream else ok_json())(wire)

    place.near.answer_with(error_json(503))
    place.far.answer_with(answer_well)
    got = place.ask(stream=is_stream)
    record = place.gateway.call(got.headers["x-request-id"])
    assert (record["status"], record["attempts"]) == (200, 2)
    assert record["time"] + record["first_byte_s"] >= asked_at


def test_a_call_without_an_answer_has_no_first_byte(place: Place) -> None:
    place.near.answer_with(error_json(503))
    place.far.answer_with(error_json(503))
    got = place.ask()
    record = place.gateway.call(got.headers["x-request-id"])
    assert (got.status, record["attempts"], record["first_byte_s"]) == (503, 2, None)
    assert [(each["upstream"], each["fault"]) for each in record["timeline"]] == [
        (place.name("near"), "status"), (place.name("far"), "status"),
    ]  # fmt: skip


@pytest.mark.parametrize("is_stream", [False, True])
def test_the_attempts_of_a_call_have_their_times(place: Place, is_stream: bool) -> None:
    place.near.answer_with(error_json(503))
    place.far.answer_with(always=stream([EVENT, LAST_EVENT]) if is_stream else ok_json())
    record = place.gateway.call(place.ask(stream=is_stream).id)
    first, last = record["timeline"]
    assert (first["upstream"], first["fault"]) == (place.name("near"), "status")
    assert (last["upstream"], last["fault"]) == (place.name("far"), None)
    assert 0 <= first["began_s"] <= first["ended_s"] <= last["began_s"] <= record["first_byte_s"] + 0.001
    assert last["ended_s"] == pytest.approx(record["duration_s"], abs=0.001)
    (line,) = [
        line
        for line in csv.DictReader(io.StringIO(place.gateway.admin("calls", format="csv", limit="100").body.decode()))
        if line["id"] == record["id"]
    ]
    near, far = line["timeline"].split()
    assert (near.split(":")[0], near.split(":")[3]) == (place.name("near"), "status")
    assert (far.split(":")[0], far.split(":")[3]) == (place.name("far"), "")


def test_a_call_with_one_attempt_has_no_times_of_attempts(place: Place) -> None:
    place.near.answer_with(ok_json(), error_json(503))
    place.far.answer_with(always=error_json(503))
    assert place.gateway.call(place.ask().id)["timeline"] == []


def test_stream_goes_elsewhere_before_its_first_byte(place: Place) -> None:
    place.near.answer_with(
        error_json(503), raw(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n", then_close=True)
    )
    place.far.answer_with(always=stream([EVENT, LAST_EVENT]))
    for kind in ("two", "again"):
        got = place.ask(kind, stream=True)
        assert (got.status, got.headers["x-gateway-upstream"]) == (200, place.name("far"))
        assert events(got.body)[-1] == "[DONE]"


def test_failed_attempts_are_reported_of_the_upstream_that_failed(place: Place) -> None:
    place.near.answer_with(error_json(503))
    place.far.answer_with(always=ok_json())
    got = place.ask()
    (call,) = [row for row in place.gateway.calls() if row["id"] == got.headers["x-request-id"]]
    assert (call["upstream"], call["failed"]) == (
        place.name("far"), [{"upstream": place.name("near"), "fault": "status"}],
    )  # fmt: skip
    found = place.gateway.admin("latency", group_by="upstream,hour").json["data"]
    rows = {row["upstream"]: row for row in found}
    near, far = rows[place.name("near")], rows[place.name("far")]
    assert (near["requests"], near["failed_attempts"], near["duration_p50_s"]) == (0, 1, None)
    assert (far["requests"], far["failed_attempts"], far["duration_count"]) == (1, 0, 1)
    assert far["duration_p99_s"] > 0


def test_a_stream_that_has_begun_is_not_retried(place: Place) -> None:
    place.near.answer_with(cut_stream([EVENT]))
    got = place.ask("again", stream=True)
    assert (got.status, got.headers["x-gateway-upstream"]) == (200, place.name("near"))
    assert [each["choices"][0]["text"] for each in events(got.body)[:-1]] == ["a"]
    assert events(got.body)[-1]["error"]["code"] == "upstream_error"
    assert b"[DONE]" not in got.body
    assert place.gateway.call(got.id)["attempts"] == 1


# ----------------------------------------------------------------------------------------------- no other upstream


def test_only_route_is_asked_again_where_it_says_soon(place: Place) -> None:
    place.near.answer_with(error_json(429, [("Retry-After-Ms", "150")]), ok_json())
    began = time.monotonic()
    got = place.ask("one")
    assert (got.status, got.headers["x-gateway-attempts"]) == (200, "2")
    assert time.monotonic() - began >= 0.15


@pytest.mark.parametrize(("status", "code"), [(429, "upstream_rate_limited"), (503, "upstream_error")])
def test_only_route_that_says_later_is_passed_on_at_once(place: Place, status: int, code: str) -> None:
    place.near.answer_with(error_json(status, [("Retry-After", "3")]))
    got = place.ask("one")
    assert (got.status, got.error["code"], got.headers["retry-after"]) == (status, code, "3")
    assert got.headers["x-gateway-attempts"] == "1"


def test_at_the_time_limit_the_client_gets_the_last_failure(place: Place) -> None:
    """openai-python and openai-node say how long they wait; what they would not see any more is not begun."""
    place.near.answer_with(error_json(429, [("Retry-After-Ms", "800")]))
    members = {"model": place.name("one"), "prompt": "Hello"}
    got = place.gateway.post("/v1/completions", members, headers={"x-stainless-read-timeout": "0.5"})
    assert (got.status, got.headers["retry-after-ms"]) == (429, "800")


# ---------------------------------------------------------------------------------------------------------------- keys


def shown_keys(stage: ScriptedUpstream) -> list[str]:
    """The keys that were presented, as `#1` or `#2`."""
    return [
        f"#{KEYS.index(request.headers['authorization'].removeprefix('Bearer ')) + 1}" for request in stage.requests
    ]


def test_keys_are_presented_in_turn(place: Place) -> None:
    place.near.answer_with(always=ok_json())
    for _ in range(4):
        assert place.served_by("keys") == "keys"
    assert shown_keys(place.near) == ["#1", "#2", "#1", "#2"]


@pytest.mark.parametrize(
    "refusal",
    [
        error_json(401, message=f"Incorrect API key provided: {KEYS[0]}"),
        error_json(403, code="insufficient_user_quota"),
    ],
    ids=["unknown", "spent"],
)
def test_a_refused_key_has_a_cooldown_and_no_call_fails(place: Place, refusal: Behaviour) -> None:
    place.near.answer_with(refusal, always=ok_json())
    got = place.ask("keys-first")
    assert (got.status, got.headers["x-gateway-attempts"]) == (200, "2")
    for _ in range(3):
        assert place.ask("keys-first").headers["x-gateway-attempts"] == "1"
    assert shown_keys(place.near) == ["#1", "#2", "#2", "#2", "#2"]
    (line,) = place.said()
    assert re.fullmatch(
        rf"upstream {place.name('keys')}: key #1 in cooldown(?: for model '[\w-]+')? for 60 s: \w+", line
    )
    assert not [each for each in KEYS if each in place.gateway.stdout + place.gateway.stderr]


def test_a_key_at_its_rate_limit_has_a_cooldown_until_retry_after(place: Place) -> None:
    place.near.answer_with(error_json(429, [("Retry-After-Ms", "2000")]), always=ok_json())
    assert place.ask("keys").headers["x-gateway-attempts"] == "2"
    assert place.ask("keys").status == 200
    assert shown_keys(place.near) == ["#1", "#2", "#2"]
    eventually(lambda: place.ask("keys").status == 200 and shown_keys(place.near)[-1] == "#1")


def test_upstream_whose_keys_all_rest_is_not_asked_in_vain(place: Place) -> None:
    place.near.answer_with(always=error_json(401, message=f"Incorrect API key provided: {KEYS[1]}"))
    place.far.answer_with(always=ok_json())
    assert place.ask("keys-first").headers["x-gateway-attempts"] == "3"
    for _ in range(10):  # as long as there is a doubt, it is the last resort of those who have nothing else
        assert place.ask("keys").status == 502
    asked = place.near.hits
    assert asked < 10
    failed = place.ask("keys")
    assert failed.refusal == (502, "server_error", None, "upstream_auth_failed")
    assert failed.headers["x-gateway-attempts"] == "0"
    assert place.served_by("keys-first") == "far"
    assert place.near.hits == asked
    assert not [each for each in KEYS if each in failed.body.decode() or each in place.gateway.stderr]
    assert place.gateway.metric("gateway_rejections_total", reason="auth_failed") >= 1


# ------------------------------------------------------------------------------------------------------------- breaker


def left_alone(place: Place, kind: str = "one") -> Answer:
    """An answer to a call that made no attempt: the first call's, unless a probe is due just then."""

    def look() -> Answer | None:
        got = place.ask(kind)
        return got if got.headers["x-gateway-attempts"] == "0" else None

    return eventually(look)


def test_breaker_opens_lets_a_probe_through_and_closes(place: Place) -> None:
    place.near.answer_with(always=error_json(500))
    assert [place.ask("one").status for _ in range(10)] == [502] * 10  # who has nothing else hopes for so long
    failed = left_alone(place)
    assert failed.refusal == (503, "server_error", None, "upstream_error")
    assert 1 <= int(failed.headers["retry-after-ms"]) <= 2000
    assert int(failed.headers["retry-after"]) in (1, 2)
    eventually(lambda: place.state("near") == 2)
    record = place.gateway.call(failed.id)
    assert (record["status"], record["ended"], record["attempts"], record["upstream"]) == (503, "error", 0, "")
    # Its rest ends; the next call is a probe, which fails, and it rests for twice as long.
    eventually(lambda: place.state("near") == 1)
    assert eventually(lambda: place.ask("one").status == 502)
    place.near.answer_with(always=ok_json())
    eventually(lambda: place.ask("one").status == 200)
    assert place.near.hits == 1
    assert place.state("near") == 0
    said = place.said()
    own = f"upstream {place.name('near')}, model '{place.name('one')}'"
    assert said[0] == f"{own}: circuit open for 1 s: repeated failures"
    assert {
        f"{own}: no answer to 10 attempts in a row; calls without another route are refused",
        f"{own}: circuit open for 2 s: probe failed",
    } < set(said)
    assert said[-2:] == [f"{own}: circuit half-open: the next call is a probe", f"{own}: circuit closed"]


def test_stream_that_is_a_probe_lets_the_others_in_long_before_its_end(place: Place) -> None:
    place.near.answer_with(always=error_json(500))
    assert [place.ask("one").status for _ in range(10)] == [502] * 10
    release = threading.Event()

    async def held_or_well(wire: Wire) -> None:
        if not wire.request.json.get("stream"):
            return await ok_json()(wire)
        await wire.write(CHUNKED + chunk(event(EVENT)))
        while not release.is_set():
            await asyncio.sleep(0.05)
            await wire.write(chunk(event(EVENT)))
        await wire.write(chunk(event(LAST_EVENT) + event("[DONE]")) + b"0\r\n\r\n")
        return None

    place.near.answer_with(always=held_or_well)
    eventually(lambda: place.state("near") == 1)
    with place.gateway.stream(model=place.name("one")) as probe:
        assert probe.read_head().status == 200
        probe.read_chunk()
        assert place.ask("one").status == 200
        assert place.state("near") == 0
        release.set()
        assert b"[DONE]" in probe.read_chunks()


def test_open_upstream_costs_its_clients_nothing_while_another_is_well(place: Place) -> None:
    place.near.answer_with(always=error_json(500))
    place.far.answer_with(always=ok_json())
    answers = [place.ask() for _ in range(25)]
    assert {got.headers["x-gateway-upstream"] for got in answers} == {place.name("far")}
    attempts = [got.headers["x-gateway-attempts"] for got in answers]
    assert attempts[:5] == ["2"] * 5
    assert attempts[5:].count("1") >= 15  # the others were probes
    assert place.state("far") == 0


def test_streams_that_are_cut_again_and_again_count_though_they_begin_well(place: Place) -> None:
    place.near.answer_with(always=cut_stream([EVENT]))
    place.far.answer_with(always=stream([EVENT, LAST_EVENT]))
    for _ in range(5):
        assert b"[DONE]" not in place.ask(stream=True).body
    eventually(lambda: b"[DONE]" in place.ask(stream=True).body)
    assert place.state("near") >= 1


def test_a_spent_balance_as_the_first_event_gives_the_key_a_cooldown(place: Place) -> None:
    spent = {"error": {"message": "Your credit is used up", "code": "insufficient_user_quota"}}
    place.near.answer_with(stream([spent], done=False), always=stream([EVENT, LAST_EVENT]))
    for _ in range(3):
        assert events(place.ask("keys", stream=True).body)[-1] == "[DONE]"
    assert shown_keys(place.near) == ["#1", "#2", "#2", "#2"]


def test_only_route_that_breaks_off_is_still_asked(place: Place) -> None:
    """The first half of an answer is better than none."""
    place.near.answer_with(always=cut_stream([EVENT]))
    for _ in range(25):
        got = place.ask("one", stream=True)
        assert (got.status, got.headers["x-gateway-attempts"]) == (200, "1")
    assert any("circuit open" in line for line in place.said())


def test_a_model_without_a_channel_does_not_open_the_circuit_of_others(place: Place) -> None:
    place.near.answer_with(always=error_json(503, message="no channel for model", code="model_not_found"))
    assert [place.ask("one").status for _ in range(10)] == [503] * 10
    assert left_alone(place).status == 503
    place.near.answer_with(always=ok_json())
    assert place.served_by("another") == "near"


def test_client_s_own_mistakes_open_nothing(place: Place) -> None:
    place.near.answer_with(*[error_json(400), error_json(404), error_json(422)] * 5, always=ok_json())
    assert {place.ask("one").status for _ in range(15)} == {400, 404, 422}
    assert place.served_by("one") == "near"


def test_an_unreachable_upstream_has_an_open_circuit_for_all_models(place: Place) -> None:
    place.far.answer_with(always=ok_json())
    assert [place.ask("dead").status for _ in range(3)] == [502] * 3
    assert left_alone(place, "dead").status == 503
    assert place.served_by("dead-first") == "far"


def test_names_that_only_a_wildcard_serves_have_circuits_of_their_own(place: Place) -> None:
    """Calls for unknown models do not open the circuit of the other models."""
    place.near.answer_with(always=error_json(503, message="no channel for model"))
    place.far.answer_with(always=ok_json())
    asked = [place.gateway.complete(model="nonsense") for _ in range(6)]
    assert [got.headers["x-gateway-upstream"] for got in asked] == ["far-0"] * 6
    eventually(lambda: place.gateway.complete(model="nonsense").headers["x-gateway-attempts"] == "1")
    place.near.answer_with(always=ok_json())
    assert place.gateway.complete(model="sense").headers["x-gateway-upstream"] == "near-0"
    assert place.gateway.metric("gateway_upstream_state", upstream="near-0") == 0


# -------------------------------------------------------------------------------------------------------------- probes


def test_probes_find_out_before_a_call_does(start_gateway: StartsGateways, upstream: ScriptedUpstream) -> None:
    """One upstream is stopped and started again without a call to it; calls made meanwhile succeed."""
    upstream.answer_with(always=ok_json())

    async def models_or_answer(wire: Wire) -> None:
        await ok_json({"object": "list", "data": []} if wire.request.method == "GET" else {"id": "c"})(wire)

    with Scripted(always=models_or_answer) as first:
        port = first.port
        probed = {"base_url": first.url, "probe_s": 0.1}
        models = {"m": model("completions", routes=[{"upstream": "probed"}, {"upstream": "main", "priority": 2}])}
        gateway = start_gateway(settings(upstream.url, upstreams={"probed": probed}, models=models))
        eventually(lambda: first.hits >= 3)
        assert {(request.method, request.path) for request in first.requests} == {("GET", "/v1/models")}
        assert gateway.complete(model="m").headers["x-gateway-upstream"] == "probed"
    eventually(lambda: gateway.metric("gateway_upstream_state", upstream="probed") == 2)
    got = gateway.complete(model="m")
    assert (got.headers["x-gateway-upstream"], got.headers["x-gateway-attempts"]) == ("main", "1")
    with Scripted(always=models_or_answer, sock=listening(port)):
        eventually(lambda: gateway.metric("gateway_upstream_state", upstream="probed") == 0)
        assert gateway.complete(model="m").headers["x-gateway-upstream"] == "probed"


def listening(port: int) -> socket.socket:
    return socket.create_server(("127.0.0.1", port), backlog=1024)


def test_state_is_the_worst_of_any_worker(start_gateway: StartsGateways, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(always=error_json(500))
    gateway = start_gateway(settings(upstream.url, server={"workers": 2}))
    assert gateway.metric("gateway_upstream_state", upstream="main") == 0
    eventually(lambda: gateway.complete().status == 503)
    eventually(lambda: gateway.metric("gateway_upstream_state", upstream="main") >= 1)
