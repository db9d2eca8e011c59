"""The input and the outcome of one attempt."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeVar

from gateway.accounting.call_log import CallLog
from gateway.api.form import Upload
from gateway.config import Route, Upstream
from gateway.formats import reported_usage
from gateway.formats.format import LONG_ANSWER, NO_TEXT, Format, PlainFacts, Scan
from gateway.formats.reported_usage import PlainText
from gateway.formats.table import FORMATS
from gateway.records import Call, Failure, Fault, Usage
from gateway.tasks import Tasks
from gateway.upstream.connection import Head
from gateway.upstream.pool import Pool

from . import charge
from .charge import SentRequest
from .client_stream import ClientStream

T = TypeVar("T")


class Answer(NamedTuple):
    """A whole answer, ready to be sent."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


class Streamed(NamedTuple):
    """The answer has been sent; `last` are the bytes that end it, an error event where there was a `fault`; None: the
    message is left incomplete, which is how a client of bytes learns of a fault."""

    last: bytes | None
    fault: Fault | None = None
    problem: Failure | None = None
    """The failure, if it was the upstream's fault and not the request's."""
    detail: str = ""
    """Its text in the log."""


class Rider:
    """A feature that goes along with one attempt; a plain one has none. Its methods do nothing by default. None of them
    waits on the way of a chunk. One that fails the call does so by `break_off` of the exchange, which is the client's
    `speaker` meanwhile; `answered` raises its error, and adds the cost before."""

    def request(self, draft: Attempt) -> Attempt:
        """Runs before the request is sent. It may change the attempt, and joins it by adding itself to the riders."""
        return draft

    def head(self, head: Head) -> None:
        """Runs at the head of any answer, and changes nothing."""

    def event(self, scan: Scan) -> asyncio.Task[None] | None:
        """Runs when a part of a stream was read. Nothing more of it goes to the client until the returned task ends."""
        return None

    def left(self, pending_id: str) -> bool:
        """Runs when a stream has ended before its answer, or the client has left, and the upstream goes on with the
        answer under this id. Returns whether it has ended the call: the lease is left to that work."""
        return False

    def ending(self, usage: Usage, last: bytes) -> None:
        """Runs at the end of a good stream, before it is settled. `last` are the bytes that the client has not got yet;
        it changes nothing."""

    async def streamed(self, scan: Scan, usage: Usage) -> None:
        """Runs at the end of a good stream, when the call is settled, before its last bytes. It changes nothing."""

    async def answered(self, facts: PlainFacts, usage: Usage) -> bool:
        """Runs at the end of a good plain answer, before the client sees it. Returns whether it has ended the call:
        otherwise the call is settled with this usage."""
        return False


class MakesAnswers(Protocol):
    async def __call__(self, key: str, make: Callable[..., T], body: bytes, *arguments: Any) -> T:
        """Returns what this function of a module makes of an answer for a call of this key, given these arguments. Of a
        long answer another process makes it, because that would hold up other calls. Raises `Unfit` where the function
        does, and `Unavailable`."""


async def counted_text(make: MakesAnswers, sent: SentRequest, report: Usage | None, body: bytes) -> PlainText | None:
    """The text of a long plain answer with this report; None: its charge does not depend on it, or it has none. Raises
    `Unavailable`, and `RuntimeError` where the process fails."""
    texts, media = sent.texts, FORMATS[sent.call.endpoint].media
    if texts is NO_TEXT or charge.is_settled_by(sent, report):
        return None
    counted = charge.counted_by_beginning(sent, report, body, LONG_ANSWER)
    return counted or await make(sent.call.key.id, reported_usage.plain_text, body, texts, media)


class Attempt(NamedTuple):
    """The input of one attempt, and the call that it belongs to."""

    call: Call
    route: Route
    pool: Pool
    upstream: Upstream
    sent: SentRequest
    """The request to the upstream, with the facts that its charge depends on."""
    log: CallLog
    client: ClientStream
    tasks: Tasks
    """Tasks that continue after the call, such as reading a stream to its end."""
    format: Format
    """The client's; for an upstream that lacks it, the upstream's with answers for the client."""
    make: MakesAnswers
    max_response_bytes: int
    answered: Callable[[], None]
    """Called when the first bytes of a good stream have come; further calls are harmless."""
    riders: tuple[Rider, ...] = ()
    readers: tuple[Callable[[bytes], None], ...] = ()
    """They get the bytes of a good answer as they come, decoded, before anything else reads them."""
    account: str = ""
    """Which of the upstream's API keys the request presents (upstream/credentials.py)."""
    more_headers: tuple[tuple[str, str], ...] = ()
    """Further headers of the gateway, for the client."""
    upload: Upload | None = None
    """The body, where it is sent in pieces behind the request."""

    def leave(self, pending_id: str | None) -> bool:
        """Whether a rider has ended the call, because its answer goes on under this id."""
        return pending_id is not None and any(rider.left(pending_id) for rider in self.riders)

    @property
    def hidden(self) -> tuple[tuple[str, str], ...]:
        """The gateway's own texts that a client must not see, each with its replacement."""
        own_name = self.route.model
        return self.pool.hidden if own_name is None else (*self.pool.hidden, (own_name, self.call.params.model))
