"""Thousands of streams at once: an upstream and clients, each in its own process that executes commands.

    python -m tests.flows.many upstream                      # or: clients
    {"open": 10000, "port": 8080, "secret": "sk-..."}        # input: a command, one line of JSON
    {"open": 10000, "wrong": []}                             # output: its result, one line of JSON

Commands of the upstream: `speak` (send this number of events on each stream), `end` (end all streams), `hang_up` (close
idle connections), `count`. Commands of the clients: `open` (open this number of streams and wait for the first event of
each), `heard` (wait for this number of events on each), `ended`.

Each stream has a number, which is in its prompt and in each of its events: a client that receives an event of another
stream, or misses one, is listed in `wrong`. Events are built without a JSON encoder and parsed by httptools, so that
these processes use less CPU time than the gateway.
"""

from __future__ import annotations

import asyncio
import json
import re
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self, cast

import httptools
import uvloop

from .gateway_process import COMPLETIONS

ROOT = Path(__file__).parent.parent.parent
PATIENCE_S = 120.0
"""For one command, on a slow machine."""
OPENING = 500
"""Calls that have had no answer yet, at most."""
TRIES = 10
"""A call that is sent away with 503 comes again, as the SDKs do: a busy machine may keep the ledger waiting."""
BACKLOG = 4096

USAGE = (7, 11)
"""Prompt and completion tokens of each stream."""

_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_PIECE = '{"id":"cmpl-%d","object":"text_completion","created":1700000000,"model":"up","choices":[{"text":"%s",'
_PIECE += '"index":0,"logprobs":null,"finish_reason":%s}]}'
_END = b"0\r\n\r\n"
_NUMBER = re.compile(rb'"prompt": ?"stream (\d+)"')
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_TEXT = re.compile(rb'"text":"([^"]*)"')
_REASON = b'"finish_reason":"stop"'
_DONE = b"data: [DONE]"


def _chunk(data: str) -> bytes:
    event = f"data: {data}\n\n".encode()
    return b"%x\r\n%b\r\n" % (len(event), event)


def word(number: int, count: int) -> str:
    """What this event of this stream says."""
    return f"{number}.{count} "


def raise_limit(needed: int) -> None:
    """Allow this process, and whom it starts from now on, so many descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (needed, needed))
        except (ValueError, OSError):
            raise AssertionError(
                f"this test needs {needed} descriptors a process, and the machine allows {hard}: see `ulimit -Hn`"
            ) from None
    elif soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


# -------------------------------------------------------------------------------------------------------- the upstream


class Upstream:
    """See the head of the file."""

    def __init__(self) -> None:
        self.connections: set[Source] = set()
        self.speaking: dict[Source, None] = {}
        self.most = 0

    async def start(self) -> int:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Source(self), "127.0.0.1", 0, backlog=BACKLOG)
        self._server = server
        port: int = server.sockets[0].getsockname()[1]
        return port

    async def do(self, asked: dict[str, Any]) -> dict[str, Any]:
        for _ in range(asked.get("speak", 0)):
            await self._each(Source.speak)
        if "end" in asked:
            await self._each(Source.end)
        if "hang_up" in asked:
            for source in list(self.connections):
                if source not in self.speaking:
                    source.transport.close()
        return {"connections": len(self.connections), "streams": len(self.speaking), "most": self.most}

    async def _each(self, act: Callable[[Source], None]) -> None:
        """A few streams at a time, so that not all events are sent at the same moment."""
        for place, source in enumerate(list(self.speaking)):
            act(source)
            if place % 50 == 49:
                await asyncio.sleep(0.001)


class Source(asyncio.Protocol):
    """One connection of the upstream."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._held = b""
        self._number = 0
        self._said = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._upstream.connections.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._upstream.connections.discard(self)
        self._upstream.speaking.pop(self, None)

    def data_received(self, data: bytes) -> None:
        self._held += data
        head, _, body = self._held.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if length is None or len(body) < int(length[1]):
            return
        self._held = b""
        found = _NUMBER.search(body)
        assert found, body
        self._number, self._said = int(found[1]), 0
        self._upstream.speaking[self] = None
        self._upstream.most = max(self._upstream.most, len(self._upstream.speaking))
        self.transport.write(_HEAD)
        self.speak()

    def speak(self) -> None:
        self.transport.write(_chunk(_PIECE % (self._number, word(self._number, self._said), "null")))
        self._said += 1

    def end(self) -> None:
        del self._upstream.speaking[self]
        prompt, completion = USAGE
        usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
        last = _chunk(_PIECE % (self._number, "", '"stop"')) + _chunk(json.dumps({"choices": [], "usage": usage}))
        self.transport.write(last + _chunk("[DONE]") + _END)


# --------------------------------------------------------------------------------------------------------- the clients


