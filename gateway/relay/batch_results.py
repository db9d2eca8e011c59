"""What a batch has used: the sum over the lines of its results, which are read while they arrive.

Each request that was answered is charged what its line reports. A line that cannot be read, or reports nothing, is
charged its share of the reservation, and the record is marked `estimated`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple

from gateway.config import Price
from gateway.formats.format import BatchFormat
from gateway.quota import pricing
from gateway.records import Endpoint, Usage
from gateway.upstream.connection import Head
from gateway.upstream.content_encoding import EncodingFault, decoder_of
from gateway.upstream.download import Download

MAX_LINE_BYTES = 33_554_432
"""Of one answer; a longer one is not read."""


class BatchTotals:
    """Adds up lines. `reserved` is what the whole batch of `lines` requests was reserved; it began at this Unix time in
    seconds."""

    def __init__(self, price: Price | None, reserved: Usage, lines: int, variant: str, began: float) -> None:
        self.model: str | None = None
        """As the answers name it."""
        self._needs_parts = not pricing.is_additive(price, variant, began)
        self._variant = variant
        self._share = Usage(
            reserved.prompt_tokens // max(1, lines),
            reserved.completion_tokens // max(1, lines),
            source="estimated",
            variant=variant,
        )
        self._sum = Usage()
        self._parts: list[Usage] = []

    def add(self, report: Usage | None, model: str | None) -> None:
        """A request that was answered; None: nothing is known of its usage."""
        usage = self._share if report is None else self._in_batch(report)
        self.model = model or self.model
        if self._needs_parts or usage.parts:
            self._parts.append(usage)
        else:
            self._sum = pricing.total_usage((self._sum, usage))._replace(parts=())

    def _in_batch(self, report: Usage) -> Usage:
        parts = tuple([part._replace(variant=self._variant) for part in report.parts])
        return report._replace(variant=self._variant, parts=parts)

    @property
    def usage(self) -> Usage:
        """The sum so far."""
        return pricing.total_usage((self._sum, *self._parts))


class ResultReader(NamedTuple):
    """Reads results of one batch."""

    batch: BatchFormat
    endpoint: Endpoint
    totals: BatchTotals

    async def read(self, download: Download, head: Head) -> bool:
        """Add the lines of one answer; whether it came whole."""
        try:
            async for line in _lines(download, head):
                self._add(line)
        except EncodingFault:
            return False
        return download.failure is None

    def _add(self, line: bytes | None) -> None:
        if line is not None and not line.strip():
            return
        try:
            facts = None if line is None else self.batch.line(line, self.endpoint)
        except (ValueError, RecursionError):
            line = None
            facts = None
        if facts is not None:
            self.totals.add(facts.usage, facts.model)
        elif line is None:
            self.totals.add(None, None)


async def _lines(download: Download, head: Head) -> AsyncIterator[bytes | None]:
    """The lines; None in place of one that is too long."""
    decoder = decoder_of(head.get("content-encoding") or "")
    held, is_too_long = bytearray(), False
    while data := await download.read():
        for piece in (data,) if decoder is None else decoder.decode(data):
            *ends, rest = piece.split(b"\n")
            for end in ends:
                yield None if is_too_long else bytes(held + end)
                held, is_too_long = bytearray(), False
            if not is_too_long:
                held += rest
            if len(held) > MAX_LINE_BYTES:
                held, is_too_long = bytearray(), True
    yield None if is_too_long else bytes(held)
