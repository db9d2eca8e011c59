"""One HTTP/1.1 connection to an upstream: bytes in, head and body out, to a callback.

Theory of operation. A connection carries one exchange at a time: `send` writes a request and names the `Receiver` of
the answer, which then hears of the head, of each piece of body and of the end inside the reading callback itself:
there is no queue, no future and no task between the socket and the relay. Back-pressure is `pause_reading`.

Where it stands is in `ConnectionState`; `_timer_fired` says which limit runs in which. Legal moves:

    CONNECTING -> HELD -> WAITING -> BODY | BODY_UNTIL_EOF -> DONE -> IDLE -> HELD ...      and from anywhere -> CLOSED

A connection is used again only after exact framing, because a byte too many would become the beginning of somebody
else's answer. httptools (llhttp) refuses Content-Length beside Transfer-Encoding, any second Content-Length, folded
headers and bare LF; what it lets through and we do not: answers that are not HTTP/1.x, 101, any transfer coding but
one chunked, a body after an interim answer, and line breaks between two messages. Answers whose framing is plain and
yet no good sign (chunks in HTTP/1.0, a 204 that announces a body) are taken, and their connection is not used again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import inf
from types import SimpleNamespace
from typing import Any, Protocol, cast

from httptools import HttpParserCallbackError, HttpParserError, HttpParserUpgrade, HttpResponseParser

from gateway.config import Timeouts
from gateway.records import Failure, Fault, Phase

log = logging.getLogger("gateway")

MAX_HEAD_BYTES = 65536
"""Of all heads of one answer together, interim ones included. nginx takes 4 to 8 KiB by default, aiohttp 8 KiB a line,
Go 1 MiB; an answer of OpenAI's behind a CDN has 1 to 2 KiB. Also the most framing between two body bytes, so that
trailers and chunk extensions are bounded too."""

READ_BUFFER_BYTES = 65536
"""Read at once. The buffer is shared by the connections of a pool, see `Connection`."""

STALE_S = 1.0
"""A reused connection that ends this soon after a request, without one byte, was already being closed when we wrote."""

TIMER_GRAIN_S = 0.002
"""A timer may fire this much early: uvloop's clock counts whole milliseconds."""

_H = 0x48


class ConnectionState(Enum):
    """Where a connection stands. The values are for people."""

    CONNECTING = "connecting"
    IDLE = "idle"
    """In the pool; any byte or EOF removes it."""
    HELD = "held"
    """Taken from the pool, nothing sent yet."""
    WAITING = "waiting"
    """Sent; the head of the answer is not complete."""
    BODY = "reading a body"
    BODY_UNTIL_EOF = "reading a body that ends with the connection"
    DONE = "done"
    """The whole answer is there, and the read that brought it may hold more: lasts for one callback only."""
    CLOSED = "closed"


# Asked for every piece of a stream, where looking a member up in its Enum takes longer than the question (Python 3.11).
_WAITING, _DONE, _CLOSED = ConnectionState.WAITING, ConnectionState.DONE, ConnectionState.CLOSED
_IN_BODY = frozenset({ConnectionState.BODY, ConnectionState.BODY_UNTIL_EOF})
_ANSWERING = _IN_BODY | {ConnectionState.WAITING, ConnectionState.DONE}


@dataclass(slots=True, unsafe_hash=True)
class Head:
    """Status and headers of an answer. Names are in lower case; values are decoded as latin-1, without loss."""

    status: int
    headers: tuple[tuple[str, str], ...]
    get: Callable[[str], str | None] = field(init=False, repr=False, compare=False)
    """The first value of a header, by its name in lower case."""

    def __post_init__(self) -> None:
        self.get = dict(reversed(self.headers)).get


class Receiver(Protocol):
    """Whoever takes an answer. Called in the reading callback itself: must not raise, must not wait.

    In order: `head_received` once, `body_received` any number of times, `ended` once; `ended` may come at any point
    and is the last. After `Connection.abort` nothing comes, not even `ended`.
    """

    def head_received(self, head: Head) -> None: ...

    def body_received(self, data: bytes) -> None: ...

    def ended(self, failure: Failure | None) -> None:
        """None: the whole message has arrived. The connection is no longer the receiver's: it must not be touched."""


