"""The fault catalogue: every known kind of faulty upstream behaviour, by name.

A row has what the upstream does, not what its client has to do. The expectations are in the tests that use the table:
a whole gateway (tests/flows/test_faults.py), and other clients behind the gateway's door. All bytes are literals.

    with FaultyUpstreams() as upstreams:               # every row for every kind, each at an address of its own
        url = upstreams.url(fault, kind)               # a base_url, there misbehaves `fault` ...
        upstreams.heal(fault, kind)                    # ... until now: from here on the same address answers well

The content of a good answer depends on the request's `user`, so that a test detects the answer of another call:
`Ask(kind, user).document` is the answer to a plain call, `.events` those of a streamed one before `[DONE]`. Bytes that
belong to no call contain POISON. Error messages contain the credential, the host and the model of the request.
"""

from __future__ import annotations

import asyncio
import email.utils
import gzip
import json
import re
import socket
import sys
import time
import zlib
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from .good_answers import DONE, FORMS, Endpoint, Form, user_of, written
from .scripted import Behaviour, Request, Scripted, Wire, chunk, event

POISON = "POISON: this belongs to no call"
LAST_CHUNK = b"0\r\n\r\n"
LONG = 70_000
"""More bytes than a head, a trailer or a chunk extension may have (64 KiB)."""
RETRY_S = 30
"""What a Retry-After with a date is ahead of the clock."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What was asked for."""

    endpoint: Endpoint
    is_streamed: bool

    def __str__(self) -> str:
        return f"{self.endpoint}-{'streamed' if self.is_streamed else 'plain'}"

    @property
    def form(self) -> Form:
        return FORMS[self.endpoint]


ENDPOINTS: tuple[Endpoint, ...] = ("completions", "chat", "messages", "responses", "generate_content")
MEDIA: tuple[Endpoint, ...] = ("images", "transcriptions")
"""The latter asked for by a form."""
PLAIN = tuple(Kind(endpoint, False) for endpoint in (*ENDPOINTS, *MEDIA))
STREAMED = tuple(Kind(endpoint, True) for endpoint in (*ENDPOINTS, *MEDIA))
KINDS = PLAIN + STREAMED
WITH_USAGE_EVENT = STREAMED[:2]
"""Streams whose usage has an event of its own."""
WITH_LAST_EVENT = tuple([kind for kind in STREAMED if kind.endpoint != "generate_content"])
"""Streams that an event ends, behind which nothing may be of this call."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request that an upstream has to answer, and the pieces that answers to it are put together from."""

    kind: Kind
    user: str
    request: Request | None = None

    @property
    def form(self) -> Form:
        return self.kind.form

    @property
    def text(self) -> str:
        return f" hello {self.user}"

    @property
    def document(self) -> dict[str, Any]:
        """The good answer to a plain call."""
        return self.form.document(self.text)

    @property
    def events(self) -> list[dict[str, Any]]:
        """The good answer to a streamed call, but for what ends it: at least two pieces, the finish reason, and where
        that is an event of its own the usage."""
        return [*self.form.pieces(self.text), *self.form.finish(self.text)]

    def piece(self, text: str, finish: str | None = None) -> dict[str, Any]:
        """One event with this text."""
        return self.form.piece(text, finish)

    @property
    def unfinished(self) -> list[bytes]:
        """The events before the finish reason, as they are written."""
        return list(map(self.form.event, self.form.pieces(self.text)))

    @property
    def finish(self) -> bytes:
        """The event with the finish reason."""
        return self.form.event(self.form.finish(self.text)[0])

    @property
    def finished(self) -> list[bytes]:
        """The events up to the finish reason."""
        return [*self.unfinished, self.finish]

    @property
    def counted(self) -> list[bytes]:
        """The events up to the usage."""
        return list(map(self.form.event, self.events))

    @property
    def usage_event(self) -> bytes:
        return self.counted[-1]

    @property
    def done(self) -> bytes:
        """What ends a stream; `[DONE]` also where the format has nothing."""
        return self.form.end() or DONE

    @property
    def body(self) -> bytes:
        """The whole good body, as JSON or as events."""
        return b"".join(self.parts) if self.kind.is_streamed else written(self.document)

    @property
    def parts(self) -> list[bytes]:
        """The good body in the pieces in which an upstream would send it."""
        if self.kind.is_streamed:
            return [*self.counted, *filter(None, [self.form.end()])]
        whole = self.body
        return [whole[:50], whole[50:]]

    @property
    def content_type(self) -> str:
        return "text/event-stream" if self.kind.is_streamed else "application/json"

    def head(self, *lines: str, status: str = "HTTP/1.1 200 OK") -> bytes:
        """A head with the right Content-Type and these lines."""
        return "\r\n".join([status, f"Content-Type: {self.content_type}", *lines, "", ""]).encode()

    @property
    def chunked_head(self) -> bytes:
        return self.head("Transfer-Encoding: chunked")

    def sized(self, body: bytes, *lines: str, status: str = "HTTP/1.1 200 OK") -> bytes:
        """A whole answer with a true Content-Length."""
        return self.head(*lines, f"Content-Length: {len(body)}", status=status) + body

    def chunked(self, parts: Iterable[bytes], *lines: str) -> bytes:
        """A whole answer in chunks."""
        return self.head(*lines, "Transfer-Encoding: chunked") + b"".join(map(chunk, parts)) + LAST_CHUNK

    @property
    def good(self) -> bytes:
        """The good answer, framed as upstreams do it: a length for JSON, chunks for a stream."""
        return self.chunked(self.parts) if self.kind.is_streamed else self.sized(self.body)

    @property
    def good_in_chunks(self) -> bytes:
        return self.chunked(self.parts)

    @property
    def gossip(self) -> str:
        """A sentence that no client may see as it is: it names our credential, our host and the upstream's model."""
        if self.request is None:
            return "no request"
        headers, asked = self.request.headers, _members(self.request)
        host, secret = headers.get("host", ""), headers.get("authorization", "").removeprefix("Bearer ")
        return (
            f"The model `{asked.get('model')}` at http://{host}{self.request.path} says no to the key {secret}, "
            f"and so does {host}."
        )

    def error(self, status: int = 500, **fields: Any) -> dict[str, Any]:
        """An error object, these fields being those of OpenAI's; the message is `gossip`."""
        return self.form.error(self.gossip, status, fields)

    def error_event(self, **fields: Any) -> bytes:
        """An event with such an error."""
        return self.form.error_event(self.gossip, fields)


