"""The content of a message or a delta of a chat answer, read once for every translation.

Some upstreams send content as parts, thoughts among them (Mistral); reasoning is `reasoning_content` (DeepSeek, vLLM)
or `reasoning` (OpenRouter, newer vLLM). A piece of a tool call names its call by `index`; some upstreams leave it out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from gateway.formats.format import Unfit

_TEXTS = frozenset({"text", "output_text"})
_THOUGHTS = frozenset({"thinking", "reasoning"})


class CallPiece(NamedTuple):
    """A piece of one tool call."""

    position: int | None
    """Its `index`."""
    id: str
    name: str
    arguments: str


class ChatDelta(NamedTuple):
    """One piece of an answer; a plain answer is one piece."""

    reasoning: str = ""
    text: str = ""
    refusal: str = ""
    calls: tuple[CallPiece, ...] = ()
    logprobs: tuple[Mapping[str, Any], ...] = ()
    annotations: tuple[Mapping[str, Any], ...] = ()
    finish_reason: str | None = None
    stop_sequence: str | None = None
    """The stop sequence that ended the answer, where an upstream reports it (vLLM's `stop_reason`)."""


def read(chunk: Mapping[str, Any]) -> ChatDelta | None:
    """The piece in a chunk or a plain answer; None where it has no choice. Raises `Unfit`."""
    choices = chunk.get("choices")
    if not isinstance(choices, list) or not choices:
        return None
    choice = choices[0]
    if len(choices) > 1 or not isinstance(choice, dict) or (choice.get("index") or 0) != 0:
        raise Unfit("a choice that was not asked for")
    delta = choice.get("delta", choice.get("message"))
    delta = {} if delta is None else delta
    if not isinstance(delta, dict):
        raise Unfit("the message of a choice is not a JSON object")
    if delta.get("function_call"):
        raise Unfit("a function_call, and only tools were offered")
    reason = choice.get("finish_reason")
    if reason is not None and not isinstance(reason, str):
        raise Unfit("a finish_reason that is no text")
    thought, text = _content(delta.get("content"))
    stop = choice.get("stop_reason")
    return ChatDelta(
        reasoning=_string(delta.get("reasoning_content")) or _string(delta.get("reasoning")) or thought,
        text=text,
        refusal=_string(delta.get("refusal")),
        calls=tuple(_call(each) for each in _list(delta.get("tool_calls"))),
        logprobs=tuple(_logprobs(choice.get("logprobs"))),
        annotations=tuple(each for each in _list(delta.get("annotations")) if isinstance(each, dict)),
        finish_reason=reason or None,
        stop_sequence=stop if isinstance(stop, str) else None,
    )


def as_chunk(answer: Mapping[str, Any]) -> dict[str, Any]:
    """A plain answer as the one chunk of a stream, with the index of each of its tool calls. Raises `Unfit`."""
    choices = answer.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        raise Unfit(f"{len(choices) if isinstance(choices, list) else 'no'} choices, and 1 was asked for")
    choice = dict(choices[0])
    message = choice.pop("message", None)
    if not isinstance(message, dict):
        raise Unfit("a choice without a message")
    calls = [
        {**each, "index": number} for number, each in enumerate(_list(message.get("tool_calls"))) if _is_object(each)
    ]
    return {**answer, "choices": [{**choice, "delta": {**message, "tool_calls": calls}}]}


def _is_object(value: Any) -> bool:
    if not isinstance(value, dict):
        raise Unfit("a tool call that is no JSON object")
    return True


def _content(content: Any) -> tuple[str, str]:
    """The thoughts and the text of a content."""
    if content is None:
        return "", ""
    if isinstance(content, str):
        return "", content
    thoughts, texts = [], []
    for part in content if isinstance(content, list) else [content]:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in _TEXTS:
            texts.append(_string(part.get("text")))
        elif kind in _THOUGHTS:
            inner = part.get("thinking", part.get("text"))
            thoughts.append(_content(inner)[1])
        else:
            raise Unfit("content that is no text")
    return "".join(thoughts), "".join(texts)


def _call(call: Any) -> CallPiece:
    if not isinstance(call, dict) or call.get("type", "function") not in ("function", None):
        raise Unfit("a tool call that is no function call")
    function = call.get("function") or {}
    index = call.get("index")
    if not isinstance(function, dict):
        raise Unfit("a tool call that is no function call")
    return CallPiece(
        index if type(index) is int else None,
        _string(call.get("id")),
        _string(function.get("name")),
        _string(function.get("arguments")),
    )


def _logprobs(logprobs: Any) -> list[dict[str, Any]]:
    if not isinstance(logprobs, dict):
        return []
    return [each for each in _list(logprobs.get("content")) if isinstance(each, dict)]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _string(value: Any) -> str:
    return value if isinstance(value, str) else ""


class Counts(NamedTuple):
    """Token counts of a chat answer's `usage`; the parts are included in the whole."""

    prompt: int
    cached: int
    cache_write: int
    completion: int
    reasoning: int

    @property
    def uncached(self) -> int:
        """Of the prompt: neither read from a cache nor written to it."""
        return max(0, self.prompt - self.cached - self.cache_write)


def counts(usage: Any) -> Counts | None:
    """Those of a usage object; None where there is none. Parts are clamped to the whole.

    xAI and Gemini leave reasoning out of `completion_tokens`: `total_tokens` is then the sum of all three.
    """
    if not isinstance(usage, dict):
        return None
    prompt, completion = _count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens"))
    if prompt is None and completion is None:
        return None
    prompt, completion = prompt or 0, completion or 0
    before, after = usage.get("prompt_tokens_details"), usage.get("completion_tokens_details")
    cached = min(_detail(before, "cached_tokens"), prompt)
    written = min(_detail(before, "cache_write_tokens"), prompt - cached)
    reasoning = _detail(after, "reasoning_tokens")
    if reasoning and usage.get("total_tokens") == prompt + completion + reasoning:
        completion += reasoning
    return Counts(prompt, cached, written, completion, min(reasoning, completion))


def _detail(details: Any, name: str) -> int:
    return (_count(details.get(name)) or 0) if isinstance(details, dict) else 0


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < 2**53 else None
