"""Generated output of a request as tokens, with its usage. No bytes, no clock.

1. The text of a candidate follows from seed, model, prompt and the number of the candidate. The number restarts for
   each prompt of a batch, so that a prompt gets the same answer alone and in a batch.
2. A limit cuts the tokens (`length`); then a stop sequence cuts the text before it (`stop`); the rest counts.
3. Usage beside `text.split_tokens`: a chat message costs its text and one token for its role, each other part
   85 tokens, earlier tool calls and offered tools their compact JSON. A generated tool call costs its name and its
   arguments. Reasoning is part of the completion and of its limit. `best_of` counts all candidates.

`Settings` are those of a simulated upstream: its key, its models and its pace.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from .requests import ChatRequest, CompletionRequest, split_forms
from .text import (
    END_OF_TEXT,
    VOCABULARY,
    count_tokens,
    dice,
    key_of,
    logprob,
    reason,
    sentences,
    split_tokens,
    token_text,
    write,
)

Endpoint = Literal["completions", "chat", "embeddings", "responses", "messages"]

DEFAULT_MODELS: Mapping[str, Endpoint] = MappingProxyType(
    {
        "gpt-3.5-turbo-instruct": "completions",
        "gpt-4o-mini": "chat",
        "gpt-4.1-mini": "chat",
        "deepseek-reasoner": "chat",
        "text-embedding-3-small": "embeddings",
        "claude-sonnet-5": "messages",
    }
)


@dataclass(frozen=True, slots=True)
class Settings:
    """Defaults of every call; the member `simulate` of a request overrides the pace."""

    api_key: str | None = None
    """The required bearer key; None: no key is required."""
    first_token_delay_s: float = 0.0
    """Seconds before the head of an answer and its first token."""
    tokens_per_s: float | None = None
    """Speed of each choice (choices run in parallel); None: as fast as possible."""
    tokens_per_event: int = 1
    """Tokens in one event of a stream, at least 1; the last event of a text may hold fewer."""
    prefix_cache_blocks: int = 0
    """Blocks of 128 tokens that the prefix cache of chats holds; 0: no token is ever cached."""
    fails_every_s: float = 0.0
    """Length of a period of which calls fail for a while with status 503, in seconds; 0: they do not."""
    fails_for_s: float = 0.0
    """How long they fail at the end of each period."""
    models: Mapping[str, str] = field(default_factory=lambda: DEFAULT_MODELS)
    """The endpoint of each model, by its name."""

    def __post_init__(self) -> None:
        if self.first_token_delay_s < 0 or self.tokens_per_event < 1:
            raise ValueError("first_token_delay_s must be >= 0 and tokens_per_event >= 1")
        if self.tokens_per_s is not None and self.tokens_per_s <= 0:
            raise ValueError("tokens_per_s must be > 0, or None")


DEEPEST = 8
"""Depth at which a recursive schema ends, with null."""


def example(schema: Any, rolls: Iterator[int]) -> Any:
    """A value for the schema, chosen by the rolls."""
    return _Example(schema, rolls).value(schema, 0)


class _Example:
    """Example values of a JSON schema, for tool calls and structured output.

    An object gets its required properties (all, if none is required); of several alternatives the first is used; `$ref`
    is resolved inside the document. Patterns, formats and lengths are ignored.
    """

    def __init__(self, root: Any, rolls: Iterator[int]) -> None:
        self._root = root
        self._rolls = rolls

    def value(self, schema: Any, depth: int) -> Any:
        if not isinstance(schema, dict) or depth > DEEPEST:
            return None
        if "const" in schema:
            return schema["const"]
        if choices := _list(schema.get("enum")):
            return choices[next(self._rolls) % len(choices)]
        if isinstance(schema.get("$ref"), str):
            return self.value(self._resolve(schema["$ref"]), depth + 1)
        for name in ("anyOf", "oneOf", "allOf"):
            if arms := _list(schema.get(name)):
                return self.value(arms[0], depth + 1)
        return self._typed(schema, depth)

    def _typed(self, schema: dict[str, Any], depth: int) -> Any:
        kinds = schema.get("type", "object" if "properties" in schema else "string")
        match kinds[0] if _list(kinds) else kinds:
            case "object":
                return self._object(schema, depth)
            case "array":
                return [self.value(schema.get("items"), depth + 1)]
            case "integer" | "number":
                least = schema.get("minimum", 1)
                return least if isinstance(least, int | float) else 1
            case "boolean":
                return next(self._rolls) % 2 == 0
            case "null":
                return None
            case _:
                return VOCABULARY[next(self._rolls) % len(VOCABULARY)].strip()

    def _object(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        properties = schema.get("properties")
        if not isinstance(properties, dict):
            return {}
        names = [name for name in _list(schema.get("required")) if isinstance(name, str)] or list(properties)
        return {name: self.value(properties.get(name), depth + 1) for name in names}

    def _resolve(self, reference: str) -> Any:
        at = self._root
        for part in reference.removeprefix("#").strip("/").split("/"):
            if part:
                at = at.get(part) if isinstance(at, dict) else None
        return at


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


FinishReason = Literal["stop", "length", "tool_calls"]

DEFAULT_MAX_TOKENS = 16
"""OpenAI's default output limit of a completion."""

