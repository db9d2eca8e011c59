"""Reads answers of chat completions and completions, and the chunks of their streams.

Some upstreams send content as parts, thoughts among them (Mistral); reasoning is `reasoning_content` (DeepSeek, vLLM)
or `reasoning` (OpenRouter, newer vLLM). Choices differ by `index`; a translation is made of answers of one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gateway.formats.events import CallPiece, Ended, Event, Refusal, ServedTier, Text, Thought
from gateway.formats.member_reader import EACH
from gateway.formats.reader import AnswerReader, objects, text_of
from gateway.formats.tool_calls import ToolCalls, as_arguments
from gateway.formats.unfit import Unfit
from gateway.records import Usage

from .usage import ChatUsage

_REASONS = {
    "max_tokens": "length", "MAX_TOKENS": "length", "model_length": "length", "max_output_tokens": "length",
    "STOP": "stop", "end_turn": "stop", "eos": "stop", "COMPLETE": "stop",
    "tool_use": "tool_calls", "TOOL_CALL": "tool_calls", "function_call": "tool_calls",
    "SAFETY": "content_filter", "refusal": "content_filter", "sensitive": "content_filter",
}  # fmt: skip
"""Reasons of other APIs that relays pass on (qwen-code#9884, ferro-labs#142), as chat has them."""
_FAILURES = frozenset({"error", "abort", "insufficient_system_resource", "network_error"})
"""Reasons of an answer that broke off: OpenRouter's, vLLM's, DeepSeek's, Z.AI's."""
_TEXTS = frozenset({"text", "output_text"})
_THOUGHTS = frozenset({"thinking", "reasoning", "redacted_thinking"})
_NAMES_TOOLS = (
    ("delta", "annotations"), ("delta", "executed_tools"), ("message", "annotations"), ("message", "executed_tools"),
)  # fmt: skip


class ChatReader(AnswerReader):
    """Follows one answer. `finished` are the indexes of choices whose `finish_reason` has come, negative where they are
    not known."""

    WANTED = (
        ("model",), ("service_tier",), ("usage",), ("error",), ("x_groq",), ("web_search",),
        ("choices", EACH, "index"), ("choices", EACH, "finish_reason"), ("choices", EACH, "usage"),
        *[("choices", EACH, *path) for path in _NAMES_TOOLS],
    )  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self.finished: set[int] = set()
        self._usage = ChatUsage()
        self._calls = ToolCalls()

    def facts(self, value: Mapping[str, Any]) -> Usage | None:
        if value.get("error"):
            self.take_error(value["error"])
            return None
        if self.model is None:
            self.take_model(value.get("model"))
        choices = value.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if not isinstance(choice, dict):
                continue
            if choice.get("error"):  # OpenRouter (genkit#6259)
                self.take_error(choice["error"])
                return None
            index, reason = choice.get("index"), choice.get("finish_reason")
            if reason and isinstance(reason, str) and isinstance(index, int | None):
                self.finished.add(self._unnamed() if index is None else index)
        return self._usage.take(value)

    def events(self, value: Mapping[str, Any]) -> list[Event]:
        choices, tier = value.get("choices"), value.get("service_tier")
        found: list[Event] = [ServedTier(tier)] if isinstance(tier, str) else []
        if not isinstance(choices, list) or not choices:
            return found
        choice = choices[0]
        # Foundry Local numbers its chunks, and has a message beside the delta (foundry-local#144).
        is_numbered = isinstance(choice, dict) and "delta" in choice and "message" in choice
        if len(choices) > 1 or not isinstance(choice, dict) or ((choice.get("index") or 0) != 0 and not is_numbered):
            raise Unfit("a choice that was not asked for")
        delta = choice.get("delta", choice.get("message"))
        delta = {} if delta is None else delta
        if not isinstance(delta, dict):
            raise Unfit("the message of a choice is not a JSON object")
        if delta.get("function_call"):
            raise Unfit("a function_call, and only tools were offered")
        found += list(_content(delta, choice.get("logprobs")))
        found += self._called(delta.get("tool_calls"))
        reason, stop = choice.get("finish_reason"), choice.get("stop_reason")
        if reason is not None and not isinstance(reason, str):
            raise Unfit("a finish_reason that is no text")
        if reason in _FAILURES:
            raise Unfit(f"the finish_reason {reason}")
        if reason or isinstance(stop, str):  # vLLM's stop_reason is the stop sequence
            found.append(Ended(_REASONS.get(reason or "", reason or ""), stop if isinstance(stop, str) else None))
        return found

    def rest(self) -> list[Event]:
        return [CallPiece(call, arguments) for call, arguments in self._calls.rests()]

    def _unnamed(self) -> int:
        """The index of a choice that has none: upstreams leave it out of the only one, and some of all."""
        return -1 - len(self.finished) if 0 in self.finished else 0

    def _called(self, given: Any) -> Iterator[Event]:
        for number, each in enumerate(given if isinstance(given, list) else ()):
            function = each.get("function") if isinstance(each, dict) else None
            if not isinstance(function, dict | None) or not isinstance(each, dict):
                raise Unfit("a tool call that is no function call")
            if each.get("type", "function") not in ("function", None, ""):
                raise Unfit("a tool call that is no function call")
            function, index = function or {}, each.get("index")
            if type(index) is not int and len(given) > 1:
                index = number  # calls that come together, without numbers
            call, piece = self._calls.take(
                index if type(index) is int else None,
                text_of(each.get("id")), text_of(function.get("name")), as_arguments(function.get("arguments")),
            )  # fmt: skip
            if piece is not None:
                yield CallPiece(call, piece)


def _content(delta: Mapping[str, Any], logprobs: Any) -> Iterator[Event]:
    """The thoughts, the text and the refusal in a message or a delta."""
    thought, text = contents(delta.get("content"))
    shown = text_of(delta.get("reasoning_content")) or text_of(delta.get("reasoning")) or thought
    if reasoning := shown or "".join(_details(delta.get("reasoning_details"))):
        yield Thought(reasoning)
    annotations = objects(delta.get("annotations"))
    if text or annotations:
        yield Text(text, objects(logprobs.get("content")) if isinstance(logprobs, dict) else (), annotations)
    if refusal := text_of(delta.get("refusal")):
        yield Refusal(refusal)


def _details(given: Any) -> Iterator[str]:
    """The texts of OpenRouter's `reasoning_details`, where nothing else has them (inspect_ai#4184)."""
    for detail in objects(given):
        yield text_of(detail.get("text")) or text_of(detail.get("summary"))


def contents(content: Any) -> tuple[str, str]:
    """The thoughts and the text of a content. Raises `Unfit` for a part that is neither."""
    if content is None or isinstance(content, str):
        return "", content or ""
    thoughts, texts = [], []
    for part in content if isinstance(content, list) else [content]:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in _TEXTS:
            texts.append(text_of(part.get("text")))
        elif kind in _THOUGHTS:
            thoughts.append(contents(part.get("thinking", part.get("text")))[1])
        else:
            raise Unfit("content that is no text")
    return "".join(thoughts), "".join(texts)