def _members(request: Request) -> dict[str, Any]:
    if request.headers.get("content-type", "").startswith("multipart/"):
        fields = re.findall(rb'name="(\w+)"\r\n\r\n([^\r]*)\r\n', request.body)
        return {name.decode(): value.decode() for name, value in fields}
    try:
        asked = request.json
    except ValueError:
        return {}
    return asked if isinstance(asked, dict) else {}


def ask_of(kind: Kind, request: Request) -> Ask:
    """What this request asks for."""
    return Ask(kind, user_of(kind.form, _members(request)), request)


AskBehaviour = Callable[[Ask, Wire], Awaitable[None]]
Says = Callable[[Ask], bytes]
When = Literal["request", "connection", "nobody", "full"]


@dataclass(frozen=True, slots=True)
class Fault:
    """One named misbehaviour."""

    name: str
    misbehaviour: AskBehaviour
    kinds: tuple[Kind, ...] = KINDS
    """What it can be asked for."""
    stage: When = "request"
    """When the fault occurs: at a request; at the connection (the `Wire` then has an empty request); the port does not
    listen; the port listens but never accepts."""
    is_primed: bool = False
    """Shows only on a connection that has been used before: make a call that is answered well first."""

    def __str__(self) -> str:
        return self.name

    def behaviour(self, kind: Kind) -> Behaviour:
        """For `Scripted`, which answers this kind of request."""

        async def behave(wire: Wire) -> None:
            await self.misbehaviour(ask_of(kind, wire.request), wire)

        return behave


def good(kind: Kind) -> Behaviour:
    """Answers well, for `Scripted`."""
    return Fault("good", says(lambda ask: ask.good)).behaviour(kind)


# ------------------------------------------------------------------------------------------------------ how they end


async def stay(wire: Wire) -> None:
    """Wait for the next request."""


async def close(wire: Wire) -> None:
    """Hang up politely: FIN behind the last byte."""
    wire.close()


async def reset(wire: Wire) -> None:
    """Hang up rudely. RST takes what the peer has not read yet with it, so there is time to read."""
    await asyncio.sleep(0.1)
    wire.reset()


async def stall(wire: Wire) -> None:
    """Say nothing more, until the peer hangs up."""
    await wire.until_gone()


async def deaf(wire: Wire) -> None:
    """Not even read."""
    await asyncio.Event().wait()


def says(say: Says, then: Behaviour = stay) -> AskBehaviour:
    """Write these bytes at once, then end like this."""

    async def misbehave(ask: Ask, wire: Wire) -> None:
        await wire.write(say(ask))
        await then(wire)

    return misbehave


def trickles(say: Callable[[Ask], Iterator[bytes]], delay_s: float, then: Behaviour = stay) -> AskBehaviour:
    """Write piece by piece; the pieces may go on for ever, the writing ends when the peer hangs up."""

    async def misbehave(ask: Ask, wire: Wire) -> None:
        for piece in say(ask):
            if wire.writer.is_closing() or wire.reader.at_eof():
                return
            await wire.write(piece)
            await asyncio.sleep(delay_s)
        await then(wire)

    return misbehave


def for_ever(first: Says, again: Says) -> Callable[[Ask], Iterator[bytes]]:
    def pieces(ask: Ask) -> Iterator[bytes]:
        yield first(ask)
        while True:
            yield again(ask)

    return pieces


def _json(status: str, value: Any) -> bytes:
    body = json.dumps(value).encode()
    return f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def _page(status: str) -> bytes:
    body = b"<html><head><title>nginx</title></head><body>scripted</body></html>"
    return f"HTTP/1.1 {status}\r\nContent-Type: text/html\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


# ----------------------------------------------------------------------------------------------------------- the rows

FAULTS: list[Fault] = []


def add(name: str, misbehaviour: AskBehaviour, **more: Any) -> None:
    FAULTS.append(Fault(name, misbehaviour, **more))


def row(name: str, say: Says, then: Behaviour = stay, **more: Any) -> None:
    add(name, says(say, then), **more)


async def _nothing(ask: Ask, wire: Wire) -> None:
    pass


