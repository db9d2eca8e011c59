"""One connection. The first half feeds bytes by hand, cut at every place; the second half talks over real sockets."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.config import Timeouts
from gateway.records import Failure, Fault, Phase
from gateway.upstream.connection import MAX_HEAD_BYTES, MOST_CHUNKS, READ_BUFFER_BYTES, Connection, Head
from tests.fakes import scripted
from tests.fakes.scripted import Authority, Scripted, Wire, until
from tests.patience import at_least

from .moved_clock import MovedClock
from .recorder import Ear, acquired, ask, begin, pool_of

# ------------------------------------------------------------------------------------------------ fed by hand

by_hand = pytest.mark.asyncio(loop_factories=["asyncio"])
"""No loop has a part in it: once is enough."""


class Socketless(asyncio.Transport):
    """A transport whose peer is the test."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.unsent = 0
        self.is_aborted = False
        self.is_paused = False

    def is_closing(self) -> bool:
        return self.is_aborted

    def writelines(self, list_of_data: Any) -> None:
        assert not self.is_aborted, "a write to a closed transport"
        self.written += b"".join(list_of_data)

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def abort(self) -> None:
        self.is_aborted = True


class Bench:
    """A connection without a socket, in the hands of the test, which is its owner too."""

    def __init__(self, **limits: float) -> None:
        self.transport = Socketless()
        self.returns = 0
        self.leaves = 0
        self.connection = Connection("up", self, Timeouts(**limits), 300, memoryview(bytearray(READ_BUFFER_BYTES)))
        self.connection.connection_made(self.transport)

    def returned(self, connection: Connection) -> None:
        self.returns += 1

    def closed(self, connection: Connection) -> None:
        self.leaves += 1

    def ask(self, method: bytes = b"GET") -> Ear:
        ear = Ear()
        self.connection.send([method + b" / HTTP/1.1\r\n\r\n"], ear)
        return ear

    def feed(self, *pieces: bytes) -> None:
        for piece in pieces:
            for at in range(0, len(piece), READ_BUFFER_BYTES):
                part = piece[at : at + READ_BUFFER_BYTES]
                self.connection.get_buffer(-1)[: len(part)] = part
                self.connection.buffer_updated(len(part))

    def hang_up(self, error: Exception | None = None) -> None:
        """FIN, or with an error RST."""
        if error is None:
            self.connection.eof_received()
        self.connection.connection_lost(error)


OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello"
CHUNKS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
HELLO = b"5\r\nhello\r\n0\r\n\r\n"

