"""Requests that are no HTTP, or that two readers would take for different things. Through a whole gateway, by hand.

All of it is one bad client; another, on a connection of its own, is served all the time.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import after, ok_json, stream
from tests.flows.client import Answer, Raw
from tests.flows.gateway_process import COMPLETIONS, Gateway, eventually, secret, settings

HEAD_S = 0.8
BODY = json.dumps({"model": COMPLETIONS, "prompt": "Hello"}).encode()
CALL = (
    f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {secret('alice')}\r\n"
    "Content-Type: application/json\r\n"
)
LENGTH = f"Content-Length: {len(BODY)}\r\n"
CHUNKED = "Transfer-Encoding: chunked\r\n"
CHUNKS = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
LONG_LINE = b"X-A: " + b"a" * 8000 + b"\r\n"
SMUGGLED = b"GET /v1/smuggled HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture(scope="module", params=["llhttp", "python"])
def gateway(
    start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream, request: pytest.FixtureRequest
) -> Gateway:
    """With each of aiohttp's parsers: the second one runs where the first could not be built."""
    env = {"AIOHTTP_NO_EXTENSIONS": "1"} if request.param == "python" else {}
    server = {"client_head_timeout_s": HEAD_S, "client_body_timeout_s": 3, "max_request_bytes": 100_000}
    return start_shared_gateway(settings(shared_upstream.url, server=server), env={"PYTHONASYNCIODEBUG": "1", **env})


@pytest.fixture(autouse=True)
def bystander(gateway: Gateway, upstream: ScriptedUpstream) -> Iterator[Raw]:
    """Was there before, and is served afterwards."""
    with gateway.connect() as other:
        other.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert other.read_answer().status == 200
        yield other
        other.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert other.read_answer().status == 200
    assert "smuggled" not in gateway.stdout
    gateway.check_logs()


def only_answer(client: Raw) -> Answer:
    """The answer behind which the gateway has hung up, with nothing between."""
    answer = client.read_answer()
    assert answer.headers["connection"] == "close"
    assert client.read_to_end() == b""
    return answer


