"""Bodies that are hard to read, small and large: clean refusals, and other callers never wait for them."""

from __future__ import annotations

import os
import signal
import threading
import time
from codecs import BOM_UTF8
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import ok_json
from tests.flows import client
from tests.flows.client import Answer
from tests.flows.gateway_process import COMPLETIONS, Gateway, children, eventually, key, model, secret, settings

MB = 1 << 20
SIZES = [0, 100_000, 3 * MB]
"""How much stands beside what is hard: the second and the third are read by another process."""


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    alias = {"routes": [{"upstream": "main", "model": "another-name"}]}
    bridged = model("completions", "simple")
    changes: dict[str, Any] = {
        "models": {"alias": {**model("completions"), **alias}, "bridged": bridged},
        "upstreams": {"simple": {"base_url": shared_upstream.url, "capabilities": {"prompt_arrays": False}}},
        "keys": [key("alice"), key("bob", limits={"max_tokens": 7, "deny": ["denied"]})],
    }
    return start_shared_gateway(settings(shared_upstream.url, **changes))


def body(size: int, inside: bytes = b'"n": 1', name: str = COMPLETIONS) -> bytes:
    """A completion with so many bytes of prompt, and this in its object."""
    return b'{"model": "%b", "prompt": "%b", %b}' % (name.encode(), b"x" * size, inside)


