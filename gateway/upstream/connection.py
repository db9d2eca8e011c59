"""One HTTP/1.1 connection to an upstream: writes requests, and passes head and body of each answer to a callback.

1. A connection carries one exchange at a time. `send` writes a request and names the `Receiver` of the answer. The
   receiver gets the head, each piece of body and the end inside the read callback: there is no queue, future or task
   between the socket and the relay. Back-pressure is `pause_reading`.
2. `ConnectionState` is the state; `_timer_fired` has the time limit of each state. The transitions:

       CONNECTING -> HELD -> WAITING -> BODY | BODY_UNTIL_EOF -> DONE -> IDLE -> HELD ...      and from any -> CLOSED

3. A connection is reused only after exact framing, because one surplus byte would begin the answer of another call.
   httptools (llhttp) rejects Content-Length beside Transfer-Encoding, a second Content-Length, folded headers and bare
   LF. This module also rejects answers that are not HTTP/1.x, status 101, a transfer coding other than one chunked, a
   body after an interim answer, and line breaks between two messages.
4. An answer with valid but suspicious framing (chunks in HTTP/1.0, a 204 that announces a body) is accepted, and its
   connection is closed afterwards.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
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
"""Limit of all heads of one answer together, interim ones included. nginx accepts 4 to 8 KiB by default, aiohttp 8 KiB
per line, Go 1 MiB; an answer of OpenAI behind a CDN has 1 to 2 KiB. Also the limit of framing between two body bytes,
which bounds trailers and chunk extensions."""

READ_BUFFER_BYTES = 65536
"""Size of the read buffer, which the connections of a pool share (see `Connection`)."""

MOST_CHUNKS = 4
"""Chunks of one read that are handed over one by one, and the others together: it may have 10,000, each of which costs
the receiver a step."""

PIECES_AT_ONCE = 4
"""Pieces of an upload that are written in one callback."""

STALE_S = 1.0
"""If a reused connection ends this soon after a request, without one byte, the upstream was already closing it."""

TIMER_GRAIN_S = 0.002
"""A timer may fire early by this: the clock of uvloop counts whole milliseconds."""

_H = 0x48


class ConnectionState(Enum):
    """State of a connection. The values are for `repr` and logs."""

    CONNECTING = "connecting"
    IDLE = "idle"
    """The connection is in the pool; any byte or EOF closes it."""
    HELD = "held"
    """Taken from the pool, nothing sent yet."""
    WAITING = "waiting"
    """Request sent; the head of the answer is not complete."""
    BODY = "reading a body"
    BODY_UNTIL_EOF = "reading a body that ends with the connection"
    DONE = "done"
    """The answer is complete, and the same read may hold more bytes. Lasts for one callback."""
    CLOSED = "closed"


# Compared for every piece of a stream; the attribute lookup on an Enum is slower than the comparison (Python 3.11).
_WAITING, _DONE, _CLOSED = ConnectionState.WAITING, ConnectionState.DONE, ConnectionState.CLOSED
_IN_BODY = frozenset({ConnectionState.BODY, ConnectionState.BODY_UNTIL_EOF})
_ANSWERING = _IN_BODY | {ConnectionState.WAITING, ConnectionState.DONE}


@dataclass(slots=True, unsafe_hash=True, init=False)
class Head:
    """Status and headers of an answer. Names are in lower case; values are decoded as latin-1, without loss."""

    status: int
    headers: tuple[tuple[str, str], ...]
    get: Callable[[str], str | None] = field(repr=False, compare=False)
    """The first value of a header, by its name in lower case."""

    def __init__(self, status: int, headers: tuple[tuple[str, str], ...]) -> None:
        self.status = status
        self.headers = headers
        self.get = dict(reversed(headers)).get


class Receiver(Protocol):
    """Consumer of an answer. Called inside the read callback: must neither raise nor block.

    The order is `head_received` once, `body_received` any number of times, `ended` once. `ended` may come at any point
    and is the last call. After `Connection.abort` no call follows, not even `ended`.
    """

    def head_received(self, head: Head) -> None: ...

    def body_received(self, data: bytes) -> None: ...

    def ended(self, failure: Failure | None) -> None:
        """None: the message is complete. The receiver must not use the connection any more."""


class Owner(Protocol):
    """Owner of connections, called when a connection becomes idle or is closed."""

    def returned(self, connection: Connection) -> None:
        """The connection is idle and can carry another exchange."""

    def closed(self, connection: Connection) -> None:
        """The connection is closed. Called exactly once for each connection that was open."""


class _NotHTTP(Exception):
    """Raised inside a parser callback to reject what llhttp accepts."""


class Connection(asyncio.BufferedProtocol):
    """One connection on one event loop. A `Pool` makes it and hands it out for one exchange at a time.

    All connections of a loop may share `buffer`: asyncio and uvloop, plain and TLS, fill it and call `buffer_updated`
    without a step in between, and nothing keeps a reference to it (pieces of body are copies).
    """

    __slots__ = (
        "_active_at",
        "_buffer",
        "_came",
        "_connected_at",
        "_exchanges",
        "_expires_at",
        "_first_look_s",
        "_header_names",
        "_header_values",
        "_interim_bytes",
        "_is_chunked",
        "_is_full",
        "_is_head",
        "_is_paused",
        "_left",
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
        "_upload",
        "_uploaded_at",
        "_was_paused",
    )

    def __init__(self, name: str, owner: Owner, timeouts: Timeouts, max_age_s: float, buffer: memoryview) -> None:
        self._name = name
        self._owner = owner
        self._timeouts = timeouts
        self._first_look_s = min(timeouts.head_s, timeouts.idle_s, timeouts.total_s)
        self._max_age_s = max_age_s
        self._buffer = buffer
        self._loop = asyncio.get_running_loop()
        self._state = ConnectionState.CONNECTING
        self._transport: asyncio.Transport | None = None
        self._peer = ""
        self._receiver: Receiver | None = None
        self._came: list[bytes] = []  # pieces of body of this read that are handed over at its end
        self._left = 0  # pieces of this read that are handed over one by one
        self._header_names: list[bytes] = []
        self._header_values: list[bytes] = []
        self._interim_bytes = 0  # size of the interim heads
        self._unproductive = 0  # bytes since the last body byte, or since the request
        self._is_chunked = False
        self._may_stay = False  # the answer allows another exchange, and no surplus byte came
        self._is_head = False  # a HEAD request: its answer announces a body and has none
        self._is_paused = False
        self._was_paused = False  # during this exchange
        self._exchanges = 0
        self._upload: Iterator[bytes] | None = None  # the rest of the request's body
        self._is_full = False  # the transport's buffer
        self._connected_at = self._expires_at = self._sent_at = self._active_at = self._uploaded_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf
        self._parser: Any = HttpResponseParser(
            SimpleNamespace(
                on_message_begin=self._message_begun, on_header=self._header_parsed,
                on_headers_complete=self._head_parsed, on_body=self._body_parsed,
                on_message_complete=self._message_parsed,
            )
        )  # fmt: skip

    def __repr__(self) -> str:
        now = self._loop.time()
        parts = [f"{self._name} {self._peer or 'not connected'}", self._state.value]
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

    # ------------------------------------------------------------------------------------------- used by exchanges

    @property
    def is_fresh(self) -> bool:
        """Whether no exchange has ended on this connection yet."""
        return self._exchanges == 0

    @property
    def is_closed(self) -> bool:
        return self._state is ConnectionState.CLOSED

    @property
    def is_sending(self) -> bool:
        """Whether the upload of a request is not written to its end."""
        return self._upload is not None

    def send(
        self, request: Sequence[bytes | memoryview], receiver: Receiver, upload: Iterator[bytes] | None = None
    ) -> None:
        """Begin one exchange; all time limits on the answer start here.

        `upload` is a body to be written behind `request`, piece by piece as the upstream takes it. The limit for the
        head then runs from the last piece that it took. A request that was not sent whole fails as one that was not
        sent at all (`Phase.CONNECT`).

        Does not call the receiver before it returns: if the connection was lost since it was acquired, `ended` follows
        in a later iteration of the loop. Raises RuntimeError unless the connection is held and has no exchange.
        """
        state = self._state
        if state is ConnectionState.HELD and self._transport is not None and not self._transport.is_closing():
            self._receiver = receiver
            self._state = ConnectionState.WAITING
            self._unproductive = self._interim_bytes = 0
            self._may_stay = self._is_chunked = self._was_paused = False
            self._is_head = request[0][:5] == b"HEAD "
            now = self._sent_at = self._uploaded_at = self._loop.time()
            self._arm(now + self._first_look_s)
            self._transport.writelines(request)
            if upload is not None:
                self._upload, self._is_full = upload, False
                self._loop.call_soon(self._write_more)
            return
        if state not in (ConnectionState.HELD, ConnectionState.CLOSED) or self._receiver is not None:
            raise RuntimeError(f"cannot send on {self!r}")
        self._close()
        self._receiver = receiver
        self._loop.call_soon(self._report_unsent)

    def abort(self) -> None:
        """Cancel the exchange: closes the connection at once and calls the receiver no more.

        Allowed from `acquire` until `ended`. No effect on a connection that is idle again.
        """
        self._receiver = None
        if self._state is not ConnectionState.IDLE:
            self._close()

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        if self._upload is not None:
            self._write_more()

    def _write_more(self) -> None:
        """Some pieces of the upload; other connections have their turn between them."""
        for _ in range(PIECES_AT_ONCE):
            if self._upload is None or self._transport is None or self._is_full:
                return
            try:
                piece = next(self._upload, None)
            except OSError as error:
                self._fail(Fault.CUT, f"cannot read the stored request: {error.strerror or error}", Phase.CONNECT)
                return
            if piece is None:
                self._upload = None
                return
            self._uploaded_at = self._loop.time()
            self._transport.write(piece)
        self._loop.call_soon(self._write_more)

    def pause_reading(self, *, by_client: bool = True) -> None:
        """Stop reading the socket. Bytes that were already read (at most one buffer) are still delivered. `by_client`:
        a later failure may be due to the pause."""
        if self._state in _ANSWERING and self._transport is not None:
            self._was_paused = self._was_paused or by_client
            if not self._is_paused:
                self._is_paused = True
                self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Continue to read. The pause does not count toward the idle timeout."""
        if self._is_paused and self._transport is not None and self._state is not ConnectionState.CLOSED:
            self._is_paused = False
            self._transport.resume_reading()
            if self._state in _IN_BODY:
                self._active_at = self._loop.time()
                self._arm(self._active_at + self._timeouts.idle_s)

    # ---------------------------------------------------------------------------------------------- used by the pool

    def hold(self) -> bool:
        """Take an idle connection out of the pool. False, and closed, if it cannot be used any more."""
        if self._state is ConnectionState.IDLE:
            if (
                self._transport is not None
                and not self._transport.is_closing()
                and self._loop.time() < self._expires_at
            ):
                self._state = ConnectionState.HELD
                return True
            self._close()
        return False

    def release(self) -> None:
        """Return a held connection that was not used."""
        if self._state is ConnectionState.HELD:
            self._become_idle()

    def retire(self) -> None:
        """Close the connection unless an exchange runs on it."""
        if self._receiver is None:
            self._close()

    # ------------------------------------------------------------------------------------------------- callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast(asyncio.Transport, transport)
        if self._state is ConnectionState.CLOSED:  # closed while the handshake ended
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
            # Idle, or held before a request: unsolicited bytes. Closed: the rest of a read after an abort.
            self._close()
            return
        buffer = self._buffer
        if self._state is _WAITING and not self._unproductive and buffer[0] != _H:
            # llhttp also accepts RTSP and ICE, and skips line breaks.
            self._fail(Fault.PROTOCOL, "the answer does not begin with HTTP/")
            return
        self._unproductive += nbytes
        self._left = MOST_CHUNKS
        end = bytes(buffer[max(0, nbytes - 5) : nbytes])
        # The line breaks of an event and of its chunk are no end of the message: that is CRLF CRLF, the line break of
        # the empty last chunk and the one behind it.
        is_end_of_event = self._is_chunked and end.endswith(b"\n\n\r\n") and end[0] not in b"\r\n"
        try:
            if end[-1] in b"\r\n" and not is_end_of_event:
                # llhttp skips line breaks between two messages silently. Fed alone, the last byte shows a surplus one:
                # the message was complete before it.
                if nbytes > 1:
                    self._parser.feed_data(buffer[: nbytes - 1])
                    if self._state is _DONE:
                        self._may_stay = False
                self._parser.feed_data(buffer[nbytes - 1 : nbytes])
            else:
                self._parser.feed_data(buffer[:nbytes])
        except (HttpParserError, HttpParserUpgrade) as error:
            self._parser_stopped(error)
        if self._came:
            self._hand_over()
        if nbytes == READ_BUFFER_BYTES:
            self._rest()
        if self._state is _DONE:
            self._finish()
        elif not self._unproductive:
            self._active_at = self._loop.time()
        elif self._unproductive > MAX_HEAD_BYTES and self._state is not _CLOSED:
            what = "the head is" if self._state is ConnectionState.WAITING else "between two body bytes there are"
            self._fail(Fault.PROTOCOL, f"{what} over {MAX_HEAD_BYTES} bytes")

    def _rest(self) -> None:
        """Read on in the next turn: with uvloop, one turn fills the buffer up to 32 times (libuv, `uv__read`)."""
        if self._state in _IN_BODY and self._transport is not None and not self._is_paused:
            self._transport.pause_reading()
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        if self._transport is not None and not self._is_paused and self._state is not ConnectionState.CLOSED:
            self._transport.resume_reading()

    def eof_received(self) -> None:
        # Returning None closes the transport: no byte is written after the peer has closed its side.
        self._peer_gone(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._peer_gone(exc)
        self._parser = self._transport = None  # the parser refers to our methods: break the cycle

    # -------------------------------------------------------------------------------------------- parser callbacks

    def _message_begun(self) -> None:
        if self._state is ConnectionState.DONE:
            self._may_stay = False  # the first byte of an unsolicited message

    def _header_parsed(self, name: bytes, value: bytes) -> None:
        if self._state is ConnectionState.WAITING:  # else a trailer or surplus, which is ignored
            self._header_names.append(name)
            self._header_values.append(value)

    def _head_parsed(self) -> None:
        if self._state is not ConnectionState.WAITING:
            return
        names, self._header_names = self._header_names, []
        values, self._header_values = self._header_values, []
        status: int = self._parser.get_status_code()
        version = self._parser.get_http_version()
        if version not in ("1.1", "1.0"):
            raise _NotHTTP(f"HTTP version {version}")
        if status < 100 or status == 101:
            raise _NotHTTP(f"status {status:03d}")
        # Counted only if it can exceed the limit: the sum costs more than the rest of a small head.
        if self._interim_bytes or self._unproductive > MAX_HEAD_BYTES or status < 200:
            lines = sum(map(len, names)) + sum(map(len, values)) + 4 * len(names)  # each with `: ` and CRLF
            size = self._interim_bytes + lines
            if size > MAX_HEAD_BYTES:
                raise _NotHTTP(f"the head is over {MAX_HEAD_BYTES} bytes")
            if status < 200:
                self._interim_bytes = size
                return  # an interim answer; the head limit continues to run
        headers: tuple[tuple[str, str], ...] = ()
        if names:  # joined for one decode, since an answer may have 25: llhttp rejects LF inside
            texts = b"\n".join(values).decode("latin-1").split("\n")
            small = b"\n".join(names).decode("latin-1").lower().split("\n")
            headers = tuple(zip(small, map(str.strip, texts), strict=True))
        head = Head(status, headers)
        codings = []
        if head.get("transfer-encoding") is not None:
            codings = [value.lower() for name, value in headers if name == "transfer-encoding"]
            if codings != ["chunked"]:
                raise _NotHTTP("a transfer coding other than chunked")
        has_length = bool(codings) or head.get("content-length") is not None
        is_empty = self._is_head or status in (204, 304)  # even if a length is announced (RFC 9112, 6.3)
        # An upstream that announces a body where none is allowed, or sends chunks in HTTP/1.0 (RFC 9112, 6.1), may send
        # more bytes, which would begin the next answer.
        self._is_chunked = bool(codings)
        self._may_stay = has_length is not is_empty and not (codings and version == "1.0")
        self._state = ConnectionState.BODY if has_length or is_empty else ConnectionState.BODY_UNTIL_EOF
        if self._is_head:  # llhttp would wait for a body: close the connection after this
            self._state, self._may_stay = ConnectionState.DONE, False
        self._active_at = self._loop.time()
        if self._receiver is not None:
            self._receiver.head_received(head)

    def _body_parsed(self, data: bytes) -> None:
        if self._state is _WAITING:
            raise _NotHTTP("an interim answer with a body")
        self._unproductive = 0
        if self._receiver is not None and self._state is not _DONE:
            if self._left:
                self._left -= 1
                self._receiver.body_received(data)
            else:
                self._came.append(data)

    def _hand_over(self) -> None:
        """Give the receiver the rest of what has come of the body in this read."""
        came, self._came = b"".join(self._came), []
        if came and self._receiver is not None:  # else it has aborted the connection
            try:
                self._receiver.body_received(came)
            except Exception as error:
                self._receiver_raised(error)

    def _message_parsed(self) -> None:
        if self._state in _IN_BODY:  # in WAITING an interim answer ended, in DONE a surplus one
            self._may_stay = self._may_stay and self._parser.should_keep_alive()
            self._state = ConnectionState.DONE

    def _parser_stopped(self, error: Exception) -> None:
        self._hand_over()
        cause = error.__context__ if isinstance(error, HttpParserCallbackError) else None
        if cause is not None and not isinstance(cause, _NotHTTP):
            self._receiver_raised(cause)
        elif self._state is _DONE:
            self._may_stay = False  # the answer itself is complete
        else:
            self._fail(Fault.PROTOCOL, str(cause or error))

    def _receiver_raised(self, cause: BaseException) -> None:
        log.error("the receiver of an answer raised, on %r", self, exc_info=cause)
        self._fail(Fault.CUT, "the gateway could not process the answer")

    # ------------------------------------------------------------------------------------------------------ ends

    def _finish(self) -> None:
        """End a complete answer. The connection becomes idle only if every condition for reuse holds."""
        receiver, self._receiver = self._receiver, None
        transport = self._transport
        if (
            self._may_stay
            and transport is not None
            and not transport.is_closing()
            and self._upload is None
            and not transport.get_write_buffer_size()  # it answered before it had read the request
            and self._loop.time() < self._expires_at
        ):
            self._exchanges += 1
            self._become_idle()
        else:
            self._close()
        if receiver is not None:
            receiver.ended(None)

    def _become_idle(self) -> None:
        self._state = ConnectionState.IDLE
        if self._is_paused:
            self.resume_reading()  # an idle connection has to notice EOF
        self._arm(self._expires_at)
        self._owner.returned(self)

    def _fail(self, fault: Fault, detail: str, phase: Phase = Phase.WAITING) -> None:
        receiver, self._receiver = self._receiver, None
        has_begun = self._state in _IN_BODY
        if self._upload is not None and not has_begun and phase is not Phase.STALE:
            phase, detail = Phase.CONNECT, f"{detail}, before the whole request was sent"
        self._close()
        if receiver is not None:
            failure = Failure(self._name, phase, fault, detail, has_begun=has_begun, was_held_back=self._was_paused)
            receiver.ended(failure)

    def _close(self) -> None:
        """Close at once, without a TLS close_notify, as other clients do."""
        if self._state is ConnectionState.CLOSED:
            return
        self._state = ConnectionState.CLOSED
        self._upload = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._transport is not None:
            self._transport.abort()
            self._owner.closed(self)

    def _report_unsent(self) -> None:
        """The connection was lost between `acquire` and `send`: no byte of the request was sent."""
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            phase = Phase.CONNECT if self.is_fresh else Phase.STALE
            receiver.ended(Failure(self._name, phase, Fault.CUT, "the connection was lost before the request was sent"))

    def _peer_gone(self, error: Exception | None) -> None:
        """Handle EOF or a lost transport; the first of the two counts."""
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
                # Also a TLS peer that closes without close_notify, as many do. The relay checks whether the text is
                # complete (JSON, finish_reason).
                self._finish()
            case ConnectionState.BODY | ConnectionState.BODY_UNTIL_EOF:
                self._fail(Fault.CUT, f"{how} inside the body")
            case _:
                self._close()

    # ----------------------------------------------------------------------------------------------------- timer

    def _arm(self, when: float) -> None:
        """Make the timer fire at `when` or before.

        One timer serves all exchanges. It is only moved to an earlier time; if it fires too early it is set again. So
        most exchanges on a reused connection set no timer, and one that is sent arms it for all of its limits at once.
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
                when, what = self._uploaded_at + limits.head_s, f"no complete head within {limits.head_s:g} s"
            case ConnectionState.BODY | ConnectionState.BODY_UNTIL_EOF if self._is_paused:
                when, what = inf, ""
            case ConnectionState.BODY | ConnectionState.BODY_UNTIL_EOF:
                when, what = self._active_at + limits.idle_s, f"no body byte for {limits.idle_s:g} s"
            case _:
                if self._state is ConnectionState.IDLE:
                    self._retire_if_expired()
                return
        if total_at < when:
            when, what = total_at, f"not finished within {limits.total_s:g} s"
        if when - self._loop.time() > TIMER_GRAIN_S:
            self._arm(when)
        else:
            self._fail(Fault.TIMEOUT, what)

    def _retire_if_expired(self) -> None:
        if self._expires_at - self._loop.time() > TIMER_GRAIN_S:
            self._arm(self._expires_at)
        else:
            self._close()
