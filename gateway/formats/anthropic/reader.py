"""Reads answers of Anthropic's Messages API: whole messages, and the events of their streams.

`message_start` brings the model and the first usage, `message_delta` the stop reason and the last usage. The pieces of
a block name it by `index`; a block may bring its whole content when it starts.

Its reports of usage:

1. `input_tokens` does not include the cache: the prompt is `input_tokens + cache_creation_input_tokens +
   cache_read_input_tokens`. Writes that last an hour are `cache_creation.ephemeral_1h_input_tokens`, the other writes
   last 5 minutes. `output_tokens` includes thinking.
2. The reports of a stream are cumulative, and each count replaces its own (anthropic-sdk, `accumulate_event`). Input
   counts of a report with `input_tokens` are one set, because Kimi's first report counts the cache in `input_tokens`
   and its last does not (maximhq/bifrost#5510); zeros alone replace none, and neither does a smaller set in which the
   cache is less. A count that is left out or null is as before, and so is the part that lasts an hour, which only the
   first report names.
3. `iterations` lists the runs of models inside one call. Compactions are not in the counts at the top (anthropic-sdk,
   BetaUsage), so each count is the sum over the list, if that is more. Each run is then a part of the usage, with the
   `model` that it names, because each has the price of its model and of its own length.
4. With `fallback_credit` a retry was billed less than its counts; by how much is unknown: the usage is an estimate.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gateway import units
from gateway.api.prompt_tokens import BYTES_PER_TOKEN
from gateway.config.rates import variant_of
from gateway.formats.event_scan import EventScan
from gateway.formats.events import (
    CallPiece,
    CollectedCall,
    Ended,
    Event,
    KeptThought,
    Refusal,
    Text,
    Thought,
    ToolCalls,
    Unfit,
)
from gateway.formats.reader import AnswerReader, as_arguments, text_of
from gateway.formats.reported_usage import count, detail
from gateway.records import Usage

TEXT = re.compile(
    rb'"(?:(?:text|thinking|partial_json|name)"|compaction(?:_delta)?"\s*,\s*"content")\s*:\s*"((?:[^"\\]++|\\.)++)"'
)
"""Generated texts in an answer or an event that are not empty: its one group."""

_INPUT = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
_CACHE = _INPUT[1:]
_OTHER_MODELS = frozenset({"advisor_message", "fallback_message"})
"""Iterations of a model of their own."""
UNNAMED_MODEL = "?"
"""The model of a part whose iteration has one of its own and does not name it."""


class _Counts(NamedTuple):
    fresh: int
    written: int
    written_1h: int
    read: int
    output: int
    thinking: int

    @property
    def prompt(self) -> int:
        return self.fresh + self.written + self.read


def reported(report: Any) -> Usage | None:
    """The usage object of an answer, or what `merged` made of those of a stream; None if it cannot be read."""
    if not isinstance(report, dict):
        return None
    if count(report.get("input_tokens")) is None and count(report.get("output_tokens")) is None:
        return None
    top = _counts(report)
    iterations = report.get("iterations")
    runs = [run for run in iterations if isinstance(run, dict)] if isinstance(iterations, list) else []
    if runs:
        summed = _Counts(*map(sum, zip(*map(_counts, runs), strict=True)))
        output, thinking = max(summed.output, top.output), max(summed.thinking, top.thinking)
        top = (summed if summed.prompt > top.prompt else top)._replace(output=output, thinking=thinking)
    searches = detail(report.get("server_tool_use"), "web_search_requests")
    usage = _usage(top, searches, _service(report))
    if report.get("fallback_credit"):
        usage = usage._replace(source="estimated")
    return usage if len(runs) < 2 else _with_parts(usage, runs, searches)


def _usage(counted: _Counts, searches: int, service: str) -> Usage:
    more: units.Counts = ()
    if counted.written or searches:
        more = units.counts(
            {
                "cache_write": counted.written - counted.written_1h,
                "cache_write_1h": counted.written_1h,
                "web_searches": searches,
            }
        )
    return Usage(counted.prompt, counted.output, counted.read, counted.thinking, "reported", more, service)


def _with_parts(usage: Usage, runs: Sequence[Mapping[str, Any]], searches: int) -> Usage:
    """The usage with its runs as parts. Runs that are not all of it have no price of their own: where another model ran
    among them, the usage is an estimate."""
    parts = [_usage(_counts(run), 0, usage.variant)._replace(model=_model(run)) for run in runs]
    if searches:
        parts.append(Usage(source="reported", more=units.counts({"web_searches": searches}), variant=usage.variant))
    whole = [sum(counts) for counts in zip(*[part[:2] for part in parts], strict=True)]
    if whole == list(usage[:2]):
        return usage._replace(parts=tuple(parts))
    return usage._replace(source="estimated") if any(part.model for part in parts) else usage


def _model(run: Mapping[str, Any]) -> str:
    """The model that ran, where it is not certainly the call's."""
    model = run.get("model")
    if isinstance(model, str) and model:
        return model
    return UNNAMED_MODEL if run.get("type") in _OTHER_MODELS else ""


