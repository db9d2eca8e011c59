"""Every recorded stream of Gemini's API, cut in two at every byte, through a whole gateway, as events and as an array.

What is expected is written by hand: the chunks before an error or the end, then an error where the upstream sent one or
ended early.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import Stage, StartsGateways
from tests.fakes.scripted import CHUNKED, Wire, chunk

from .house import Gateway, secret
from .test_gemini import CONTENTS, GEMINI, RECORDED, chunks, gemini_settings

AT_ONCE = 24
BROKEN = frozenset({"error-in-stream", "ended-early"})
CHUNKS = {name: [each for each in chunks(text.replace(b"data: [DONE]", b"")) if "error" not in each]
          for name, text in RECORDED.items()}  # fmt: skip

Case = tuple[str, str, int]
"""The stream's name, `sse` or `json`, and where it is cut."""


def cases() -> list[Case]:
    """Every byte as events, and some of those as an array."""
    found: list[Case] = []
    for name, text in RECORDED.items():
        found += [(name, "sse", cut) for cut in range(1, len(text) + 1)]
        found += [(name, "json", cut) for cut in range(1, len(text) + 1, 13)]
    return found


async def cutter(wire: Wire) -> None:
    """The recorded stream that the request names, in two chunks."""
    name, _, cut = wire.request.json["labels"]["case"].split(":")
    halves = [half for half in (RECORDED[name][: int(cut)], RECORDED[name][int(cut) :]) if half]
    await wire.write(CHUNKED + b"".join(map(chunk, halves)) + b"0\r\n\r\n")


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, case: Case) -> bytes:
    """One call on a connection that is kept; returns the body of its answer."""
    body = json.dumps({"contents": CONTENTS, "labels": {"case": ":".join(map(str, case))}}).encode()
    head = f"x-goog-api-key: {secret('alice')}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    path = f"/v1beta/models/{GEMINI}:streamGenerateContent?alt={case[1]}"
    writer.write(f"POST {path} HTTP/1.1\r\nHost: x\r\n{head}\r\n\r\n".encode() + body)
    answer = await reader.readuntil(b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 "), answer
    passed = b""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        passed += (await reader.readexactly(size + 2))[:-2]
    await reader.readexactly(2)
    return passed


def read(passed: bytes, form: str) -> list[Any]:
    """The chunks of an answer; events may have nothing but lines of data."""
    if form == "json":
        items: list[Any] = json.loads(passed)
        return items
    lines = passed.decode().splitlines()
    assert all(line.startswith("data: {") for line in lines if line)
    return chunks(passed)


def check(passed: bytes, case: Case) -> None:
    name, form, _ = case
    told = read(passed, form)
    if name in BROKEN:
        assert list(told.pop()) == ["error"]
    assert told == CHUNKS[name]


@pytest.fixture
def house(gateways: StartsGateways, theatre: Stage) -> Gateway:
    config = gemini_settings(theatre.url)
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
