"""The access line: one per call, on standard output; never prompts, never secrets.

Lines are gathered and written by a thread every `FLUSH_S`, so that a slow reader of the log never holds a call. Where
it falls behind by more than `MAX_WAITING`, lines are left out, and the log has their number.

The refusal log of one worker is written after the answer, some entries a second at most.

A flood of refusals must neither delay calls nor push out the entries of known keys, so entries beyond `AT_ONCE` are
dropped, and of unknown keys those beyond `UNKNOWN_AT_ONCE`. The metric of rejected requests counts all of them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Mapping
from json.encoder import encode_basestring_ascii as quote
from queue import SimpleQueue
from typing import Literal

from gateway.accounting.call_log import AccessLogExtras
from gateway.quota.pricing import usd
from gateway.records import OTHER, Record
from gateway.store import Clock, RefusalEntry, RequestStore, StoreUnavailable
from gateway.units import format_counts

log = logging.getLogger("gateway")

EVERY_S = 1.0

AT_ONCE = 200
UNKNOWN_AT_ONCE = 50
"""Entries of one write: `AT_ONCE` limits all of them, `UNKNOWN_AT_ONCE` those of unknown keys."""

MAX_MESSAGE = 500
"""Characters of a message that are kept."""


class RefusalLog:
    """Collects refusals: `run` is started as a task, `write` is called once more at the end, and `add` costs an
    append."""

    def __init__(self, store: RequestStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._entries: list[RefusalEntry] = []
        self._unknown = 0
        self._has_failed = False

    def add(self, entry: RefusalEntry) -> None:
        """Write an entry soon, unless there are too many."""
        if len(self._entries) >= AT_ONCE or (entry.key is None and self._unknown >= UNKNOWN_AT_ONCE):
            return
        self._unknown += entry.key is None
        self._entries.append(entry._replace(message=entry.message[:MAX_MESSAGE]))

    async def run(self) -> None:
        """Write what was added, again and again."""
        while True:
            await asyncio.sleep(EVERY_S)
            await self.write()

    async def write(self) -> None:
        """Write the added entries. Those that the store does not take are dropped: metrics have counted them."""
        if not self._entries:
            return
        entries, self._entries, self._unknown = self._entries, [], 0
        try:
            await self._store.add_refusals(entries, self._clock.now())
        except StoreUnavailable as error:
            if not self._has_failed:
                log.warning("refusals are missing in the refusal log: %s", error)
            self._has_failed = True
        else:
            self._has_failed = False


FIELDS: Mapping[str, str] = {
    "time": "When the line was written, in UTC: that is the end of the call.",
    "id": "The request id, which the client has as x-request-id and every report as id.",
    "trace_id": "The trace of the call, where `tracing.endpoint` is set.",
    "key": "The id of the key.",
    "team": "The key's team.",
    "endpoint": "The format of the call: completions, chat, responses ...; left out of what is no call.",
    "method": "Of a request that was not carried: its method.",
    "path": "Of a request that was not carried: its path, without a query and without what looks like a key.",
    "model": "The model as the client named it; of a request that was not carried the configured name, or other.",
    "upstream": "The upstream that answered, or failed last.",
    "status": "HTTP status sent to the client; 499: the client left before the answer.",
    "error": "Code of the error sent to the client; its type if it has no code.",
    "param": "The parameter that the error is about.",
    "limit": "Limit that refused the call: its owner, unit and period.",
    "limit_state": "State of that limit, and the amount that the call requested.",
    "upstream_error": "The upstream's error, in its words for programs and with its own request id.",
    "stream": "Whether the answer was asked for as a stream.",
    "ended": "done, error, or client_gone.",
    "truncated": "Whether the answer broke off.",
    "prompt_tokens": "Tokens of the prompt.",
    "completion_tokens": "Tokens of the answer.",
    "cached_tokens": "Of the prompt's tokens those that the upstream had in its cache; left out where none.",
    "reasoning_tokens": "Of the answer's tokens those of reasoning; left out where none.",
    "units": "Further units that were used, as name=count; left out where none.",
    "usage_source": "Source of the usage: reported by the upstream, estimated by the gateway, or none.",
    "cost_usd": "The cost in US dollars; left out where the model has no price.",
    "attempts": "How often an upstream was asked.",
    "first_byte_ms": "From the request until the first byte of the answer.",
    "duration_ms": "From the request until the end of the answer.",
    "remote": "The client's address, as far as it is known.",
    "client_request_id": "The client's own X-Client-Request-Id.",
}
"""Every field of a line, in its order, with its meaning. A field without a value is left out."""

FLUSH_S = 0.1
MAX_WAITING = 20_000
CLOSE_WITHIN_S = 1.0
"""How long the end of a worker waits for the last lines to be taken."""


class AccessLog:
    """Writes access lines to a file descriptor. Has to be closed, or the last lines are lost."""

    def __init__(self, style: Literal["json", "text", "off"], descriptor: int = 1) -> None:
        self.style = style
        self._descriptor = descriptor
        self._waiting: list[str] = []
        self._left_out = 0
        self._writer: threading.Thread | None = None
        self._to_write: SimpleQueue[bytes | None] = SimpleQueue()
        """Bytes for the thread to write; None: it ends."""
        self._is_writing = False
        self._timer: asyncio.TimerHandle | None = None
        self._second = 0
        self._time_text = ""

    def write_record(self, record: Record, beside: AccessLogExtras) -> None:
        """The line of a call that was carried."""
        usage = record.usage
        self.write(
            id=record.id, trace_id=beside.trace_id, key=record.key, team=record.team,
            endpoint=record.endpoint, model=record.model,
            served_model=None if record.label_model in (record.model, OTHER) else record.label_model,
            upstream=record.upstream, status=record.status,
            error=beside.error, upstream_error=beside.upstream_error,
            stream=record.stream, ended=record.ended, truncated=record.truncated,
            prompt_tokens=usage.prompt_tokens, completion_tokens=usage.completion_tokens,
            cached_tokens=usage.cached_tokens or None, reasoning_tokens=usage.reasoning_tokens or None,
            units=format_counts(usage.more) if usage.more else None,
            usage_source=usage.source,
            cost_usd=None if record.cost_nusd is None else usd(record.cost_nusd),
            attempts=record.attempts,
            first_byte_ms=None if record.first_byte_s is None else round(record.first_byte_s * 1000, 1),
            duration_ms=round(record.duration_s * 1000, 1),
            remote=beside.remote, client_request_id=record.client_request_id,
        )  # fmt: skip

    def write(self, **fields: _Value) -> None:
        """One line. Fields without a value are left out."""
        if self.style == "off":
            return
        if len(self._waiting) >= MAX_WAITING:
            self._left_out += 1
            return
        now = int(time.time())
        if now != self._second:  # formatted once for all lines of a second
            self._second = now
            self._time_text = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
        given = {"time": self._time_text, **fields}
        self._waiting.append(_as_json(given) if self.style == "json" else _as_text(given))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_S, self._flush)

    async def close(self) -> None:
        """Writes the lines that are still in memory."""
        if self._timer is not None:
            self._timer.cancel()
        deadline = time.monotonic() + CLOSE_WITHIN_S
        while self._waiting or self._is_writing:
            if not self._is_writing:
                self._flush()
            if time.monotonic() > deadline:
                break  # the reader of the log is gone
            await asyncio.sleep(0.005)
        self._to_write.put(None)

    def _flush(self) -> None:
        self._timer = None
        if self._is_writing:  # the reader is slow: what comes meanwhile waits, up to MAX_WAITING
            self._timer = asyncio.get_running_loop().call_later(FLUSH_S, self._flush)
            return
        lines, self._waiting = self._waiting, []
        if self._left_out:
            lines.append(f'{{"message": "access lines left out", "count": {self._left_out}}}')
            self._left_out = 0
        if lines:
            if self._writer is None:
                # A daemon: a log without a reader must not delay the end of the process.
                self._writer = threading.Thread(target=self._write_all, daemon=True)
                self._writer.start()
            self._is_writing = True
            self._to_write.put(("\n".join(lines) + "\n").encode())

    def _write_all(self) -> None:
        while (data := self._to_write.get()) is not None:
            try:
                while data:
                    data = data[os.write(self._descriptor, data) :]
            except OSError:
                pass  # the reader of the log is gone; calls go on
            self._is_writing = False


_Value = str | float | bool | None


_WORDS = {True: "true", False: "false"}


def _as_json(fields: Mapping[str, _Value]) -> str:
    """A flat object. The json module takes twice as long for a line, most of it to get started."""
    members = [
        f'"{name}": {quote(value) if value.__class__ is str else _WORDS[value] if value.__class__ is bool else value}'
        for name, value in fields.items()
        if value is not None
    ]
    return f"{{{', '.join(members)}}}"


def _as_text(fields: Mapping[str, _Value]) -> str:
    texts = {name: str(value) for name, value in fields.items() if value is not None}
    return " ".join([f"{name}={text if _is_word(text) else quote(text)}" for name, text in texts.items()])


def _is_word(text: str) -> bool:
    return text.isprintable() and " " not in text and "=" not in text
