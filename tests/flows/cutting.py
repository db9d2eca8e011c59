"""Streams that are cut where the request says, many at once: what the tests of every format's cuts have in common."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tests.fakes.scripted import CHUNKED, Wire, chunk

from .house import secret

AT_ONCE = 24

Case = TypeVar("Case")


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
) -> None:
    """One call for each case, `AT_ONCE` at a time on connections that are kept; `check` gets the body of its answer."""
    path_of = path if callable(path) else lambda _: path
    todo = iter(cases)

    async def work() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for case in todo:
            passed = await _ask(reader, writer, path_of(case), members_of(case))
            try:
                check(case, passed)
            except (AssertionError, ValueError) as error:
                raise AssertionError(f"{case}: {passed!r}") from error
        writer.close()
        await writer.wait_closed()

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(work())


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str, members: dict[str, Any]) -> bytes:
    body = json.dumps(members).encode()
    head = f"Authorization: Bearer {secret('alice')}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    writer.write(f"POST {path} HTTP/1.1\r\nHost: x\r\n{head}\r\n\r\n".encode() + body)
    answer = await reader.readuntil(b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 "), answer
    passed = b""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        passed += (await reader.readexactly(size + 2))[:-2]
    await reader.readexactly(2)
    return passed
