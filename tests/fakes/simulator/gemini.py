"""Gemini's native API in the simulator: contents are generated and billed as the chat that they amount to.

Thoughts are billed beside the candidates and are not shown. The model and the method are in the path.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any, Self

from aiohttp import web
from pydantic import Field, model_validator

from gateway.simulator.answers import SimulatedAnswer, SimulatedEvent, encode
from gateway.simulator.choices import Generated, GeneratedUsage, Output, chat, compact
from gateway.simulator.requests import DIMENSIONS, ChatRequest, SimulatedCall
from gateway.simulator.server import embed
from gateway.simulator.text import count_tokens

_EMBEDS = ("embedContent", "batchEmbedContents")
_REASONS = {"stop": "STOP", "length": "MAX_TOKENS", "tool_calls": "STOP"}
_STATUSES = {401: "UNAUTHENTICATED", 404: "NOT_FOUND", 429: "RESOURCE_EXHAUSTED", 503: "UNAVAILABLE"}


class ContentRequest(SimulatedCall):
    """The body of generateContent, with the parameters of its path."""

    contents: list[dict[str, Any]] = Field(min_length=1)
    stream: bool = False
    systemInstruction: dict[str, Any] | None = None  # noqa: N815 # the member's name
    generationConfig: dict[str, Any] = Field(default_factory=dict)  # noqa: N815 # the member's name
    tools: list[dict[str, Any]] | None = None

    @property
    def is_stream(self) -> bool:
        return self.stream

    def as_chat(self) -> ChatRequest:
        """The chat that generates the same text."""
        turns = [*([self.systemInstruction] if self.systemInstruction else []), *self.contents]
        declared = [each for tool in self.tools or [] for each in tool.get("functionDeclarations") or []]
        config = self.generationConfig
        return ChatRequest(
            model=self.model, simulate=self.simulate, messages=[_message(turn) for turn in turns],
            max_tokens=config.get("maxOutputTokens"), n=config.get("candidateCount"),
            stop=config.get("stopSequences") or None,
            tools=[{"function": _function(each)} for each in declared] or None, response_format=_form(config),
        )  # fmt: skip


class EmbedContentRequest(SimulatedCall):
    """The requests of batchEmbedContents, or the one of embedContent, with the parameters of its path."""

    requests: list[dict[str, Any]] = Field(min_length=1)
    is_batch: bool

    @model_validator(mode="after")
    def _are_for_the_model(self) -> Self:
        """As at Google, each request of a batch names the model of the path."""
        allowed = (f"models/{self.model}",) if self.is_batch else (f"models/{self.model}", None)
        for each in self.requests:
            if not isinstance(each.get("content"), dict) or each.get("model") not in allowed:
                raise ValueError("a request without content, or for another model")
        return self


def text_of(content: dict[str, Any]) -> str:
    """The text of a content."""
    parts = content.get("parts") or []
    return "".join([part["text"] if isinstance(part.get("text"), str) else compact(part) for part in parts])


def _function(declared: dict[str, Any]) -> dict[str, Any]:
    return declared | {"parameters": _schema(declared.get("parametersJsonSchema") or declared.get("parameters"))}


def _form(config: dict[str, Any]) -> dict[str, Any] | None:
    schema = _schema(config.get("responseJsonSchema") or config.get("responseSchema"))
    return {"type": "json_schema", "json_schema": {"schema": schema}} if schema else None


def _schema(given: Any) -> Any:
    """The schema with the types of JSON Schema, which are Google's in lower case."""
    if isinstance(given, list):
        return [_schema(each) for each in given]
    if not isinstance(given, dict):
        return given
    lowered = {name: _schema(value) for name, value in given.items()}
    kind = given.get("type")
    return lowered | {"type": kind.lower()} if isinstance(kind, str) else lowered


def _message(turn: dict[str, Any]) -> dict[str, Any]:
    has_result = any("functionResponse" in part for part in turn.get("parts") or [])
    return {"role": "tool" if has_result else "user", "content": text_of(turn)}


def _usage(generated: Generated, text: int | None = None) -> dict[str, int]:
    """`usageMetadata`; `text`: tokens of candidates that have been shown so far, None: all."""
    usage = generated.usage
    thoughts = usage.reasoning
    shown = usage.completion - thoughts if text is None else text
    counts = {"promptTokenCount": usage.prompt, "candidatesTokenCount": shown, "thoughtsTokenCount": thoughts}
    return {**counts, "totalTokenCount": sum(counts.values())}