AMBIGUOUS: dict[str, bytes] = {
    "a length and chunks": f"{CALL}{LENGTH}{CHUNKED}\r\n".encode() + CHUNKS,
    "chunks and a length": f"{CALL}{CHUNKED}{LENGTH}\r\n".encode() + CHUNKS,
    "two lengths": f"{CALL}{LENGTH}Content-Length: 5\r\n\r\n".encode() + BODY,
    "the same length twice": f"{CALL}{LENGTH}{LENGTH}\r\n".encode() + BODY,
    "a list of lengths": f"{CALL}Content-Length: {len(BODY)}, {len(BODY)}\r\n\r\n".encode() + BODY,
    "a length with a plus": f"{CALL}Content-Length: +{len(BODY)}\r\n\r\n".encode() + BODY,
    "a negative length": f"{CALL}Content-Length: -{len(BODY)}\r\n\r\n".encode() + BODY,
    "a length in hex": f"{CALL}Content-Length: 0x{len(BODY):x}\r\n\r\n".encode() + BODY,
    "a length with underscores": f"{CALL}Content-Length: 1_0\r\n\r\n".encode() + BODY,
    "a length in other digits": f"{CALL}Content-Length: \u0665\r\n\r\n".encode() + BODY,
    "a length with a fraction": f"{CALL}Content-Length: 5.0\r\n\r\n".encode() + BODY,
    "an empty length": f"{CALL}Content-Length:\r\n\r\n".encode() + BODY,
    "a length of 2^64 - 1": f"{CALL}Content-Length: {2**64 - 1}\r\n\r\n".encode() + SMUGGLED,
    "a length of 2^64 + 5": f"{CALL}Content-Length: {2**64 + 5}\r\n\r\n".encode() + SMUGGLED,
    "a space before the colon": f"{CALL}Content-Length : {len(BODY)}\r\n\r\n".encode() + BODY,
    "a tab before the colon": f"{CALL}Content-Length\t: {len(BODY)}\r\n\r\n".encode() + BODY,
    "a folded length": f"{CALL}Content-Length:\r\n {len(BODY)}\r\n\r\n".encode() + BODY,
    "a folded coding": f"{CALL}Transfer-Encoding:\r\n chunked\r\n\r\n".encode() + CHUNKS,
    "a folded header": f"{CALL}X-Folded: a\r\n b\r\n{LENGTH}\r\n".encode() + BODY,
    "a fold at the beginning": b"GET /healthz HTTP/1.1\r\n Host: x\r\nHost: x\r\n\r\n",
    "bare line feeds": f"{CALL}{LENGTH}\r\n".replace("\r\n", "\n").encode() + BODY,
    "one bare line feed": f"{CALL}X-A: b\n{LENGTH}\r\n".encode() + BODY,
    "one bare carriage return": f"{CALL}X-A: b\r{LENGTH}\r\n".encode() + BODY,
    "a bare line feed at the end": f"{CALL}{LENGTH}\n".encode() + BODY,
    "NUL in a name": f"{CALL}X-\0: b\r\n{LENGTH}\r\n".encode() + BODY,
    "NUL in a value": f"{CALL}X-A: \0b\r\n{LENGTH}\r\n".encode() + BODY,
    "control characters": f"{CALL}X-A: \x01b\x7f\r\n{LENGTH}\r\n".encode() + BODY,
    "no name": f"{CALL}: b\r\n{LENGTH}\r\n".encode() + BODY,
    "no colon": f"{CALL}X-A\r\n{LENGTH}\r\n".encode() + BODY,
    "a name with brackets": f"{CALL}X(A): b\r\n{LENGTH}\r\n".encode() + BODY,
    "gzip and chunked": f"{CALL}Transfer-Encoding: gzip, chunked\r\n\r\n".encode() + CHUNKS,
    "chunked twice": f"{CALL}Transfer-Encoding: chunked, chunked\r\n\r\n".encode() + CHUNKS,
    "chunked and identity": f"{CALL}{CHUNKED}Transfer-Encoding: identity\r\n\r\n".encode() + CHUNKS,
    "identity": f"{CALL}Transfer-Encoding: identity\r\n{LENGTH}\r\n".encode() + BODY,
    "a coding that only looks like chunked": f"{CALL}Transfer-Encoding: xchunked\r\n\r\n".encode() + CHUNKS,
    "a coding with another letter k": f"{CALL}Transfer-Encoding: chun\u212aed\r\n\r\n".encode() + CHUNKS,
    "a coding in quotes": f'{CALL}Transfer-Encoding: "chunked"\r\n\r\n'.encode() + CHUNKS,
    "a coding behind a comma": f"{CALL}Transfer-Encoding: ,chunked\r\n\r\n".encode() + CHUNKS,
    "an empty coding": f"{CALL}Transfer-Encoding:\r\n{LENGTH}\r\n".encode() + BODY,
    "an empty coding alone": f"{CALL}Transfer-Encoding:\r\n\r\n".encode() + SMUGGLED,
    "chunks in HTTP/1.0": f"{CALL}{CHUNKED}\r\n".replace("HTTP/1.1", "HTTP/1.0").encode() + CHUNKS,
    "two hosts": b"GET /healthz HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
    "no host": b"GET /healthz HTTP/1.1\r\n\r\n",
    "HTTP/1.2": b"GET /healthz HTTP/1.2\r\nHost: x\r\n\r\n",
    "HTTP/2.0": b"GET /healthz HTTP/2.0\r\nHost: x\r\n\r\n",
    "HTTP/0.9 by name": b"GET /healthz HTTP/0.9\r\nHost: x\r\n\r\n",
    "the preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a space in the address": b"GET /health z HTTP/1.1\r\nHost: x\r\n\r\n",
    "NUL in the address": b"GET /healthz\0 HTTP/1.1\r\nHost: x\r\n\r\n",
    "a fragment": b"GET /healthz#/../metrics HTTP/1.1\r\nHost: x\r\n\r\n",
    "no address": b"GET HTTP/1.1\r\nHost: x\r\n\r\n",
    "an address without a slash": b"GET healthz HTTP/1.1\r\nHost: x\r\n\r\n",
    "an absolute address with a bad port": b"GET http://x:99999999/healthz HTTP/1.1\r\nHost: x\r\n\r\n",
    "an absolute address with half a bracket": b"GET http://[::1/healthz HTTP/1.1\r\nHost: x\r\n\r\n",
    "CONNECT": b"CONNECT example.com:443 HTTP/1.1\r\nHost: x\r\n\r\n" + SMUGGLED,
    "CONNECT to a path": b"CONNECT /v1/models HTTP/1.1\r\nHost: x\r\n\r\n" + SMUGGLED,
    "a space before the method": b" GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
    "tabs between the words": b"GET\t/healthz\tHTTP/1.1\r\nHost: x\r\n\r\n",
    "a line that is too long": b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    "a header that is too long": b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-A: " + b"a" * 9000 + b"\r\n\r\n",
    "too many headers": b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + b"X-A: b\r\n" * 200 + b"\r\n",
    "a head that is too long": b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + LONG_LINE * 20 + b"\r\n",
    "a head without end": b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + LONG_LINE * 20,
    "JSON": BODY + b"\r\n\r\n",
    "noise": bytes(range(256)) * 4 + b"\r\n\r\n",
}  # fmt: skip