# No connection.
add("refused", _nothing, stage="nobody")
if sys.platform == "linux":  # other systems report a full queue differently
    add("never accepted", _nothing, stage="full")
row("accepts and closes", lambda ask: b"", close, stage="connection")
row("accepts and resets", lambda ask: b"", reset, stage="connection")
row("accepts and does not read", lambda ask: b"", deaf, stage="connection")
row("greets like a mail server", lambda ask: b"220 mail.example.com ESMTP ready\r\n", stall, stage="connection")
row("closes without an answer", lambda ask: b"", close)
row("resets without an answer", lambda ask: b"", reset)
row("silent", lambda ask: b"", stall)

# Broken off, at every place and in every way.
_HALVES: dict[str, tuple[Says, tuple[Kind, ...]]] = {
    "in the status line": (lambda ask: b"HTTP/1.1 20", KINDS),
    "in the head": (lambda ask: ask.head()[:-9], KINDS),
    "after the head, with a length": (lambda ask: ask.head(f"Content-Length: {len(ask.body)}"), KINDS),
    "after the head, in chunks": (lambda ask: ask.chunked_head, KINDS),
    "in the body, with a length": (lambda ask: ask.sized(ask.body)[: -len(ask.body) // 2], KINDS),
    "in the body, in a chunk": (
        lambda ask: ask.chunked_head + chunk(ask.body)[: len(ask.body) // 2], KINDS
    ),
    "in a chunk size": (lambda ask: ask.chunked_head + chunk(ask.parts[0]) + b"1", KINDS),
    "before the last chunk": (lambda ask: ask.good[: -len(LAST_CHUNK)], STREAMED),
    "before the last chunk of JSON": (lambda ask: ask.chunked(ask.parts)[: -len(LAST_CHUNK)], PLAIN),
    "between two events": (lambda ask: ask.chunked_head + b"".join(map(chunk, ask.parts[:2])), STREAMED),
    "in the first event": (lambda ask: ask.chunked_head + chunk(ask.parts[0][:-20]), STREAMED),
    "in an event": (
        lambda ask: ask.chunked_head + chunk(ask.parts[0]) + chunk(ask.parts[1][:-20]), STREAMED
    ),
    "after a false DONE": (lambda ask: ask.chunked_head + chunk(ask.parts[0]) + chunk(ask.done), STREAMED),
    "after the finish_reason": (lambda ask: ask.chunked_head + b"".join(map(chunk, ask.finished)), STREAMED),
    "after the usage": (lambda ask: ask.chunked_head + b"".join(map(chunk, ask.counted)), WITH_USAGE_EVENT),
}  # fmt: skip
for _where, (_say, _kinds) in _HALVES.items():
    row(f"closed {_where}", _say, close, kinds=_kinds)
    row(f"reset {_where}", _say, reset, kinds=_kinds)
    row(f"stalled {_where}", _say, stall, kinds=_kinds)

# Slow.
add(
    "a head without end, byte by byte",
    trickles(for_ever(lambda ask: b"HTTP/1.1 200 OK\r\nX-Slow: ", lambda ask: b"z"), 0.02),
)
add("every byte by itself", trickles(lambda ask: (bytes([byte]) for byte in ask.good), 0))
add(
    "nothing but comments",
    trickles(for_ever(lambda ask: ask.chunked_head, lambda ask: chunk(b": PING\n\n")), 0.05), kinds=STREAMED,
)  # fmt: skip
add(
    "nothing but comments after an event",
    trickles(
        for_ever(lambda ask: ask.chunked_head + chunk(ask.parts[0]), lambda ask: chunk(b": PING\n\n")), 0.05
    ),
    kinds=STREAMED,
)  # fmt: skip
add(
    "comments between events",
    trickles(
        lambda ask: iter([ask.chunked_head, *(chunk(b": PING\n\n" + part) for part in ask.parts), LAST_CHUNK]), 0.02
    ),
    kinds=STREAMED,
)  # fmt: skip
add(
    "blank lines before the JSON",
    trickles(lambda ask: iter([ask.chunked_head, *[chunk(b"\n")] * 5, chunk(ask.body), LAST_CHUNK]), 0.02), kinds=PLAIN,
)  # fmt: skip
add(
    "blank lines for ever", trickles(for_ever(lambda ask: ask.chunked_head, lambda ask: chunk(b"\n")), 0.05),
    kinds=PLAIN,
)  # fmt: skip

# Too much.
add(
    "an endless body",
    trickles(for_ever(lambda ask: ask.chunked_head + chunk(b'{"x": "'), lambda ask: chunk(b"x" * 8192)), 0),
    kinds=PLAIN,
)
add(
    "an endless stream",
    trickles(for_ever(lambda ask: ask.chunked_head, lambda ask: chunk(ask.form.event(ask.piece("more ")))), 0.01),
    kinds=STREAMED,
)
row("a body that is too long", lambda ask: ask.sized(json.dumps({"x": "x" * 300_000}).encode()), kinds=PLAIN)
row(
    "a body announced as too long",
    lambda ask: ask.head("Content-Length: 99999999999") + b'{"x": "', stall, kinds=PLAIN,
)  # fmt: skip
row("one header too long", lambda ask: ask.head("X-Long: " + "x" * LONG, "Content-Length: 2") + b"{}")
row("a header without end", lambda ask: b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * LONG, stall)
row("thousands of headers", lambda ask: ask.head(*[f"X-{n}: {n}" for n in range(6000)], "Content-Length: 2") + b"{}")
row("a thousand headers", lambda ask: ask.good.replace(b"\r\n", b"\r\n" + b"X-Many: y\r\n" * 1000, 1))
row("a chunk extension without end", lambda ask: ask.chunked_head + b"1;x=" + b"y" * LONG, stall)
row(
    "long chunk extensions",
    lambda ask: (
        ask.chunked_head
        + b"".join(b"%x;%s\r\n%s\r\n" % (len(part), b"x=y;" * 100 + b"z", part) for part in ask.parts)
        + LAST_CHUNK
    ),
)
row("a flood of chunk extensions", lambda ask: ask.chunked_head + b"1;x=y" + b";x=y" * (LONG // 4) + b"\r\n")
row("trailers", lambda ask: ask.good_in_chunks[:-2] + b"X-Sum: 12\r\nX-More: yes\r\n\r\n")
row("trailers without end", lambda ask: ask.good_in_chunks[:-2] + b"X-Sum: 12\r\n" * (LONG // 5), stall)

# Interim answers.
_INTERIM = (
    b"HTTP/1.1 100 Continue\r\n\r\n",
    b"HTTP/1.1 102 Processing\r\n\r\n",
    b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n",
)
row("early hints", lambda ask: _INTERIM[2] + ask.good)
row("a hundred interim answers", lambda ask: b"".join(_INTERIM[n % 3] for n in range(100)) + ask.good)
row("a flood of interim answers", lambda ask: b"".join(_INTERIM) * 5000 + ask.good)
add("interim answers for ever", trickles(for_ever(lambda ask: b"", lambda ask: _INTERIM[1]), 0.02))
row("an interim answer with a body", lambda ask: b"HTTP/1.1 103 X\r\nContent-Length: 2\r\n\r\n{}" + ask.good)
row("an interim answer, then closed", lambda ask: _INTERIM[0], close)
row(
    "101",
    lambda ask: b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n\x81\x02{}",
)
row("offers an upgrade", lambda ask: ask.sized(ask.body, "Upgrade: h2c", "Connection: Upgrade"))

# Not HTTP, or hardly.
row("HTTP/2 frames", lambda ask: b"\0\0\x12\4\0\0\0\0\0\0\3\0\0\0\x80\0\4\0\1\0\0\0\5\0\xff\xff\xff", stall)
row("a TLS alert", lambda ask: b"\x15\3\1\0\2\2\x28", close)
row("an SSH banner", lambda ask: b"SSH-2.0-OpenSSH_9.6\r\n", stall)
row("every byte there is", lambda ask: bytes(range(256)) * 16, stall)
row("a page without a head", lambda ask: b"<html>It works!</html>\n", close)
row("HTTP/2.0 in the status line", lambda ask: ask.good.replace(b"HTTP/1.1", b"HTTP/2.0", 1))
row("HTTP/9.9 in the status line", lambda ask: ask.good.replace(b"HTTP/1.1", b"HTTP/9.9", 1))
row("ICY in the status line", lambda ask: ask.good.replace(b"HTTP/1.1", b"ICY", 1))
row("no status in the status line", lambda ask: ask.good.replace(b"HTTP/1.1 200 OK", b"HTTP/1.1 fine", 1))
row("status 000", lambda ask: ask.good.replace(b" 200 OK", b" 000 OK", 1))
row("a line break before the status line", lambda ask: b"\r\n" + ask.good)
row("a header without a colon", lambda ask: ask.good.replace(b"\r\n", b"\r\nno colon here\r\n", 1))
row("a folded header", lambda ask: ask.good.replace(b"\r\n", b"\r\nX-Folded: a\r\n b\r\n", 1))
row("NUL in a header", lambda ask: ask.good.replace(b"\r\n", b"\r\nX-Nul: a\0b\r\n", 1))
row("a space before the colon", lambda ask: ask.good.replace(b"\r\n", b"\r\nX-Space : a\r\n", 1))
row("bytes beyond ASCII in a header", lambda ask: ask.good.replace(b"\r\n", b"\r\nX-Odd: \xe2\x98\x83 \xff\r\n", 1))

# HTTP/1.0, and bodies that end with the connection.
row("HTTP/1.0, until it closes", lambda ask: ask.head(status="HTTP/1.0 200 OK") + ask.body, close)
row("HTTP/1.1, until it closes", lambda ask: ask.head() + ask.body, close)
row(
    "HTTP/1.0 that stays",
    lambda ask: ask.sized(ask.body, "Connection: keep-alive", status="HTTP/1.0 200 OK"),
)
row("says close and stays", lambda ask: ask.sized(ask.body, "Connection: close"))
row("until it closes, cut", lambda ask: ask.head() + ask.body[: len(ask.body) // 2], close)
row("until it closes, reset", lambda ask: ask.head() + ask.body[: len(ask.body) // 2], reset)
row("until it closes, stalled", lambda ask: ask.head() + ask.body[: len(ask.body) // 2], stall)

# Framing that contradicts itself.
row("two lengths that differ", lambda ask: ask.sized(ask.body, "Content-Length: 5"))
row("two lengths that agree", lambda ask: ask.sized(ask.body, f"Content-Length: {len(ask.body)}"))
row("a length and chunks", lambda ask: ask.chunked(ask.parts, "Content-Length: 5"))
row("a length that is negative", lambda ask: ask.head("Content-Length: -1") + ask.body)
row("a length beyond all numbers", lambda ask: ask.head("Content-Length: " + "9" * 40) + ask.body)
row("a length that is no number", lambda ask: ask.head("Content-Length: 0x10") + ask.body)
row("a length that is too short", lambda ask: ask.head(f"Content-Length: {len(ask.body) // 2}") + ask.body)
row("a length that is too long, closed", lambda ask: ask.head(f"Content-Length: {len(ask.body) + 9}") + ask.body, close)
row(
    "a length that is too long, stalled", lambda ask: ask.head(f"Content-Length: {len(ask.body) + 9}") + ask.body, stall
)
row(
    "a transfer coding nobody knows",
    lambda ask: ask.head("Transfer-Encoding: gzip, chunked") + chunk(ask.body) + LAST_CHUNK,
)
row("a chunk size that is no number", lambda ask: ask.chunked_head + chunk(ask.parts[0]) + b"zz\r\n")
row("a chunk size that is negative", lambda ask: ask.chunked_head + chunk(ask.parts[0]) + b"-5\r\nhello\r\n")
row(
    "a chunk size beyond all numbers",
    lambda ask: ask.chunked_head + chunk(ask.parts[0]) + b"f" * 20 + b"\r\n" + POISON.encode(),
)
row("a chunk longer than it says", lambda ask: ask.chunked_head + chunk(ask.parts[0]) + b"2\r\nhello\r\n" + LAST_CHUNK)
row(
    "an empty chunk too early",
    lambda ask: ask.chunked_head + chunk(ask.parts[0]) + LAST_CHUNK + chunk(ask.parts[1]) + LAST_CHUNK,
)

# More than was asked for, and connections that have been used before.
_SURPLUS = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 33\r\n\r\n" + b'"%s"' % POISON.encode()
)
row("a surplus answer", lambda ask: ask.good + _SURPLUS)
row("half a surplus answer", lambda ask: ask.good + _SURPLUS[:-9])
row("surplus bytes", lambda ask: ask.good + b"\r\n" + POISON.encode())
row("a surplus line break", lambda ask: ask.good + b"\r\n")

row("closes behind the answer", lambda ask: ask.good, close)
row("resets behind the answer", lambda ask: ask.good, reset)


def _used_again(misbehave: AskBehaviour) -> AskBehaviour:
    """Good on a new connection, and this on one that has served a call."""

    async def choose(ask: Ask, wire: Wire) -> None:
        if wire.request.turn == 0:
            await wire.write(ask.good)
        else:
            await misbehave(ask, wire)

    return choose


add("used again, closes", _used_again(says(lambda ask: b"", close)), is_primed=True)
add("used again, resets", _used_again(says(lambda ask: b"", reset)), is_primed=True)
add("used again, silent", _used_again(says(lambda ask: b"", stall)), is_primed=True)
add("used again, closes in the status line", _used_again(says(lambda ask: b"HTTP/1.1 2", close)), is_primed=True)


# Errors that say what they are.
def error(name: str, status: int, *lines: str, **fields: Any) -> None:
    """A row: an error object with its status."""

    def say(ask: Ask) -> bytes:
        body = json.dumps(ask.error(status, **fields)).encode()
        head = [f"HTTP/1.1 {status} Said", "Content-Type: application/json", *lines, f"Content-Length: {len(body)}"]
        return "\r\n".join([*head, "", ""]).encode() + body

    row(name, say)


def dated(status: int) -> None:
    """A row: a Retry-After with the date of a moment to come."""

    def say(ask: Ask) -> bytes:
        date = email.utils.formatdate(time.time() + RETRY_S, usegmt=True)
        return f"HTTP/1.1 {status} Said\r\nRetry-After: {date}\r\nContent-Length: 0\r\n\r\n".encode()

    row(f"{status} with a date", say)


for _status in (429, 500, 502, 503, 504, 529):
    error(f"{_status}", _status)
    error(f"{_status} with Retry-After", _status, "Retry-After: 7")
for _status in (429, 503):
    error(f"{_status} with Retry-After-Ms", _status, "Retry-After-Ms: 1500", "Retry-After: 9")
    error(f"{_status} with a past date", _status, "Retry-After: Fri, 20 Nov 2020 20:00:00 GMT")
    dated(_status)
    error(f"{_status} with a garbled Retry-After", _status, "Retry-After: soon", "Retry-After-Ms: ?")
    error(f"{_status} with Retry-After 0", _status, "Retry-After: 0")
    error(f"{_status} with an endless Retry-After", _status, "Retry-After: " + "9" * 400)
error("401", 401, code="invalid_api_key", type="invalid_request_error")
error("402", 402)
error("403", 403)
error("403 of a spent balance", 403, code="insufficient_user_quota", type="new_api_error")
error("429 of a spent balance", 429, code="insufficient_quota", type="insufficient_quota")
for _status in (400, 404, 413, 422):
    error(f"{_status}", _status, code="some_code", type="invalid_request_error", param="")
error("400 that means the credential", 400, code="invalid_api_key", type="invalid_request_error")
error("500 that means the request", 500, code="invalid_request", type="new_api_error")
error("408", 408)
error("409", 409)
error("418", 418)
error("status 299", 299)
error("status 600", 600)
error("status 999", 999)
row("400 without a body", lambda ask: b"HTTP/1.1 400 Bad\r\nContent-Length: 0\r\n\r\n")
row("429 without a body", lambda ask: b"HTTP/1.1 429 Wait\r\nContent-Length: 0\r\n\r\n")
row("400 with a page", lambda ask: _page("400 Bad Request"))
row("400 with another kind of error", lambda ask: _json("400 Bad", {"detail": ask.gossip}))
row("400 with only a text", lambda ask: _json("400 Bad", {"error": ask.gossip}))
row(
    "400 with odd members",
    lambda ask: _json("400 Bad", {"error": {"message": ["x"], "param": 7, "code": {}, "type": 1.5}}),
)
row("429 cut in its body", lambda ask: b"HTTP/1.1 429 Wait\r\nRetry-After: 7\r\nContent-Length: 99\r\n\r\n{", close)
row("500 stalled in its body", lambda ask: b"HTTP/1.1 500 Oops\r\nContent-Length: 99\r\n\r\n{", stall)
row("500 until it closes", lambda ask: b"HTTP/1.1 500 Oops\r\n\r\nTraceback: no", close)
row("503 as a stream", lambda ask: ask.chunked([ask.error_event()]).replace(b"200 OK", b"503 No", 1))


# Answers of another kind than was asked for.
row("a page with 200", lambda ask: _page("200 OK"))
row("a page with 502", lambda ask: _page("502 Bad Gateway"))
row("a page with 503", lambda ask: _page("503 Service Unavailable"))
row("nothing with 200", lambda ask: ask.sized(b""))
row("no chunks with 200", lambda ask: ask.chunked([]))
row("nothing until it closes", lambda ask: ask.head(), close)
row("204", lambda ask: b"HTTP/1.1 204 No Content\r\n\r\n")
row("205", lambda ask: b"HTTP/1.1 205 Reset Content\r\nContent-Length: 0\r\n\r\n")
row("206", lambda ask: ask.sized(ask.body[:40], "Content-Range: bytes 0-39/100", status="HTTP/1.1 206 Partial Content"))
row("304", lambda ask: b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n")
for _status in (301, 302, 303, 307, 308):
    error(f"{_status}", _status, "Location: http://127.0.0.1:1/v1")
row("302 without a Location", lambda ask: b"HTTP/1.1 302 Elsewhere\r\nContent-Length: 0\r\n\r\n")
row("gzip", lambda ask: ask.sized(gzip.compress(ask.body), "Content-Encoding: gzip"))
row("deflate", lambda ask: ask.sized(zlib.compress(ask.body), "Content-Encoding: deflate"))
row(
    "deflate without a header",
    lambda ask: ask.sized(zlib.compress(ask.body)[2:-4], "Content-Encoding: Deflate"),
)
row("an unknown content encoding", lambda ask: ask.sized(gzip.compress(ask.body), "Content-Encoding: x-none"))
row("gzip that is none", lambda ask: ask.sized(ask.body, "Content-Encoding: gzip"))
row(
    "half of a gzip",
    lambda ask: ask.sized(gzip.compress(ask.body)[: len(gzip.compress(ask.body)) // 2], "Content-Encoding: gzip"),
)
row("gzip in chunks, not said", lambda ask: ask.chunked([gzip.compress(ask.body)]))
row("JSON for a stream", lambda ask: Ask(Kind(ask.kind.endpoint, False), ask.user).good, kinds=STREAMED)
row("an error as JSON for a stream", lambda ask: _json("200 OK", ask.error()), kinds=STREAMED)
row("a stream for a plain call", lambda ask: Ask(Kind(ask.kind.endpoint, True), ask.user).good, kinds=PLAIN)
row(
    "events said to be JSON", lambda ask: ask.good.replace(b"text/event-stream", b"application/json", 1), kinds=STREAMED
)
row(
    "events said to be nothing",
    lambda ask: ask.good.replace(b"Content-Type: text/event-stream\r\n", b"", 1),
    kinds=STREAMED,
)
row(
    "events in capitals, with a charset",
    lambda ask: ask.good.replace(b"text/event-stream", b"Text/Event-Stream; Charset=UTF-8", 1),
    kinds=STREAMED,
)
row("JSON said to be text", lambda ask: ask.good.replace(b"application/json", b"text/plain", 1), kinds=PLAIN)
row("JSON said to be nothing", lambda ask: ask.good.replace(b"Content-Type: application/json\r\n", b"", 1), kinds=PLAIN)

# JSON that is none.
_BODIES: dict[str, Says] = {
    "words": lambda ask: b"upstream overloaded, sorry",
    "JSON cut in half": lambda ask: ask.body[: len(ask.body) // 2],
    "JSON without its last byte": lambda ask: ask.body[:-1],
    "JSON and then some": lambda ask: ask.body + b"}",
    "two JSON texts": lambda ask: ask.body * 2,
    "NaN in JSON": lambda ask: ask.body.replace(b": null", b": NaN", 1),
    "Infinity in JSON": lambda ask: re.sub(rb'": \d+', b'": -Infinity', ask.body, count=1),
    "a comma too many": lambda ask: ask.body[:-1] + b",}",
    "bytes that are not UTF-8": lambda ask: ask.body.replace(b" hello", b"\xff\xfe hello", 1),
    "UTF-16": lambda ask: ask.body.decode().encode("utf-16"),
    "a byte order mark": lambda ask: b"\xef\xbb\xbf" + ask.body,
    "an array": lambda ask: b"[" + ask.body + b"]",
    "an empty array": lambda ask: b"[]",
    "a number": lambda ask: b"7",
    "a string": lambda ask: b'"hello"',
    "null": lambda ask: b"null",
    "true": lambda ask: b"true",
    "blanks": lambda ask: b" \r\n\t ",
    "brackets without end": lambda ask: b'{"x":' + b"[" * 20_000,
    "brackets too deep": lambda ask: b'{"x":' + b"[" * 20_000 + b"]" * 20_000 + b"}",
}


def sized(name: str, body: Says) -> None:
    """A row: a plain answer with true framing and this body."""
    row(name, lambda ask: ask.sized(body(ask)), kinds=PLAIN)


for _name, _body in _BODIES.items():
    sized(_name, _body)

# Errors inside a 200.
_IN_BAND: dict[str, dict[str, Any]] = {
    "an error": {"type": "server_error"},
    "an error with a status as its code": {"code": 502},
    "a spent balance": {"code": "insufficient_user_quota", "type": "new_api_error"},
    "a refused credential": {"code": "invalid_api_key"},
    "a rate limit": {"code": "rate_limit_exceeded"},
    "the client's fault": {"type": "invalid_request_error", "code": "some_code", "param": ""},
}


def in_band(name: str, fields: dict[str, Any]) -> None:
    """Three rows: an error as the body of a 200, as the first event of a stream, and as a later one."""

    def later(ask: Ask) -> bytes:
        return ask.chunked([*ask.parts[:2], ask.error_event(**fields), *ask.parts[2:]])

    row(f"{name} in a 200", lambda ask: _json("200 OK", ask.error(**fields)), kinds=PLAIN)
    row(f"{name} as the first event", lambda ask: ask.chunked([ask.error_event(**fields)]), kinds=STREAMED)
    row(f"{name} as a later event", later, kinds=STREAMED)


for _name, _fields in _IN_BAND.items():
    in_band(_name, _fields)
row("an error in a 200 that is only a text", lambda ask: _json("200 OK", {"error": ask.gossip}), kinds=PLAIN)
row("an error in a 200 beside an answer", lambda ask: _json("200 OK", {**ask.document, **ask.error()}), kinds=PLAIN)
row(
    "an event with an error that is only a text",
    lambda ask: ask.chunked([ask.parts[0], event({"error": ask.gossip}), ask.done]),
    kinds=STREAMED,
)
row(
    "an event named error",
    lambda ask: ask.chunked([ask.parts[0], b"event: error\n" + event({"type": "error"} | ask.error()), ask.done]),
    kinds=STREAMED,
)
row(
    "an error behind the finish_reason",
    lambda ask: ask.chunked([*ask.finished, ask.error_event(), ask.done]),
    kinds=STREAMED,
)
row("an error behind DONE", lambda ask: ask.chunked([*ask.parts, ask.error_event()]), kinds=STREAMED)
row(
    "an error, then closed",
    lambda ask: ask.chunked_head + chunk(ask.parts[0]) + chunk(ask.error_event()),
    close,
    kinds=STREAMED,
)
row(
    "an error, then stalled",
    lambda ask: ask.chunked_head + chunk(ask.parts[0]) + chunk(ask.error_event()),
    stall,
    kinds=STREAMED,
)


# Streams that end oddly, or are written oddly.
def streamed(name: str, parts: Callable[[Ask], list[bytes]], kinds: tuple[Kind, ...] = STREAMED) -> None:
    """A row: a stream with true framing."""
    row(name, lambda ask: ask.chunked(parts(ask)), kinds=kinds)


streamed("DONE without a finish_reason", lambda ask: [*ask.parts[:2], ask.done])
streamed("only DONE", lambda ask: [ask.done])
streamed("only a comment", lambda ask: [b": PING\n\n"])
streamed("only the usage", lambda ask: [ask.usage_event, ask.done], WITH_USAGE_EVENT)
streamed("an empty finish_reason", lambda ask: [event(ask.piece("x", "")), DONE], WITH_USAGE_EVENT)
streamed("an end without a finish_reason", lambda ask: ask.parts[:2])
streamed("an end without DONE", lambda ask: ask.counted)
streamed("an end inside an event", lambda ask: [ask.parts[0], ask.parts[1][:-20]])
streamed("an end inside the finish_reason", lambda ask: [*ask.unfinished, ask.finish[:-20]])
streamed("DONE without its blank line", lambda ask: [*ask.counted, ask.done[:-2]])
streamed("DONE without a line end", lambda ask: [*ask.counted[:-1], ask.counted[-1] + ask.done[:-2]])
streamed("a finish_reason without its blank line", lambda ask: [*ask.unfinished, ask.finish[:-2]])
streamed(
    "bytes behind DONE",
    lambda ask: [*ask.parts, ask.form.event(ask.piece(POISON)), b"x" * 1000, ask.done],
    WITH_LAST_EVENT,
)
streamed("DONE twice", lambda ask: [*ask.parts, ask.done])
streamed("CRLF", lambda ask: [part.replace(b"\n", b"\r\n") for part in ask.parts])
streamed("bare CR", lambda ask: [part.replace(b"\n", b"\r") for part in ask.parts])
streamed("no space behind the colon", lambda ask: [part.replace(b"data: ", b"data:") for part in ask.parts])
streamed(
    "ids, retries and named events",
    lambda ask: [b"retry: 10\n\n", *(b"id: 7\n" + p for p in ask.parts), b"event: bye\n\n"],
)
streamed("a chunk for every byte", lambda ask: [bytes([byte]) for part in ask.parts for byte in part])
streamed("everything in one chunk", lambda ask: [b"".join(ask.parts)])
streamed("an event that is not JSON", lambda ask: [ask.parts[0], b"data: {oops\n\n", *ask.parts[1:]])
streamed("a page as events", lambda ask: [b"<html>\n\n<body>It works!</body>\n\n</html>\n\n"])
streamed("an answer as one event", lambda ask: [event(ask.form.document(ask.text)), ask.done])
row("a stream with a length", lambda ask: ask.sized(ask.body), kinds=STREAMED)
row("DONE, then stalled", lambda ask: ask.chunked_head + b"".join(map(chunk, ask.parts)), stall, kinds=STREAMED)
row(
    "DONE, then bytes for ever",
    lambda ask: ask.chunked_head + b"".join(map(chunk, ask.parts)) + chunk(ask.form.event(ask.piece(POISON))) * 1000,
    stall,
    kinds=WITH_LAST_EVENT,
)
row(
    "DONE, then a bad chunk", lambda ask: ask.chunked_head + b"".join(map(chunk, ask.parts)) + b"zz\r\n", kinds=STREAMED
)


def _boastful(ask: Ask) -> bytes:
    lines = ["Server: " + ask.gossip, "X-Request-Id: up-1", "Set-Cookie: a=b", "X-Gateway-Upstream: " + ask.gossip]
    lines += ["X-RateLimit-Limit-Requests: 1", "X-Should-Retry: false", "Retry-After: 9", "Via: " + ask.gossip]
    return ask.good.replace(b"\r\n", "\r\n".join(["", *lines, ""]).encode(), 1)


row("many words in its headers", _boastful)


# ---------------------------------------------------------------------------------------------------- where they play


@dataclass
class _Loner:
    """An address of its own, for a row that misbehaves before a request is read."""

    fault: Fault
    kind: Kind
    stack: ExitStack
    sock: socket.socket = field(init=False)
    server: Scripted | None = None

    def __post_init__(self) -> None:
        self.sock = self.stack.enter_context(socket.socket())
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.sock.bind(("127.0.0.1", 0))
        self.port = int(self.sock.getsockname()[1])
        if self.fault.stage == "connection":
            self._serve(self.fault.behaviour(self.kind))
        elif self.fault.stage == "full":
            self.sock.listen(0)
            for _ in range(2):  # Linux takes one more than the backlog says
                filler = self.stack.enter_context(socket.socket())
                filler.setblocking(False)
                filler.connect_ex(("127.0.0.1", self.port))

    def _serve(self, greeting: Behaviour | None) -> None:
        self.server = Scripted(always=good(self.kind), greeting=greeting, sock=self.sock)
        self.stack.enter_context(self.server)

    def heal(self) -> None:
        if self.server is None:
            self._serve(None)
        else:
            self.server.greeting = None


class FaultyUpstreams:
    """All rows at once, each for each kind at an address of its own, misbehaving until it is healed. To be entered."""

    def __init__(self, faults: Iterable[Fault] = FAULTS) -> None:
        self._faults = list(faults)
        self._rows: dict[str, tuple[Fault, Kind, Behaviour, Behaviour]] = {}
        self._paths: dict[tuple[str, Kind], str] = {}
        self._loners: dict[tuple[str, Kind], _Loner] = {}
        self._healed: set[str] = set()
        self._stack = ExitStack()
        self.server = Scripted(always=self._answer)
        for number, fault in enumerate(self._faults):
            for kind in fault.kinds:
                path = f"/{number}/{kind}"
                self._paths[fault.name, kind] = path
                self._rows[path] = (fault, kind, fault.behaviour(kind), good(kind))

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self.server)
            for fault in self._faults:
                if fault.stage != "request":
                    for kind in fault.kinds:
                        self._loners[fault.name, kind] = _Loner(fault, kind, stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def url(self, fault: Fault, kind: Kind) -> str:
        """The base_url at which this row plays for this kind."""
        loner = self._loners.get((fault.name, kind))
        port = loner.port if loner is not None else self.server.port
        return f"http://127.0.0.1:{port}{self._paths[fault.name, kind]}/v1"

    def heal(self, fault: Fault, kind: Kind) -> None:
        """From the next request (or connection) on, all is well there."""
        self._healed.add(self._paths[fault.name, kind])
        loner = self._loners.get((fault.name, kind))
        if loner is not None:
            loner.heal()

    async def _answer(self, wire: Wire) -> None:
        path = wire.request.path.rpartition("/v1/")[0]
        _, _, misbehave, behave = self._rows[path]
        await (behave if path in self._healed else misbehave)(wire)