PART_TOKENS = 85
"""Tokens of an image or another part that is not text: OpenAI's price of a small image."""


@dataclass(frozen=True, slots=True)
class GeneratedUsage:
    """Tokens of one call; `completion` includes `reasoning`."""

    prompt: int = 0
    completion: int = 0
    reasoning: int = 0
    cached: int = 0
    """Cached tokens, which are part of `prompt`."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A function call; `arguments` are the tokens of its JSON, possibly cut by a limit."""

    id: str
    name: str
    arguments: list[str]

    @property
    def tokens(self) -> int:
        """The cost of the call."""
        return count_tokens(self.name) + len(self.arguments)


@dataclass(frozen=True, slots=True)
class Output:
    """One generated candidate: reasoning, then text or a tool call."""

    tokens: list[str]
    finish_reason: FinishReason
    reasoning: list[str] = field(default_factory=list)
    tool_call: ToolCall | None = None

    @property
    def text(self) -> str:
        return "".join(self.tokens)

    @property
    def cost(self) -> int:
        """The number of completion tokens: reasoning, text and tool call."""
        return len(self.reasoning) + len(self.tokens) + (self.tool_call.tokens if self.tool_call else 0)


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt of a completion, as text and as tokens; the text is empty only if there are none."""

    tokens: list[str]

    @property
    def text(self) -> str:
        """The joined tokens, which `echo` returns."""
        return "".join(self.tokens)


@dataclass(frozen=True, slots=True)
class GeneratedChoice:
    """A delivered output with its index; `prompt` is set on completions."""

    index: int
    output: Output
    prompt: Prompt | None = None


@dataclass(frozen=True, slots=True)
class Generated:
    """All choices of a call, and its usage."""

    choices: list[GeneratedChoice]
    usage: GeneratedUsage

    @property
    def longest(self) -> int:
        """Tokens of the longest delivered output, which decides the duration of the answer."""
        return max((choice.output.cost for choice in self.choices), default=0)


def bound(tokens: list[str], limit: int | None, stops: Sequence[str]) -> tuple[list[str], FinishReason]:
    """The tokens up to the limit and the first complete stop sequence, and the finish reason."""
    is_cut = limit is not None and len(tokens) > limit
    tokens = tokens[:limit]
    text = "".join(tokens)
    found = [(at + len(stop), at) for stop in stops if stop and (at := text.find(stop)) >= 0]
    if found:
        return split_tokens(text[: min(found)[1]]), "stop"
    return tokens, "length" if is_cut else "stop"


# --------------------------------------------------------------------------------------------------------- completions


def complete(request: CompletionRequest) -> Generated:
    """The choices of a completion: indexes run over the prompts, `n` to each."""
    choices: list[GeneratedChoice] = []
    prompt_tokens = completion_tokens = 0
    n = request.n or 1
    for form in split_forms(END_OF_TEXT if request.prompt is None else request.prompt):
        prompt = Prompt(split_tokens(form) if isinstance(form, str) else [token_text(number) for number in form])
        candidates = [_complete_once(request, prompt, number) for number in range(request.candidates)]
        prompt_tokens += len(prompt.tokens)
        completion_tokens += sum(candidate.cost for candidate in candidates)
        if len(candidates) > n:
            candidates.sort(key=_mean_logprob, reverse=True)
        choices += [GeneratedChoice(len(choices) + i, output, prompt) for i, output in enumerate(candidates[:n])]
    return Generated(choices, GeneratedUsage(prompt_tokens, completion_tokens))


def _complete_once(request: CompletionRequest, prompt: Prompt, number: int) -> Output:
    key = key_of(request.seed, request.model, prompt.text, number)
    limit = DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens
    return Output(*bound(write(key, request.pace.tokens), limit, request.stop or ()))


def _mean_logprob(output: Output) -> float:
    """The rank of a candidate for `best_of`."""
    return sum(logprob(token, at) for at, token in enumerate(output.tokens)) / max(1, len(output.tokens))


# ---------------------------------------------------------------------------------------------------------------- chat


def chat(request: ChatRequest) -> Generated:
    """The choices of a chat completion."""
    key = key_of(request.seed, request.model, request.messages)
    outputs = [_chat_once(request, key_of(key, number)) for number in range(request.n or 1)]
    prompt_tokens = sum(message_tokens(message) for message in request.messages)
    if request.tools:
        prompt_tokens += count_tokens(compact(request.tools))
    usage = GeneratedUsage(prompt_tokens, sum(o.cost for o in outputs), sum(len(o.reasoning) for o in outputs))
    return Generated([GeneratedChoice(index, output) for index, output in enumerate(outputs)], usage)


def message_tokens(message: dict[str, Any]) -> int:
    tokens = 1
    content = message.get("content")
    for part in [content] if isinstance(content, str) else content or []:
        text = part.get("text") if isinstance(part, dict) else part
        tokens += count_tokens(text) if isinstance(text, str) else PART_TOKENS
    if message.get("tool_calls"):
        tokens += count_tokens(compact(message["tool_calls"]))
    return tokens


def compact(value: Any) -> str:
    """Encodes a value as JSON without white space."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _chat_once(request: ChatRequest, key: bytes) -> Output:
    limit = request.output_limit
    reasoning: list[str] = []
    if "reasoner" in request.model or request.model.startswith(("o1", "o3")):
        thought = _without_leading_space(reason(key))
        reasoning = thought[:limit]
        if len(reasoning) < len(thought):
            return Output([], "length", reasoning)
        limit = None if limit is None else limit - len(reasoning)
    if (function := _function_to_call(request)) is not None:
        return _call_tool(function, key, limit, reasoning)
    tokens, finish_reason = bound(_answer(request, key), limit, request.stop or ())
    return Output(tokens, finish_reason, reasoning)