def _parts(output: Output) -> list[dict[str, Any]]:
    call = output.tool_call
    if call is None:
        return [{"text": output.text}]
    try:
        given = json.loads("".join(call.arguments))
    except ValueError:  # cut by the limit
        given = {}
    return [{"functionCall": {"name": call.name, "args": given}}]


def _candidate(index: int, parts: list[dict[str, Any]], reason: str | None) -> dict[str, Any]:
    finished = {"finishReason": reason} if reason else {}
    return {"content": {"parts": parts, "role": "model"}, **finished, "index": index}


def content_body(asked: ContentRequest, generated: Generated) -> bytes:
    """The answer to generateContent."""
    candidates = [
        _candidate(choice.index, _parts(choice.output), _REASONS[choice.output.finish_reason])
        for choice in generated.choices
    ]
    body = {"candidates": candidates, "usageMetadata": _usage(generated), "modelVersion": asked.model}
    return encode(body).encode()


def content_events(asked: ContentRequest, generated: Generated, tokens_per_event: int) -> Iterator[SimulatedEvent]:
    """The chunks of streamGenerateContent, candidate after candidate. The last chunk of each has its reason."""
    shown = 0
    for choice in generated.choices:
        output = choice.output
        tokens = output.tokens if output.tool_call is None else []
        thoughts = len(output.reasoning)
        for at in range(0, len(tokens), tokens_per_event):
            some = tokens[at : at + tokens_per_event]
            shown += len(some)
            candidate = _candidate(choice.index, [{"text": "".join(some)}], None)
            reasoned, thoughts = thoughts, 0
            yield _chunk(asked, generated, candidate, shown)._replace(
                step=at, tokens=len(some) + reasoned, reasoning=reasoned
            )
        rest = output.tool_call.tokens if output.tool_call is not None else 0
        parts = _parts(output) if rest else [{"text": ""}]
        shown += rest
        last = _candidate(choice.index, parts, _REASONS[output.finish_reason])
        event = _chunk(asked, generated, last, shown)
        yield event._replace(step=output.cost, tokens=rest + thoughts, reasoning=thoughts)


def _chunk(asked: ContentRequest, generated: Generated, candidate: dict[str, Any], shown: int) -> SimulatedEvent:
    body = {"candidates": [candidate], "usageMetadata": _usage(generated, shown), "modelVersion": asked.model}
    return SimulatedEvent(f"data: {encode(body)}\r\n\r\n".encode())


def google_error_body(status: int, message: str) -> bytes:
    """Google's error object."""
    name = _STATUSES.get(status) or ("INVALID_ARGUMENT" if status < 500 else "INTERNAL")
    return json.dumps({"error": {"code": status, "message": message, "status": name}}).encode()


def content_usage_of(request: EmbedContentRequest) -> GeneratedUsage:
    """Contents cost their texts."""
    return GeneratedUsage(prompt=sum([count_tokens(text_of(each["content"])) for each in request.requests]))


def embedded_contents_body(request: EmbedContentRequest, usage: GeneratedUsage) -> bytes:
    """The answer to embedContent, or to batchEmbedContents."""
    vectors = []
    for each in request.requests:
        dimensions = each.get("outputDimensionality") or DIMENSIONS
        packed = embed(request.model, text_of(each["content"]), dimensions)
        vectors.append({"values": struct.unpack(f"<{dimensions}f", packed)})
    shown = {"embeddings": vectors} if request.is_batch else {"embedding": vectors[0]}
    return json.dumps({**shown, "usageMetadata": {"promptTokenCount": usage.prompt}}).encode()


def answer(asked: SimulatedCall, tokens_per_event: int) -> SimulatedAnswer | None:
    """The answer to a call of this API; None: it is of another one."""
    match asked:
        case ContentRequest():
            generated = chat(asked.as_chat())
            return SimulatedAnswer(
                generated.usage,
                generated.longest,
                lambda: content_body(asked, generated),
                lambda: content_events(asked, generated, tokens_per_event),
                b"",
            )
        case EmbedContentRequest():
            usage = content_usage_of(asked)
            return SimulatedAnswer(usage, 0, lambda: embedded_contents_body(asked, usage), lambda: iter(()))
    return None


def with_path(request: web.Request, body: bytes) -> bytes:
    """A body with the parameters of its path."""
    try:
        members = json.loads(body)
    except ValueError:
        return body
    if not isinstance(members, dict):
        return body
    method = request.match_info.get("method")
    parameters: dict[str, Any] = {"model": request.match_info["model"], "stream": method == "streamGenerateContent"}
    if method in _EMBEDS:
        parameters["is_batch"] = method == "batchEmbedContents"
        parameters["requests"] = members.get("requests") if parameters["is_batch"] else [members]
    return json.dumps({**members, **parameters}).encode()