class Owner(Protocol):
    """Whoever keeps connections: told of both ways in which a connection leaves an exchange."""

    def returned(self, connection: Connection) -> None:
        """It is idle and good for another exchange."""

    def left(self, connection: Connection) -> None:
        """It is closed, for whatever reason; said exactly once of a connection that was ever open."""


class _NotHTTP(Exception):
    """Raised inside a parser callback to stop the parser at something that llhttp would let through."""


def _line_bytes(header: tuple[bytes, bytes]) -> int:
    return len(header[0]) + len(header[1]) + 4  # with `: ` and CRLF


def _decode(raw: list[tuple[bytes, bytes]]) -> tuple[tuple[str, str], ...]:
    """All at once, since an answer may well have 25: llhttp lets no line feed through in a name or a value."""
    if not raw:
        return ()
    names = b"\n".join([name for name, _ in raw]).decode("latin-1").lower().split("\n")
    values = b"\n".join([value for _, value in raw]).decode("latin-1").split("\n")
    return tuple(zip(names, map(str.strip, values), strict=True))


class Connection(asyncio.BufferedProtocol):
    """One connection, used from one event loop. Made by a `Pool`, which hands it out for one exchange at a time.

    `buffer` may be shared by all connections of a loop: asyncio and uvloop, plain and TLS, ask for it, fill it and call
    `buffer_updated` with nothing in between, and nothing of it is kept afterwards (pieces of body are copies).
    """

    __slots__ = (
        "_active_at",
        "_buffer",
        "_connected_at",
        "_exchanges",
        "_expires_at",
        "_headers",
        "_interim_bytes",
        "_is_chunked",
        "_is_head",
        "_is_paused",
        "_loop",
        "_max_age_s",
        "_may_stay",
        "_name",
        "_owner",
        "_parser",
        "_peer",
        "_receiver",
        "_sent_at",
        "_state",
        "_timeouts",
        "_timer",
        "_timer_at",
        "_transport",
        "_unproductive",
        "_was_paused",
    )

    def __init__(self, name: str, owner: Owner, timeouts: Timeouts, max_age_s: float, buffer: memoryview) -> None:
        self._name = name
        self._owner = owner
        self._timeouts = timeouts
        self._max_age_s = max_age_s
        self._buffer = buffer
        self._loop = asyncio.get_running_loop()
        self._state = ConnectionState.CONNECTING
        self._transport: asyncio.Transport | None = None
        self._peer = ""
        self._receiver: Receiver | None = None
        self._headers: list[tuple[bytes, bytes]] = []
        self._interim_bytes = 0  # of the heads before the one that counts
        self._unproductive = 0  # bytes since the last body byte; since the send, as long as there is none
        self._is_chunked = False
        self._may_stay = False  # the answer allows another exchange, and nothing came after it
        self._is_head = False  # the request: its answer announces a body and has none
        self._is_paused = False
        self._was_paused = False  # in this exchange
        self._exchanges = 0
        self._connected_at = self._expires_at = self._sent_at = self._active_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf
        self._parser: Any = HttpResponseParser(
            SimpleNamespace(
                on_message_begin=self._message_begun,
                on_header=self._header_parsed,
                on_headers_complete=self._head_parsed,
                on_body=self._body_parsed,
                on_message_complete=self._message_parsed,
            )
        )

    def __repr__(self) -> str:
        now = self._loop.time()
        parts = [f"{self._name} {self._peer or 'nowhere yet'}", self._state.value]
        if self._receiver is not None:
            parts.append(f"exchange {self._exchanges + 1}, sent {now - self._sent_at:.1f} s ago")
            if self._state in _IN_BODY:
                parts.append(f"last byte {now - self._active_at:.1f} s ago")
        else:
            parts.append(f"{self._exchanges} exchanges")
        if self._is_paused:
            parts.append("paused")
        if self._connected_at:
            parts.append(f"{now - self._connected_at:.1f} s old")
        return f"<Connection {', '.join(parts)}>"

    # ------------------------------------------------------------------------------------------ for the exchange

    @property
    def is_fresh(self) -> bool:
        """Whether no exchange has ended on it yet."""
        return self._exchanges == 0

    @property
    def is_closed(self) -> bool:
        return self._state is ConnectionState.CLOSED

    def send(self, request: Sequence[bytes | memoryview], receiver: Receiver) -> None:
        """Begin one exchange; every time limit on the answer runs from here.

        Never calls the receiver before it returns: where the connection was lost since it was acquired, `ended` comes
        in a later turn of the loop.
        """
        state = self._state
        if state is ConnectionState.HELD and self._transport is not None and not self._transport.is_closing():
            self._receiver = receiver
            self._state = ConnectionState.WAITING
            self._unproductive = self._interim_bytes = 0
            self._may_stay = self._is_chunked = self._was_paused = False
            self._is_head = request[0][:5] == b"HEAD "
            now = self._sent_at = self._loop.time()
            limit_s = min(self._timeouts.head_s, self._timeouts.total_s)
            self._arm(now + limit_s)
            self._transport.writelines(request)
            return
        if state not in (ConnectionState.HELD, ConnectionState.CLOSED) or self._receiver is not None:
            raise RuntimeError(f"cannot send on {self!r}")
        self._leave()
        self._receiver = receiver
        self._loop.call_soon(self._report_unsent)

    def abort(self) -> None:
        """End the exchange because nobody is interested any more: closes at once, and the receiver hears nothing.

        For whoever acquired the connection, until `ended`. A connection that is idle again is left alone.
        """
        self._receiver = None
        if self._state is not ConnectionState.IDLE:
            self._leave()

    def pause_reading(self) -> None:
        """Take nothing more from the socket. What has been read already is still delivered (one buffer at most)."""
        if self._state in _ANSWERING and self._transport is not None and not self._is_paused:
            self._is_paused = self._was_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Go on reading. The time in between does not count as silence of the upstream."""
        if self._is_paused and self._transport is not None and self._state is not ConnectionState.CLOSED:
            self._is_paused = False
            self._transport.resume_reading()
            if self._state in _IN_BODY:
                self._active_at = self._loop.time()
                self._arm(self._active_at + self._timeouts.idle_s)

    # ---------------------------------------------------------------------------------------------- for the pool

    def hold(self) -> bool:
        """Take an idle connection out of the pool. False (and closed) when it is not good any more."""
        if self._state is ConnectionState.IDLE:
            if (
                self._transport is not None
                and not self._transport.is_closing()
                and self._loop.time() < self._expires_at
            ):
                self._state = ConnectionState.HELD
                return True
            self._leave()
        return False

    def release(self) -> None:
        """Give back a connection that was held and not used."""
        if self._state is ConnectionState.HELD:
            self._become_idle()

    def retire(self) -> None:
        """Close a connection that nobody uses."""
        if self._receiver is None:
            self._leave()

    # ------------------------------------------------------------------------------------------------- callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast(asyncio.Transport, transport)
        if self._state is ConnectionState.CLOSED:  # given up while the handshake was ending
            stream.abort()
            return
        self._transport = stream
        peer = transport.get_extra_info("peername")
        self._peer = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else str(peer)
        self._connected_at = self._loop.time()
        self._expires_at = self._connected_at + self._max_age_s
        self._state = ConnectionState.HELD

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._receiver is None or self._state is _CLOSED:
            # Idle, or held and nothing sent: nobody asked for these bytes. Closed: the rest of a read after an abort.
            self._leave()
            return
        buffer = self._buffer
        if self._state is _WAITING and not self._unproductive and buffer[0] != _H:
            # llhttp would take RTSP and ICE for HTTP, and skip line breaks.
            self._fail(Fault.PROTOCOL, "the answer does not begin with HTTP/")
            return
        self._unproductive += nbytes
        try:
            if buffer[nbytes - 1] in b"\r\n" and not (self._is_chunked and self._ends_with_event(nbytes)):
                # Between two messages llhttp swallows line breaks without a word, so that a surplus one could not be
                # seen. Fed apart, the last byte tells: when the message was over before it, it is one too many.
                if nbytes > 1:
                    self._parser.feed_data(buffer[: nbytes - 1])
                    if self._state is _DONE:
                        self._may_stay = False
                self._parser.feed_data(buffer[nbytes - 1 : nbytes])
            else:
                self._parser.feed_data(buffer[:nbytes])
        except (HttpParserError, HttpParserUpgrade) as error:
            self._parser_stopped(error)
        if self._state is _DONE:
            self._finish()
        elif self._state is _CLOSED:
            pass
        elif not self._unproductive:
            self._active_at = self._loop.time()
        elif self._unproductive > MAX_HEAD_BYTES:
            what = "the head is" if self._state is ConnectionState.WAITING else "between two body bytes there are"
            self._fail(Fault.PROTOCOL, f"{what} over {MAX_HEAD_BYTES} bytes")

    def _ends_with_event(self, nbytes: int) -> bool:
        """Whether the last line breaks are those of an event and of its chunk, and so no end of a chunked message.

        That would have the line breaks of its last, empty chunk and those behind it: CRLF CRLF.
        """
        end = bytes(self._buffer[max(0, nbytes - 5) : nbytes])
        return end.endswith(b"\n\n\r\n") and end[0] not in b"\r\n"

    def eof_received(self) -> None:
        # Returning None closes the transport: we never go on writing to somebody who has hung up.
        self._peer_gone(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._peer_gone(exc)
        self._parser = self._transport = None  # the parser holds our methods: without this, a cycle for the collector

    # --------------------------------------------------------------------------------------------- parser's calls

    def _message_begun(self) -> None:
        if self._state is ConnectionState.DONE:
            self._may_stay = False  # the first byte of something that we did not ask for

    def _header_parsed(self, name: bytes, value: bytes) -> None:
        if self._state is ConnectionState.WAITING:  # else a trailer, of which we promise nothing, or surplus
            self._headers.append((name, value))

    def _head_parsed(self) -> None:
        if self._state is not ConnectionState.WAITING:
            return
        raw = self._headers
        self._headers = []
        status: int = self._parser.get_status_code()
        version = self._parser.get_http_version()
        if version not in ("1.1", "1.0"):
            raise _NotHTTP(f"HTTP version {version}")
        if status < 100 or status == 101:
            raise _NotHTTP(f"status {status:03d}")
        # Counted only where it can be too much: this costs more than all the rest of a small head.
        if self._interim_bytes or self._unproductive > MAX_HEAD_BYTES or status < 200:
            size = self._interim_bytes + sum(map(_line_bytes, raw))
            if size > MAX_HEAD_BYTES:
                raise _NotHTTP(f"the head is over {MAX_HEAD_BYTES} bytes")
            if status < 200:
                self._interim_bytes = size
                return  # the head that counts is still to come, and the head limit goes on running
        headers = _decode(raw)
        head = Head(status, headers)
        codings = []
        if head.get("transfer-encoding") is not None:
            codings = [value.lower() for name, value in headers if name == "transfer-encoding"]
            if codings != ["chunked"]:
                raise _NotHTTP("a transfer coding other than chunked")
        has_length = bool(codings) or head.get("content-length") is not None
        is_empty = self._is_head or status in (204, 304)  # whatever it announces (RFC 9112, 6.3)
        # Who announces a body where there is none, or sends chunks in HTTP/1.0 (RFC 9112, 6.1), may have bytes left to
        # send that would begin the next answer.
        self._is_chunked = bool(codings)
        self._may_stay = has_length is not is_empty and not (codings and version == "1.0")
        self._state = ConnectionState.BODY if has_length or is_empty else ConnectionState.BODY_UNTIL_EOF
        if self._is_head:  # llhttp waits for the body and cannot be told: this connection ends here
            self._state, self._may_stay = ConnectionState.DONE, False
        now = self._active_at = self._loop.time()
        self._arm(now + self._timeouts.idle_s)
        if self._receiver is not None:
            self._receiver.head_received(head)

    def _body_parsed(self, data: bytes) -> None:
        if self._state is _WAITING:
            raise _NotHTTP("an interim answer with a body")
        self._unproductive = 0
        if self._receiver is not None and self._state is not _DONE:
            self._receiver.body_received(data)

    def _message_parsed(self) -> None:
        if self._state in _IN_BODY:  # in WAITING the end of an interim answer, in DONE of a surplus one
            self._may_stay = self._may_stay and self._parser.should_keep_alive()
            self._state = ConnectionState.DONE

    def _parser_stopped(self, error: Exception) -> None:
        cause = error.__context__ if isinstance(error, HttpParserCallbackError) else None
        if cause is not None and not isinstance(cause, _NotHTTP):
            log.error("the receiver of an answer raised, on %r", self, exc_info=cause)
            self._fail(Fault.CUT, "the answer could not be taken")
        elif self._state is _DONE:
            self._may_stay = False  # the answer itself was whole
        else:
            self._fail(Fault.PROTOCOL, str(cause or error))

    # ------------------------------------------------------------------------------------------------------ ends

    def _finish(self) -> None:
        """The answer is whole. Idle again only where nothing at all speaks against it."""
        receiver, self._receiver = self._receiver, None
        transport = self._transport
        if (
            self._may_stay
            and transport is not None
            and not transport.is_closing()
            and not transport.get_write_buffer_size()  # answered before it had read the request
            and self._loop.time() < self._expires_at
        ):
            self._exchanges += 1
            self._become_idle()
        else:
            self._leave()
        if receiver is not None:
            receiver.ended(None)

    def _become_idle(self) -> None:
        self._state = ConnectionState.IDLE
        self.resume_reading()  # an idle connection has to hear of its end
        self._arm(self._expires_at)
        self._owner.returned(self)

    def _fail(self, fault: Fault, detail: str, phase: Phase = Phase.WAITING) -> None:
        receiver, self._receiver = self._receiver, None
        has_begun = self._state in _IN_BODY
        self._leave()
        if receiver is not None:
            failure = Failure(self._name, phase, fault, detail, has_begun=has_begun, was_held_back=self._was_paused)
            receiver.ended(failure)

    def _leave(self) -> None:
        """Close, now and for good. Nothing is worth waiting for: no polite TLS goodbye either, as other clients do."""
        if self._state is ConnectionState.CLOSED:
            return
        self._state = ConnectionState.CLOSED
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._transport is not None:
            self._transport.abort()
            self._owner.left(self)

    def _report_unsent(self) -> None:
        """The connection was lost between `acquire` and `send`: nothing of the request has left."""
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            phase = Phase.CONNECT if self.is_fresh else Phase.STALE
            receiver.ended(Failure(self._name, phase, Fault.CUT, "the connection was lost before the request was sent"))

    def _peer_gone(self, error: Exception | None) -> None:
        """EOF, or the transport is lost. The first of the two counts."""
        how = "closed" if error is None else f"lost ({error or type(error).__name__})"
        match self._state:
            case ConnectionState.CLOSED:
                pass
            case ConnectionState.WAITING if self._unproductive:
                self._fail(Fault.CUT, f"{how} inside the head")
            case ConnectionState.WAITING:
                is_stale = self._exchanges > 0 and self._loop.time() - self._sent_at <= STALE_S
                self._fail(Fault.CUT, f"{how} without an answer", Phase.STALE if is_stale else Phase.WAITING)
            case ConnectionState.BODY_UNTIL_EOF if error is None:
                # A TLS peer that leaves without a goodbye ends up here too. Many do; whether the text is whole (JSON,
                # finish_reason) is checked further up in any case.
                self._finish()
            case ConnectionState.BODY | ConnectionState.BODY_UNTIL_EOF:
                self._fail(Fault.CUT, f"{how} inside the body")
            case _:
                self._leave()

    # ----------------------------------------------------------------------------------------------------- timer

    def _arm(self, when: float) -> None:
        """See to it that the timer fires at `when` or before.

        One timer, kept over exchanges: it is moved only to an earlier time, and when it fires too early for what runs
        by then it is set again. So most exchanges on a kept connection touch no timer at all.
        """
        if self._timer is not None:
            if self._timer_at <= when:
                return
            self._timer.cancel()
        self._timer_at = when
        self._timer = self._loop.call_at(when, self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        limits = self._timeouts
        total_at = self._sent_at + limits.total_s
        match self._state:
            case ConnectionState.WAITING:
                when, what = self._sent_at + limits.head_s, f"no complete head within {limits.head_s:g} s"
            case ConnectionState.BODY | ConnectionState.BODY_UNTIL_EOF if self._is_paused:
                when, what = inf, ""
            case ConnectionState.BODY | ConnectionState.BODY_UNTIL_EOF:
                when, what = self._active_at + limits.idle_s, f"no body byte for {limits.idle_s:g} s"
            case _:
                if self._state is ConnectionState.IDLE:
                    self._rest_or_retire()
                return
        if total_at < when:
            when, what = total_at, f"not finished within {limits.total_s:g} s"
        if when - self._loop.time() > TIMER_GRAIN_S:
            self._arm(when)
        else:
            self._fail(Fault.TIMEOUT, what)

    def _rest_or_retire(self) -> None:
        if self._expires_at - self._loop.time() > TIMER_GRAIN_S:
            self._arm(self._expires_at)
        else:
            self._leave()
