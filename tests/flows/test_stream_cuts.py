"""Every recorded stream, cut in two at every byte, through a whole gateway: byte for byte what the upstream sent.

What is expected is said by the slow scanner of tests/rules, and by hand for the end of a stream. The upstream cuts
where the request tells it to, so that many calls are under way at once; each half is a chunk of its own.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Stage, StartsGateways
from tests.fakes.scripted import CHUNKED, Wire, chunk
from tests.formats.slow_scan import Rewritten, Slow, assert_passed

from .house import CHAT, COMPLETIONS, Gateway, secret, settings

RECORDED = {path.stem: path.read_bytes() for path in sorted((Path(__file__).parents[1] / "recorded").glob("*.sse"))}
AT_ONCE = 24
DONE = b"data: [DONE]\n\n"
ENDS = {"LF": b"\n", "CRLF": b"\r\n", "CR": b"\r"}

Case = tuple[str, str, int, bool]
"""The stream's name, its line ends, where it is cut, and whether the client asked for its usage."""


def text_of(name: str, end: str) -> bytes:
    return RECORDED[name].replace(b"\n", ENDS[end])


def choices_of(name: str) -> int:
    return 2 if "two" in name else 1


async def cutter(wire: Wire) -> None:
    """The recorded stream that the request names, in two chunks."""
    name, end, cut = wire.request.json["user"].split(":")
    text = text_of(name, end)
    halves = [half for half in (text[: int(cut)], text[int(cut) :]) if half]
    await wire.write(CHUNKED + b"".join(map(chunk, halves)) + b"0\r\n\r\n")


def cases() -> list[Case]:
    """Every byte for whoever sees all; some for whoever does not see the usage, and for other line ends."""
    found: list[Case] = []
    for name, text in RECORDED.items():
        found += [(name, "LF", cut, True) for cut in range(1, len(text) + 1)]
        found += [(name, "LF", cut, False) for cut in range(1, len(text) + 1, 7)]
        for end in ("CRLF", "CR"):
            found += [(name, end, cut, cut % 2 == 0) for cut in range(1, len(text_of(name, end)) + 1, 11)]
    return found


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, case: Case) -> bytes:
    """One call on a connection that is kept; returns the body of its answer."""
    name, end, cut, shows = case
    is_chat = b"chat.completion" in RECORDED[name]
    asked = {"messages": [{"role": "user", "content": "Hi"}]} if is_chat else {"prompt": "Hi"}
    members = {
        "model": CHAT if is_chat else COMPLETIONS,
        "stream": True,
        "n": choices_of(name),
        "user": f"{name}:{end}:{cut}",
        **asked,
    }
    body = json.dumps(members | ({"stream_options": {"include_usage": True}} if shows else {})).encode()
    head = f"Authorization: Bearer {secret('alice')}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    path = "/v1/chat/completions" if is_chat else "/v1/completions"
    writer.write(f"POST {path} HTTP/1.1\r\nHost: x\r\n{head}\r\n\r\n".encode() + body)
    answer = await reader.readuntil(b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 "), answer
    passed = b""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        passed += (await reader.readexactly(size + 2))[:-2]
    await reader.readexactly(2)
    return passed


def expectations() -> dict[tuple[str, str, bool], tuple[list[bytes | Rewritten], bytes | None]]:
    """What passes of each stream, and how it ends: None for an error event."""
    found = {}
    for name in RECORDED:
        for end in ENDS:
            for shows in (True, False):
                slow = Slow(choices_of(name), shows, 65536)
                slow.read(text_of(name, end))
                is_whole = slow.error is None and len(slow.finished) == choices_of(name)
                found[name, end, shows] = slow.out, (DONE if slow.is_done else b"") if is_whole else None
    return found


def check(passed: bytes, out: list[bytes | Rewritten], last: bytes | None) -> None:
    if last is None:
        passed, mark, error = passed.rpartition(b"data: ")
        assert mark
        assert sorted(json.loads(error)["error"]) == ["code", "message", "param", "type"]
        assert error.endswith(b"\n\n")
    else:
        assert passed.endswith(last)
        passed = passed.removesuffix(last)
    assert_passed(passed, out)


@pytest.fixture
def house(gateways: StartsGateways, theatre: Stage) -> Gateway:
    return gateways(settings(theatre.url, server={"access_log": "off"}))


async def test_every_cut_of_every_recorded_stream(house: Gateway, upstream: Stage) -> None:
    upstream.play(always=cutter)
    expected = expectations()
    todo: Iterator[Case] = iter(cases())

    async def work() -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", house.port)
        number = 0
        for case in todo:
            name, end, _, shows = case
            passed = await ask(reader, writer, case)
            try:
                check(passed, *expected[name, end, shows])
            except AssertionError as error:
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