def _answer(request: ChatRequest, key: bytes) -> list[str]:
    """The whole text of an answer, before any limit."""
    match request.response_format:
        case {"type": "json_object"}:
            words = "".join(_without_leading_space(sentences(key, 8)))
            return split_tokens(json.dumps({"answer": words, "confidence": (1 + key[2] % 9) / 10}))
        case {"type": "json_schema", "json_schema": {"schema": schema}}:
            return split_tokens(json.dumps(example(schema, dice(key))))
    return _without_leading_space(write(key, request.pace.tokens))


def _function_to_call(request: ChatRequest) -> dict[str, Any] | None:
    """The function to call: the chosen one, or the first.

    If the last message is the result of a tool and the choice is free, the answer is text; else agents would not end.
    """
    if request.tool_choice in (None, "auto") and request.messages[-1].get("role") == "tool":
        return None
    return next(iter(request.functions), None)


def _call_tool(function: dict[str, Any], key: bytes, limit: int | None, reasoning: list[str]) -> Output:
    arguments = example(function.get("parameters") or {"type": "object"}, dice(key))
    call = ToolCall(f"call_{key.hex()[:24]}", str(function.get("name")), split_tokens(json.dumps(arguments)))
    if limit is None or call.tokens <= limit:
        return Output([], "tool_calls", reasoning, call)
    left = limit - count_tokens(call.name)
    if left < 0:  # the limit is below the name
        return Output([], "length", reasoning)
    return Output([], "length", reasoning, ToolCall(call.id, call.name, call.arguments[:left]))


def _without_leading_space(tokens: list[str]) -> list[str]:
    """The tokens of a message: unlike a completion it does not begin with a space."""
    return [tokens[0].lstrip(" "), *tokens[1:]] if tokens else tokens
