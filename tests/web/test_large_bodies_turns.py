"""Large bodies take turns by key, and a body whose client has left waits for none."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from gateway.errors import Unavailable
from gateway.web import large_bodies
from gateway.web.large_bodies import LargeBodies, Pieces


class Reader(LargeBodies):
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
    return asyncio.ensure_future(reader._answer(key, {}, [f"{key}{number}".encode()]))


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
    slow = asks(reader, "alice", 0)
    with pytest.raises(Unavailable):
        await slow
    reader.gate.release()
    await asks(reader, "bob", 0)
    assert large_bodies.READ_WITHIN_S == 2 * 15.0


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
