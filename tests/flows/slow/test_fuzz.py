"""Random answers of an upstream: random bytes, and good answers with bytes changed, removed, repeated and inserted.
Half of them are completions, the others speech, images, transcriptions in JSON and as subtitles, and rerank.

For each of them the client gets a complete answer or an error, in time; the next call succeeds; no traceback is logged.
The seed is printed when a test fails; GATEWAY_FUZZ_SEED repeats it.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
from typing import Any, NamedTuple, Self

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.forms import TYPE, form, wav
from tests.fakes.scripted import CHUNKED, DEFAULT_JSON, Wire, chunk, event
from tests.flows.client import ERROR_KEYS
from tests.flows.gateway_process import COMPLETIONS, Gateway, eventually, model, secret, settings

ANSWERS = 300
AT_ONCE = 12
ANSWERED_S = 15.0
"""A call ends after the time limits below, repeated once at most; the rest is for a busy machine."""
LIMITS = {"connect_s": 2, "head_s": 0.3, "idle_s": 0.3, "total_s": 2}
TOKENS = [
    b"\r\n", b"\n\n", b"\r", b"\0", b"\xff", b'"', b"}", b"{", b"[" * 300, b"data: ", b"data: [DONE]\n\n", b"id: 1\n",
    b": x\n\n", b"0\r\n\r\n", b"-1\r\n", b"ffffffffffffffff\r\n", b"HTTP/1.1 200 OK\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\n", b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n",
    b'"error": {"message": "no"}, ', b'"usage": 7, ', b'"finish_reason": "stop"',
]  # fmt: skip


class Media(NamedTuple):
    """An endpoint whose requests and answers hold their seed as a word of their own."""

    path: str
    members: dict[str, Any]
    """Of its requests; `<>` stands for the seed."""
    answer: str
    """The good answer; `<>` stands for the seed."""
    is_form: bool = False
    content_type: str = "application/json"

    def request(self, seed: str) -> tuple[bytes, str]:
        """Body and content type of a request."""
        members = json.loads(json.dumps(self.members).replace("<>", seed))
        if self.is_form:
            return form(*members.items(), ("file", wav(0.1))), TYPE["Content-Type"]
        return json.dumps(members).encode(), "application/json"

    def good(self, seed: str) -> bytes:
        """An answer as it should be."""
        return sized(self.answer.replace("<>", seed).encode(), self.content_type)


_TRANSCRIBED = {"model": "transcriptions", "prompt": "seed <> end"}
_SPOKEN = {"model": "speech", "voice": "alloy", "input": "seed <> end"}
MEDIA = {
    "speech": Media("/v1/audio/speech", _SPOKEN, "ID3 <> " + "sound" * 40, content_type="audio/mpeg"),
    "images": Media(
        "/v1/images/generations", {"model": "images", "prompt": "seed <> end"},
        '{"created": 1, "data": [{"b64_json": "<>", "n": null}], "usage": {"input_tokens": 1, "output_tokens": 3}}',
    ),
    "transcription": Media(
        "/v1/audio/transcriptions", _TRANSCRIBED,
        '{"text": "<>", "usage": {"type": "duration", "seconds": 1}, "logprobs": null}', is_form=True,
    ),
    "subtitles": Media(
        "/v1/audio/transcriptions", {**_TRANSCRIBED, "response_format": "srt"},
        "1\n00:00:00,000 --> 00:00:01,000\n<>\n", is_form=True, content_type="text/plain",
    ),
    "rerank": Media(
        "/v1/rerank", {"model": "rerank", "query": "seed <> end", "documents": ["one"]},
        '{"id": "<>", "results": [{"index": 0, "relevance_score": 0.5}], "usage": {"total_tokens": 3}}',
    ),
}  # fmt: skip
ENDPOINTS = ("speech", "images", "transcriptions", "rerank")
KINDS = ("plain", "streamed", "plain", "streamed", "plain", *MEDIA)


def sized(body: bytes, content_type: str) -> bytes:
    """An answer with a length."""
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def good(user: str, kind: str) -> bytes:
    """An answer as it should be; its text is the request's `user`."""
    if kind in MEDIA:
        return MEDIA[kind].good(user)
    choice = {"text": user, "index": 0, "logprobs": None, "finish_reason": "stop"}
    if kind == "plain":
        return sized(json.dumps(DEFAULT_JSON | {"choices": [choice]}).encode(), "application/json")
    shared = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "up"}
    parts: list[Any] = [
        shared | {"choices": [choice | {"text": user if number == 3 else "", "finish_reason": None}]}
        for number in range(6)
    ]
    parts += [
        shared | {"choices": [choice | {"text": ""}]},
        shared | {"choices": [], "usage": DEFAULT_JSON["usage"]},
        "[DONE]",
    ]
    return CHUNKED + b"".join(chunk(event(part)) for part in parts) + b"0\r\n\r\n"


