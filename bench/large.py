"""Large messages: whether time grows with their size and no faster, and the memory that one of them takes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.flows.client import Answer, request

from . import calls, nginx, ours
from .processes import BenchError, Program
from .streams import STREAM
from .table import RIVALS, Group
from .upstreams import Listening, Reading

MB = 1_000_000
SIZES = (1, 2, 4)
"""In MB."""
READ_ASIDE_BYTES = 100_000
"""For so long a body the gateway starts the process that reads large ones; it belongs to what is there at rest."""
CALLS = 10
"""Of each size, one after the other."""


class Upstream(Listening):
    """Answers with `answer`, whatever it is asked."""

    answer = b""

    def connection(self) -> _Source:
        return _Source(self)


class _Source(Reading):
    def __init__(self, upstream: Upstream) -> None:
        super().__init__()
        self._upstream = upstream

    def asked(self, request: bytearray) -> None:
        self._transport.write(self._upstream.answer)


def _whole(size: int) -> bytes:
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {size}\r\n\r\n"
    return head.encode() + calls.answer(size)


def _event(size: int) -> bytes:
    """A stream whose one event has so many bytes."""
    before, after = calls.event()
    event = before + b"x" * (size - len(before) - len(after)) + after
    return STREAM + b"".join(
        b"%x\r\n%b\r\n" % (len(piece), piece) for piece in (event, calls.ending())
    ) + b"0\r\n\r\n"  # fmt: skip


KINDS: Mapping[str, tuple[bool, bool]] = {
    "prompt": (True, False), "answer": (False, False), "event": (False, True),
}  # fmt: skip
"""Whether the request is large; whether the answer is a stream."""


async def measure(new_folder: Callable[[], Path], core: int) -> list[Group]:
    """CPU and memory for each size, of nginx and the gateway in turns."""
    cpu = Group("Large messages: CPU per call, ms")
    memory = Group("Large messages: memory at most, above that at rest, MB")
    upstream = Upstream()
    async with await upstream.start():
        for kind in KINDS:
            with (
                nginx.proxy(new_folder(), core, upstream.port, is_buffered=False) as theirs,
                ours.gateway(new_folder(), core, upstream.port) as gateway,
            ):
                for name, program in zip(RIVALS, (theirs, gateway), strict=True):
                    upstream.answer = _whole(calls.ANSWER_BYTES)
                    program.probe = program.probe._replace(body=calls.request(READ_ASIDE_BYTES))
                    await asyncio.to_thread(program.wait_until_answered)
                    rest_mb = program.memory_mb()
                    for size in SIZES:
                        cpu_ms, peak_mb = await _measure(program, upstream, *KINDS[kind], size * MB)
                        cpu.add(name, {f"{kind} of {size} MB": cpu_ms})
                        memory.add(name, {f"{kind} of {size} MB": max(0.0, peak_mb - rest_mb)})
    return [cpu, memory]


async def _measure(
    program: Program, upstream: Upstream, is_prompt: bool, is_stream: bool, size: int
) -> tuple[float, float]:
    """CPU in milliseconds per call, and the most memory."""
    body = calls.request(size if is_prompt else calls.REQUEST_BYTES, is_streamed=is_stream)
    upstream.answer = (_event if is_stream else _whole)(calls.ANSWER_BYTES if is_prompt else size)
    program.forget_peak()
    cpu_s = program.cpu_s()
    for _ in range(CALLS):
        await asyncio.to_thread(_ask, program, body)
    return (program.cpu_s() - cpu_s) / CALLS * 1e3, program.peak_mb()


def _ask(program: Program, body: bytes) -> Answer:
    received = request(program.port, "POST", calls.PATH, body, calls.HEADERS)
    if received.status != 200 or not (received.body.endswith(b"data: [DONE]\n\n") or json.loads(received.body)):
        raise BenchError(f"{program.name} answered {received.status}: {received.body[:500]!r}")
    return received
