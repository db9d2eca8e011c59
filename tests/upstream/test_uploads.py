"""Uploads: a body is pulled as fast as the upstream takes it, and a request that was not sent whole costs nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from gateway.api.form import PIECE_BYTES, Upload
from gateway.records import Fault, Phase
from gateway.upstream.connection import PIECES_AT_ONCE, Connection
from tests.fakes.scripted import Authority, Scripted, Wire, ok_json, until
from tests.patience import at_least

from .recorder import Ear, acquired, pool_of

PIECES, MANY = 100, 1500
SIZE = PIECES * PIECE_BYTES


class Source:
    """Pieces of a body, and how many were pulled."""

    def __init__(self, pieces: int = PIECES, fails_at: int = -1) -> None:
        self.pulled = 0
        self._pieces = pieces
        self._fails_at = fails_at

    def __call__(self) -> Iterator[bytes]:
        for number in range(self._pieces):
            if number == self._fails_at:
                raise OSError(5, "Input/output error")
            self.pulled += 1
            yield bytes([number % 251]) * PIECE_BYTES


async def begin_upload(url: str, source: Source, size: int = SIZE, **changes: object) -> tuple[Ear, Connection]:
    pool = pool_of(url, **changes)
    connection, ear = await acquired(pool), Ear()
    upload = Upload(size, source)
    connection.send(pool.request("/audio/transcriptions", [], upload), ear, upload.open())
    return ear, connection


@pytest.mark.parametrize("kind", ["http", "https"])
async def test_a_body_arrives_whole_and_in_order(kind: str, authority: Authority) -> None:
    source = Source()
    tls = authority.server_context("127.0.0.1") if kind == "https" else None
    async with Scripted(ok_json(), tls=tls) as upstream:
        ear, _ = await begin_upload(upstream.url, source, ca_file=str(authority.ca_file))
        assert await ear.end() is None
    assert upstream.requests[0].body == b"".join(Source()())


@pytest.mark.parametrize("kind", ["http", "https"])
async def test_only_what_the_upstream_takes_is_pulled(kind: str, authority: Authority) -> None:
    source = Source(MANY)
    may_read = threading.Event()  # the upstream has a loop of its own

    async def waits(wire: Wire) -> None:
        await asyncio.to_thread(may_read.wait, 30)
        await wire.reader.readexactly(MANY * PIECE_BYTES)
        await ok_json()(wire)

    tls = authority.server_context("127.0.0.1") if kind == "https" else None
    async with Scripted(waits, tls=tls, reads_body=False) as upstream:
        ear, connection = await begin_upload(upstream.url, source, MANY * PIECE_BYTES, ca_file=str(authority.ca_file))
        pulled = -1
        while pulled != source.pulled or not pulled:
            pulled = source.pulled
            await asyncio.sleep(0.2)
        assert pulled < 400  # of 1500: kernel buffers and those of two event loops
        assert connection.is_sending
        may_read.set()
        assert await ear.end() is None
    assert source.pulled == MANY


async def test_an_answer_before_the_end_of_the_body_ends_the_exchange_and_the_connection() -> None:
    source = Source(MANY)

    async def answers_early(wire: Wire) -> None:
        await ok_json({"early": True})(wire)
        await wire.until_gone()

    async with Scripted(answers_early, reads_body=False) as upstream:
        ear, connection = await begin_upload(upstream.url, source, MANY * PIECE_BYTES)
        assert await ear.end() is None
        assert ear.head is not None
        assert ear.head.status == 200
        assert connection.is_closed
        assert source.pulled < MANY


async def test_a_cut_inside_the_body_counts_as_not_sent() -> None:
    async def hangs_up(wire: Wire) -> None:
        wire.reset()

    source = Source(MANY)
    async with Scripted(hangs_up, reads_body=False) as upstream:
        ear, _ = await begin_upload(upstream.url, source, MANY * PIECE_BYTES)
        failure = await ear.end()
    assert failure is not None
    assert failure.phase is Phase.CONNECT
    assert "before the whole request was sent" in failure.detail


async def test_a_body_that_cannot_be_read_counts_as_not_sent() -> None:
    async def waits(wire: Wire) -> None:
        await wire.until_gone()

    async with Scripted(waits, reads_body=False) as upstream:
        ear, _ = await begin_upload(upstream.url, Source(PIECES, fails_at=2))
        failure = await ear.end()
    assert failure is not None
    assert (failure.phase, failure.fault) == (Phase.CONNECT, Fault.CUT)
    assert "cannot read the stored request" in failure.detail


async def test_the_limit_for_the_head_runs_from_the_last_piece_that_was_taken() -> None:
    async def never_reads(wire: Wire) -> None:
        await asyncio.sleep(30)

    source = Source(MANY)
    async with Scripted(never_reads, reads_body=False) as upstream:
        ear, _ = await begin_upload(upstream.url, source, MANY * PIECE_BYTES, head_s=0.3)
        failure = await ear.end()
    assert failure is not None
    assert (failure.phase, failure.fault) == (Phase.CONNECT, Fault.TIMEOUT)


async def test_an_aborted_upload_stops_pulling() -> None:
    source = Source(MANY)
    async with Scripted(lambda wire: wire.until_gone(), reads_body=False) as upstream:
        ear, connection = await begin_upload(upstream.url, source, MANY * PIECE_BYTES)
        await until(lambda: source.pulled > PIECES_AT_ONCE)
        connection.abort()
        pulled = source.pulled
        await at_least(0.05)
        assert source.pulled == pulled
        assert not ear.has_ended
