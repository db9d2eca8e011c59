"""The upstreams of a soak: they answer, fail on demand, and record the calls that they answered.

A prompt begins with `call NUMBER KIND`. Text and usage of the answer follow from the number, so that clients, upstreams
and the checks know the expected answer and charge.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, Self

from tests.fakes.scripted import CHUNKED, Scripted, Wire, chunk, event

from .observed import Truth

LONG_WORDS = 200
"""Words of an answer for a slow reader, of `LONG_BYTES` each."""
LONG_BYTES = 4096
WORDS = 6

PAUSE_S = 0.005
"""Seconds between two words."""
ENOUGH_S = 30.0
"""Seconds; longer than the gateway's time-out."""

_MARK = re.compile(rb"call (\d+) (\w+)")

ILLNESSES = ("fails", "cuts", "stalls")


def tokens_of(number: int, endpoint: str) -> tuple[int, int]:
    """Prompt and completion tokens, as reported and billed by the upstream.

    Prompt tokens do not exceed the gateway's estimate for the text (60 characters or more, four per token), completion
    tokens do not exceed the call's limit: upstreams that bill more are tested elsewhere.
    """
    return 3 + number % 12, 0 if endpoint == "embeddings" else 1 + number % 31


def truth(number: int, kind: str, endpoint: str) -> Truth:
    """The expected answer and charge of a call."""
    heard = [float(number)] if endpoint == "embeddings" else "".join(words_of(number, kind))
    return Truth(heard, *tokens_of(number, endpoint))


def words_of(number: int, kind: str) -> Iterator[str]:
    """The text of the answer, per event."""
    if kind == "slow":
        yield from (f"{number}.{place} ".ljust(LONG_BYTES, "x") for place in range(LONG_WORDS))
    else:
        yield from (f"{number}.{place} " for place in range(WORDS))


class Market:
    """Two upstreams, the first with faults on demand. Each begun answer is billed as a whole."""

    def __init__(self) -> None:
        self.illness = ""
        """One of `ILLNESSES`; empty: no fault."""
        self.sold: Counter[int] = Counter()
        """Begun answers by call, without errors. Each is billed as a whole, read or not."""
        self._main, self._spare = Scripted(always=self._perhaps), Scripted(always=self._sell)

    def __enter__(self) -> Self:
        self._main.__enter__()
        self._spare.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        for each in (self._main, self._spare):
            # A gateway that is killed while it sends leaves half a request.
            each.troubles = [trouble for trouble in each.troubles if "half a request" not in trouble]
            each.__exit__(*exc)  # type: ignore[arg-type]

    @property
    def urls(self) -> dict[str, str]:
        """Addresses by the names in the configuration."""
        return {"main": self._main.url, "spare": self._spare.url}

    async def _perhaps(self, wire: Wire) -> None:
        number, _ = _marked(wire)
        match self.illness, number % 3:
            case "fails", 0 | 1:
                status = (500, 503, 429)[number // 3 % 3]
                body = json.dumps({"error": {"message": "ill", "type": "server_error", "param": None, "code": None}})
                head = f"HTTP/1.1 {status} Ill\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
                await wire.write((head + body).encode())
            case "cuts", 0:
                wire.reset()
            case "cuts", 1:
                await self._sell(wire, stop_after=2)
                wire.close()
            case "stalls", 0:
                self.sold[number] += 1
                await _until_gone(wire)
            case "stalls", 1:
                await self._sell(wire, stop_after=2)
                await _until_gone(wire)
            case _:
                await self._sell(wire)

    async def _sell(self, wire: Wire, stop_after: int | None = None) -> None:
        """Answers; `stop_after`: only this many pieces of the answer."""
        wire.upstream.requests.clear()  # otherwise they would grow
        number, kind = _marked(wire)
        self.sold[number] += 1
        endpoint = wire.request.path.rsplit("/v1/", 1)[1]
        is_stream = b'"stream": true' in wire.request.body[-2000:] or b'"stream": true' in wire.request.body[:2000]
        pieces = _stream(number, kind, endpoint) if is_stream else _plain(number, kind, endpoint)
        for place, piece in enumerate(pieces):
            if place == stop_after:
                return
            await wire.write(piece)
            if kind != "slow":
                await asyncio.sleep(PAUSE_S)


def _marked(wire: Wire) -> tuple[int, str]:
    found = _MARK.search(wire.request.body)
    assert found, f"a request that nobody has made: {wire.request.body[:200]!r}"
    return int(found[1]), found[2].decode()


async def _until_gone(wire: Wire) -> None:
    async with asyncio.timeout(ENOUGH_S):
        await wire.until_gone()


def _usage(number: int, endpoint: str) -> dict[str, int]:
    prompt, completion = tokens_of(number, endpoint)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _plain(number: int, kind: str, endpoint: str) -> list[bytes]:
    text = "".join(words_of(number, kind))
    members: dict[str, Any]
    if endpoint == "embeddings":
        members = {"data": [{"object": "embedding", "index": 0, "embedding": [number]}]}
    elif endpoint == "chat/completions":
        message = {"role": "assistant", "content": text}
        members = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    else:
        members = {"choices": [{"index": 0, "text": text, "logprobs": None, "finish_reason": "stop"}]}
    body = json.dumps({"model": "up", **members, "usage": _usage(number, endpoint)}).encode()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    half = len(body) // 2
    return [head, body[:half], body[half:]]


def _stream(number: int, kind: str, endpoint: str) -> Iterator[bytes]:
    def piece(text: str, finish: str | None = None) -> bytes:
        said = {"delta": {"content": text}} if endpoint == "chat/completions" else {"text": text}
        return chunk(event({"id": "up", "model": "up", "choices": [{"index": 0, **said, "finish_reason": finish}]}))

    yield CHUNKED
    yield from map(piece, words_of(number, kind))
    yield piece("", "stop")
    yield chunk(event({"id": "up", "model": "up", "choices": [], "usage": _usage(number, endpoint)}))
    yield chunk(event("[DONE]")) + b"0\r\n\r\n"
