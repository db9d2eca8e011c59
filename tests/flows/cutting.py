"""Streams that are cut where the request says, many at once: what the tests of every format's cuts have in common."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tests.fakes.scripted import CHUNKED, Wire, chunk

from .gateway_process import Gateway, eventually, secret

AT_ONCE = 24

Case = TypeVar("Case")


def telling_cuts(text: bytes) -> list[int]:
    """Numbers of bytes: around each end of a line, and every eleventh byte. Scans alone are cut at every
    byte (tests/formats/slow/test_every_cut.py and tests/formats/test_stream_scan.py)."""
    ends = {found.end() + more for found in re.finditer(rb"[\r\n]", text) for more in (-1, 0, 1)}
    return [cut for cut in sorted({*ends, *range(1, len(text), 11), len(text)}) if 0 < cut <= len(text)]


async def write_beginning(wire: Wire, text: bytes, end: int) -> None:
    """This text up to this byte, as a stream whose connection is lost there."""
    await wire.write(CHUNKED + (chunk(text[:end]) if end else b""))
    wire.close()


async def write_cut(wire: Wire, text: bytes, cut: int) -> None:
    """This text in two chunks, as a whole stream."""
    halves = [half for half in (text[:cut], text[cut:]) if half]
    await wire.write(CHUNKED + b"".join(map(chunk, halves)) + b"0\r\n\r\n")


async def ask_all(
    port: int,
    path: str | Callable[[Case], str],
    cases: Sequence[Case],
    members_of: Callable[[Case], dict[str, Any]],
    check: Callable[[Case, bytes], None],
    *,
    may_fail: bool = False,
) -> None:
    """One call for each case, `AT_ONCE` at a time on connections that are kept; `check` gets the body of its answer,
    with status 200 unless calls `may_fail`."""
    path_of = path if callable(path) else lambda _: path
    todo = iter(cases)

    async def work() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for case in todo:
            is_good, passed = await _ask(reader, writer, path_of(case), members_of(case), name_of(case))
            try:
                assert is_good or may_fail
                check(case, passed)
            except (AssertionError, ValueError) as error:
                raise AssertionError(f"{case}: {passed!r}") from error
        writer.close()
        await writer.wait_closed()

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(work())


def name_of(case: object) -> str:
    """The `client_request_id` in the record of its call."""
    return str(case)


def record_of_each(gateway: Gateway, cases: Sequence[Case]) -> dict[Case, dict[str, Any]]:
    """The usage record of each case, of which there is one."""
    count = len(cases)
    found = eventually(lambda: len(rows := gateway.calls("alice", limit=count + 1)) >= count and rows)
    assert len(found) == count
    named = {each["client_request_id"]: each for each in found}
    return {case: named[name_of(case)] for case in cases}


def charged(record: dict[str, Any]) -> tuple[Any, ...]:
    """What a record says of the usage of a call and of its end."""
    names = ("status", "ended", "usage_source", "prompt_tokens", "completion_tokens", "cached_tokens",
             "reasoning_tokens", "units", "cost_usd")  # fmt: skip
    return tuple([str(record[name]) for name in names])


async def _ask(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str, members: dict[str, Any], name: str
) -> tuple[bool, bytes]:
    """Whether the answer has status 200, and its body."""
    body = json.dumps(members).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {secret('alice')}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nX-Client-Request-Id: {name}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    answer = await reader.readuntil(b"\r\n\r\n")
    is_good = answer.startswith(b"HTTP/1.1 200 ")
    length = re.search(rb"\r\ncontent-length: (\d+)\r\n", answer, re.IGNORECASE)
    if length is not None:
        return is_good, await reader.readexactly(int(length[1]))
    passed = b""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        passed += (await reader.readexactly(size + 2))[:-2]
    await reader.readexactly(2)
    return is_good, passed
