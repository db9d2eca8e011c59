"""The usage of a batch: the sum over the lines of its results, which are read while they arrive.

Each request that was answered is charged what its line reports, up to the ceilings of the batch (`LineCeilings`). A
line that cannot be read, or reports nothing, is charged its share of the reservation. Where a ceiling or a share is
charged, the record is marked `estimated`. Only the first answer to a request counts, and none beyond their number.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from gateway.accounting.deferral import Deferral
from gateway.chunked import Turns, portions
from gateway.config import Price
from gateway.formats import reported_usage
from gateway.formats.ceilings import most_units
from gateway.formats.format import LONG_ANSWER, BatchFormat, BatchLine, ReadsLine
from gateway.formats.reader import ERRORS, HAS_ERROR
from gateway.formats.reason_cleaner import ReasonCleaner
from gateway.quota import pricing, windows
from gateway.records import Endpoint, LineCeilings, Usage
from gateway.relay.charge import MAX_BROKEN_BYTES, REASONING_ALLOWANCE, SHOWN_FACTOR, Charge, SentRequest
from gateway.relay.deferred import OpensAnswer, WingBatches, WorkEnd
from gateway.upstream import refusal
from gateway.upstream.connection import Head
from gateway.upstream.content_encoding import Decoder, EncodingFault, decoder_of
from gateway.upstream.download import Download

MAX_LINE_BYTES = 33_554_432
"""Size limit of one answer in bytes; a longer one is not read."""

MAX_HELD_BYTES = 8_192
"""Bytes of a line that are held until it is whole."""

LINES_AT_ONCE = 1_000
"""Lines between which other calls have their turn. They have it in each line with an error, too."""

LINE_BYTES = 256
"""Bytes whose reading takes as long as what each line of a batch costs, however short."""

ANY_REQUEST = 2_097_152
"""Tokens of the prompt, and of the output, that no request of a batch exceeds: twice the largest context of common
models."""


class BatchSize(NamedTuple):
    """Numbers of a batch that are known from its requests."""

    lines: int
    reserved: Usage
    """Usage reserved for all lines together."""
    ceilings: LineCeilings = LineCeilings()

    @property
    def share(self) -> Usage:
        """Returns the part of the reserved usage for one request."""
        lines = max(1, self.lines)
        return Usage(self.reserved.prompt_tokens // lines, self.reserved.completion_tokens // lines, source="estimated")

    @property
    def most(self) -> LineCeilings:
        """The ceilings; those of any request where they are not known."""
        if self.ceilings.prompts:
            return self.ceilings
        return LineCeilings(ANY_REQUEST, ANY_REQUEST, ANY_REQUEST * self.lines, ANY_REQUEST * self.lines)


class BatchTotals:
    """Adds up lines of a batch of this size. `sent` represents any of its requests, at their endpoint."""

    def __init__(self, sent: SentRequest, size: BatchSize) -> None:
        self.endpoint = sent.call.endpoint
        self.model: str | None = None
        """Model name as the answers report it."""
        call = sent.call
        self._sent = sent
        self._variant = call.params.variant
        self._needs_parts = not _is_additive(call.model.price, self._variant, call.started)
        self._share = size.share._replace(variant=self._variant)
        self._most = size.most
        self._left = [size.most.prompts, size.most.outputs]
        """The most tokens that the remaining lines may report together: prompt, output."""
        self._lines_left = size.lines
        self._answered: set[bytes] = set()
        """Digests of the names of requests that were answered."""
        self._sums: dict[str, Usage] = {}
        """Sums of usage by price variant."""
        self._parts: list[Usage] = []

    def add(self, line: BatchLine | None) -> None:
        """A line; None: it cannot be read."""
        if self._lines_left == 0:
            return
        if line is None:
            self._charge(self._share)
        elif line.facts is not None and not self._is_known(line.custom_id):
            self.model = line.facts.model or self.model
            report = line.facts.usage
            self._charge(self._share if report is None else self._in_batch(self._bounded(report, line.body)))

    def _charge(self, usage: Usage) -> None:
        self._lines_left -= 1
        if self._needs_parts or usage.parts:
            self._parts.append(usage)
        else:
            known = self._sums.get(usage.variant, Usage())
            self._sums[usage.variant] = pricing.total_usage((known, usage))._replace(parts=())

    def _is_known(self, custom_id: str | None) -> bool:
        """Whether this request was answered by an earlier line."""
        if custom_id is None:
            return False
        digest = hashlib.blake2b(custom_id.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        if digest in self._answered:
            return True
        self._answered.add(digest)
        return False

    def _bounded(self, report: Usage, body: bytes) -> Usage:
        """The report, or what of it is below the ceilings, marked as an estimate."""
        prompt = min(report.prompt_tokens, self._most.prompt, self._left[0])
        most, left = self._most.output, self._left[1]
        if report.completion_tokens > min(most, left):
            more = SHOWN_FACTOR * self._sent.count(self._sent.texts_of(body))
            more += REASONING_ALLOWANCE if report.reasoning_tokens else 0
            most, left = most + more, left + more
        output, most_more = min(report.completion_tokens, most, left), most_units(report.more, ())
        self._left = [self._left[0] - prompt, left - output]
        if (prompt, output, most_more) == (report.prompt_tokens, report.completion_tokens, report.more):
            return reported_usage.coherent(report)
        report = report._replace(prompt_tokens=prompt, completion_tokens=output, more=most_more, source="estimated")
        return reported_usage.coherent(report._replace(parts=()))

    def _in_batch(self, report: Usage) -> Usage:
        """The report at the price of batches, or at that of batches in the region that it names, if there is one."""
        parts = tuple([part._replace(variant=self._priced(part.variant)) for part in report.parts])
        return report._replace(variant=self._priced(report.variant), parts=parts)

    def _priced(self, variant: str) -> str:
        call = self._sent.call
        if not variant.startswith(f"{self._variant}-") or call.model.price is None:
            return self._variant
        is_priced = call.model.price.plan.tiers(variant, call.started) is not None
        return variant if is_priced else self._variant

    @property
    def usage(self) -> Usage:
        return pricing.total_usage((*self._sums.values(), *self._parts))


def _is_additive(price: Price | None, variant: str, time: float) -> bool:
    """Whether several requests cost as much as one request of their sum. Not where the size of a prompt chooses the
    price, or a call has one."""
    if price is None or price.nusd_per_million is not None:
        return True
    tiers = price.plan.tiers(variant, time) or ()
    return len(tiers) <= 1 and not any("calls" in tier.rates for tier in tiers)


class _Line:
    """One line of the results, while it comes."""

    def __init__(self, batch: BatchFormat, endpoint: Endpoint) -> None:
        self._batch = batch
        self._endpoint = endpoint
        self._held = bytearray()
        """All of it, or the beginning of a long one."""
        self._size = 0
        self._long: ReadsLine | None = None

    def feed(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > MAX_LINE_BYTES:
            self._held.clear()
        elif self._long is not None:
            self._long.feed(data)
            self._held += data[: max(0, MAX_BROKEN_BYTES - len(self._held))]
        else:
            self._held += data
            if self._size > LONG_ANSWER and (long := self._batch.long_line(self._endpoint)) is not None:
                self._long = long
                long.feed(bytes(self._held))

    @property
    def is_blank(self) -> bool:
        return len(self._held) == self._size and not self._held.strip()

    def end(self) -> BatchLine | None:
        """The line; None: it cannot be read."""
        if self._size > MAX_LINE_BYTES:
            return None
        with suppress(ValueError, RecursionError):
            shown = bytes(self._held)
            return self._batch.line(shown, self._endpoint) if self._long is None else self._long.line(shown)
        return None


class ResultReader(NamedTuple):
    """Reads results of one batch."""

    batch: BatchFormat
    totals: BatchTotals

    async def read(self, download: Download, head: Head) -> bool:
        """Add the lines of one answer; whether it came whole. Other calls have their turn in between."""
        try:
            await self._read(download, decoder_of(head.get("content-encoding") or ""))
        except EncodingFault:
            return False
        return download.failure is None

    async def _read(self, download: Download, decoder: Decoder | None) -> None:
        line, turns = self._next(), Turns(LINE_BYTES)
        while data := await download.read():
            for piece in (data,) if decoder is None else decoder.decode(data):
                *ends, rest = piece.split(b"\n")
                for end in ends:
                    line.feed(end)
                    self._add(line)
                    line = self._next()
                    if turns.is_over(len(end)):
                        await asyncio.sleep(0)
                line.feed(rest)
                await asyncio.sleep(0)
        self._add(line)

    def _next(self) -> _Line:
        return _Line(self.batch, self.totals.endpoint)

    def _add(self, line: _Line) -> None:
        if not line.is_blank:
            self.totals.add(line.end())


async def _end(
    sent: SentRequest, deferral: Deferral, batch: BatchFormat, body: bytes, open_answer: OpensAnswer
) -> WorkEnd | None:
    """How the batch of this object has ended; None: it goes on, or its results cannot be read now. `sent` represents
    any of its requests."""
    try:
        state = batch.state(body)
    except ValueError:
        return None
    if not state.is_over:
        return None
    reserved = Usage(sent.call.params.prompt_tokens, windows.output_limit(sent.call))
    totals = BatchTotals(sent, BatchSize(deferral.lines, reserved, LineCeilings(*deferral.ceilings)))
    reader = ResultReader(batch, totals)
    for path in (*state.results, *state.failures):
        async with open_answer(path) as answer:
            if answer is None:
                return None
            download, head = answer
            if head.status == 404 and path in state.failures:
                continue
            if head.status != 200 or not await reader.read(download, head):
                return None
    return WorkEnd(Charge(totals.usage), state.status, state.ended, totals.model)


BATCHES = WingBatches(_end)


class CleanedResults:
    """Results on their way to the client, without anything of the account in their errors: `hide` is that of
    `refusal.cleaned`."""

    def __init__(self, head: Head, hide: Sequence[tuple[str, str]]) -> None:
        self._decoder = decoder_of(head.get("content-encoding") or "")
        self._hide = tuple(hide)
        self._line = bytearray()
        """The beginning of a line, which is held because most have no error."""
        self._cleaner: ReasonCleaner | None = None
        """Cleans the line of which a part has left."""

    def decoded(self, data: bytes) -> Iterable[bytes]:
        """The next bytes without their encoding, in pieces. Raises `EncodingFault`."""
        return (data,) if self._decoder is None else self._decoder.decode(data)

    async def feed(self, piece: bytes) -> bytes:
        """The bytes that can leave. Other calls have their turn in between."""
        passed = bytearray()
        whole, end, rest = piece.rpartition(b"\n")
        if end:
            lines = bytes(self._line) + whole
            self._line.clear()
            if self._cleaner is None and not has_error(lines):
                passed += lines + end
            else:
                for some in portions(lines.split(b"\n"), LINES_AT_ONCE):
                    for line in some:
                        passed += await self._written(line, is_last=True) + end
                    await asyncio.sleep(0)
        self._line += rest
        if self._cleaner is not None or len(self._line) > MAX_HELD_BYTES:
            passed += await self._written(bytes(self._line), is_last=False)
            self._line.clear()
        return bytes(passed)

    async def end(self) -> bytes:
        """The last line, which may have no end."""
        return await self._written(bytes(self._line), is_last=True)

    async def _written(self, data: bytes, *, is_last: bool) -> bytes:
        """The part of a line that can leave; `is_last`: its last."""
        if self._cleaner is None and is_last and not has_error(data):
            return data
        cleaner, passed = self._cleaner or refusal.cleaner_of(self._hide, ERRORS), bytearray()
        for start in range(0, len(data), refusal.AT_ONCE):
            passed += cleaner.feed(data[start : start + refusal.AT_ONCE])
            await asyncio.sleep(0)
        self._cleaner = None if is_last else cleaner
        return bytes(passed + cleaner.feed(b"", is_last=is_last))


def has_error(line: bytes | bytearray) -> bool:
    """Whether a line of JSON has a member `error` that is not empty."""
    return HAS_ERROR.search(line) is not None
