"""The wire form of generated output: one JSON body, or the events of a stream.

1. Both forms come from the same tokens, so the joined stream equals the plain answer.
2. An event is encoded when it is due, so that 10,000 open streams hold tokens, which share their strings, and no bytes.
   The parts that all events of a call share are encoded once (`_events`).
3. Several choices alternate event by event. The last event of a choice has the `finish_reason` and no text.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Any, NamedTuple
from uuid import uuid4

from .choices import Generated, GeneratedChoice, GeneratedUsage, Output
from .requests import ChatRequest, CompletionRequest
from .text import likeliest, logprob

DONE = b"data: [DONE]\n\n"
FINGERPRINT = "fp_simulator"

encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class SimulatedEvent(NamedTuple):
    """One event of a stream. `step` is the number of tokens of its choice before it, which decides its due time."""

    data: bytes
    step: int = 0
    tokens: int = 0
    reasoning: int = 0


class _Piece(NamedTuple):
    """One event of one choice, before it is encoded."""

    choice: dict[str, Any]
    step: int
    tokens: int = 0
    reasoning: int = 0


# --------------------------------------------------------------------------------------------------------- completions


def completion_body(request: CompletionRequest, generated: Generated) -> bytes:
    choices = [
        {
            "text": _echoed(request, choice) + choice.output.text,
            "index": choice.index,
            "logprobs": _completion_logprobs(request, choice, bool(request.echo), 0, len(choice.output.tokens)),
            "finish_reason": choice.output.finish_reason,
        }
        for choice in generated.choices
    ]
    body = _stamp("cmpl", "text_completion", request.model)
    return encode({**body, "choices": choices, "usage": completion_usage(generated.usage)}).encode()


def completion_events(
    request: CompletionRequest, generated: Generated, tokens_per_event: int
) -> Iterator[SimulatedEvent]:
    """The stream of POST /v1/completions, without its [DONE]."""
    pieces = [_completion_pieces(request, choice, tokens_per_event) for choice in generated.choices]
    stamp = _stamp("cmpl", "text_completion", request.model)
    usage = completion_usage(generated.usage) if request.include_usage else None
    return _events(stamp, pieces, usage)


def completion_usage(usage: GeneratedUsage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
    }


def _completion_pieces(request: CompletionRequest, choice: GeneratedChoice, tokens_per_event: int) -> Iterator[_Piece]:
    def piece(text: str, is_echo: bool, start: int, end: int, finish_reason: str | None = None) -> _Piece:
        logprobs = _completion_logprobs(request, choice, is_echo, start, end)
        made = {"text": text, "index": choice.index, "logprobs": logprobs, "finish_reason": finish_reason}
        return _Piece(made, start, end - start)

    tokens = choice.output.tokens
    if request.echo:
        yield piece(_echoed(request, choice), True, 0, 0)
    for start in range(0, len(tokens), tokens_per_event):
        end = min(start + tokens_per_event, len(tokens))
        yield piece("".join(tokens[start:end]), False, start, end)
    yield piece("", False, len(tokens), len(tokens), choice.output.finish_reason)


def _echoed(request: CompletionRequest, choice: GeneratedChoice) -> str:
    return choice.prompt.text if request.echo and choice.prompt else ""


def _completion_logprobs(
    request: CompletionRequest, choice: GeneratedChoice, is_echo: bool, start: int, end: int
) -> dict[str, list[Any]] | None:
    """Log probabilities of the output tokens from `start` to `end`, after those of the prompt where it is echoed.

    Offsets count characters from the start of the prompt, echoed or not. The first token of an echoed prompt has no
    probability, because no token precedes it.
    """
    if request.logprobs is None or choice.prompt is None:
        return None
    prompt, output = choice.prompt.tokens, choice.output.tokens
    tokens = (prompt if is_echo else []) + output[start:end]
    first = 0 if is_echo else len(prompt) + start
    offset = 0 if is_echo else len(choice.prompt.text) + sum(map(len, output[:start]))
    # The rank of an output token depends on its position in the output alone, so that `best_of` and `echo` agree.
    places = [at - len(prompt) for at in range(first, first + len(tokens))]
    count = max(1, request.logprobs)  # the generated token is always included
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token)
    is_at_start = is_echo and bool(prompt)
    return {
        "tokens": tokens,
        "token_logprobs": [
            None if is_at_start and i == 0 else logprob(token, place)
            for i, (token, place) in enumerate(zip(tokens, places, strict=True))
        ],
        "top_logprobs": [
            None if is_at_start and i == 0 else dict(likeliest(token, place, count))
            for i, (token, place) in enumerate(zip(tokens, places, strict=True))
        ],
        "text_offset": offsets,
    }


# ---------------------------------------------------------------------------------------------------------------- chat


def chat_body(request: ChatRequest, generated: Generated) -> bytes:
    choices = [
        {
            "index": choice.index,
            "message": _message(choice.output),
            "logprobs": _chat_logprobs(request, choice.output, 0, len(choice.output.tokens)),
            "finish_reason": choice.output.finish_reason,
        }
        for choice in generated.choices
    ]
    body = _stamp("chatcmpl", "chat.completion", request.model)
    return encode({**body, "choices": choices, "usage": chat_usage(generated.usage)}).encode()


def chat_events(request: ChatRequest, generated: Generated, tokens_per_event: int) -> Iterator[SimulatedEvent]:
    """The stream of POST /v1/chat/completions, without its [DONE]."""
    pieces = [_chat_pieces(request, choice, tokens_per_event) for choice in generated.choices]
    stamp = _stamp("chatcmpl", "chat.completion.chunk", request.model)
    usage = chat_usage(generated.usage) if request.include_usage else None
    return _events(stamp, pieces, usage)


def chat_usage(usage: GeneratedUsage) -> dict[str, Any]:
    """Usage in the shape of chat completions, with details."""
    return {
        **completion_usage(usage),
        "prompt_tokens_details": {"cached_tokens": usage.cached, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": usage.reasoning,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


def _message(output: Output) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": output.text, "refusal": None}
    if output.reasoning:
        message["reasoning_content"] = "".join(output.reasoning)
    if (call := output.tool_call) is not None:
        message["content"] = None
        function = {"name": call.name, "arguments": "".join(call.arguments)}
        message["tool_calls"] = [{"id": call.id, "type": "function", "function": function}]
    return message


def _chat_pieces(request: ChatRequest, choice: GeneratedChoice, tokens_per_event: int) -> Iterator[_Piece]:
    output = choice.output

    def choice_of(
        delta: dict[str, Any], start: int = 0, end: int = 0, finish_reason: str | None = None
    ) -> dict[str, Any]:
        logprobs = _chat_logprobs(request, output, start, end) if end > start else None
        return {"index": choice.index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}

    def runs(tokens: list[str]) -> Iterator[tuple[int, int, str]]:
        for start in range(0, len(tokens), tokens_per_event):
            end = min(start + tokens_per_event, len(tokens))
            yield start, end, "".join(tokens[start:end])

    content = None if output.reasoning or output.tool_call else ""
    yield _Piece(choice_of({"role": "assistant", "content": content, "refusal": None}), 0)
    for start, end, text in runs(output.reasoning):
        yield _Piece(choice_of({"reasoning_content": text}), start, end - start, end - start)
    step = len(output.reasoning)
    for start, end, text in runs(output.tokens):
        yield _Piece(choice_of({"content": text}, start, end), step + start, end - start)
    if (call := output.tool_call) is not None:
        function = {"name": call.name, "arguments": ""}
        opening = {"index": 0, "id": call.id, "type": "function", "function": function}
        name_tokens = call.tokens - len(call.arguments)
        yield _Piece(choice_of({"tool_calls": [opening]}), step, name_tokens)
        step += name_tokens
        for start, end, text in runs(call.arguments):
            delta = {"tool_calls": [{"index": 0, "function": {"arguments": text}}]}
            yield _Piece(choice_of(delta), step + start, end - start)
    yield _Piece(choice_of({}, finish_reason=output.finish_reason), output.cost)


def _chat_logprobs(request: ChatRequest, output: Output, start: int, end: int) -> dict[str, Any] | None:
    """Log probabilities of the content tokens from `start` to `end`; reasoning and tool calls have none."""
    if not request.logprobs or output.tool_call is not None:
        return None
    content = []
    for place in range(start, end):
        token = output.tokens[place]
        ranked = likeliest(token, place, request.top_logprobs or 0)
        top = [_ranked(*entry) for entry in ranked[: request.top_logprobs or 0]]
        content.append({**_ranked(token, logprob(token, place)), "top_logprobs": top})
    return {"content": content, "refusal": None}


def _ranked(token: str, probability: float) -> dict[str, Any]:
    return {"token": token, "logprob": probability, "bytes": list(token.encode())}


# -------------------------------------------------------------------------------------------------------------- common


def _stamp(prefix: str, kind: str, model: str) -> dict[str, Any]:
    """The members at the start of a body and of every event."""
    return {
        "id": f"{prefix}-{uuid4().hex}", "object": kind, "created": int(time.time()), "model": model,
        "system_fingerprint": FINGERPRINT,
    }  # fmt: skip


def _events(
    stamp: dict[str, Any], choices: list[Iterator[_Piece]], usage: dict[str, Any] | None
) -> Iterator[SimulatedEvent]:
    """The events of several choices in turn, then the usage if it was requested."""
    head = f"data: {encode(stamp)[:-1]},"
    tail = "]}\n\n" if usage is None else '],"usage":null}\n\n'
    pieces = choices[0] if len(choices) == 1 else chain.from_iterable(zip_longest(*choices))
    for piece in pieces:
        if piece is not None:
            data = f'{head}"choices":[{encode(piece.choice)}{tail}'.encode()
            yield SimulatedEvent(data, piece.step, piece.tokens, piece.reasoning)
    if usage is not None:
        yield SimulatedEvent(f'{head}"choices":[],"usage":{encode(usage)}}}\n\n'.encode())


@dataclass(frozen=True, slots=True)
class SimulatedAnswer:
    """An answer that is ready to send. `longest` is the number of tokens of its longest choice."""

    usage: GeneratedUsage
    longest: int
    body: Callable[[], bytes]
    events: Callable[[], Iterator[SimulatedEvent]]
    end: bytes = DONE
    """The bytes that end its stream."""
