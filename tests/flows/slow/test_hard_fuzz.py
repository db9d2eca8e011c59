"""Invalid bytes as requests: good requests with random faults, cut at any byte, sent in any pieces.

For each of them the gateway sends only complete HTTP answers, each error with the four keys; other clients are served;
the log has neither a traceback nor the key that was in the bytes.
"""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import settings as rules
from hypothesis import strategies as st

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.forms import TYPE, form
from tests.fakes.scripted import ok_json
from tests.flows.client import ERROR_KEYS, Raw
from tests.flows.gateway_process import COMPLETIONS, Gateway, secret, settings

BODY = json.dumps({"model": COMPLETIONS, "prompt": "Hello"}).encode()
KEY = f"Authorization: Bearer {secret('alice')}\r\n".encode()
JSON = b"Content-Type: application/json\r\n"
FORM = form(("prompt", "cat"), ("image", b"\x89PNG"))
FORM_TYPE = f"Content-Type: {TYPE['Content-Type']}\r\n".encode()
ROW = {
    "upstream": "main", "prefix": "/t", "submit": ["POST /make/{kind}"], "read": ["GET /made?id={task}"],
    "task": "/id", "done": {"/object": "*"},
}  # fmt: skip
"""Tasks, by a form and with a query."""
GOOD = [
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n" + KEY + JSON + b"Content-Length: %d\r\n\r\n%b" % (len(BODY), BODY),
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n" + KEY + JSON + b"Transfer-Encoding: chunked\r\n\r\n"
    b"5\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (BODY[:5], len(BODY) - 5, BODY[5:]),
    b"GET /v1/models HTTP/1.1\r\nHost: x\r\n" + KEY + b"\r\n",
    b"GET /healthz HTTP/1.0\r\n\r\n",
    b"POST /t/make/video HTTP/1.1\r\nHost: x\r\n"
    + KEY
    + FORM_TYPE
    + b"Content-Length: %d\r\n\r\n%b" % (len(FORM), FORM),
    b"GET /t/made?id=t1 HTTP/1.1\r\nHost: x\r\n" + KEY + b"\r\n",
]
SPARKS = [
    b"\r\n", b"\n", b"\r", b"\0", b" ", b"\t", b":", b"\xff", b"%00", b"/", b"#", b"?", b"HTTP/1.1", b"HTTP/2.0",
    b"0\r\n\r\n", b"-1", b"ffffffffffffffff\r\n", b"18446744073709551615", b"Content-Length: 5\r\n",
    b"Content-Length: 0\r\n", b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: gzip\r\n",
    b"Connection: close\r\n", b"Expect: 100-continue\r\n", b"Connection: upgrade\r\nUpgrade: websocket\r\n",
    b"Content-Encoding: gzip\r\n", b"Host: y\r\n", KEY, b"\x16\x03\x01", b"x: y\r\n" * 200,
    b"CONNECT a:1 HTTP/1.1\r\nHost: x\r\n\r\n", b"X: " + b"a" * 9000 + b"\r\n",
]  # fmt: skip

LAST = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
"""Ends the connection."""
CHANGE = st.tuples(
    st.integers(0, 10**4), st.integers(0, 30), st.sampled_from(SPARKS) | st.binary(max_size=6) | st.just(b"")
)


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    shared_upstream.answer_with(always=ok_json())
    server = {"client_head_timeout_s": 0.3, "client_body_timeout_s": 0.3}
    return start_shared_gateway(settings(shared_upstream.url, server=server, passthrough={"t": ROW}))


@given(
    st.lists(st.sampled_from(GOOD), min_size=1, max_size=3),
    st.lists(CHANGE, max_size=3),
    st.lists(st.integers(0, 10**4), max_size=3),
)
@example([GOOD[2], GOOD[4]], [(398, 29, b"\r\n"), (416, 24, b"\r\n")], [])  # the last request becomes four bytes
@example([GOOD[0]], [(0, 0, b"CONNECT a:1 HTTP/1.1\r\nHost: x\r\n\r\n")], [])
@rules(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes(gateway: Gateway, requests: list[bytes], changes: list[Any], cuts: list[int]) -> None:
    sent = b"".join(requests)
    for place, length, spark in changes:
        at = place % (len(sent) + 1)
        sent = sent[:at] + spark + sent[at + length :]
    edges = sorted({0, len(sent), *(cut % (len(sent) + 1) for cut in cuts)})
    with gateway.connect() as client:
        try:
            for start, end in pairwise(edges):
                client.send(sent[start:end])
            client.send(LAST)
        except ConnectionError:
            pass  # it had heard enough
        check_answers(client)
    assert gateway.complete().status == 200
    assert secret("alice") not in gateway.stderr + gateway.stdout[-5000:]


def received(client: Raw) -> bytes:
    """Everything until the gateway hangs up. A body that lacks bytes may take those of the last request: then the
    connection is idle, and the request is sent again."""
    said = b""
    for _ in range(2):
        try:
            while data := client.socket.recv(65536):
                said += data
        except ConnectionResetError:
            return said
        except TimeoutError:
            client.send(LAST)
        else:
            return said
    raise AssertionError(f"the gateway neither answers nor hangs up, after {said!r}")


def check_answers(client: Raw) -> None:
    """Whether all that comes back is whole answers, until the gateway hangs up."""
    said = received(client)
    while said:
        head, blank, said = said.partition(b"\r\n\r\n")
        assert blank, head
        status = re.match(rb"HTTP/1\.1 (\d\d\d) [ -~]+\r\n", head + b"\r\n")
        assert status, head
        if status[1] == b"100":
            continue
        headers = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        length = int(headers[b"content-length"])
        body, said = said[:length], said[length:]
        assert len(body) == length
        assert headers[b"x-request-id"].startswith(b"req_")
        if status[1] != b"200":
            error = json.loads(body)["error"]
            assert sorted(error) == ERROR_KEYS
            assert secret("alice") not in error["message"]


def test_gateway_is_quiet_after_all_of_it(gateway: Gateway) -> None:
    gateway.check_logs()
    assert gateway.metric("gateway_in_flight_requests") == 0