# Bytes, then status, body, whether the connection may be used again.
WHOLE: dict[str, tuple[bytes, int, bytes, bool]] = {
    "content-length": (OK, 200, b"hello", True),
    "no reason phrase": (b"HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nok", 200, b"ok", True),
    "empty body": (b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", 503, b"", True),
    "body that ends in line breaks": (
        b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n{}\r\n\r\n",
        200,
        b"{}\r\n\r\n",
        True,
    ),
    "body of line breaks": (b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n\r\n\r\n", 200, b"\r\n\r\n", True),
    "chunked": (CHUNKS + b"5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n", 200, b"hello world", True),
    "chunked, in capitals": (
        b"HTTP/1.1 200 OK\r\nTRANSFER-ENCODING: Chunked\r\n\r\nA\r\n0123456789\r\n0\r\n\r\n",
        200,
        b"0123456789",
        True,
    ),
    "chunked, nothing in it": (CHUNKS + b"0\r\n\r\n", 200, b"", True),
    "chunk extensions": (CHUNKS + b'5;a=b;c="d e"\r\nhello\r\n0;last\r\n\r\n', 200, b"hello", True),
    "trailers": (CHUNKS + b"5\r\nhello\r\n0\r\nX-Sum: 12\r\nX-Empty:\r\n\r\n", 200, b"hello", True),
    "events": (CHUNKS + b"8\r\ndata: 1\n\r\n1\r\n\n\r\n0\r\n\r\n", 200, b"data: 1\n\n", True),
    "204": (b"HTTP/1.1 204 None\r\nX-A: b\r\n\r\n", 204, b"", True),
    "204 that announces a body": (b"HTTP/1.1 204 None\r\nContent-Length: 5\r\n\r\n", 204, b"", False),
    "204 that announces chunks": (b"HTTP/1.1 204 None\r\nTransfer-Encoding: chunked\r\n\r\n", 204, b"", False),
    "304": (b"HTTP/1.1 304 Same\r\nETag: x\r\n\r\n", 304, b"", True),
    "304 that tells a length": (b"HTTP/1.1 304 Same\r\nContent-Length: 5\r\n\r\n", 304, b"", False),
    "100 before": (b"HTTP/1.1 100 Continue\r\nX-Interim: 1\r\n\r\n" + OK, 200, b"hello", True),
    "102, 103, 199 before": (
        b"HTTP/1.1 102 P\r\n\r\nHTTP/1.1 103 Early\r\nLink: x\r\nLink: y\r\n\r\nHTTP/1.1 199 ?\r\n\r\n" + OK,
        200,
        b"hello",
        True,
    ),
    "many 100 before": (b"HTTP/1.1 100 Continue\r\n\r\n" * 50 + OK, 200, b"hello", True),
    "connection: close": (OK.replace(b"Content-Type", b"Connection: close\r\nContent-Type"), 200, b"hello", False),
    "connection: a list": (OK.replace(b"Content-Type", b"Connection: x, CLOSE\r\nContent-Type"), 200, b"hello", False),
    "HTTP/1.0": (OK.replace(b"1.1", b"1.0"), 200, b"hello", False),
    "HTTP/1.0 that stays": (
        OK.replace(b"1.1", b"1.0").replace(b"Content-Type", b"Connection: keep-alive\r\nContent-Type"),
        200,
        b"hello",
        True,
    ),
    "HTTP/1.0 in chunks": (
        CHUNKS.replace(b"1.1", b"1.0").replace(b"Transfer", b"Connection: keep-alive\r\nTransfer") + HELLO,
        200,
        b"hello",
        False,
    ),
    "an offer to upgrade": (OK.replace(b"Content-Type", b"Upgrade: h2c\r\nContent-Type"), 200, b"hello", True),
    "surplus line break": (OK + b"\r\n", 200, b"hello", False),
    "surplus line feed": (OK + b"\n", 200, b"hello", False),
    "surplus line break after chunks": (CHUNKS + HELLO + b"\r\n", 200, b"hello", False),
    **{
        f"surplus {surplus!r} after events": (
            CHUNKS + b"8\r\ndata: 1\n\r\n1\r\n\n\r\n0\r\n\r\n" + surplus,
            200,
            b"data: 1\n\n",
            False,
        )
        for surplus in (b"\n", b"\r", b"\n\r\n", b"\n\n\r\n", b"\r\n\r\n", b"\n\n\n\r\n")
    },
    "an event in one chunk": (CHUNKS + b"9\r\ndata: 1\n\n\r\n0\r\n\r\n", 200, b"data: 1\n\n", True),
    "surplus after an event in one chunk": (
        CHUNKS + b"9\r\ndata: 1\n\n\r\n0\r\n\r\nx\n\n\r\n",
        200,
        b"data: 1\n\n",
        False,
    ),
    "surplus like an event's end behind a length": (OK + b"\n\n\r\n", 200, b"hello", False),
    "surplus line breaks behind line breaks": (
        b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n\r\n\r\n" + b"\r\n",
        200,
        b"\r\n\r\n",
        False,
    ),
    "surplus byte": (OK + b"x", 200, b"hello", False),
    "surplus H": (OK + b"H", 200, b"hello", False),
    "two answers": (OK + OK, 200, b"hello", False),
    "two answers, the second chunked": (OK + CHUNKS + HELLO, 200, b"hello", False),
    "body behind a 204": (b"HTTP/1.1 204 None\r\n\r\nhello", 204, b"", False),
    "surplus after close": (OK.replace(b"Content-Type", b"Connection: close\r\nX") + OK, 200, b"hello", False),
}

UNTIL_EOF: dict[str, bytes] = {
    "plain": b"HTTP/1.1 200 OK\r\nX-A: b\r\n\r\nhello",
    "that says it stays": b"HTTP/1.1 200 OK\r\nConnection: keep-alive\r\n\r\nhello",
    "HTTP/1.0": b"HTTP/1.0 200 OK\r\n\r\nhello",
    "after 100": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n\r\nhello",
    "that looks like more": b"HTTP/1.1 200 OK\r\n\r\nhe\r\n\r\nHTTP/1.1 200 OK\r\n\r\nhello",
}

BAD: dict[str, bytes] = {
    "another protocol": b"220 mail.example.com ESMTP\r\n",
    "RTSP": b"RTSP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n",
    "line break first": b"\r\n" + OK,
    "TLS alert": b"\x15\x03\x01\x00\x02\x02\x28",
    "a request": b"GET / HTTP/1.1\r\n\r\n",
    "HTTP/2": b"HTTP/2.0 200 OK\r\nContent-Length: 0\r\n\r\n",
    "HTTP/0.9": b"HTTP/0.9 200 OK\r\nContent-Length: 0\r\n\r\n",
    "status 000": b"HTTP/1.1 000 No\r\nContent-Length: 0\r\n\r\n",
    "status 99": b"HTTP/1.1 99 No\r\nContent-Length: 0\r\n\r\n",
    "status 2000": b"HTTP/1.1 2000 No\r\nContent-Length: 0\r\n\r\n",
    "101": b"HTTP/1.1 101 Switch\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\nwhatever",
    "101 without a word": b"HTTP/1.1 101 Switch\r\n\r\n" + OK,
    "body behind a 100": b"HTTP/1.1 100 Continue\r\nContent-Length: 3\r\n\r\nabc" + OK,
    "body behind a 150": b"HTTP/1.1 150 Odd\r\nContent-Length: 3\r\n\r\nabc" + OK,
    "length and chunks": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n" + HELLO,
    "chunks and length": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n" + HELLO,
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
    "a list of lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 5, 5\r\n\r\nhello",
    "negative length": b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nhello",
    "endless length": b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999\r\n\r\nhello",
    "gzip, chunked": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n" + HELLO,
    "chunked, gzip": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, gzip\r\n\r\n" + HELLO,
    "chunked twice": CHUNKS[:-2] + b"Transfer-Encoding: chunked\r\n\r\n" + HELLO,
    "chunked, and gzip in a line of its own": CHUNKS[:-2] + b"Transfer-Encoding: gzip\r\n\r\n" + HELLO,
    "xchunked": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: xchunked\r\n\r\n" + HELLO,
    "folded header": b"HTTP/1.1 200 OK\r\nX-A: b\r\n c\r\nContent-Length: 5\r\n\r\nhello",
    "space before the colon": b"HTTP/1.1 200 OK\r\nContent-Length : 5\r\n\r\nhello",
    "NUL in a header": b"HTTP/1.1 200 OK\r\nX-A: b\0c\r\nContent-Length: 5\r\n\r\nhello",
    "bad chunk size": CHUNKS + b"zz\r\nhello\r\n0\r\n\r\n",
    "chunk longer than said": CHUNKS + b"5\r\nhello!\r\n0\r\n\r\n",
    "chunk size without end": CHUNKS + b"fffffffffffffffff\r\nhello",
}


def cuts(data: bytes) -> Iterator[tuple[bytes, ...]]:
    """The bytes whole, in two pieces at every place, and one by one."""
    yield (data,)
    for at in range(1, len(data)):
        yield data[:at], data[at:]
    yield tuple(data[at : at + 1] for at in range(len(data)))


@by_hand
@pytest.mark.parametrize("name", WHOLE)
async def test_whole_answer_is_the_same_however_it_is_cut(name: str) -> None:
    data, status, body, may_stay = WHOLE[name]
    for pieces in cuts(data):
        bench = Bench()
        ear = bench.ask()
        bench.feed(*pieces)
        assert ear.has_ended, pieces
        assert ear.failure is None, pieces
        assert ear.head is not None
        assert (ear.head.status, ear.body) == (status, body), pieces
        assert "x-interim" not in dict(ear.head.headers)
        assert bench.transport.is_aborted is not may_stay, pieces
        assert bench.leaves == (0 if may_stay else 1), pieces
        if may_stay:
            assert bench.returns == 1
            assert bench.connection.hold()
            again = bench.ask()
            bench.feed(OK)  # and nothing of the first answer is left in the parser
            assert again.head == Head(200, (("content-type", "text/plain"), ("content-length", "5")))
            assert again.body == b"hello"
            assert again.failure is None
        bench.connection.retire()


@by_hand
@pytest.mark.parametrize("name", UNTIL_EOF)
async def test_body_without_a_length_ends_with_the_connection(name: str) -> None:
    data = UNTIL_EOF[name]
    scenarios = set()
    for pieces in cuts(data):
        bench = Bench()
        ear = bench.ask()
        bench.feed(*pieces)
        assert not ear.has_ended
        bench.hang_up()
        assert ear.body.endswith(b"hello")
        assert (bench.returns, bench.leaves) == (0, 1)
        scenarios.add(ear.scenario)
    assert len(scenarios) == 1
    assert ear.failure is None


@by_hand
async def test_body_without_a_length_is_cut_when_the_connection_is_reset() -> None:
    bench = Bench()
    ear = bench.ask()
    bench.feed(UNTIL_EOF["plain"])
    bench.hang_up(ConnectionResetError("reset by peer"))
    words = "lost (reset by peer) inside the body"
    assert ear.failure == Failure("up", Phase.WAITING, Fault.CUT, words, has_begun=True)


@by_hand
@pytest.mark.parametrize("name", BAD)
async def test_what_is_not_exact_http_is_refused_however_it_is_cut(name: str) -> None:
    scenarios = set()
    for pieces in cuts(BAD[name]):
        bench = Bench()
        ear = bench.ask()
        bench.feed(*pieces)
        assert ear.has_ended, pieces
        assert ear.failure is not None
        assert (ear.failure.fault, ear.failure.phase) == (Fault.PROTOCOL, Phase.WAITING)
        assert ear.failure.detail
        assert bench.transport.is_aborted
        assert (bench.returns, bench.leaves) == (0, 1)
        scenarios.add(ear.head)
    assert len(scenarios) == 1


HEADS = {
    "a length": OK.removesuffix(b"hello"),
    "no length": b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n",
    "chunks": CHUNKS,
    "nothing": b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    "an interim answer": b"HTTP/1.1 103 Early\r\nLink: x\r\n\r\n" + OK.removesuffix(b"hello"),
    "HTTP/1.0": b"HTTP/1.0 404 No\r\nContent-Length: 5\r\n\r\n",
}


@by_hand
@pytest.mark.parametrize("surplus", [b"", b"hello", HELLO, OK], ids=["alone", "body", "chunks", "answer"])
@pytest.mark.parametrize("name", HEADS)
async def test_answer_to_head_is_over_with_its_head(name: str, surplus: bytes) -> None:
    """It says what the answer to a GET would have, a length too; and no body follows."""
    scenarios = set()
    for pieces in cuts(HEADS[name] + surplus):
        bench = Bench()
        ear = bench.ask(b"HEAD")
        bench.feed(*pieces)
        assert ear.has_ended, pieces
        assert ear.failure is None
        assert ear.body == b""
        assert (bench.returns, bench.leaves) == (0, 1)
        scenarios.add(ear.scenario)
    assert len(scenarios) == 1


@by_hand
async def test_answer_to_head_is_read_as_http_all_the_same() -> None:
    for bad in ("gzip, chunked", "length and chunks", "101", "another protocol"):
        bench = Bench()
        ear = bench.ask(b"HEAD")
        bench.feed(BAD[bad])
        assert ear.failure is not None
        assert ear.failure.fault is Fault.PROTOCOL
    bench = Bench()
    ear = bench.ask(b"HEAD")
    bench.feed(HEADS["a length"][:-2])
    bench.hang_up()
    assert ear.failure == Failure("up", Phase.WAITING, Fault.CUT, "closed inside the head")


@by_hand
@pytest.mark.parametrize("name", WHOLE)
async def test_answer_that_stops_short_is_cut_wherever_it_stops(name: str) -> None:
    data, _, body, _ = WHOLE[name]
    for at in range(1, len(data)):
        bench = Bench()
        ear = bench.ask()
        bench.feed(data[:at])
        if ear.has_ended:
            break  # the rest is surplus
        bench.hang_up()
        assert ear.failure is not None
        assert (ear.failure.fault, ear.failure.phase) == (Fault.CUT, Phase.WAITING)
        assert body.startswith(ear.body)
        assert (bench.returns, bench.leaves) == (0, 1)
    assert at > 10


@by_hand
async def test_headers_are_kept_in_order_and_decoded_without_loss() -> None:
    bench = Bench()
    ear = bench.ask()
    bench.feed(b"HTTP/1.1 200 OK\r\nX-B: caf\xe9 \t\r\nX-A:\r\nx-b:   2\r\nContent-Length: 0\r\n\r\n")
    assert ear.head == Head(200, (("x-b", "caf\xe9"), ("x-a", ""), ("x-b", "2"), ("content-length", "0")))
    assert ear.head.get("x-b") == "caf\xe9"
    assert ear.head.get("x-c") is None


def head_of(size: int) -> bytes:
    """A head whose headers have this many bytes, with the two of CRLF and the two of `: ` counted for each."""
    last = b"Content-Length: 0\r\n"
    lines = b"".join(b"X: %s\r\n" % (b"y" * 995) for _ in range((size - len(last) - 1000) // 1000))
    lines += b"X: %s\r\n" % (b"y" * (size - len(last) - len(lines) - 5))
    assert len(lines + last) == size
    return b"HTTP/1.1 200 OK\r\n" + lines + last + b"\r\n"


@by_hand
async def test_head_has_a_size_limit() -> None:
    bench = Bench()
    ear = bench.ask()
    bench.feed(head_of(MAX_HEAD_BYTES - 100))
    assert ear.has_ended
    assert ear.failure is None
    for flood in (
        head_of(MAX_HEAD_BYTES + 1),
        head_of(MAX_HEAD_BYTES * 3),
        b"HTTP/1.1 200 " + b"O" * 200_000,
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 200_000,
        b"HTTP/1.1 200 OK\r\n" + b"y" * 200_000,
        b"HTTP/1.1 100 Continue\r\n\r\n" * 10_000,
        (b"HTTP/1.1 103 X\r\nX: " + b"y" * 30_000 + b"\r\n\r\n") * 3 + OK,
    ):
        bench = Bench()
        ear = bench.ask()
        bench.feed(flood)
        assert ear.head is None
        assert ear.failure is not None
        assert ear.failure.fault is Fault.PROTOCOL
        assert "over 65536 bytes" in ear.failure.detail


@by_hand
@pytest.mark.parametrize("flood", [b"0\r\nX: " + b"y" * 200_000, b"5;" + b"y" * 200_000], ids=["trailer", "extension"])
async def test_framing_has_a_size_limit(flood: bytes) -> None:
    bench = Bench()
    ear = bench.ask()
    bench.feed(CHUNKS + b"5\r\nhello\r\n", flood)
    assert ear.body == b"hello"
    assert ear.failure is not None
    assert ear.failure.fault is Fault.PROTOCOL


@by_hand
async def test_many_small_chunks_are_no_flood() -> None:
    bench = Bench()
    ear = bench.ask()
    bench.feed(CHUNKS + b"1\r\nx\r\n" * 50_000 + b"0\r\n\r\n")
    assert ear.failure is None
    assert ear.body == b"x" * 50_000
    reads = 300_000 // READ_BUFFER_BYTES + 1
    assert len(ear.pieces) <= (MOST_CHUNKS + 1) * reads, "most chunks of one read come at once"


@by_hand
async def test_unexpected_bytes_close_an_idle_connection() -> None:
    for surplus in (b"\r\n", b"x", OK):
        bench = Bench()
        bench.ask()
        bench.feed(OK)
        assert bench.returns == 1
        bench.feed(surplus)
        assert bench.transport.is_aborted
        assert bench.leaves == 1
        assert not bench.connection.hold()


@by_hand
async def test_bytes_between_acquire_and_send_are_not_taken_for_the_answer() -> None:
    bench = Bench()
    bench.feed(OK)
    ear = bench.ask()
    assert not bench.transport.written
    assert not ear.has_ended  # never inside send
    failure = await ear.end()
    assert failure is not None
    assert failure.phase is Phase.CONNECT


@by_hand
async def test_nothing_is_written_to_a_transport_that_is_closing() -> None:
    """The socket has been found lost, and `connection_lost` is still on its way."""
    bench = Bench()
    bench.transport.is_aborted = True
    ear = bench.ask()  # the transport itself insists on it
    failure = await ear.end()
    assert failure is not None
    assert failure.phase is Phase.CONNECT
    assert (bench.transport.written, bench.leaves) == (b"", 1)

    kept = Bench()
    kept.ask()
    kept.feed(OK)
    kept.transport.is_aborted = True
    assert not kept.connection.hold()
    assert kept.leaves == 1


@by_hand
async def test_connection_that_ends_between_acquire_and_send_is_stale() -> None:
    bench = Bench()
    bench.ask()
    bench.feed(OK)
    assert bench.connection.hold()
    bench.hang_up()
    ear = bench.ask()
    assert await ear.end() == Failure(
        "up", Phase.STALE, Fault.CUT, "the connection was lost before the request was sent"
    )
    ear = Ear()
    bench.connection.send([b"x"], ear)
    bench.connection.abort()
    await at_least(0.01)
    assert not ear.has_ended


@by_hand
async def test_reused_connection_that_ends_without_a_byte_is_stale() -> None:
    for error in (None, ConnectionResetError("reset by peer")):
        bench = Bench()
        bench.ask()
        bench.feed(CHUNKS + HELLO[:-5], HELLO[-5:])
        assert bench.connection.hold()
        ear = bench.ask()
        bench.hang_up(error)
        assert ear.failure is not None
        assert (ear.failure.phase, ear.failure.fault) == (Phase.STALE, Fault.CUT)


@by_hand
async def test_not_stale_when_fresh_or_answering_or_late(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = Bench()
    ear = fresh.ask()
    fresh.hang_up()
    assert ear.failure == Failure("up", Phase.WAITING, Fault.CUT, "closed without an answer")

    answering = Bench()
    answering.ask()
    answering.feed(OK)
    assert answering.connection.hold()
    ear = answering.ask()
    answering.feed(b"H")
    answering.hang_up()
    assert ear.failure == Failure("up", Phase.WAITING, Fault.CUT, "closed inside the head")

    late = Bench()
    late.ask()
    late.feed(OK)
    assert late.connection.hold()
    ear = late.ask()
    monkeypatch.setattr("gateway.upstream.connection.STALE_S", -1.0)
    late.hang_up()
    assert ear.failure is not None
    assert ear.failure.phase is Phase.WAITING


@by_hand
async def test_not_reused_while_the_request_is_unsent() -> None:
    bench = Bench()
    ear = bench.ask()
    bench.transport.unsent = 10
    bench.feed(OK)
    assert ear.failure is None
    assert bench.transport.is_aborted


@by_hand
async def test_not_kept_beyond_its_age() -> None:
    bench = Bench()
    bench.connection._expires_at = 0.0
    ear = bench.ask()
    bench.feed(OK)
    assert ear.failure is None
    assert (bench.returns, bench.leaves) == (0, 1)


@by_hand
async def test_abort_inside_a_callback_silences_everything() -> None:
    class Impatient(Ear):
        def __init__(self, at: str) -> None:
            super().__init__()
            self.at = at
            self.calls = 0

        def head_received(self, head: Head) -> None:
            super().head_received(head)
            self.calls += 1
            if self.at == "head":
                bench.connection.abort()

        def body_received(self, data: bytes) -> None:
            super().body_received(data)
            self.calls += 1
            bench.connection.abort()

    rest = b"5\r\nhello\r\n5\r\nhello\r\n0\r\n\r\n"
    for at, tail in (("head", rest), ("body", rest), ("body", b"5\r\nhello\r\nnot a chunk"), ("body", rest + OK)):
        bench = Bench()
        ear = Impatient(at)
        bench.connection.send([b"x"], ear)
        bench.feed(CHUNKS + tail)
        assert ear.calls == (1 if at == "head" else 2)
        assert not ear.has_ended
        assert (bench.returns, bench.leaves) == (0, 1)
        bench.hang_up()
        bench.connection.abort()
        assert not ear.has_ended
        assert bench.leaves == 1


@by_hand
async def test_receiver_that_raises_is_our_bug_and_loud(caplog: pytest.LogCaptureFixture) -> None:
    class Clumsy(Ear):
        def body_received(self, data: bytes) -> None:
            raise ZeroDivisionError

    bench = Bench()
    ear = Clumsy()
    bench.connection.send([b"x"], ear)
    bench.feed(OK)
    assert ear.failure is not None
    assert bench.transport.is_aborted
    assert [record.levelno for record in caplog.records if record.name == "gateway"] == [logging.ERROR]
    assert "ZeroDivisionError" in caplog.text


@by_hand
async def test_two_exchanges_at_once_are_a_mistake() -> None:
    bench = Bench()
    bench.ask()
    with pytest.raises(RuntimeError, match="cannot send on <Connection up"):
        bench.ask()
    bench.feed(OK)
    with pytest.raises(RuntimeError, match="idle"):
        bench.ask()
    bench.connection.retire()


@by_hand
async def test_repr_has_the_state() -> None:
    bench = Bench()
    assert "held, 0 exchanges" in repr(bench.connection)
    bench.ask()
    assert "waiting, exchange 1, sent 0.0 s ago" in repr(bench.connection)
    bench.feed(OK[:-1])
    bench.connection.pause_reading()
    assert "reading a body, exchange 1, sent 0.0 s ago, last byte 0.0 s ago, paused" in repr(bench.connection)
    bench.feed(OK[-1:])
    assert "idle, 1 exchanges" in repr(bench.connection)
    assert not bench.transport.is_paused  # an idle connection has to hear of its end
    bench.connection.retire()
    assert "closed, 1 exchanges" in repr(bench.connection)


# ------------------------------------------------------------------------------------------------ over sockets


async def test_exchange_and_reuse() -> None:
    async with Scripted(scripted.ok_json(), scripted.stream([{"a": 1}, {"a": 2}])) as upstream:
        pool = pool_of(upstream.url)
        first = await ask(pool, b'{"model": "m"}')
        assert first.failure is None
        assert first.head is not None
        assert first.head.get("content-type") == "application/json"
        second = await ask(pool)
        assert second.body == b'data: {"a": 1}\n\ndata: {"a": 2}\n\ndata: [DONE]\n\n'
        assert upstream.connections == 1
        assert upstream.requests[0].path == "/v1/completions"
        assert upstream.requests[0].json == {"model": "m"}
        await pool.close()
        await until(lambda: upstream.open_now == 0)


async def test_large_bodies_both_ways() -> None:
    body = bytes(range(256)) * 20_000
    async with Scripted(scripted.answer(body, headers=[("Content-Type", "x/y")])) as upstream:
        pool = pool_of(upstream.url)
        ear = await ask(pool, body)
        assert ear.failure is None
        assert ear.body == body
        assert max(map(len, ear.pieces)) <= READ_BUFFER_BYTES
        assert upstream.requests[0].body == body
        await pool.close()


async def test_many_at_once_over_one_buffer(authority: Authority) -> None:
    """All connections of a pool read into the same buffer; no answer may show a byte of another."""

    async def echo(wire: Wire) -> None:
        await wire.write(scripted.CHUNKED)
        for at in range(0, len(wire.request.body), 1000):
            await wire.write(scripted.chunk(wire.request.body[at : at + 1000]))
            await asyncio.sleep(0)
        await wire.write(b"0\r\n\r\n")

    for tls in (None, authority.server_context("127.0.0.1")):
        async with Scripted(always=echo, tls=tls) as upstream:
            pool = pool_of(upstream.url, 20, ca_file=str(authority.ca_file))
            bodies = [bytes([65 + number]) * 50_000 for number in range(20)]
            ears = await asyncio.gather(*(ask(pool, body) for body in bodies))
            assert [ear.body for ear in ears] == bodies
            assert upstream.most_open == 20
            await pool.close()


async def test_early_answer_is_delivered() -> None:
    """The upstream answers 413 and hangs up without reading the body."""

    async def too_large(wire: Wire) -> None:
        await scripted.answer(b"{}", 413)(wire)
        wire.close()

    async with Scripted(always=too_large, reads_body=False) as upstream:
        pool = pool_of(upstream.url)
        for _ in range(10):
            ear = await ask(pool, b"x" * 5_000_000)
            assert ear.failure is None
            assert ear.head is not None
            assert ear.head.status == 413
        assert upstream.connections == 10
        assert pool.in_flight == 0
        await pool.close()


async def test_early_answer_on_a_connection_that_stays_is_not_reused() -> None:
    async def too_large(wire: Wire) -> None:
        await scripted.answer(b"{}", 413)(wire)
        await asyncio.sleep(0.1)
        await wire.until_gone()

    async with Scripted(too_large, reads_body=False) as upstream:
        pool = pool_of(upstream.url)
        ear = await ask(pool, b"x" * 20_000_000)
        assert ear.head is not None
        assert ear.head.status == 413
        assert "0 in flight, 0 idle" in repr(pool)
        await until(lambda: upstream.open_now == 0)
        await pool.close()


@pytest.mark.parametrize("kind", ["plain", "tls", "tls without a goodbye"])
async def test_body_ends_with_the_connection(kind: str, authority: Authority) -> None:
    async def until_it_closes(wire: Wire) -> None:
        await wire.write(b"HTTP/1.1 200 OK\r\n\r\n" + b"hello" * 1000)
        if kind == "tls without a goodbye":
            with socket.socket(fileno=os.dup(wire.writer.get_extra_info("socket").fileno())) as beneath:
                beneath.shutdown(socket.SHUT_WR)
        else:
            wire.close()

    tls = authority.server_context("127.0.0.1") if kind != "plain" else None
    async with Scripted(until_it_closes, tls=tls) as upstream:
        pool = pool_of(upstream.url, ca_file=str(authority.ca_file))
        ear = await ask(pool)
        assert ear.failure is None
        assert ear.body == b"hello" * 1000
        assert "0 in flight, 0 idle" in repr(pool)
        await pool.close()


FAULTS: dict[str, tuple[scripted.Behaviour, Fault, str]] = {
    "close_without_answer": (scripted.close_without_answer, Fault.CUT, "without an answer"),
    "reset_without_answer": (scripted.reset_without_answer, Fault.CUT, "without an answer"),
    "cut_mid_body": (scripted.cut_mid_body, Fault.CUT, "inside the body"),
    "reset_mid_body": (scripted.reset_mid_body, Fault.CUT, "inside the body"),
    "cut_stream": (scripted.cut_stream([{"a": 1}]), Fault.CUT, "inside the body"),
    "cut head": (scripted.raw(b"HTTP/1.1 200 OK\r\nX", then_close=True), Fault.CUT, "inside the head"),
    "not_http": (scripted.not_http, Fault.PROTOCOL, "does not begin with HTTP/"),
}


@pytest.mark.parametrize("kind", ["plain", "tls"])
@pytest.mark.parametrize("name", FAULTS)
async def test_a_fault_is_raised_once_and_leaves_nothing(name: str, kind: str, authority: Authority) -> None:
    behaviour, fault, words = FAULTS[name]
    tls = authority.server_context("127.0.0.1") if kind == "tls" else None
    async with Scripted(behaviour, tls=tls) as upstream:
        pool = pool_of(upstream.url, ca_file=str(authority.ca_file))
        connection, ear = await begin(pool)
        failure = await ear.end()
        assert failure is not None
        assert (failure.fault, failure.phase, failure.upstream) == (fault, Phase.WAITING, "up")
        assert words in failure.detail
        assert connection.is_closed
        assert pool.in_flight == 0
        await until(lambda: upstream.open_now == 0)
        await pool.close()


LIMITS: dict[str, tuple[scripted.Behaviour, str]] = {
    "silent": (scripted.silent, "no complete head within 0.05 s"),
    "dribble_head": (scripted.dribble_head(), "no complete head within 0.05 s"),
    "1xx storm": (
        scripted.raw(*[b"HTTP/1.1 100 Continue\r\n\r\n"] * 1000, delay_s=0.01),
        "no complete head within 0.05 s",
    ),
    "stalled_stream": (scripted.stalled_stream([{"a": 1}]), "no body byte for 0.1 s"),
    "dribbled trailer": (
        scripted.raw(CHUNKS + b"1\r\nx\r\n0\r\nX: ", *[b"y"] * 1000, delay_s=0.01),
        "no body byte for 0.1 s",
    ),
    "endless stream": (scripted.stream([{}] * 1000, 0.01), "not finished within 0.2 s"),
}
FALLS_SILENT = ("silent", "stalled_stream")


@pytest.mark.parametrize("name", LIMITS)
async def test_time_limit_ends_the_exchange(name: str, clock: MovedClock) -> None:
    behaviour, words = LIMITS[name]
    async with Scripted(behaviour) as upstream:
        pool = pool_of(upstream.url, head_s=0.05, idle_s=0.1, total_s=0.2)
        connection, ear = await begin(pool)
        has_begun = "head" not in words
        await until(lambda: ear.pieces if has_begun else upstream.hits)
        while not ear.has_ended:
            if name not in FALLS_SILENT:  # what comes meanwhile ends no limit but that of silence
                before = received(connection, ear)
                await until(lambda before=before: received(connection, ear) != before)  # type: ignore[misc]
            clock.move(0.01)
        assert await ear.end() == Failure("up", Phase.WAITING, Fault.TIMEOUT, words, has_begun=has_begun)
        assert connection.is_closed
        assert pool.in_flight == 0
        await until(lambda: upstream.open_now == 0)
        await pool.close()


def received(connection: Connection, ear: Ear) -> tuple[int, int, int]:
    """What changes with each byte."""
    return connection._interim_bytes, connection._unproductive, len(ear.pieces)


async def test_short_idle_limit_is_not_kept_waiting_by_a_long_head_limit(clock: MovedClock) -> None:
    async with Scripted(scripted.stalled_stream([])) as upstream:
        pool = pool_of(upstream.url, idle_s=0.05)
        _, ear = await begin(pool)
        await until(lambda: ear.head)
        clock.move(0.05)
        failure = await ear.end()
        assert failure is not None
        assert failure.detail == "no body byte for 0.05 s"
        await pool.close()


@by_hand
async def test_time_limits_leave_a_slow_but_living_answer_alone(clock: MovedClock) -> None:
    """Head after a while, then an event now and then, for longer than the head and idle limits together."""
    bench = Bench(head_s=0.6, idle_s=0.6, total_s=10)
    for turn in range(2):
        assert not turn or bench.connection.hold()
        ear = bench.ask()
        clock.move(0.5)
        bench.feed(CHUNKS)
        for _ in range(6):
            clock.move(0.5)
            bench.feed(b"5\r\nhello\r\n")
        clock.move(0.5)
        bench.feed(b"0\r\n\r\n")
        assert await ear.end() is None
        assert ear.body == b"hello" * 6
    assert bench.returns == 2
    assert not bench.transport.is_aborted


@by_hand
async def test_limits_run_anew_in_each_exchange(clock: MovedClock) -> None:
    """A timer left over from one exchange neither ends the next nor lets it off."""
    bench = Bench(head_s=0.5, total_s=0.6)
    for turn in range(4):
        assert not turn or bench.connection.hold()
        ear = bench.ask()
        clock.move(0.4)
        bench.feed(OK)
        assert await ear.end() is None
    assert bench.connection.hold()
    ear = bench.ask()
    clock.move(0.49)
    assert not ear.has_ended
    clock.move(0.01)
    failure = await ear.end()
    assert failure is not None
    assert failure.detail == "no complete head within 0.5 s"
    assert bench.leaves == 1


@pytest.mark.parametrize("kind", ["plain", "tls"])
async def test_pause_really_stops_reading(kind: str, authority: Authority, clock: MovedClock) -> None:
    written = 0

    async def flood(wire: Wire) -> None:
        nonlocal written
        await wire.write(scripted.CHUNKED)
        while written < 200 * 65536:
            await wire.write(scripted.chunk(b"z" * 65536))
            written += 65536
        await wire.write(b"0\r\n\r\n")

    tls = authority.server_context("127.0.0.1") if kind == "tls" else None
    async with Scripted(flood, tls=tls) as upstream:
        pool = pool_of(upstream.url, idle_s=1, ca_file=str(authority.ca_file))
        connection, ear = await begin(pool)
        await until(lambda: ear.pieces)
        connection.pause_reading()
        connection.pause_reading()
        clock.move(1.2)  # longer than idle_s: the pause is ours, not the upstream's silence
        received, reached = len(ear.body), -1
        while reached != written:  # the kernel's buffers go on growing for a while
            reached = written
            await asyncio.sleep(0.2)
        assert len(ear.body) == received
        assert written < 200 * 65536, "the sockets held everything: this tests nothing"
        assert not ear.has_ended
        connection.resume_reading()
        assert await ear.end() is None
        assert len(ear.body) == 200 * 65536
        assert "1 idle" in repr(pool)
        await pool.close()


@pytest.mark.parametrize("kind", ["plain", "tls"])
async def test_a_turn_of_the_loop_reads_one_buffer(kind: str, authority: Authority) -> None:
    """However much has come meanwhile: others have their turn between the buffers."""
    has_written, loop = threading.Event(), asyncio.get_running_loop()

    async def flood(wire: Wire) -> None:
        body = b"z" * 16 * READ_BUFFER_BYTES
        wire.writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await asyncio.sleep(0)
        has_written.set()

    tls = authority.server_context("127.0.0.1") if kind == "tls" else None
    async with Scripted(flood, tls=tls) as upstream:
        pool = pool_of(upstream.url, ca_file=str(authority.ca_file))
        _, ear = await begin(pool)
        assert has_written.wait(10)  # this loop reads nothing meanwhile
        read = [0]

        def next_turn() -> None:
            read.append(len(ear.body))
            if not ear.has_ended:
                loop.call_soon(next_turn)

        next_turn()
        assert await ear.end() is None
        assert max(after - before for before, after in itertools.pairwise(read)) <= READ_BUFFER_BYTES
        await pool.close()


async def test_idle_limit_runs_again_after_a_pause(clock: MovedClock) -> None:
    async with Scripted(scripted.stalled_stream([{"a": 1}])) as upstream:
        pool = pool_of(upstream.url, idle_s=0.5)
        connection, ear = await begin(pool)
        await until(lambda: ear.pieces)
        connection.pause_reading()
        clock.move(0.6)
        assert not ear.has_ended
        connection.resume_reading()
        clock.move(0.49)
        assert not ear.has_ended
        clock.move(0.01)
        failure = await ear.end()
        assert failure is not None
        assert failure.detail == "no body byte for 0.5 s"
        await pool.close()


async def test_total_limit_runs_through_a_pause(clock: MovedClock) -> None:
    async with Scripted(scripted.stalled_stream([{"a": 1}])) as upstream:
        pool = pool_of(upstream.url, idle_s=0.5, total_s=1.2)
        connection, ear = await begin(pool)
        await until(lambda: ear.pieces)
        connection.pause_reading()
        clock.move(1.2)
        failure = await ear.end()
        assert failure is not None
        assert failure.detail == "not finished within 1.2 s"
        assert failure.was_held_back  # the cause is unknown
        await pool.close()


async def test_pause_is_forgotten_with_its_exchange(clock: MovedClock) -> None:
    async with Scripted(scripted.stream([{"a": 1}]), scripted.stalled_stream([{"a": 1}])) as upstream:
        pool = pool_of(upstream.url, idle_s=0.05)
        connection, ear = await begin(pool)
        await until(lambda: ear.pieces)
        connection.pause_reading()
        connection.resume_reading()
        assert await ear.end() is None
        same, ear = await begin(pool)
        await until(lambda: ear.pieces)
        clock.move(0.05)
        failure = await ear.end()
        assert same is connection
        assert failure is not None
        assert not failure.was_held_back
        await pool.close()


@pytest.mark.parametrize("kind", ["plain", "tls"])
async def test_abort_mid_body_leaves_no_connection(kind: str, authority: Authority) -> None:
    tls = authority.server_context("127.0.0.1") if kind == "tls" else None
    async with Scripted(always=scripted.stream([{"a": 1}] * 10_000, 0.001), tls=tls) as upstream:
        pool = pool_of(upstream.url, ca_file=str(authority.ca_file))
        connection, ear = await begin(pool)
        await until(lambda: len(ear.pieces) > 3)
        connection.abort()
        heard = len(ear.pieces)
        assert (connection.is_closed, pool.in_flight) == (True, 0)
        await until(lambda: upstream.open_now == 0)
        assert not ear.has_ended
        assert len(ear.pieces) == heard
        connection.pause_reading()  # whatever comes late is harmless
        connection.resume_reading()
        connection.abort()
        await pool.close()


async def test_abort_while_the_request_is_being_sent() -> None:
    async with Scripted(always=scripted.ok_json()) as upstream:
        pool = pool_of(upstream.url)
        connection, ear = await begin(pool, b"x" * 20_000_000)
        connection.abort()
        await until(lambda: upstream.open_now == 0)
        assert not ear.has_ended
        assert upstream.hits == 0
        await pool.close()


async def test_a_stale_connection_is_recognized(clock: MovedClock) -> None:
    """The upstream closes its end in the moment in which the second request leaves."""

    async def deaf(wire: Wire) -> None:
        wire.reset()

    async with Scripted(scripted.ok_json(), deaf) as upstream:
        pool = pool_of(upstream.url)
        assert (await ask(pool)).failure is None
        failure = (await ask(pool)).failure
        assert failure is not None
        assert (failure.phase, failure.fault) == (Phase.STALE, Fault.CUT)
        assert upstream.connections == 1
        await pool.close()


async def test_upstream_that_closes_idle_connections_is_noticed() -> None:
    async with Scripted(always=scripted.keepalive_then_close) as upstream:
        pool = pool_of(upstream.url)
        for _ in range(3):
            ear = await ask(pool)
            assert ear.failure is None
            await until(lambda: "0 idle" in repr(pool))
        assert upstream.connections == 3
        await pool.close()


async def test_held_connection_that_is_not_used_goes_back() -> None:
    async with Scripted(scripted.ok_json()) as upstream:
        pool = pool_of(upstream.url)
        connection = await acquired(pool)
        connection.release()
        assert (await ask(pool)).failure is None
        assert upstream.connections == 1
        await pool.close()