HARD: dict[str, bytes] = {
    "deep": b'"a": ' + b"[" * 300 + b"]" * 300,
    "deeper": b'"a": ' + b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    "open for ever": b'"a": ' + b"[" * 50_000,
    "duplicate": b'"n": 1, "n": 2',
    "duplicate far inside": b'"a": [{"b": {"c": 1, "c": 2}}]',
    "duplicate by an escape": b'"n": 1, "\\u006e": 2',
    "lone surrogate": b'"a": "\\ud800"',
    "lone surrogate in a name": b'"\\udfff": 1',
    "thousands of digits": b'"a": ' + b"9" * 60_000,
    "thousands of digits as a seed": b'"seed": ' + b"9" * 5000,
    "a number beyond a double": b'"a": 1e999',
    "a number with a negative exponent beyond": b'"temperature": -1e999',
    "NaN": b'"temperature": NaN',
    "Infinity": b'"a": -Infinity',
    "not UTF-8": b'"a": "\xff"',
    "overlong UTF-8": b'"a": "\xc0\xaf"',
    "a surrogate in UTF-8": b'"a": "\xed\xa0\x80"',
    "a raw control character": b'"a": "\x00"',
    "a comment": b'"n": 1 /* why */',
    "a trailing comma": b'"n": 1,',
    "single quotes": b"'n': 1",
    "another case": b'"N": 1',
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("inside", HARD.values(), ids=HARD)
def test_hard_body_is_refused_cleanly(gateway: Gateway, upstream: ScriptedUpstream, inside: bytes, size: int) -> None:
    answer = gateway.post("/v1/completions", body(size, inside))
    assert answer.refusal[:2] == (400, "invalid_request_error")
    assert len(answer.body) < 1000
    assert upstream.hits == 0


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32"])
def test_other_encodings_are_refused(gateway: Gateway, upstream: ScriptedUpstream, encoding: str, size: int) -> None:
    assert gateway.post("/v1/completions", body(size).decode().encode(encoding)).refusal[:2] == (
        400,
        "invalid_request_error",
    )


@pytest.mark.parametrize("size", SIZES)
def test_a_byte_order_mark_is_left_out(gateway: Gateway, upstream: ScriptedUpstream, size: int) -> None:
    upstream.answer_with(ok_json())
    assert gateway.post("/v1/completions", BOM_UTF8 + body(size)).status == 200
    (asked,) = upstream.requests
    assert asked.body == body(size)


@pytest.mark.parametrize("size", SIZES)
def test_zero_in_a_text_is_passed_on(gateway: Gateway, upstream: ScriptedUpstream, size: int) -> None:
    """It is a character like others, and whatever the upstream says of it is true."""
    upstream.answer_with(ok_json())
    sent = body(size, b'"user": "a\\u0000b", "suffix": "\\r\\nX-Injected: 1"')
    assert gateway.post("/v1/completions", sent).status == 200
    assert upstream.requests[0].body == sent
    assert "x-injected" not in upstream.requests[0].headers


# --------------------------------------------------------------------------------------------------------- large bodies


@pytest.mark.parametrize("size", [65_000, 66_000, 5 * MB, 24 * MB])
def test_large_body_is_passed_on_byte_for_byte(gateway: Gateway, upstream: ScriptedUpstream, size: int) -> None:
    upstream.answer_with(ok_json())
    sent = body(size, '"user": "é\\n𝄞"'.encode())
    answer = gateway.post("/v1/completions", sent)
    assert answer.status == 200
    assert upstream.requests[0].body == sent
    assert gateway.call(answer.id)["prompt_tokens"] == 1


def test_large_body_in_chunks(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(ok_json())
    sent = body(400_000)
    with gateway.connect() as client:
        client.send(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {secret('alice')}\r\n".encode())
        client.send(b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
        client.send(b"".join(b"7\r\n%b\r\n" % sent[at : at + 7] for at in range(0, len(sent) // 7 * 7, 7)))
        rest = sent[len(sent) // 7 * 7 :]
        client.send((b"%x\r\n%b\r\n" % (len(rest), rest) if rest else b"") + b"0\r\n\r\n")
        assert client.read_answer().status == 200
    assert upstream.requests[0].body == sent


def test_what_has_to_be_changed_in_a_large_body_is(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(ok_json(), ok_json())
    gateway.post("/v1/completions", body(200_000, '"user": "é", "stream": true'.encode(), "alias"))
    gateway.post("/v1/completions", body(200_000, b'"n": 2', "alias"), key="bob")
    first, second = (upstream.requests[number].json for number in (0, 1))
    assert (first["model"], first["stream_options"]) == ("another-name", {"include_usage": True})
    assert (first["user"], len(first["prompt"])) == ("é", 200_000)
    assert (second["model"], second["max_tokens"], second["n"]) == ("another-name", 7, 2)


def test_rules_of_keys_and_models_hold_for_large_bodies(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    def received(inside: bytes, who: str = "alice", name: str = COMPLETIONS) -> Any:
        return gateway.post("/v1/completions", body(200_000, inside, name), key=who).refusal

    assert received(b'"denied": 1', "bob")[2:] == ("denied", "unsupported_parameter")
    assert received(b'"max_tokens": 8', "bob")[2:] == ("max_tokens", "integer_above_max_value")
    assert received(b'"n": 200')[2:] == ("n", "integer_above_max_value")
    assert received(b'"n": 1', name="no-such")[0] == 404
    assert received(b'"n": 1', who="nobody")[0] == 401


def test_large_body_for_an_upstream_that_needs_it_rewritten(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(ok_json(), ok_json())
    prompts = ["x" * 100_000, "y" * 100_000]
    gateway.post("/v1/completions", {"model": "bridged", "prompt": prompts})
    assert sorted(request.json["prompt"] for request in upstream.requests) == prompts


def readers(gateway: Gateway) -> set[int]:
    """The process ids of the one worker's readers: of short bodies, and of long ones if there were some."""
    (worker,) = gateway.workers()
    return {*children(worker)}


def test_reader_that_is_killed_is_replaced(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(always=ok_json())
    assert gateway.post("/v1/completions", body(100_000)).status == 200
    first = readers(gateway)
    for each in first:
        os.kill(each, signal.SIGKILL)
    for size in (100_000, 2 * MB):
        assert [gateway.post("/v1/completions", body(size)).status for _ in range(3)] == [200] * 3
    assert len(readers(gateway)) == 2
    assert readers(gateway).isdisjoint(first)


def test_others_are_served_while_a_body_is_read(
    gateway: Gateway, upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many objects as may be take a second or two to read. Nothing else waits for them, however slow the machine."""
    monkeypatch.setattr(client, "TIMEOUT_S", 150.0)
    upstream.answer_with(always=ok_json())
    nested = body(10, b'"a": [' + b'{"a":[]},' * 480_000 + b"0]")
    received: list[Answer] = []
    sender = threading.Thread(target=lambda: received.append(gateway.post("/v1/completions", nested)))
    began = time.monotonic()
    sender.start()
    waits = []
    while sender.is_alive():
        at = time.monotonic()
        assert gateway.complete().status == 200
        waits.append(time.monotonic() - at)
    whole = time.monotonic() - began
    assert [answer.status for answer in received] == [200]
    assert max(waits) < whole / 3
    assert len(waits) > 20


def test_a_client_that_leaves_in_its_large_body_delays_no_other_call(
    gateway: Gateway, upstream: ScriptedUpstream
) -> None:
    upstream.answer_with(always=ok_json())
    before = upstream.hits
    for _ in range(3):
        with gateway.connect() as client:
            client.post("/v1/completions", body(3 * MB), secret("alice"))
    assert gateway.post("/v1/completions", body(100_000)).status == 200
    eventually(lambda: gateway.metric("gateway_in_flight_requests") == 0)
    assert upstream.hits - before <= 4


def test_reader_ends_with_its_worker(start_gateway: StartsGateways, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(always=ok_json())
    gateway = start_gateway(settings(upstream.url), env={"A_SECRET": secret("alice")})
    assert gateway.post("/v1/completions", body(100_000)).status == 200
    (first,) = readers(gateway)
    for place in (Path(f"/proc/{first}/cmdline"), Path(f"/proc/{first}/environ")):
        assert not place.exists() or secret("alice").encode() not in place.read_bytes()
    os.kill(gateway.workers()[0], signal.SIGKILL)
    eventually(lambda: not is_running(first))
    assert eventually(lambda: gateway.post("/v1/completions", body(100_000)).status == 200)
    (second,) = readers(gateway)
    gateway.stop()
    eventually(lambda: not is_running(second))


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
