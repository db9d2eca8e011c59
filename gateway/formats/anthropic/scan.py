"""Scans a streamed answer of Anthropic's Messages API.

`message_stop` is the end: it is held back until the call is settled. Errors are not passed on here, neither `error`
events nor OpenAI's error objects, which some upstreams write: the relay decides that. A `[DONE]` that some upstreams
add is left out, because the API has none, and so are blocks without data, which are no events. All else leaves as it
came, pings at once; pings and comments are no sign that an answer is being generated.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gateway.formats.event_scan import EventScan
from gateway.formats.format import ScanInput
from gateway.records import Usage

from . import usage as messages_usage
from .reader import MessagesReader

_PING = re.compile(rb'(?:event:\s?ping|data:\s?\{\s*"type"\s*:\s*"ping"[^\r\n]*)(?:\r\n|\n|\r)')


class MessagesScan(EventScan):
    """Follows one streamed answer. `is_done`: `message_stop` has come."""

    READER = MessagesReader
    TEXTS = messages_usage.TEXT
    THINKS = re.compile(rb'"(?:thinking_delta|signature_delta|redacted_thinking)"')
    MATTERS = re.compile(rb'"type"\s*:\s*"(?:message_(?:start|delta|stop)|error|ping)"|"error"\s*:')
    DROPS_FIELDS = False

    reader: MessagesReader

    def __init__(self, asked: ScanInput) -> None:
        super().__init__(asked)
        self._end = b""

    def _has_all(self) -> bool:
        """Whether the stop reason has come."""
        return self.reader.has_stopped

    def _last(self) -> bytes:
        """`message_stop`, if it came. An answer without it ends without: an invented one would be false."""
        return self._end

    def is_sign_of_life(self, passed: bytes) -> bool:
        """Pings keep a connection open, as comments do."""
        if self.writer is None and b"ping" in passed:
            passed = _PING.sub(b"", passed).strip()
        return bool(passed) and super().is_sign_of_life(passed)

    def _object(self, event: bytes, data: bytes, value: Mapping[str, Any]) -> bytes:
        kind = value.get("type")
        if kind == "ping":
            return event if self.writer is None else b""
        passed = super()._object(event, data, value)
        if kind != "message_stop" or self.error is not None:
            return passed
        self.is_done, self._end = True, event
        return passed if self.writer is not None else b""

    def _merged(self, report: Usage) -> Usage:
        """Reports are cumulative: the newest of those that can be true counts."""
        return report
