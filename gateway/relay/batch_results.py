"""The usage of a batch: the sum over the lines of its results, which are read while they arrive.

Each request that was answered is charged what its line reports, up to the ceilings of the batch (`LineCeilings`). A
line that cannot be read, or reports nothing, is charged its share of the reservation. Where a ceiling or a share is
charged, the record is marked `estimated`. Only the first answer to a request counts, and none beyond their number.
"""

from __future__ import annotations

import asyncio
import codecs
import hashlib
import json
import re
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from gateway.chunked import portions
from gateway.formats import reported_usage
from gateway.formats.format import BatchFormat, BatchLine
from gateway.formats.reader import ERRORS, HAS_ERROR
from gateway.quota import pricing
from gateway.records import LineCeilings, Usage
from gateway.upstream import refusal
from gateway.upstream.connection import Head
from gateway.upstream.content_encoding import EncodingFault, decoder_of
from gateway.upstream.download import Download

from .charge import REASONING_ALLOWANCE, SHOWN_FACTOR, SentRequest

MAX_LINE_BYTES = 33_554_432
"""Size limit of one answer in bytes; a longer one is not read."""

MAX_CLEANED_BYTES = 8_192
"""Bytes of the longest line that is parsed whole to clean its error; parsing takes some milliseconds."""

_ERRORS_OF_RESULTS = ((), ("response", "body"), ("result",))
"""The objects with an `error` in a line of a batch's results (OpenAI's API reference, "The request output object";
anthropic-sdk-python, `types/messages/message_batch_errored_result.py`)."""
LINES_AT_ONCE, TEXT_AT_ONCE = 1_000, 4_096
"""Lines, and bytes of a long line with an error, between which other calls have their turn. They have it behind each
shorter line with an error, too."""

ANY_REQUEST = 2_097_152
"""Tokens of the prompt, and of the output, that no request of a batch exceeds: twice the largest context of common
models."""


LONGEST_NAME = 1_024
"""Characters of a name of an account; configured secrets may be longer."""
CONTEXT = 16
"""Characters before a name by which `ACCOUNT` knows it."""
_UNDECIDED = re.compile(rb'(?:\\|\\?"(?:e(?:r(?:r(?:o(?:r(?:"\s*(?::\s*(?:n(?:ul?)?|"|\{)?)?)?)?)?)?)?)?)\Z')
"""The end of what came of a line, if it may be the beginning of an error."""


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
        self._needs_parts = not pricing.is_additive(call.model.price, self._variant, call.started)
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
        output = min(report.completion_tokens, most, left)
        self._left = [self._left[0] - prompt, left - output]
        if (prompt, output) == (report.prompt_tokens, report.completion_tokens):
            return reported_usage.coherent(report)
        usage = report._replace(prompt_tokens=prompt, completion_tokens=output, source="estimated", parts=())
        return reported_usage.coherent(usage)

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


class ResultReader(NamedTuple):
    """Reads results of one batch."""

    batch: BatchFormat
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
        found = None
        if line is not None:
            with suppress(ValueError, RecursionError):
                found = self.batch.line(line, self.totals.endpoint)
        self.totals.add(found)


class CleanedResults:
    """Results on their way to the client, without anything of the account in their errors: `hide` is that of
    `refusal.cleaned`. A line is held until it is whole; of one that is too long only its text is cleaned, from its
    error on. Neither a secret nor the name of the error is lost where two pieces meet."""

    def __init__(self, head: Head, hide: Sequence[tuple[str, str]]) -> None:
        self._decoder = decoder_of(head.get("content-encoding") or "")
        self._hide = hide
        self._line = bytearray()
        self._has_passed = False
        """Whether a part of this line has left."""
        self._error: _CleanedText | None = None
        """The rest of a long line, from its error on."""

    async def feed(self, data: bytes) -> bytes:
        """The bytes that can leave. Other calls have their turn in between. Raises `EncodingFault`."""
        pieces = (data,) if self._decoder is None else self._decoder.decode(data)
        return b"".join([await self._passed(piece) for piece in pieces])

    async def end(self) -> bytes:
        """The last line, which may have no end."""
        return await self._last_part(bytes(self._line))

    async def _passed(self, piece: bytes) -> bytes:
        passed = bytearray()
        whole, end, rest = piece.rpartition(b"\n")
        if end:
            lines = bytes(self._line) + whole
            self._line.clear()
            if self._error is None and not has_error(lines):
                passed += lines + end
                self._has_passed = False
            else:
                for some in portions(lines.split(b"\n"), LINES_AT_ONCE):
                    for line in some:
                        passed += await self._last_part(line) + end
                    await asyncio.sleep(0)
        self._line += rest
        if self._has_passed or len(self._line) > MAX_CLEANED_BYTES:
            passed += await self._part()
        return bytes(passed)

    async def _part(self) -> bytes:
        """The part of a long line that can leave while the line goes on."""
        self._has_passed = True
        length = len(self._line)
        if self._error is None:
            length = len(self._line) if (found := _UNDECIDED.search(self._line)) is None else found.start()
            if len(self._line) - length > MAX_CLEANED_BYTES or has_error(self._line[:length]):
                self._error, length = _CleanedText(self._hide), len(self._line)
        data = bytes(self._line[:length])
        del self._line[:length]
        return await self._written(data, is_last=False)

    async def _last_part(self, line: bytes) -> bytes:
        """The line, or the rest of it."""
        if self._error is None and has_error(line):
            await asyncio.sleep(0)
            if not self._has_passed and len(line) <= MAX_CLEANED_BYTES:
                return cleaned_result(line, self._hide)
            self._error = _CleanedText(self._hide)
        passed = await self._written(line, is_last=True)
        self._error, self._has_passed = None, False
        return passed

    async def _written(self, data: bytes, *, is_last: bool) -> bytes:
        if self._error is None:
            return data
        passed = bytearray()
        for start in range(0, len(data), TEXT_AT_ONCE):
            passed += self._error.feed(data[start : start + TEXT_AT_ONCE])
            await asyncio.sleep(0)
        return bytes(passed + self._error.feed(b"", is_last=is_last))


