"""Scans a streamed response (OpenAI's Responses API): typed events with a number, the last of which holds it whole.

Events are passed on unchanged, with these exceptions:

1. The terminal event, or the last piece of a long one, is held back until the call is settled.
2. `[DONE]`, which some upstreams add, `id:` and `retry:` lines and events without data are dropped.
3. Errors of items are cleaned.
4. `response.failed` and `error` events are not passed on: the relay decides what the client gets instead, and `failed`
   writes it.

The terminal event repeats the request's instructions and tools, so it is often the longest of the stream.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from gateway.errors import GatewayError
from gateway.formats import sse, token_rule
from gateway.formats.event_scan import EventScan, parsed
from gateway.formats.format import ScanInput
from gateway.formats.member_reader import MemberReader
from gateway.formats.reader import ERRORS, HAS_ERROR
from gateway.formats.reason_cleaner import ReasonCleaner

from .responses_reader import BAD_ENDS, ENDS, HEADS, ITEM_BEGINS, ITEM_ENDS, ResponsesReader, texts_of

WITH_TEXT = frozenset({
    "response.reasoning_text.delta", "response.reasoning_summary_text.delta", "response.output_text.delta",
    "response.refusal.delta", "response.function_call_arguments.delta", "response.custom_tool_call_input.delta",
    "response.mcp_call_arguments.delta", "response.code_interpreter_call_code.delta",
    "response.shell_call_command.delta", "response.apply_patch_call_operation_diff.delta",
})  # fmt: skip
"""Types of the events with texts of the answer."""


def _of_types(types: Collection[str]) -> bytes:
    """A regular expression for the type of an event, at any place: clones write it last."""
    return rb'"type"\s*:\s*"(?:%b)"' % "|".join(map(re.escape, sorted(types))).encode()


_FIRST_TYPE = re.compile(rb'\s*\{\s*"type"\s*:\s*"([^"\\]{1,80})"')
_NAMED = re.compile(rb"(?:\A|[\r\n])event: ?([a-z_.]{1,80})[\r\n]")


class ResponsesScan(EventScan):
    READER = ResponsesReader
    TEXTS = re.compile(rb'"delta"\s*:\s*"((?:[^"\\]++|\\.)++)"')
    HAS_TEXTS = re.compile(_of_types(WITH_TEXT))
    THINKS = re.compile(_of_types({kind for kind in WITH_TEXT if "reasoning" in kind}))
    MATTERS = re.compile(_of_types(HEADS | ITEM_BEGINS | ITEM_ENDS | ENDS) + rb'|"error"\s*:\s*(?!\s|null|""|\{\})')
    HAS_OBJECTS_ONLY = True
    NUMBER = re.compile(rb'"sequence_number"\s*:\s*(\d{1,15})')

    reader: ResponsesReader

    def __init__(self, asked: ScanInput) -> None:
        super().__init__(asked)
        self._kind: str | None = None
        """The type of the long event that is going on, as far as it is known."""
        self._number: int | None = None
        """The highest number of an event that was passed on."""
        self._open_items = self._seen_before = 0
        """Items of the output that have begun and not ended, and the bytes of text that had come before the last."""
        self._has_passed_failure = False
        """A long `response.failed` was passed on before it was known to be one: `_end` is its end."""

    @property
    def last_number(self) -> int | None:
        """The number of the last event that was passed on."""
        following = self._next_number()
        return following - 1 if following else None

    def _has_all(self) -> bool:
        return self.reader.is_good

    @property
    def is_usage_final(self) -> bool:
        """Whether the usage came with the end, also with that of a failed response."""
        return self.usage is not None and self.reader.has_ended

    def _note(self, value: Mapping[str, Any]) -> bool:
        """Take the facts; count the texts of an item that came whole: in no pieces since the last one began."""
        kind, item = value.get("type"), value.get("item")
        if kind in ITEM_BEGINS:
            self._open_items, self._seen_before = self._open_items + 1, self._seen
        elif kind in ITEM_ENDS and isinstance(item, dict):
            self._open_items = max(0, self._open_items - 1)
            is_whole = self._seen == self._seen_before
            if is_whole and (texts := texts_of(item)):
                self._take_texts(texts)
            if is_whole or not self._open_items:
                self._seen_before = self._seen
        return super()._note(value)

    def failed(self, error: GatewayError, request_id: str) -> bytes:
        """The event that ends this stream with an error of the gateway."""
        if self._has_passed_failure:
            return self._end
        return failed_event(
            error,
            number=self._next_number(),
            response_id=self.reader.id or f"resp_{request_id}",
            model=self.model,
            created_at=self.reader.created_at,
        )

    def _shown(self, event: bytes, data: bytes, value: Mapping[str, Any]) -> bytes:
        if value.get("type") is not None and HAS_ERROR.search(data) is not None:
            event = ReasonCleaner(ERRORS, self._clean).feed(event, is_last=True)
        if self.reader.is_good:
            self.is_done, self._end = True, event
            return b""
        self._last_data = data
        return event

    def _unread(self, event: bytes, data: bytes) -> bytes:
        return self._cleaned(event)

    def _long_piece(self, piece: bytes) -> bytes:
        reader = self._long
        if reader is None:
            reader = self._long = MemberReader(ResponsesReader.WANTED)
            data = piece[at + 5 :] if (at := piece.find(b"data:")) >= 0 else piece
            first, named = _FIRST_TYPE.match(data), _NAMED.search(piece, 0, 256)
            self._kind = (first or named)[1].decode("utf-8", "replace") if first or named else None  # type: ignore[index]
        reader.feed(piece)
        self.has_begun = self.has_begun or self._kind not in BAD_ENDS
        if self._kind in WITH_TEXT:
            self._quarters += token_rule.count(piece).quarters
            self._counted_bytes += len(piece)
        if not sse.ends_event(piece):
            return b"" if self._kind in BAD_ENDS else piece
        kind, self._long, self._kind = self._kind, None, None
        has_passed = kind not in BAD_ENDS
        number = reader.get("sequence_number")
        if has_passed and isinstance(number, int):
            self._number = number
        if reader.is_whole:
            value = reader.value()
            self._note({"type": kind} | {name: each for name, each in value.items() if each is not None})
            self.is_done = self.reader.is_good
            if self.is_done or self.error is not None:
                self._has_passed_failure = has_passed and self.error is not None
                self._end = piece if has_passed else b""
                return b""
        return piece if has_passed else b""

    def _next_number(self) -> int:
        if self._last_data and (value := parsed(sse.data_of(self._last_data) or self._last_data)) is not None:
            number = value.get("sequence_number")
            if isinstance(number, int) and (self._number is None or number > self._number):
                self._number = number
        return 0 if self._number is None else self._number + 1


def failed_event(
    error: GatewayError, *, number: int, response_id: str, model: str | None, created_at: Any = None
) -> bytes:
    """A `response.failed` event with this error and the members that clients read of any response."""
    response: dict[str, Any] = {
        "id": response_id,
        "object": "response",
        "created_at": created_at if isinstance(created_at, int | float) else 0,
        "status": "failed",
        "error": {"code": error.name, "message": error.message},
        "incomplete_details": None,
        "model": model,
        "output": [],
        "usage": None,
    }
    event = {"type": "response.failed", "sequence_number": number, "response": response}
    return sse.typed_event(event)


def interrupted_event(error: GatewayError, number: int | None) -> bytes:
    """The event that ends a stream whose response goes on: `error`, which both official SDKs raise where it holds an
    error object (openai-python `_streaming.py`, openai-node `core/streaming.ts`).

    It repeats the number of the last event, because clients resume after the last number that they have read.
    """
    fields = {"message": error.message, "type": error.type, "param": None, "code": error.code}
    event = {"type": "error", "sequence_number": number or 0, "error": fields}
    return sse.typed_event(event)
