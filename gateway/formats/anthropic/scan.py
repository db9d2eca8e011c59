"""Scans a streamed answer of Anthropic's Messages API.

`message_start` brings the model and the first usage, `message_delta` the stop reason and the last usage, `message_stop`
the end: it is held back until the call is settled. Errors are not passed on here, neither `error` events nor OpenAI's
error objects, which some upstreams write: the relay decides that. A `[DONE]` that some upstreams add is left out,
because the API has none, and so are blocks without data, which are no events. All else leaves as it came, pings at
once; pings and comments are no sign that an answer is being generated.
"""

from __future__ import annotations

import json
import re
from typing import Any

from gateway.formats import reported_usage, sse, token_rule
from gateway.formats.event_scan import EventScan
from gateway.formats.format import ScanInput
from gateway.records import Usage

from . import usage as messages_usage

_MATTERS = re.compile(rb'"type"\s*:\s*"(?:message_(?:start|delta|stop)|error|ping)"|"error"\s*:')
_THINKS = re.compile(rb'"(?:thinking_delta|signature_delta|redacted_thinking)"')
_PING = re.compile(rb'(?:event:\s?ping|data:\s?\{\s*"type"\s*:\s*"ping"[^\r\n]*)(?:\r\n|\n|\r)')


class MessagesScan(EventScan):
    """Follows one streamed answer. `is_done`: `message_stop` has come."""

    TEXTS = messages_usage.TEXT

    def __init__(self, asked: ScanInput) -> None:
        super().__init__(count_texts=asked.count_texts, clean=asked.clean, allows=asked.allows)
        self._has_stopped = False
        """The stop reason has come."""
        self._end = b""
        self._report: dict[str, Any] = {}
        """The reports of usage so far, merged."""

    @property
    def last(self) -> bytes:
        """`message_stop`, if it came. An answer without it ends without: an invented one would be false."""
        return self._end

    @property
    def is_complete(self) -> bool:
        """Whether the stop reason has come: nothing but the end follows it."""
        return self._has_stopped

    def is_sign_of_life(self, passed: bytes) -> bool:
        """Pings keep a connection open, as comments do."""
        if b"ping" in passed:
            passed = _PING.sub(b"", passed).strip()
        return bool(passed) and super().is_sign_of_life(passed)

    def _forget_end(self) -> None:
        pass  # no long event ends an answer

    def _event(self, event: bytes) -> bytes:
        if self.is_alike(event):
            return event
        if event.isspace():
            return b""
        data = sse.data_of(event)
        if not data:
            return self._cleaned(event) if sse.is_comment(event) else b""
        if data.startswith(b"[DONE]"):
            return b""
        if not data.startswith(b"{"):
            event = self._cleaned(event)
        if _MATTERS.search(data):
            return self._matter(event, data)
        self.has_begun = True
        if texts := self.TEXTS.findall(data):
            self._take_texts(texts)
            self._passed_with_text(event)
        if not self.has_reasoned and _THINKS.search(data) is not None:
            self.has_reasoned = True
        return event

    def _matter(self, event: bytes, data: bytes) -> bytes:
        try:
            payload = json.loads(data)
        except (ValueError, RecursionError):
            return event
        match payload:
            case {"type": "ping"}:
                return event
            case {"type": "error"} | {"error": str() | dict()}:
                error = payload.get("error")
                self.error = error if isinstance(error, dict) else {"message": str(error)}
                return b""
            case {"type": "message_stop"}:
                self.is_done = True
                self._end = event
                return b""
            case {"type": "message_start", "message": {**message}}:
                if isinstance(model := message.get("model"), str):
                    self.model = self.model or model
                self._take_usage(message.get("usage"))
            case {"type": "message_delta", **rest}:
                delta = rest.get("delta")
                if isinstance(delta, dict) and isinstance(delta.get("stop_reason"), str):
                    self._has_stopped = True
                self._take_usage(rest.get("usage"))
        self.has_begun = True
        return event

    def _take_usage(self, report: Any) -> None:
        """Reports are cumulative: the newest of those that can be true counts."""
        if not isinstance(report, dict):
            return
        known = messages_usage.merged(self._report, report)
        if (usage := messages_usage.reported(known)) is None:
            return
        if not self._allows(usage, self.delivered_tokens):
            self.excess = reported_usage.highest(self.excess, usage)
            return
        self._report = known
        self.usage: Usage | None = usage
        last = reported_usage.count(report.get("output_tokens"))
        # The report at the start has a few tokens: without one at the end, or one below it, the output is not known.
        self.is_usage_final = self._has_stopped and last is not None and last >= (known.get("output_tokens") or 0)

    def _long_piece(self, piece: bytes) -> bytes:
        """A piece of an event too long to hold, such as the result of a search. All of it counts as text."""
        self.has_begun = True
        self._quarters += token_rule.count(piece).quarters
        return piece
