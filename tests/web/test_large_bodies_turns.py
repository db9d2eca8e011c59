"""Large bodies take turns by key, slow ones behind others, and a body whose client has left waits for none."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Mapping
from typing import Any

import pytest

from gateway.api.large_body import SHORT_BRACKETS, SHORT_BYTES
from gateway.errors import Unavailable
from gateway.web import large_bodies
from gateway.web.large_bodies import LargeBodies, Pieces, start_python


class Reader(large_bodies.ReadingProcess):
    """Its process reads until it may go on."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[bytes] = []
        self.gate = asyncio.Semaphore(0)

    async def _exchange(self, job: Mapping[str, Any], pieces: Pieces) -> tuple[dict[str, Any], Pieces]:
        self.begun.append(bytes(pieces[0]))
        await self.gate.acquire()
        return {}, ()


@pytest.fixture
def reader() -> Reader:
    return Reader()


def asks(reader: Reader, key: str, number: int) -> asyncio.Task[Any]:
    return asyncio.ensure_future(reader.answer(key, {}, [f"{key}{number}".encode()]))


async def turns(number: int = 20) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


async def test_another_key_waits_for_one_body_of_each_key(reader: Reader) -> None:
    asked = [asks(reader, "alice", number) for number in range(5)]
    await turns()
    asked += [asks(reader, "bob", 0), asks(reader, "carol", 0)]
    await turns()
    for _ in asked:
        reader.gate.release()
    await asyncio.gather(*asked)
    assert [each.decode() for each in reader.begun[:4]] == ["alice0", "bob0", "carol0", "alice1"]
    assert not reader._of_key


async def test_a_body_that_takes_too_long_gives_its_turn_away(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_bodies, "READ_FOR_S", 0.01)
    bodies = LargeBodies()
    bodies._short = reader
    with pytest.raises(Unavailable):
        await bodies._answer("alice", {}, [b"alice0"])
    reader.gate.release()
    await asks(reader, "bob", 0)
    assert large_bodies.READ_WITHIN_S == 2 * 15.0


async def test_keys_whose_bodies_took_long_are_as_one(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another key waited for a body of each of them, again and again."""
    monkeypatch.setattr(large_bodies, "SLOW_S", -1.0)
    for _ in range(20):
        reader.gate.release()
    for key in ("alice", "carol", "dave"):
        await asks(reader, key, 0)
    monkeypatch.setattr(large_bodies, "SLOW_S", 60.0)
    reader.gate, reader.begun = asyncio.Semaphore(0), []
    asked = [asks(reader, key, number) for number in (1, 2) for key in ("alice", "carol", "dave", "bob")]
    await turns()
    for _ in asked:
        reader.gate.release()
        await turns()
    await asyncio.gather(*asked)
    begun = [each.decode() for each in reader.begun]
    assert begun[:3] == ["alice1", "bob1", "carol1"]
    assert not reader._slow, "each was quick"


@pytest.mark.parametrize("long", [bytes(SHORT_BYTES + 1), b"[" * SHORT_BRACKETS + b"{"], ids=["bytes", "brackets"])
async def test_a_long_body_keeps_no_short_one_waiting(reader: Reader, long: bytes) -> None:
    bodies, longs = LargeBodies(), Reader()
    bodies._short, bodies._long = reader, longs
    other = asyncio.ensure_future(bodies._answer("alice", {}, [long[:9], memoryview(long)[9:]]))
    short = [bodies._answer(key, {}, [long[:-1]]) for key in ("alice", "bob")]
    for _ in short:
        reader.gate.release()
    await asyncio.gather(*short)
    assert (len(longs.begun), other.done()) == (1, False)
    longs.gate.release()
    await other


@pytest.mark.parametrize(("idle_s", "code"), [(0, 0), (0.01, -signal.SIGALRM)])
async def test_a_process_ends_when_it_is_idle(idle_s: float, code: int) -> None:
    """The one of long bodies may have taken much memory."""
    process = await start_python(large_bodies.READER)
    assert process.stdin is not None
    assert process.stdout is not None
    asked = {"job": "read", "endpoint": "chat", "length": 1, "idle_s": idle_s}
    process.stdin.write(json.dumps(asked).encode() + b"\n ")
    assert b"refused" in await process.stdout.readline()
    if not idle_s:
        process.stdin.close()
    assert await process.wait() == code


async def test_a_body_whose_client_left_is_not_held_while_it_waits(reader: Reader) -> None:
    """The one whose turn it is continues."""
    first, *others = [asks(reader, key, number) for key in ("alice", "bob") for number in range(3)]
    await turns()
    for each in (first, *others):
        each.cancel()
    await turns()
    assert reader.begun == [b"alice0"]
    assert len(reader._tasks) == 1
    reader.gate.release()
    await turns()
    assert len(reader._tasks) == 0
    assert reader.begun == [b"alice0"]