def _service(report: Mapping[str, Any]) -> str:
    """The billed service that the answer names: of `speed`, `service_tier` and `inference_geo`."""
    tier = "fast" if report.get("speed") == "fast" else report.get("service_tier")
    return variant_of(tier if isinstance(tier, str) else "", report.get("inference_geo"))


def merged(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Two reports of one stream as one, the later one second."""
    given = {name: value for name, value in now.items() if value is not None}
    has_input = any(count(given.get(name)) for name in _INPUT) and not _loses_cache(before, given)
    known = dict(before)
    for name, value in given.items():
        if name in _INPUT and name in before and not (has_input if "input_tokens" in given else count(value)):
            continue
        is_sum = name == "output_tokens"
        known[name] = max(count(value) or 0, count(before.get(name)) or 0) if is_sum else value
    return known


def _loses_cache(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether a report counts a smaller prompt than the one before it, because it leaves out tokens of the cache."""
    sums = [
        [sum([count(each.get(name)) or 0 for name in names]) for each in (now, before)] for names in (_INPUT, _CACHE)
    ]
    return all(later < earlier for later, earlier in sums) and any(now.get(name) is not None for name in _CACHE)


def _counts(report: Mapping[str, Any]) -> _Counts:
    split = report.get("cache_creation")
    longer = detail(split, "ephemeral_1h_input_tokens")
    written = count(report.get("cache_creation_input_tokens"))
    if written is None:
        written = longer + detail(split, "ephemeral_5m_input_tokens")
    return _Counts(
        count(report.get("input_tokens")) or 0,
        written,
        min(longer, written),
        count(report.get("cache_read_input_tokens")) or 0,
        count(report.get("output_tokens")) or 0,
        detail(report.get("output_tokens_details"), "thinking_tokens"),
    )


_REASONS: Mapping[str, str] = {
    "stop_sequence": "stop", "max_tokens": "length", "model_context_window_exceeded": "length",
    "tool_use": "tool_calls", "refusal": "content_filter",
}  # fmt: skip
"""stop_reason -> finish_reason (anthropic-sdk, `StopReason`); any other, `end_turn` among them, is `stop`."""
_THINKING = frozenset({"thinking", "redacted_thinking"})


class MessagesReader(AnswerReader):
    """Follows one answer. `has_stopped`: its stop reason has come."""

    WANTED = (
        ("type",), ("message", "model"), ("message", "usage"), ("model",), ("usage",), ("error",),
        ("delta", "stop_reason"), ("stop_reason",),
    )  # fmt: skip

    def __init__(self) -> None:
        self.has_stopped = False
        self._report: Mapping[str, Any] = {}
        self._output = 0
        """The most tokens of output that a report had."""
        self._calls = ToolCalls()
        self._blocks: dict[Any, dict[str, Any]] = {}
        self._open_calls: dict[Any, CollectedCall] = {}

    def facts(self, value: Mapping[str, Any]) -> Usage | None:
        kind, error = value.get("type"), value.get("error")
        if kind == "content_block_start":
            self._note_tool(value.get("content_block"))
            return None
        if kind == "error" or (isinstance(error, str | dict) and error):
            self.take_error(error)
            return None
        message = value.get("message") if kind == "message_start" else value
        delta = value.get("delta") if kind == "message_delta" else message
        if isinstance(message, dict):
            self.take_model(message.get("model"))
        if isinstance(delta, dict) and isinstance(delta.get("stop_reason"), str):
            self.has_stopped = True
        report = message.get("usage") if isinstance(message, dict) else None
        # The report at the start has a few tokens of output, and a last one below it does not count the output either.
        output = count(report.get("output_tokens")) if isinstance(report, dict) else None
        self.counts_output = kind != "message_start" and output is not None and output >= self._output
        self._output = max(self._output, output or 0)
        if not isinstance(report, dict):
            return None
        self._report = merged(self._report, report)
        return reported(self._report)

    def _note_tool(self, block: Any) -> None:
        """Count a search, and the tokens of results of a tool of the upstream, which is prompt of the rest."""
        kind = block.get("type") if isinstance(block, dict) else None
        self.has_compacted = self.has_compacted or kind == "compaction"
        if kind == "server_tool_use" and block.get("name") == "web_search":
            searches = dict(self._named.more).get("web_searches", 0) + 1
            self._named = self._named._replace(more=units.counts({"web_searches": searches}))
        elif isinstance(kind, str) and kind.endswith("_tool_result"):
            tokens = -(-len(json.dumps(block)) // BYTES_PER_TOKEN)
            self._named = self._named._replace(prompt_tokens=self._named.prompt_tokens + tokens)

    def events(self, value: Mapping[str, Any]) -> list[Event]:
        index = index if isinstance(index := value.get("index"), int) else None
        match value.get("type"):
            case "message":
                return self._message(value)
            case "message_start" if not isinstance(value.get("message"), dict):
                raise Unfit("a message_start without a message")
            case "content_block_start":
                return [*self._end_block(index), *self._begin_block(index, value.get("content_block"))]
            case "content_block_delta":
                return self._delta(index, value.get("delta"))
            case "content_block_stop":
                return self._end_block(index)
            case "message_delta":
                return [*self.rest(), *_ended(value.get("delta"))]
            case _:
                return []  # pings, and events of unknown types

    def rest(self) -> list[Event]:
        return [event for index in list(self._blocks) for event in self._end_block(index)]

    def _message(self, message: Mapping[str, Any]) -> list[Event]:
        content = message.get("content")
        if not isinstance(content, list):
            raise Unfit("an answer that is no message")
        found: list[Event] = []
        for index, block in enumerate(content):
            found += [*self._begin_block(index, block), *self._end_block(index)]
        return [*found, *_ended(message)]

    def _begin_block(self, index: Any, block: Any) -> list[Event]:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind not in ("text", "tool_use", *_THINKING):
            raise Unfit(f"a block of type {json.dumps(kind)}")
        self._blocks[index] = dict(block)
        if kind == "tool_use":
            call_id, name = block.get("id"), block.get("name")
            if not isinstance(call_id, str) or not isinstance(name, str):
                raise Unfit(f"a tool call without {'name' if isinstance(call_id, str) else 'id'}")
            call = self._open_calls[index] = self._calls.begin(call_id, name)
            return [CallPiece(call, "")]
        return _shown(kind, text_of(block.get(kind)))

    def _delta(self, index: Any, given: Any) -> list[Event]:
        delta = given if isinstance(given, dict) else {}
        block = self._blocks.get(index, {})
        match delta.get("type"):
            case "text_delta":
                return _shown("text", text_of(delta.get("text")))
            case "thinking_delta":
                thought = text_of(delta.get("thinking"))
                block["thinking"] = text_of(block.get("thinking")) + thought
                return _shown("thinking", thought)
            case "signature_delta":
                block["signature"] = delta.get("signature")
                return []
            case "input_json_delta":
                if (call := self._open_calls.get(index)) is None:
                    raise Unfit("arguments of a call that has not begun")
                piece = call.take("", "", text_of(delta.get("partial_json")))
                return [CallPiece(call, piece)] if piece else []
            case _:
                return []  # citations, which were not asked for

    def _end_block(self, index: Any) -> list[Event]:
        block, call = self._blocks.pop(index, {}), self._open_calls.pop(index, None)
        if call is not None:
            given = "" if call.arguments else call.take("", "", as_arguments(block.get("input") or {})) or ""
            rest = given + call.rest()
            return [CallPiece(call, rest)] if rest else []
        return [KeptThought(block)] if block.get("type") in _THINKING else []


def _shown(kind: str, text: str) -> list[Event]:
    if not text or kind == "redacted_thinking":
        return []
    return [Text(text) if kind == "text" else Thought(text)]


def _ended(given: Any) -> list[Event]:
    """The end in a message or a delta, behind the explanation of a refusal (anthropic-sdk, RefusalStopDetails)."""
    if not isinstance(given, dict) or not isinstance(given.get("stop_reason"), str):
        return []
    reason, details = given["stop_reason"], given.get("stop_details")
    if reason == "pause_turn":
        raise Unfit("an answer that waits for a server tool, and none was offered")
    text = text_of(details.get("explanation")) if reason == "refusal" and isinstance(details, dict) else ""
    stop = given.get("stop_sequence")
    ended = Ended(_REASONS.get(reason, "stop"), stop if isinstance(stop, str) else None)
    return [Refusal(text), ended] if text else [ended]


_PING = re.compile(rb'(?:event:\s?ping|data:\s?\{\s*"type"\s*:\s*"ping"[^\r\n]*)(?:\r\n|\n|\r)')


class MessagesScan(EventScan):
    """Follows one streamed answer. `is_done`: `message_stop` has come.

    It is held back until the call is settled. Errors are not passed on here, neither `error` events nor OpenAI's error
    objects, which some upstreams write: the relay decides that. A `[DONE]` that some upstreams add is left out, because
    the API has none, and so are blocks without data, which are no events. All else leaves as it came, pings at once;
    pings and comments are no sign that an answer is being generated.
    """

    READER = MessagesReader
    TEXTS = TEXT
    THINKS = re.compile(rb'"(?:thinking_delta|signature_delta|redacted_thinking)"')
    MATTERS = re.compile(
        rb'"type"\s*:\s*"(?:message_(?:start|delta|stop)|error|ping|compaction|server_tool_use|\w{1,40}_tool_result)"|"error"\s*:'
    )
    DROPS_FIELDS = False
    KEEPS_HIGHEST = False

    reader: MessagesReader

    def _has_all(self) -> bool:
        return self.reader.has_stopped

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