@pytest.mark.parametrize("sent", AMBIGUOUS.values(), ids=AMBIGUOUS)
def test_ambiguous_request_is_refused_and_nothing_behind_it_is_read(
    gateway: Gateway, upstream: ScriptedUpstream, sent: bytes
) -> None:
    with gateway.connect() as client:
        client.send(sent + SMUGGLED)
        answer = only_answer(client)
    assert answer.refusal == (400, "invalid_request_error", None, None)
    assert secret("alice") not in answer.body.decode() + str(answer.header_lines)
    assert upstream.hits == 0


CHUNK_TRICKS: dict[str, bytes] = {
    "a size in hex with 0x": b"0x5\r\nhello\r\n0\r\n\r\n",
    "a size with a plus": b"+5\r\nhello\r\n0\r\n\r\n",
    "a negative size": b"-5\r\nhello\r\n0\r\n\r\n",
    "a size with underscores": b"0_5\r\nhello\r\n0\r\n\r\n",
    "a size with a space behind": b"5 \r\nhello\r\n0\r\n\r\n",
    "a size with a space in front": b" 5\r\nhello\r\n0\r\n\r\n",
    "no size": b"\r\nhello\r\n0\r\n\r\n",
    "a chunk that ends with a line feed": b"5\nhello\n0\n\n",
    "a chunk that is longer than it says": b"5\r\nhelloXX0\r\n\r\n",
    "a chunk without an end": b"5\r\nhello0\r\n\r\n",
    "a line feed in an extension": b"5;a\nb\r\nhello\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("chunks", CHUNK_TRICKS.values(), ids=CHUNK_TRICKS)
@pytest.mark.parametrize("pause_s", [0, 0.05], ids=["at once", "later"])
def test_trick_with_chunks_is_refused(
    gateway: Gateway, upstream: ScriptedUpstream, chunks: bytes, pause_s: float
) -> None:
    with gateway.connect() as client:
        client.send(f"{CALL}{CHUNKED}\r\n".encode())
        time.sleep(pause_s)
        client.send(chunks + SMUGGLED)
        assert only_answer(client).refusal == (400, "invalid_request_error", None, None)
    assert upstream.hits == 0


def test_chunk_beyond_all_numbers_never_comes(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    """One parser refuses it, the other waits for it."""
    with gateway.connect() as client:
        client.send(f"{CALL}{CHUNKED}\r\n".encode() + b"10000000000000005\r\nhello\r\n0\r\n\r\n" + SMUGGLED)
        assert only_answer(client).status in (400, 408)
    assert upstream.hits == 0


def test_answer_is_not_lost_on_a_client_that_goes_on_talking(gateway: Gateway) -> None:
    """To close with bytes unread would reset the connection, and what was said might be lost with it."""
    with gateway.connect() as client:
        client.send(b"nonsense\r\n\r\n")
        for _ in range(10):
            time.sleep(0.02)
            client.send(b"x" * 100_000)
        assert only_answer(client).status == 400


def test_good_chunks_are_taken(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    """With a chunk extension and a trailer, which RFC 9112 requires a recipient to ignore if unknown."""
    upstream.answer_with(ok_json())
    with gateway.connect() as client:
        client.send(f"{CALL}{CHUNKED}\r\n".encode())
        client.send(b"%x;name=value\r\n%b\r\n0\r\nX-Trailer: x\r\n\r\n" % (len(BODY), BODY))
        assert only_answer(client).status == 200
    assert upstream.requests[0].body == BODY


@pytest.mark.parametrize("is_stream", [False, True], ids=["plain", "streamed"])
def test_trailer_is_no_header_of_the_next_request(
    gateway: Gateway, upstream: ScriptedUpstream, is_stream: bool
) -> None:
    """Behind a proxy the next request may be another client's: it would be refused, or served with the wrong key."""
    events = [{"choices": [{"index": 0, "text": "Hi", "finish_reason": "stop"}]}]
    upstream.answer_with(*[stream(events) if is_stream else ok_json()] * 2)
    body = json.dumps(json.loads(BODY) | {"stream": is_stream}).encode()
    trailer = f"Authorization: Bearer {secret('alice')}\r\n"
    next_one = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{LENGTH}\r\n".encode()
    with gateway.connect() as client:
        chunks = b"%x\r\n%b\r\n0\r\n%b\r\n" % (len(body), body, trailer.encode())
        client.send(f"{CALL}{CHUNKED}\r\n".encode() + chunks + next_one + BODY)
        if is_stream:
            assert client.read_head().headers["connection"] == "close"
            assert b"[DONE]" in client.read_chunks()
            assert client.read_to_end() == b""
        else:
            assert only_answer(client).status == 200
    assert upstream.hits == 1


def test_chunked_body_is_cut_at_the_limit(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    with gateway.connect() as client:
        client.send(f"{CALL}{CHUNKED}\r\n".encode())
        for _ in range(11):
            client.send(b"2710\r\n" + b" " * 10_000 + b"\r\n")
        assert only_answer(client).refusal == (413, "server_error", None, None)


def test_long_body_is_refused_on_its_announced_length(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    """Not one byte of it has been sent."""
    with gateway.connect() as client:
        client.send(f"{CALL}Content-Length: 100001\r\n\r\n".encode())
        assert client.read_answer().refusal == (413, "server_error", None, None)
    with gateway.connect() as client:
        client.send(f"{CALL}Content-Length: 100001\r\nExpect: 100-continue\r\n\r\n".encode())
        assert only_answer(client).status == 413


# ---------------------------------------------------------------------------------------------------------------- time


def closed_after(client: Raw) -> float:
    """Seconds until the gateway hangs up without a word."""
    began = time.monotonic()
    assert client.read_to_end() == b""
    return time.monotonic() - began


def test_connection_without_a_word_is_closed(gateway: Gateway) -> None:
    with gateway.connect() as client:
        assert closed_after(client) > HEAD_S / 2


@pytest.mark.parametrize("first", [b"", b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"], ids=["new", "kept alive"])
def test_head_that_trickles_is_closed(gateway: Gateway, first: bytes) -> None:
    """A byte now and then keeps no head alive; blank lines in front of one neither."""
    for slow in (b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-A: " + b"a" * 1000, b"\r\n" * 1000):
        with gateway.connect() as client:
            if first:
                client.send(first)
                client.read_answer()
                time.sleep(HEAD_S * 1.5)  # between two requests a connection may rest for longer
            client.socket.settimeout(0.02)
            began = time.monotonic()
            assert trickle(client, slow) == b""
            assert time.monotonic() - began > HEAD_S / 2


def trickle(client: Raw, data: bytes) -> bytes:
    """Send byte by byte until the gateway hangs up; what it said."""
    for byte in data:
        try:
            client.send(bytes([byte]))
            return client.socket.recv(1000)
        except TimeoutError:
            continue
        except ConnectionError:
            return b""
    raise AssertionError("it was never closed")


def test_head_in_pieces_is_read_when_it_is_in_time(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(ok_json(), ok_json())
    head = f"{CALL}{LENGTH}\r\n".encode()
    with gateway.connect() as client:
        for _ in range(2):
            for at in range(0, len(head), 60):
                client.send(head[at : at + 60])
                time.sleep(0.01)
            time.sleep(HEAD_S)  # the body has its own time
            client.send(BODY)
            assert client.read_answer().status == 200


def test_half_a_head_behind_a_call_does_not_cut_its_answer(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(ok_json())
    with gateway.connect() as client:
        client.send(f"{CALL}{LENGTH}\r\n".encode() + BODY + b"GET /healthz HTTP/1.1\r\n")
        assert client.read_answer().status == 200
        client.send(b"Host: x\r\n\r\n")
        assert client.read_answer().status == 200


# ---------------------------------------------------------------------------------------------------------- pipelining


def test_what_cannot_be_read_behind_a_call_is_answered_behind_it(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(after(0.2, ok_json()))
    with gateway.connect() as client:
        client.send(f"{CALL}{LENGTH}\r\n".encode() + BODY)
        eventually(lambda: upstream.hits)
        client.send(b"nonsense\r\n\r\n" + SMUGGLED)
        assert client.read_answer().status == 200
        assert only_answer(client).status == 400


def test_many_pipelined_requests_are_answered_in_order(gateway: Gateway) -> None:
    paths = [f"/nothing/{number}" for number in range(200)]
    with gateway.connect() as client:
        client.send(b"".join(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode() for path in paths))
        for path in paths:
            assert client.read_answer().error["message"] == f"Invalid URL (GET {path})"


# ------------------------------------------------------------------------------------------------------------ addresses


@pytest.mark.parametrize(
    "path",
    ["/v1//completions", "//v1/completions", "/v1/completions/", "/v1/chat%2Fcompletions", "/v1%2Fcompletions",
     "/v1/./completions", "/v1/x/../completions", "/v1/completions%00", "/V1/COMPLETIONS", "/v1/completions;x"],
)  # fmt: skip
def test_address_that_is_nearly_one_is_none(gateway: Gateway, upstream: ScriptedUpstream, path: str) -> None:
    assert gateway.post(path, BODY).refusal == (404, "invalid_request_error", None, None)


@pytest.mark.parametrize("target", ["/v1/%63ompletions", "/v1/completions?x=y", "http://other.example/v1/completions"])
def test_other_spellings_of_an_address_lead_to_the_same_place(
    gateway: Gateway, upstream: ScriptedUpstream, target: str
) -> None:
    """The hot paths have a shortcut past aiohttp's router, which has to agree with it."""
    upstream.answer_with(ok_json())
    with gateway.connect() as client:
        client.send(f"{CALL}{LENGTH}\r\n".replace("/v1/completions", target).encode() + BODY)
        answer = client.read_answer()
    assert (answer.status, upstream.hits) == (200, 1)
    assert gateway.call(answer.id)["endpoint"] == "completions"


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "TRACE", "OPTIONS", "HEAD"])
def test_other_methods(gateway: Gateway, upstream: ScriptedUpstream, method: str) -> None:
    answer = gateway.send(method, "/v1/completions")
    assert (answer.status, answer.headers["allow"]) == (405, "POST")
    if method != "HEAD":
        assert answer.refusal == (405, "invalid_request_error", None, None)
        assert secret("alice") not in answer.body.decode()


def test_options_for_the_whole_server(gateway: Gateway) -> None:
    with gateway.connect() as client:
        client.send(b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n")
        assert client.read_answer().error["type"] == "invalid_request_error"


@pytest.mark.parametrize("coding", ["gzip", "br", "deflate", "identity, gzip", "GZIP", "x"])
def test_body_that_does_not_follow_its_coding_is_refused(
    gateway: Gateway, upstream: ScriptedUpstream, coding: str
) -> None:
    answer = gateway.post("/v1/completions", b"\x1f\x8b" + bytes(1000), headers={"Content-Encoding": coding})
    assert answer.refusal[:3] == (400, "invalid_request_error", None)
    assert "Content-Encoding" in answer.error["message"]


def test_second_coding_is_not_overlooked(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    with gateway.connect() as client:
        client.post(
            "/v1/completions", BODY, secret("alice"), "1.1", "Content-Encoding: identity", "Content-Encoding: gzip"
        )
        assert client.read_answer().status == 400


def test_tls_on_the_plain_port_is_answered_or_closed(gateway: Gateway) -> None:
    hello = bytes.fromhex("16030100c8010000c40303") + bytes(range(190))
    with gateway.connect() as client:
        client.send(hello)
        client.socket.shutdown(socket.SHUT_WR)
        said = client.read_to_end()
    assert said == b"" or said.startswith(b"HTTP/1.1 400 ")
