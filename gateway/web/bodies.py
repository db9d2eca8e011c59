"""The body of a request: within its size, its time and the worker's room; in the pieces in which it came.

A large body is never copied together here: to touch 25 MB once takes about as long as any other caller should wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from aiohttp import StreamReader, hdrs, web

from gateway.config import ServerSettings
from gateway.errors import BodyTimeout, BodyTooLarge, InvalidRequest
from gateway.upstream.content_encoding import DECODERS, Decoder, EncodingFault, TooManyMembers, decoder_of

from .capacity import Capacity, buffers_full
from .middleware import RequestContext

PIECE_BYTES = 131_072

DECODED_AT_ONCE = 8192
"""Bytes of a compressed body between which other calls have their turn: 400 members that hold nothing."""

MAX_MEMBERS = 1000
"""The maximum number of members in a compressed body. Programs that compress in parallel write one member for each 64
or 128 KiB."""


class BodyReader:
    """Reads bodies, and holds room for them in the name of a request context: for what has come, because a client may
    announce what it never sends."""

    def __init__(self, capacity: Capacity) -> None:
        self._capacity = capacity

    async def read(self, request: web.BaseRequest, context: RequestContext) -> Sequence[bytes | bytearray]:
        """The whole body, without its content encoding. Raises `GatewayError` for one that is too long, too slow or
        damaged, and aiohttp's errors for one that is not framed as HTTP, which the middleware translates.

        `100 Continue` is sent here, when the body is wanted, and not before.
        """
        content = request.content
        server = context.parts.config.server
        announced = request.content_length
        if announced is not None and announced > server.max_request_bytes:
            raise _too_large(server, f" ({announced} bytes announced)")
        try:
            if content.is_eof():  # it came with the head, as short ones do
                body = content.read_nowait()
                self._make_room(len(body), context, server)
                pieces: Sequence[bytes | bytearray] = [body]
            else:
                if hdrs.EXPECT in request.headers:
                    send_continue(request)
                with self._capacity.wait_for_body(context.key, has_place=context.has_place):
                    async with asyncio.timeout(server.client_body_timeout_s):
                        pieces = await self._gather(content, context, server)
        except TimeoutError:
            limit_s = server.client_body_timeout_s
            raise BodyTimeout(f"The request body did not arrive within {limit_s:g} seconds.") from None
        return await self._decode(request, context, pieces) if hdrs.CONTENT_ENCODING in request.headers else pieces

    async def _gather(self, content: StreamReader, context: RequestContext, server: ServerSettings) -> list[bytearray]:
        pieces: list[bytearray] = []
        while piece := await content.readany():
            self._make_room(len(piece), context, server)
            if pieces and len(pieces[-1]) < PIECE_BYTES:  # it may come byte by byte
                pieces[-1] += piece
            else:
                pieces.append(bytearray(piece))
        return pieces

    async def _decode(
        self, request: web.BaseRequest, context: RequestContext, pieces: Sequence[bytes | bytearray]
    ) -> Sequence[bytes | bytearray]:
        """The body without the content encoding of its head. The limits are those of a body that came as it is, and
        other requests have their turn between its pieces."""
        server = context.parts.config.server
        if (decoder := _decoder_of(request)) is None:
            return pieces
        decoded: list[bytearray] = []
        left = deque(pieces)
        del pieces
        while left:
            given = left.popleft()
            for at in range(0, len(given), DECODED_AT_ONCE):
                await self._decode_piece(decoder, bytes(given[at : at + DECODED_AT_ONCE]), decoded, context, server)
        if not decoder.is_whole:
            raise InvalidRequest(_DAMAGED)
        return decoded

    async def _decode_piece(
        self, decoder: Decoder, piece: bytes, decoded: list[bytearray], context: RequestContext, server: ServerSettings
    ) -> None:
        self._capacity.memory.release(len(piece), context.key)
        context.held_bytes -= len(piece)
        try:
            for part in decoder.decode(piece):
                self._make_room(len(part), context, server, " by the body without its content encoding")
                if decoded and len(decoded[-1]) < PIECE_BYTES:
                    decoded[-1] += part
                else:
                    decoded.append(bytearray(part))
                    await asyncio.sleep(0)
        except TooManyMembers:
            raise InvalidRequest(
                f"The request body is compressed in more than {MAX_MEMBERS} members. Compress it as one.",
                code="unsupported_content_encoding",
            ) from None
        except EncodingFault:  # its text is for the log
            raise InvalidRequest(_DAMAGED) from None
        await asyncio.sleep(0)

    def _make_room(self, size: int, context: RequestContext, server: ServerSettings, details: str = "") -> None:
        """Hold `size` bytes more. Raises `BodyTooLarge` or `Unavailable`."""
        if context.held_bytes + size > server.max_request_bytes:
            raise _too_large(server, details)
        if not self._capacity.memory.hold(size, context.key):
            raise buffers_full()
        context.held_bytes += size


def _too_large(server: ServerSettings, details: str) -> BodyTooLarge:
    return BodyTooLarge(f"Maximum content size limit ({server.max_request_bytes}) exceeded{details}")


_DAMAGED = (
    "The request body is damaged: it does not follow its Content-Encoding. Send it again, or without compression."
)


def check_coding(request: web.BaseRequest) -> None:
    """Raises `InvalidRequest` for a content encoding that is not decoded."""
    _decoder_of(request)


def _decoder_of(request: web.BaseRequest) -> Decoder | None:
    try:
        return decoder_of(",".join(request.headers.getall(hdrs.CONTENT_ENCODING, ())), MAX_MEMBERS)
    except EncodingFault:
        known = ", ".join(sorted(DECODERS))
        raise InvalidRequest(
            f"Unsupported Content-Encoding. Send the body as it is, or with one of these: {known}.",
            code="unsupported_content_encoding",
        ) from None


def send_continue(request: web.BaseRequest) -> None:
    """Send `100 Continue` to a client that waits for it."""
    is_waiting = request.headers[hdrs.EXPECT].lower() == "100-continue" and request.version >= (1, 1)
    if is_waiting and request.transport is not None:
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
