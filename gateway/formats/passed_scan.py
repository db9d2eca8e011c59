"""A `Scan` of bytes that are passed on as they come: the end of the message is the end of the answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gateway.records import Usage

from . import reported_usage

TAIL_BYTES = 8192
"""Bytes at the end in which a usage report is looked for."""


class PassedScan:
    """Follows one answer without meaning to the gateway. It is complete when the upstream has ended its message."""

    def __init__(self, read: Callable[[Any], Usage | None]) -> None:
        self._read = read
        self._tail = b""
        self.usage: Usage | None = None
        self.excess: Usage | None = None
        self.is_usage_final = False
        self.error: dict[str, Any] | None = None
        self.is_done = False
        self.model: str | None = None
        self.has_reasoned = False
        self.has_begun = False
        self.is_at_start = False

    is_over = False
    is_inside_event = False
    is_between_events = True
    has_text = False

    @property
    def is_complete(self) -> bool:
        return self.is_usage_final

    def last(self, usage: Usage) -> bytes:
        return b""

    def is_alike(self, data: bytes) -> bool:
        return False

    def is_sign_of_life(self, passed: bytes) -> bool:
        return True

    def feed(self, data: bytes) -> tuple[bytes, bool]:
        self.has_begun = True
        self._tail = (self._tail + data)[-TAIL_BYTES:]
        if b'"usage"' in self._tail:  # also of an answer that breaks off behind its report
            self.usage = reported_usage.found_in(self._tail, self._read)
        return data, False

    def finish(self) -> bytes:
        self.is_usage_final = True
        return b""

    def text_events(self) -> int:
        return 0

    def delivered_tokens(self) -> int:
        return 0
