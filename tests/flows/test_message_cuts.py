"""Every recorded stream of the Messages API, cut in two at every byte, through a whole gateway.

What is expected is written by hand: the events before an error or the end, then the end that the upstream sent, or an
error event.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest

from tests.conftest import Stage, StartsGateways
from tests.fakes.scripted import CHUNKED, Wire, chunk

from .house import Gateway, secret
from .test_messages import CLAUDE, RECORDED, house_settings

AT_ONCE = 24
BROKEN = frozenset({"error-in-stream", "ended-early"})
DONE = b"data: [DONE]\n\n"
ENDS = {"LF": b"\n", "CRLF": b"\r\n", "CR": b"\r"}

Case = tuple[str, str, int]
"""The stream's name, its line ends, and where it is cut."""


def text_of(name: str, end: str) -> bytes:
    return RECORDED[name].replace(b"\n", ENDS[end])


def cases() -> list[Case]:
    """Every byte, and some of those with other line ends."""
    found: list[Case] = []
    for name in RECORDED:
        found += [(name, "LF", cut) for cut in range(1, len(text_of(name, "LF")) + 1)]
        for end in ("CRLF", "CR"):
            found += [(name, end, cut) for cut in range(1, len(text_of(name, end)) + 1, 13)]
    return found


async def cutter(wire: Wire) -> None:
    """The recorded stream that the request names, in two chunks."""
    name, end, cut = wire.request.json["metadata"]["user_id"].split(":")
    text = text_of(name, end)
    halves = [half for half in (text[: int(cut)], text[int(cut) :]) if half]
    await wire.write(CHUNKED + b"".join(map(chunk, halves)) + b"0\r\n\r\n")


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, case: Case) -> bytes:
    """One call on a connection that is kept; returns the body of its answer."""
    members = {
        "model": CLAUDE, "stream": True, "max_tokens": 64, "messages": [{"role": "user", "content": "Hi"}],
        "metadata": {"user_id": ":".join(map(str, case))},
    }  # fmt: skip
    body = json.dumps(members).encode()
    head = f"x-api-key: {secret('alice')}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    writer.write(f"POST /v1/messages HTTP/1.1\r\nHost: x\r\n{head}\r\n\r\n".encode() + body)
    answer = await reader.readuntil(b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 "), answer
    passed = b""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        passed += (await reader.readexactly(size + 2))[:-2]
    await reader.readexactly(2)
    return passed


def check(passed: bytes, case: Case) -> None:
    name, end, _ = case
    # A CR at the end of a chunk ends its event: the LF behind it may go with the next bytes.
    passed, text = passed.replace(ENDS[end], b"\n"), RECORDED[name]
    if name in BROKEN:
        text = text.partition(b"event: error")[0]
        assert passed.startswith(text)
        event, data = passed.removeprefix(text).removesuffix(b"\n\n").split(b"\n")
        assert event == b"event: error"
        assert json.loads(data.removeprefix(b"data: "))["type"] == "error"
        return
    text = text.removesuffix(DONE)
    assert passed == text.rstrip(b"\n") + b"\n\n"


@pytest.fixture
def house(gateways: StartsGateways, theatre: Stage) -> Gateway:
    config = house_settings(theatre.url)
    config["server"]["access_log"] = "off"
    return gateways(config)


async def test_every_cut_of_every_recorded_stream(house: Gateway, upstream: Stage) -> None:
    upstream.play(always=cutter)
    todo: Iterator[Case] = iter(cases())

    async def work() -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", house.port)
        number = 0
        for case in todo:
            passed = await ask(reader, writer, case)
            try:
                check(passed, case)
            except (AssertionError, ValueError) as error:
                raise AssertionError(f"{case}: {passed!r}") from error
            number += 1
        writer.close()
        await writer.wait_closed()
        return number

    async with asyncio.TaskGroup() as group:
        workers = [group.create_task(work()) for _ in range(AT_ONCE)]
    assert (
        sum(worker.result() for worker in workers) == len(cases()) == upstream.hits > sum(map(len, RECORDED.values()))
    )