def changed(answer: bytes, dice: random.Random) -> bytes:
    """The answer, with a few things gone wrong in it."""
    for _ in range(dice.randint(1, 4)):
        at = dice.randrange(len(answer) + 1)
        end = min(len(answer), at + int(dice.expovariate(1 / 20)))
        cut = answer[at:end]
        flipped = bytes(byte ^ 1 << dice.randrange(8) for byte in cut)
        inserted = [dice.choice(TOKENS) + cut, dice.randbytes(dice.randint(1, 20)) + cut]
        answer = answer[:at] + dice.choice([b"", cut * 2, cut.upper(), flipped, *inserted]) + answer[end:]
    return answer[: dice.randrange(len(answer) + 1)] if dice.random() < 0.1 else answer


def odd(seed: str, kind: str) -> tuple[bytes, bool]:
    """An answer for this seed, and whether the connection is closed behind it."""
    dice = random.Random(seed)
    if dice.random() < 0.8:
        answer = changed(good(seed, kind), dice)
    else:
        start = dice.choice(
            [b"", b"HTTP/1.1 ", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\n\r\n", CHUNKED, CHUNKED + b"100\r\n"]
        )
        bits = [
            dice.choice(TOKENS) if dice.random() < 0.5 else dice.randbytes(dice.randint(0, 60))
            for _ in range(dice.randint(0, 30))
        ]
        answer = start + b"".join(bits)
    return answer, dice.random() < 0.7


async def answers(wire: Wire) -> None:
    """What the request's seed asks for."""
    request = wire.request
    path = f"/v1/{request.path.rpartition('/v1/')[2]}"
    if path == "/v1/completions":
        seed, kind = request.json["user"], "streamed" if request.json.get("stream") else "plain"
    else:
        seed = re.findall(rb"seed ([\w-]+) end", request.body)[0].decode()
        is_text = b"\r\n\r\nsrt\r\n" in request.body
        kind = "subtitles" if is_text else next(name for name, each in MEDIA.items() if each.path == path)
    if seed.startswith("good"):
        await wire.write(good(seed, kind))
        return
    answer, is_closed = odd(seed, kind)
    await wire.write(answer)
    if is_closed:
        wire.close()


class Client:
    """One connection, opened again where the gateway closes it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def ask(self, user: str, kind: str) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of an answer whose framing has to be whole."""
        if self._reader is None or self._writer is None:
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        path, content_type = "/v1/completions", "application/json"
        if kind in MEDIA:
            path = MEDIA[kind].path
            body, content_type = MEDIA[kind].request(user)
        else:
            members: dict[str, Any] = {"model": COMPLETIONS, "prompt": "Hi", "user": user}
            body = json.dumps(members | ({"stream": True} if kind == "streamed" else {})).encode()
        lines = [
            f"POST {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {secret('alice')}",
            f"Content-Type: {content_type}", f"Content-Length: {len(body)}", "", "",
        ]  # fmt: skip
        self._writer.write("\r\n".join(lines).encode() + body)
        first, *lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        if "content-length" in headers:
            received = await self._reader.readexactly(int(headers["content-length"]))
        else:
            received = b""
            while size := int(await self._reader.readuntil(b"\r\n"), 16):
                received += (await self._reader.readexactly(size + 2))[:-2]
            await self._reader.readexactly(2)
        if headers.get("connection") == "close":
            await self.close()
        return int(first.split(" ")[1]), headers, received

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            await self._writer.wait_closed()
        self._reader = self._writer = None


def check_error(body: bytes) -> None:
    """Whether this is the error object and nothing else."""
    whole = json.loads(body)
    assert list(whole) == ["error"]
    assert sorted(whole["error"]) == ERROR_KEYS


def data_of_events(body: bytes) -> list[bytes]:
    """The data of each event, its lines joined (WHATWG HTML, 9.2.6): a line `data: [DONE]` may be part of an event."""
    events: list[list[bytes]] = [[]]
    for line in body.splitlines():
        if not line:
            events.append([])
        elif line.startswith(b"data:"):
            events[-1].append(line.removeprefix(b"data:").removeprefix(b" "))
    return [b"\n".join(lines) for lines in events if lines]


def check(kind: str, status: int, headers: dict[str, str], body: bytes, sent: bytes) -> None:
    """Whether this is a whole answer or an error, and nothing that the upstream has not said."""
    assert headers["x-request-id"].startswith("req_")
    if status != 200:
        check_error(body)
    elif kind in ("transcription", "rerank"):
        assert isinstance(json.loads(body), dict)
    elif kind == "images":  # read while it arrives, and not checked to be JSON throughout
        assert body.lstrip().startswith(b"{")
    elif kind in MEDIA:
        assert body in sent or b"chunked" in sent
    elif "content-length" in headers:
        assert isinstance(json.loads(body), dict)
    else:
        ends = [data for data in data_of_events(body) if data.startswith(b"[DONE]")]
        assert not ends or (b"[DONE]" in sent and ends == [b"[DONE]"] and body.endswith(b"data: [DONE]\n\n"))
        last = [b"", *body.rstrip().splitlines()][-1]
        last = last.removeprefix(b"data: ")
        if last.startswith(b'{"error"'):
            check_error(last)
            assert body.endswith(b"\n\n")
        else:
            assert b'"finish_reason"' in body


@pytest.fixture
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    server = {"access_log": "off", "max_response_bytes": 100_000}
    plain = settings(shared_upstream.url, server=server, upstreams={"main": {"timeouts": LIMITS}})
    return start_shared_gateway(plain | {"models": plain["models"] | {name: model(name) for name in ENDPOINTS}})


async def asked(client: Client, seed: str, kind: str) -> tuple[int, dict[str, str], bytes] | None:
    """The answer; None: it is speech, which breaks off, because nothing can be said inside of it."""
    try:
        return await client.ask(seed, kind)
    except (EOFError, OSError):
        if kind != "speech":
            raise
        await client.close()
        return None


async def test_any_answer(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(always=answers)
    seed = os.environ.get("GATEWAY_FUZZ_SEED") or random.SystemRandom().randbytes(4).hex()
    numbers = iter(range(ANSWERS))

    async def work() -> None:
        async with Client(gateway.port) as client:
            for number in numbers:
                kind = KINDS[number % len(KINDS)]
                one = f"{seed}-{number}"
                try:
                    async with asyncio.timeout(ANSWERED_S):
                        if (received := await asked(client, one, kind)) is not None:
                            check(kind, *received, odd(one, kind)[0])
                        status, _, body = await client.ask(f"good-{number}", kind)
                        assert status == 200
                        assert re.search(rf"\bgood-{number}\b".encode(), body)
                        assert kind != "streamed" or body.endswith(b"data: [DONE]\n\n")
                except (AssertionError, ValueError, OSError, EOFError) as error:
                    raise AssertionError(f"answer {number} of GATEWAY_FUZZ_SEED={seed}") from error

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(work())
    eventually(lambda: gateway.metric("gateway_in_flight_requests") == 0)
    gateway.check_logs()
