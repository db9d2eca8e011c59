"""Scans a streamed response (OpenAI's Responses API): typed events with a number, the last of which holds it whole.

Events are passed on unchanged, with these exceptions:

1. The terminal event, or the last piece of a long one, is held back until the call is settled.
2. `[DONE]`, which some upstreams add, `id:` and `retry:` lines and events without data are dropped.
3. `response.failed` and `error` events are not passed on: the relay decides what the client gets instead, and `failed`
   writes it.

The terminal event repeats the request's instructions and tools, so it is often the longest of the stream. One that is
too long to be held is read on its way (`MemberReader`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from typing import Any

from gateway.errors import GatewayError
from gateway.formats import sse, token_rule
from gateway.formats.event_scan import EventScan
from gateway.formats.format import ScanInput
from gateway.formats.member_reader import EACH, MemberReader

from .responses_usage import Used, usage_of

GOOD_ENDS = frozenset({"response.completed", "response.incomplete"})
BAD_ENDS = frozenset({"response.failed", "error"})
HEADS = frozenset({"response.created", "response.in_progress", "response.queued"})
"""Events that carry the whole response before any output."""

REASONING = frozenset({"response.reasoning_text.delta", "response.reasoning_summary_text.delta"})
TEXTS = REASONING | {
    "response.output_text.delta",
    "response.refusal.delta",
    "response.function_call_arguments.delta",
    "response.custom_tool_call_input.delta",
    "response.mcp_call_arguments.delta",
    "response.code_interpreter_call_code.delta",
}
"""Events whose `delta` is generated text."""

_REQUEST_FAULTS = re.compile(
    r"context_length_exceeded|(?:invalid|unsupported|empty)_.*|image_.*|.*_policy(?:_violation)?"
)
"""Codes of a failed response that blame the request (openai-openapi, ResponseErrorCode). They come without a type."""

MAX_ITEMS = 100
"""Items of one answer that are bound to its key, at most."""

_FIRST_TYPE = re.compile(rb'\s*\{\s*"type"\s*:\s*"([^"\\]{1,80})"')
_NAMED = re.compile(rb"(?:\A|[\r\n])event: ?([a-z_.]{1,80})[\r\n]")
_NUMBER = re.compile(rb'"sequence_number"\s*:\s*(\d{1,15})')
_STRING = re.compile(rb'[^"\\\r\n]*+(?:\\[^\r\n][^"\\\r\n]*+)*+')
_REST = re.compile(rb'[^"\\\r\n]*+"\}\n\n')
_PADDING = re.compile(rb'"obfuscation"\s*:\s*"')
_LONGEST_NUMBER = 16

_HEAD = ("id", "model", "created_at", "store", "background")
_RESPONSE = (*_HEAD, "status", "service_tier", "error", "usage", "tool_usage")
_ITEM_TYPE = ("response", "output", EACH, "type")
_ITEM_ID = ("response", "output", EACH, "id")
_CONTAINERS = (
    ("response", "output", EACH, "container_id"),
    ("response", "output", EACH, "environment", "container_id"),
)
_WANTED = (
    ("type",), ("sequence_number",), ("error",), ("code",), ("message",),
    *[("response", name) for name in _RESPONSE], _ITEM_TYPE, _ITEM_ID, *_CONTAINERS,
)  # fmt: skip


class ResponsesScan(EventScan):
    """Follows one streamed response."""

    TEXTS = re.compile(rb'"delta"\s*:\s*"((?:[^"\\]++|\\.)++)"')

    def __init__(self, asked: ScanInput) -> None:
        super().__init__(count_texts=asked.count_texts, clean=asked.clean, allows=asked.allows)
        self._numbered: tuple[bytes, bytes, bytes, bool] | None = None
        """An event with text: what is before its number, between number and text, behind the text; whether padded."""
        self._last_data = b""
        """Data of the last event that was passed on."""
        self._last = b""
        self._reader: MemberReader | None = None
        """Of the long event that is going on."""
        self._kind: str | None = None
        """Its type, as far as it is known."""
        self._number: int | None = None
        self._has_passed_failure = False
        """A long `response.failed` was passed on before it was known to be one: `last` is its end."""
        self.id: str | None = None
        self.is_stored = True
        """Whether the upstream keeps it under its id; True where the stream does not state it."""
        self.items: tuple[str, ...] = ()
        """The ids of the items of its output, when it has ended."""
        self.has_ended = False
        """Whether the terminal event has come."""
        self._created_at: Any = None

    @property
    def last_number(self) -> int | None:
        """The number of the last event that was passed on."""
        following = self._next_number()
        return following - 1 if following else None

    @property
    def last(self) -> bytes:
        return self._last

    @property
    def is_complete(self) -> bool:
        return self.is_done

    def failed(self, error: GatewayError, request_id: str) -> bytes:
        """The event that ends this stream with an error of the gateway."""
        if self._has_passed_failure:
            return self._last
        return failed_event(
            error,
            number=self._next_number(),
            response_id=self.id or f"resp_{request_id}",
            model=self.model,
            created_at=self._created_at,
        )

    # ------------------------------------------------------------------------------------------------ events

    def is_alike(self, data: bytes) -> bool:
        """As for any stream, but for the number in each event."""
        if self._numbered is None or len(data) > sse.LONG_EVENT:
            return False
        before, between, behind, is_padded = self._numbered
        if not data.startswith(before):
            return False
        at = len(before)
        start = data.find(between, at, at + _LONGEST_NUMBER + len(between))
        if start < 0 or not data[at:start].isdigit():
            return False
        start += len(between)
        end = data.find(behind, start)
        if end < 0 or _STRING.fullmatch(data, start, end) is None:
            return False
        rest = end + len(behind)
        if _REST.fullmatch(data, rest) is None if is_padded else rest != len(data):
            return False
        if end > start:
            self._take_texts((data[start:end],))
        self._last_data = data
        return True

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
        kind, value = _read(data)
        if kind is None and value is None:
            return self._cleaned(event)  # no event of the API
        has_fields = sse.has_fields(event)
        if has_fields:
            event = sse.without_fields(event)
        if kind in TEXTS:
            self._take_delta(kind, event, data, may_learn=not has_fields)
        elif kind in GOOD_ENDS or kind in BAD_ENDS or kind is None:
            if (value := value or _parsed(data)) is not None and self._ends(kind, value):
                self._last = event if self.is_done else b""
                return b""
        elif kind in HEADS and (value := value or _parsed(data)) is not None:
            self._note_head(value.get("response"))
        self.has_begun = True
        self._last_data = data
        return event

    def _take_delta(self, kind: str | None, event: bytes, data: bytes, *, may_learn: bool) -> None:
        self.has_reasoned = self.has_reasoned or kind in REASONING
        if texts := self.TEXTS.findall(data)[:1]:
            self._take_texts(texts)
            if may_learn:
                self._passed_with_text(event)

    def _learn(self, event: bytes) -> None:
        texts, number = self.TEXTS.search(event), _NUMBER.search(event)
        if texts is None or number is None or number.end() > texts.start() or not event.endswith(b"\n\n"):
            return
        padding = _PADDING.search(event, texts.end())
        behind = event[texts.end(1) : padding.end()] if padding else event[texts.end(1) :]
        between = event[number.end(1) : texts.start(1)]
        self._numbered = event[: number.start(1)], between, behind, padding is not None

    def _note_head(self, response: Any) -> None:
        if not isinstance(response, dict):
            return
        if isinstance(response.get("id"), str):
            self.id = response["id"]
        if isinstance(response.get("model"), str):
            self.model = response["model"]
        is_stored = response.get("store") is not False or response.get("background") is True
        self.is_stored = self.is_stored and is_stored
        self._created_at = response.get("created_at")

    def _ends(self, kind: str | None, value: Mapping[str, Any]) -> bool:
        """Take a terminal event, or an object with an error that is no event; False: it is neither."""
        response = value.get("response")
        response = response if isinstance(response, dict) else {}
        if kind is None and not value.get("error"):
            return False
        if kind in GOOD_ENDS or kind == "response.failed":
            self._note_head(response)
            output = response.get("output")
            items = [each for each in output if isinstance(each, dict)] if isinstance(output, list) else []
            self.items = ids_of(items)
            if not self.has_text and (texts := [text for item in items for text in _texts_of(item)]):
                self._take_texts(texts)
            self._take(
                Used(
                    response.get("usage"), response.get("tool_usage"), response.get("service_tier"),
                    *items_of(items),
                )
            )  # fmt: skip
        self._settle(kind, response.get("status"), value if kind == "error" or kind is None else response)
        return True

    def _take(self, used: Used) -> None:
        """The usage, which comes with the end."""
        if (usage := usage_of(used)) is None:
            return
        self.has_begun = True
        self.is_done = True  # for `_take_report`: what is reported here is final
        self._take_report(usage)

    def _settle(self, kind: str | None, status: Any, place: Mapping[str, Any]) -> None:
        self.has_ended = kind in GOOD_ENDS or kind == "response.failed"
        error = place.get("error")
        if kind in GOOD_ENDS and status != "failed":
            self.has_begun = self.is_done = True
            return
        self.is_done = False
        if not isinstance(error, dict):
            error = {"message": error} if isinstance(error, str) else dict(place) if kind == "error" else {}
        self.error = error_of_failure(error)

    # -------------------------------------------------------------------------------------------- long events

    def _long_piece(self, piece: bytes) -> bytes:
        reader = self._reader
        if reader is None:
            reader = self._reader = MemberReader(_WANTED)
            data = piece[at + 5 :] if (at := piece.find(b"data:")) >= 0 else piece
            first, named = _FIRST_TYPE.match(data), _NAMED.search(piece, 0, 256)
            self._kind = (first or named)[1].decode("utf-8", "replace") if first or named else None  # type: ignore[index]
        reader.feed(piece)
        self.has_begun = self.has_begun or self._kind not in BAD_ENDS
        if self._kind in TEXTS:
            self._quarters += token_rule.count(piece).quarters
        if not sse.ends_event(piece):
            return b"" if self._kind in BAD_ENDS else piece
        kind, self._reader, self._kind = self._kind, None, None
        has_passed = kind not in BAD_ENDS
        found = reader.get("type")
        kind = found if isinstance(found, str) else kind
        number = reader.get("sequence_number")
        if has_passed and isinstance(number, int):
            self._number = number
        if not reader.is_whole:
            return piece if has_passed else b""
        is_end = kind in GOOD_ENDS or kind in BAD_ENDS
        if not is_end:
            if kind in HEADS:
                self._note_head({name: reader.get("response", name) for name in _HEAD})
            return piece
        response: dict[str, Any] = {name: reader.get("response", name) for name in _RESPONSE}
        if kind != "error":
            self._note_head({name: value for name, value in response.items() if value is not None})
            ids = [_parsed_text(each) for each in reader.counted[_ITEM_ID]]
            self.items = ids_of([{"id": each} for each in ids])
            self._take(
                Used(response["usage"], response["tool_usage"], response["service_tier"], *_counted(reader))
            )  # fmt: skip
        top = {name: reader.get(name) for name in ("error", "code", "message")}
        self._settle(kind, response["status"], top if kind == "error" else response)
        self._has_passed_failure = has_passed and self.error is not None
        self._last = piece if has_passed else b""
        return b""

    def _forget_end(self) -> None:
        """Nothing to forget: a long event is an end only if all of its JSON came."""

    def _next_number(self) -> int:
        if self._last_data and (value := _parsed(sse.data_of(self._last_data) or self._last_data)) is not None:
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
    return b"event: response.failed\n" + sse.write_event(json.dumps(event, separators=(",", ":")).encode())


def interrupted_event(error: GatewayError, number: int | None) -> bytes:
    """The event that ends a stream whose response goes on: `error`, which both official SDKs raise where it holds an
    error object (openai-python `_streaming.py`, openai-node `core/streaming.ts`).

    It repeats the number of the last event, because clients resume after the last number that they have read.
    """
    fields = {"message": error.message, "type": error.type, "param": None, "code": error.code}
    event = {"type": "error", "sequence_number": number or 0, "error": fields}
    return b"event: error\n" + sse.write_event(json.dumps(event, separators=(",", ":")).encode())


def error_of_failure(error: Mapping[str, Any]) -> dict[str, Any]:
    """The error of a failed response as an error object, with a type where its code blames the request."""
    found = {name: error[name] for name in ("message", "type", "param", "code") if error.get(name) is not None}
    if found.get("type") in (None, "error"):
        found.pop("type", None)
        if _REQUEST_FAULTS.fullmatch(str(found.get("code"))):
            found["type"] = "invalid_request_error"
    return found or {"message": "the response failed without an error"}


def items_of(output: Collection[Mapping[str, Any]]) -> tuple[dict[str, int], set[str]]:
    """How many items of each type an output has, and the containers that they name."""
    kinds: dict[str, int] = {}
    containers: set[str] = set()
    for item in output:
        kind = str(item.get("type"))
        kinds[kind] = kinds.get(kind, 0) + 1
        environment = item.get("environment")
        for place in (item, environment if isinstance(environment, dict) else {}):
            if isinstance(place.get("container_id"), str):
                containers.add(place["container_id"])
    return kinds, containers


def ids_of(output: Collection[Mapping[str, Any]]) -> tuple[str, ...]:
    """The ids of items, at most `MAX_ITEMS`."""
    return tuple([item["id"] for item in output if isinstance(item.get("id"), str) and item["id"]][:MAX_ITEMS])


def _parsed_text(value: bytes) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        return None


def _counted(reader: MemberReader) -> tuple[dict[str, int], set[str]]:
    """As `items_of`, of a long event."""
    kinds = {name.strip(b'"').decode("utf-8", "replace"): number for name, number in reader.counted[_ITEM_TYPE].items()}
    containers = {
        name.decode("utf-8", "replace") for path in _CONTAINERS for name in reader.counted[path] if name != b"null"
    }
    return kinds, containers


def _read(data: bytes) -> tuple[str | None, dict[str, Any] | None]:
    """The type of an event, and its JSON if it had to be parsed for that; None where there is none."""
    if (first := _FIRST_TYPE.match(data)) is not None:
        return first[1].decode("utf-8", "replace"), None
    value = _parsed(data)
    kind = None if value is None else value.get("type")
    return (kind if isinstance(kind, str) else None), value


def _parsed(data: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _texts_of(item: Mapping[str, Any]) -> list[bytes]:
    """Generated texts of an item of the output, as in JSON."""
    content = item.get("content")
    parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    texts = [part.get("text") or part.get("refusal") for part in parts]
    texts += [item.get(name) for name in ("arguments", "input", "code")]
    return [json.dumps(text).encode()[1:-1] for text in texts if isinstance(text, str) and text]