class _CleanedText:
    """A text that comes in pieces, cleaned as `refusal.cleaned` has it, wherever they are cut. As many characters
    are held as the longest secret has."""

    def __init__(self, hide: Iterable[tuple[str, str]]) -> None:
        known = [(secret, replacement) for secret, replacement in hide if secret]
        longest = max([LONGEST_NAME, *[2 * len(secret) for secret, _ in known]])
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._steps = [
            _Step(refusal.PORT, lambda found: found[1], longest),
            _Step(refusal.ACCOUNT, lambda _: "***", longest),
        ]
        if known:
            pattern = re.compile("|".join([f"({refusal.pattern_of(secret)})" for secret, _ in known]), re.IGNORECASE)
            self._steps.insert(0, _Step(pattern, lambda found: known[(found.lastindex or 1) - 1][1], longest))

    def feed(self, data: bytes, *, is_last: bool = False) -> bytes:
        text = self._decoder.decode(data, is_last)
        for step in self._steps:
            text = step.feed(text, is_last=is_last)
        return text.encode("utf-8", "surrogateescape")


class _Step:
    """Replaces what a pattern finds in a text that comes in pieces, if it is not longer than this."""

    def __init__(self, pattern: re.Pattern[str], replacement: Callable[[re.Match[str]], str], longest: int) -> None:
        self._pattern = pattern
        self._replacement = replacement
        self._longest = longest
        self._held = ""
        self._start = 0
        """Position in `_held` of the text that has not been passed on; a pattern's lookbehind reads the text before
        it."""

    def feed(self, text: str, *, is_last: bool) -> str:
        held, start, passed = self._held + text, self._start, [""]
        end = len(held) if is_last else max(0, len(held) - self._longest)
        for found in self._pattern.finditer(held, start):
            if found.start() >= end:
                break
            passed += held[start : found.start()], self._replacement(found)
            start = found.end()
        passed.append(held[start:end])
        start = max(start, end)
        kept = max(0, start - CONTEXT)
        self._held, self._start = held[kept:], start - kept
        return "".join(passed)


def has_error(line: bytes | bytearray) -> bool:
    """Whether a line of JSON has a member `error` that is not empty."""
    return HAS_ERROR.search(line) is not None


def cleaned_result(line: bytes, hide: Iterable[tuple[str, str]]) -> bytes:
    """A line of a batch's results with its error cleaned, wherever OpenAI and Anthropic have it (`_ERRORS_OF_RESULTS`).
    The good answer of another stays, also one that speaks of errors."""
    if not has_error(line):
        return line
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return refusal.cleaned(line.decode("utf-8", "surrogateescape"), hide).encode("utf-8", "surrogateescape")
    hide, is_changed = tuple(hide), False
    for path in _ERRORS_OF_RESULTS:
        holder = value
        for name in path:
            holder = holder.get(name) if isinstance(holder, dict) else None
        for name, is_error in (("error", True), ("output", False)):  # the items of an output may have one
            if isinstance(holder, dict) and holder.get(name):
                part = refusal.clean_below(holder[name], ERRORS, hide, is_below=is_error)
                is_changed |= part != holder[name]
                holder[name] = part
    return json.dumps(value).encode() if is_changed else line


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
