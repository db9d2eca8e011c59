"""Streams of stored responses, resumed: events leave as they come, and nothing is charged.

The response has its own call, which is charged by its own stream or by polling (relay/deferred.py). The end of a
resumed stream is therefore no end of the response, unless it has the terminal event.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from urllib.parse import quote

from aiohttp import web

from gateway.errors import GatewayError, StreamInterrupted, UpstreamFailed, UpstreamRefused
from gateway.formats.events import Unfit
from gateway.formats.format import ScanInput
from gateway.formats.openai.responses import RESPONSES
from gateway.formats.openai.responses_scan import ResponsesScan
from gateway.records import Bond, Failure, Fault, Phase, Usage
from gateway.relay.client_stream import ClientStream, Headers
from gateway.relay.exchange import response_headers
from gateway.tasks import is_cut_off
from gateway.upstream import provider_errors, refusal
from gateway.upstream.ask import Fetched
from gateway.upstream.connection import Head
from gateway.upstream.download import Download
from gateway.web.middleware import CONTEXT
from gateway.web.responses import EventStream

from .kept import ask_upstream, at_upstream, raise_for

MAX_ERROR_BYTES = 65_536


async def resume(request: web.Request, bond: Bond, *, is_last: bool) -> web.StreamResponse:
    """Pass on the stream of a stored response from the query's position. `is_last` closes the connection behind it.

    Raises `UpstreamFailed` or `UpstreamRefused` where there is none.
    """
    context = request[CONTEXT]
    parts = context.parts
    upstream, pool = parts.config.upstreams[bond.upstream], parts.pools[bond.upstream]
    sent = ask_upstream(
        request, context, bond, f"{RESPONSES.upstream_path}/{quote(bond.id, safe='')}", "GET", RESPONSES
    )

    def open_stream(headers: Headers) -> EventStream:
        context.stream = EventStream(request, (*headers, ("x-request-id", context.id)), is_last=is_last)
        return context.stream

    async with at_upstream(pool, context.key), Download(bond.upstream, pool) as download:
        head = await download.begin(sent, upstream.timeouts.head_s)
        if isinstance(head, Failure):
            raise UpstreamFailed.after(head)
        if head.status != 200:
            refused = Fetched(head, await download.read_all(MAX_ERROR_BYTES))
            await raise_for(bond.upstream, refused, pool.hidden, RESPONSES)
        is_stream = (head.get("content-type") or "").lower().startswith("text/event-stream")
        if not is_stream or head.get("content-encoding") is not None:
            raise UpstreamFailed.after(Failure(bond.upstream, Phase.WAITING, Fault.UNFIT, "no stream of events"))
        client = ClientStream(open_stream, tuple, parts.config.server.keepalive_comment_s, RESPONSES.keepalive)
        resumed = _Resumed(bond, client, head, pool.hidden)
        try:
            last = await resumed.relay(download, context.id)
        except asyncio.CancelledError as cancelled:
            if is_cut_off(cancelled):
                resumed.interrupt(context.id)
            raise
        finally:
            client.close()
        if context.stream is None:
            raise RuntimeError("a stream was finished that was never opened")
        context.stream.finish(last)
        return context.stream


class _Resumed:
    """One stream, on its way to the client."""

    def __init__(self, bond: Bond, client: ClientStream, head: Head, hide: Sequence[tuple[str, str]]) -> None:
        self._bond = bond
        self._client = client
        self._head = head
        self._hide = hide
        self._scan = ResponsesScan(ScanInput(clean=partial(refusal.cleaned, hide=hide)))
        self._scan.reader.id = bond.id  # events behind the first do not have it
        client.speaker = self

    @property
    def may_be_interrupted(self) -> bool:
        """Whether a comment may go to the client now."""
        return not (self._scan.is_inside_event or self._scan.is_over)

    async def relay(self, download: Download, request_id: str) -> bytes:
        """Pass on what comes. Returns what ends it. Raises `UpstreamFailed` where nothing came."""
        scan = self._scan
        try:
            while not scan.is_over and (piece := await download.read()):
                await self._pass_on(scan.feed(piece)[0])
            await self._pass_on(scan.finish())
        except Unfit:
            pass  # the rest is no stream of this API
        if scan.is_complete and scan.error is None:
            self._open()
            return scan.last(Usage())
        if self._client.writer is None and scan.error is None:
            raise UpstreamFailed.after(
                download.failure or Failure(self._bond.upstream, Phase.RELAYING, Fault.CUT, "a stream without an event")
            )
        self._open()
        return self._ended_by(self._error(), request_id)

    def interrupt(self, request_id: str) -> None:
        """Ends the client's stream with an error event, because the gateway is shutting down."""
        if self._client.writer is not None:
            self._client.writer.write_last(self._ended_by(StreamInterrupted(self._bond.id), request_id))

    def _error(self) -> GatewayError:
        """Why it ends without a good end."""
        error = self._scan.error
        if error is None or not self._scan.reader.has_ended:
            return StreamInterrupted(self._bond.id)
        judged = provider_errors.judge_in_band(self._bond.upstream, error, self._head, hide=self._hide)
        return judged if isinstance(judged, UpstreamRefused) else UpstreamFailed.after(judged)

    def _ended_by(self, error: GatewayError, request_id: str) -> bytes:
        event = RESPONSES.error_event(error, self._scan, request_id) or b""
        return (b"\n\n" if self._scan.is_inside_event else b"") + event

    def _open(self) -> None:
        self._client.open(response_headers(self._head, RESPONSES))

    async def _pass_on(self, data: bytes) -> None:
        if not data:
            return
        writer = self._client.open(response_headers(self._head, RESPONSES))
        self._client.spoke_at = asyncio.get_running_loop().time()
        if writer.write(data):
            await writer.wait_until_writable()