class Clients:
    """See the head of the file."""

    def __init__(self) -> None:
        self.open: list[Client] = []
        self._changed = asyncio.Event()
        self._numbers = iter(range(1, 10**9))

    async def do(self, asked: dict[str, Any]) -> dict[str, Any]:
        if "open" in asked:
            await self._open(asked["open"], asked["port"], asked["secret"])
        if "heard" in asked:
            await self._until(lambda client: client.words >= asked["heard"] or client.is_over)
        if "ended" not in asked:
            return self._received([client for client in self.open if client.wrong])
        await self._until(lambda client: client.is_over)
        gone, self.open = self.open, []
        for client in gone:
            client.check(asked["ended"])
            client.transport.close()
        return {"whole": sum(not client.wrong for client in gone)} | self._received(
            [each for each in gone if each.wrong]
        )

    def _received(self, wrong: list[Client]) -> dict[str, Any]:
        return {"open": len(self.open), "wrong": [client.wrong for client in wrong[:5]], "wrongs": len(wrong)}

    async def _open(self, count: int, port: int, secret: str) -> None:
        room = asyncio.Semaphore(OPENING)
        loop = asyncio.get_running_loop()

        async def one(number: int) -> None:
            # Each loopback address has ports of its own; those of the other tests stay free.
            local = (f"127.0.0.{2 + number % 8}", 0) if sys.platform == "linux" else None
            async with room:
                for turn in range(TRIES):
                    client = Client(number, secret)
                    await loop.create_connection(lambda made=client: made, "127.0.0.1", port, local_addr=local)
                    if await client.begun != 503:
                        break
                    client.transport.close()
                    await asyncio.sleep(0.1 * turn)
                self.open.append(client)

        await asyncio.gather(*[one(next(self._numbers)) for _ in range(count)])

    async def _until(self, is_so: Callable[[Client], bool]) -> None:
        waited = [client for client in self.open if not is_so(client)]
        while waited:
            await asyncio.sleep(0.02)
            waited = [client for client in waited if not is_so(client)]


class Client(asyncio.Protocol):
    """One stream, on a connection of its own."""

    def __init__(self, number: int, secret: str) -> None:
        self._number = number
        self._secret = secret
        self.begun: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        """The status, as soon as there is a word, or none to come."""
        self._parser = httptools.HttpResponseParser(self)
        self._body = b""
        self.words = 0
        self.is_over = False
        self.wrong = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        members = {"model": COMPLETIONS, "prompt": f"stream {self._number}", "stream": True, "max_tokens": 100}
        body = json.dumps(members).encode()
        lines = [
            "POST /v1/completions HTTP/1.1", "Host: gateway", f"Authorization: Bearer {self._secret}",
            "Content-Type: application/json", f"Content-Length: {len(body)}", "", "",
        ]  # fmt: skip
        self.transport.write("\r\n".join(lines).encode() + body)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._over("" if self.is_over else f"cut after {self._body[-200:]!r}")

    def on_body(self, data: bytes) -> None:
        """Of the parser."""
        self._body += data
        self.words = self._body.count(b'"text":"')
        if self.words and not self.begun.done():
            self.begun.set_result(self._parser.get_status_code())

    def on_message_complete(self) -> None:
        """Of the parser."""
        status = self._parser.get_status_code()
        self._over("" if status == 200 else f"status {status}: {self._body[:300]!r}", status)

    def _over(self, wrong: str, status: int = 0) -> None:
        self.wrong = self.wrong or wrong
        self.is_over = True
        if not self.begun.done():
            self.begun.set_result(status)

    def check(self, words: int) -> None:
        """Whether it has heard so many words, its own, in their order, and the end."""
        if self.wrong:
            return
        said = b"".join(_TEXT.findall(self._body)).decode()
        expected = "".join(word(self._number, count) for count in range(words))
        if said != expected or _REASON not in self._body or not self._body.endswith(_DONE + b"\n\n"):
            self.wrong = f"stream {self._number} was to say {expected!r}: {self._body[-500:]!r}"


# ------------------------------------------------------------------------------------------------------- the processes


class Helper:
    """One of the two, in its process. A context manager that ends it."""

    def __init__(self, role: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, role], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        self.port: int = self._read()["port"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        with self._process:
            self._process.kill()

    def ask(self, **asked: Any) -> dict[str, Any]:
        """Send a command and return its result."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "a helper has ended"
        received: dict[str, Any] = json.loads(line)
        return received


def _commands() -> Iterator[dict[str, Any]]:
    for line in sys.stdin:
        yield json.loads(line)


async def _main(role: str) -> None:
    part = Upstream() if role == "upstream" else Clients()
    port = await part.start() if isinstance(part, Upstream) else 0
    print(json.dumps({"port": port}), flush=True)
    commands = _commands()
    while (asked := await asyncio.to_thread(next, commands, None)) is not None:
        async with asyncio.timeout(PATIENCE_S):
            received = await part.do(asked)
        print(json.dumps(received), flush=True)


if __name__ == "__main__":
    uvloop.run(_main(sys.argv[1]))
