"""Decoders for bodies with a Content-Encoding: of requests, and of answers of an upstream that was asked for identity.

br needs the package `brotli` (1.2 or later) or `brotlicffi`; the others need none. A decoder returns pieces of at most
`PIECE_BYTES`, so that its caller can stop a body that grows without end ("bomb") before it is in memory.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib import import_module
from typing import Any, Protocol

PIECE_BYTES = 65536

BROTLI_LIMIT = PIECE_BYTES // 4
"""The library ends a piece with the first of its buffers (32 KiB, then 64 KiB) that reaches this limit. Output may
remain after such a piece, although the decompressor accepts more data."""

MAX_ZSTD_WINDOW_LOG = 23
"""Limit of the memory that a zstd answer may ask for: 8 MiB (RFC 9659)."""


class EncodingFault(Exception):
    """The content encoding is unknown, or the body does not follow it. The text is for the log."""


class TooManyMembers(EncodingFault):
    """The body consists of too many members. An empty one has 20 bytes and takes microseconds."""


class Decoder(Protocol):
    """Decodes one body, piece by piece, as its content encoding requires."""

    @property
    def is_whole(self) -> bool:
        """Whether the body has ended where it may end."""

    def decode(self, data: bytes) -> Iterator[bytes]:
        """The next pieces of the decoded body. Raises `EncodingFault`."""


def decoder_of(encodings: str, most_members: int = sys.maxsize) -> Decoder | None:
    """The decoder for this value of Content-Encoding; None: the body is not encoded. `most_members` are those of gzip
    or the frames of zstd. Raises `EncodingFault`."""
    names = [name for each in encodings.lower().split(",") if (name := each.strip()) not in ("", "identity")]
    if not names:
        return None
    make = DECODERS.get(names[0]) if len(names) == 1 else None
    if make is None:
        known = ", ".join(sorted(DECODERS))
        raise EncodingFault(f"content-encoding {', '.join(names)[:100]!r} cannot be decoded (only {known})")
    return make(most_members)


class _Gzip:
    """gzip, also of several members."""

    name, wbits = "gzip", 16 + zlib.MAX_WBITS

    def __init__(self, most_members: int) -> None:
        self._decompressor = zlib.decompressobj(self.wbits)
        self._members_left = most_members

    @property
    def is_whole(self) -> bool:
        return self._decompressor.eof

    def decode(self, data: bytes) -> Iterator[bytes]:
        piece = b""
        while data or len(piece) == PIECE_BYTES:  # of a full piece, output may be left when all input is consumed
            if self._decompressor.eof:
                if not data:
                    return
                self._members_left = _one_less(self._members_left)
                self._decompressor = zlib.decompressobj(self.wbits)
            try:
                piece = self._decompressor.decompress(data, PIECE_BYTES)
            except zlib.error as error:
                raise EncodingFault(f"content-encoding {self.name}: {error}") from None
            data = self._decompressor.unused_data or self._decompressor.unconsumed_tail
            if piece:
                yield piece


class _Deflate(_Gzip):
    """deflate, with the header of zlib (RFC 9110, 8.4.1.2) or, as many servers send it, without."""

    name, wbits = "deflate", zlib.MAX_WBITS

    def __init__(self, most_members: int) -> None:
        super().__init__(most_members)
        self._start: bytes | None = b""

    def decode(self, data: bytes) -> Iterator[bytes]:
        if self._start is not None:
            data = self._start + data
            if len(data) < 2:
                self._start = data
                return
            self._start = None
            if data[0] & 15 != 8 or int.from_bytes(data[:2]) % 31:  # no zlib header (RFC 1950, 2.2)
                self.wbits = -zlib.MAX_WBITS
                self._decompressor = zlib.decompressobj(self.wbits)
        yield from super().decode(data)


class _Zstd:
    """zstd, also of several frames."""

    def __init__(self, module: Any, most_members: int) -> None:
        self._module = module
        self._decompressor = self._new()
        self._members_left = most_members

    def _new(self) -> Any:
        limit = self._module.DecompressionParameter.window_log_max
        return self._module.ZstdDecompressor(options={limit: MAX_ZSTD_WINDOW_LOG})

    @property
    def is_whole(self) -> bool:
        return bool(self._decompressor.eof)

    def decode(self, data: bytes) -> Iterator[bytes]:
        while data or not (self._decompressor.eof or self._decompressor.needs_input):
            if self._decompressor.eof:
                self._members_left = _one_less(self._members_left)
                self._decompressor = self._new()
            try:
                piece = self._decompressor.decompress(data, PIECE_BYTES)
            except self._module.ZstdError as error:
                raise EncodingFault(f"content-encoding zstd: {error}") from None
            data = self._decompressor.unused_data if self._decompressor.eof else b""
            if piece:
                yield piece


class _Brotli:
    """Decodes br; a body is one stream."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._decompressor = module.Decompressor()

    @property
    def is_whole(self) -> bool:
        return bool(self._decompressor.is_finished())

    def decode(self, data: bytes) -> Iterator[bytes]:
        piece = b""
        while data or len(piece) >= BROTLI_LIMIT or not self._decompressor.can_accept_more_data():
            try:
                piece = self._decompressor.process(data, output_buffer_limit=BROTLI_LIMIT)
            except self._module.error as error:
                raise EncodingFault(f"content-encoding br: {error}") from None
            if not piece:
                return
            data = b""
            yield piece


def _one_less(members: int) -> int:
    """The number of members that may follow another one. Raises `TooManyMembers`."""
    if members <= 1:
        raise TooManyMembers("content-encoding: it has too many members")
    return members - 1


def _imported(*names: str) -> Any:
    """The first of these modules that is installed."""
    for name in names:
        try:
            return import_module(name)
        except ImportError:
            continue
    return None


def _decoders() -> Mapping[str, Callable[[int], Decoder]]:
    found: dict[str, Callable[[int], Decoder]] = {"gzip": _Gzip, "x-gzip": _Gzip, "deflate": _Deflate}
    brotli = _imported("brotli", "brotlicffi")
    if brotli is not None and hasattr(brotli.Decompressor, "can_accept_more_data"):
        found["br"] = lambda _: _Brotli(brotli)
    if (zstd := _imported("compression.zstd", "backports.zstd")) is not None:
        found["zstd"] = partial(_Zstd, zstd)
    return found


DECODERS = _decoders()
"""Constructors of decoders by the name of the encoding."""
