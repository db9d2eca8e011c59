"""What public reports need to be played: one gateway in front of a scripted upstream, a model for each format, and
upstreams' answers in few words.

A report is data: where it was made, an upstream's answer, a client's request, and what has to be recorded. Answers are
this project's own, and small.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.conftest import ScriptedUpstream
from tests.fakes.forms import TYPE, form, wav
from tests.fakes.scripted import Behaviour, ok_json, stream
from tests.flows.client import Answer
from tests.flows.gateway_process import Gateway, model, settings

PRICE: dict[str, Any] = {
    "input": 1, "cached_input": 0.1, "output": 10, "cache_write": 2, "cache_write_1h": 4, "audio_in": 3,
    "audio_out": 20, "image_in": 5, "image_out": 30, "web_searches_per_1000": 10, "search_units_per_1000": 2,
    "variants": {"flex": {"input": 0.5, "cached_input": 0.05, "output": 5}, "priority": {"input": 2, "output": 20},
                 "batch": {"input": 0.5, "output": 5}, "fast": {"input": 6, "output": 30}},
}  # fmt: skip
"""US dollars for a million tokens, or a thousand searches: numbers that are easy to add up."""

TEXT_PRICE = {"input": 1, "cached_input": 0.1, "output": 10}
"""Of a model whose pictures and sounds cost as much as its text."""

SECOND_PRICE = {"audio_per_minute": 0.006}
CHARACTER_PRICE = {"characters_per_million": 15}
PICTURE_PRICE = {"image": 0.04}
CALL_PRICE = {"call": 0.00001}

ENDPOINTS = {
    "chat": "chat", "completions": "completions", "embeddings": "embeddings", "responses": "responses",
    "messages": "messages", "gemini": "generate_content", "images": "images", "rerank": "rerank",
    "transcriptions": "transcriptions", "speech": "speech", "moderations": "moderations",
    "gemini-embed": "embed_content",
}  # fmt: skip
"""The endpoint of the model with each name."""

MESSAGES = [{"role": "user", "content": "Hello"}]
CONTENTS = [{"role": "user", "parts": [{"text": "Hello"}]}]
STREAMED: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}


def configuration(url: str) -> dict[str, Any]:
    able = {"messages": True, "generate_content": True, "responses": True}
    over = {"messages": "via_chat", "responses": "via_chat"}
    upstreams = {
        "main": {"capabilities": able},
        "over_chat": {"base_url": url, "capabilities": over},
        "over_messages": {"base_url": url, "capabilities": {"chat": "via_messages", "messages": True}},
    }
    big: dict[str, Any] = {"max_output_tokens": 100_000, "price": PRICE}
    models = {name: model(endpoint, **big) for name, endpoint in ENDPOINTS.items()}
    models |= {
        "text-price": model("chat", **big | {"price": TEXT_PRICE}),
        "seconds": model("transcriptions", **big | {"price": SECOND_PRICE}),
        "pictures": model("images", **big | {"price": PICTURE_PRICE}),
        "by-call": model("moderations", **big | {"price": CALL_PRICE}),
        "characters": model("speech", **big | {"price": CHARACTER_PRICE}),
        "messages-over-chat": model("messages", "over_chat", **big),
        "responses-over-chat": model("responses", "over_chat", **big),
        "chat-over-messages": model("chat", "over_messages", **big),
    }
    return settings(url, upstreams=upstreams, models=models)


@dataclass(frozen=True)
class Ask:
    """A client's request."""

    path: str
    body: Mapping[str, Any] | bytes
    headers: Mapping[str, str] = field(default_factory=dict)

    def with_members(self, **members: Any) -> Ask:
        assert not isinstance(self.body, bytes)
        return Ask(self.path, {**self.body, **members}, self.headers)

    def send(self, gateway: Gateway) -> Answer:
        body = self.body if isinstance(self.body, bytes) else dict(self.body)
        return gateway.post(self.path, body, headers=self.headers)


def asks_chat(name: str = "chat", **members: Any) -> Ask:
    return Ask("/v1/chat/completions", {"model": name, "messages": MESSAGES, **members})


def asks_completions(**members: Any) -> Ask:
    return Ask("/v1/completions", {"model": "completions", "prompt": "Hello", **members})


def asks_responses(name: str = "responses", **members: Any) -> Ask:
    return Ask("/v1/responses", {"model": name, "input": "Hello", **members})


def asks_messages(name: str = "messages", **members: Any) -> Ask:
    return Ask("/v1/messages", {"model": name, "max_tokens": 4000, "messages": MESSAGES, **members})


def asks_gemini(*, is_stream: bool = False, **members: Any) -> Ask:
    verb = "streamGenerateContent?alt=sse" if is_stream else "generateContent"
    return Ask(f"/v1beta/models/gemini:{verb}", {"contents": CONTENTS, **members})


def asks_embeddings() -> Ask:
    return Ask("/v1/embeddings", {"model": "embeddings", "input": "Hello there, friend."})


def asks_gemini_embeddings() -> Ask:
    return Ask("/v1beta/models/gemini-embed:embedContent", {"content": {"parts": [{"text": "Hello there, friend."}]}})


def asks_images(name: str = "images", **members: Any) -> Ask:
    return Ask("/v1/images/generations", {"model": name, "prompt": "a cat", **members})


def asks_moderation(name: str = "moderations") -> Ask:
    return Ask("/v1/moderations", {"model": name, "input": "Hello"})


def asks_rerank() -> Ask:
    return Ask("/v1/rerank", {"model": "rerank", "query": "which?", "documents": ["one", "two"]})


def asks_transcription(name: str = "transcriptions", *fields: tuple[str, str]) -> Ask:
    """Of two seconds of silence."""
    return Ask("/v1/audio/transcriptions", form(("model", name), *fields, ("file", wav(2))), TYPE)


def asks_speech(name: str = "speech", **members: Any) -> Ask:
    return Ask("/v1/audio/speech", {"model": name, "input": "Hello there.", "voice": "alloy", **members})


# ------------------------------------------------------------------------------------------------------------- answers


def chat_answer(usage: Any, text: str = "Hi", **more: Any) -> Behaviour:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return ok_json({"object": "chat.completion", "model": "up", "choices": [choice], "usage": usage, **more})


def chat_chunk(text: str | None = None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    """A chunk with one choice; `choices` among `more` replaces it."""
    delta = {} if text is None else {"content": text}
    plain = {"object": "chat.completion.chunk", "model": "up"}
    return {**plain, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more}


def completion(usage: Any) -> dict[str, Any]:
    choice = {"index": 0, "text": "Hi", "finish_reason": "stop", "logprobs": None}
    return {"object": "text_completion", "model": "up", "choices": [choice], "usage": usage}


def response(usage: Any, output: Iterable[Any] = (), **more: Any) -> dict[str, Any]:
    """A finished response."""
    content = [{"type": "output_text", "text": "Hi", "annotations": []}]
    said = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content}
    head = {"id": "resp_1", "object": "response", "created_at": 1, "status": "completed", "model": "up"}
    return {**head, "output": [*output, said], "usage": usage, **more}


def response_events(last: dict[str, Any], *between: dict[str, Any], kind: str = "response.completed") -> Behaviour:
    begun = {**last, "status": "in_progress", "output": [], "usage": None}
    text = {"type": "response.output_text.delta", "item_id": "msg_1", "output_index": 0, "content_index": 0,
            "delta": "Hi"}  # fmt: skip
    begins, ends = {"type": "response.created", "response": begun}, {"type": kind, "response": last}
    events: list[dict[str, Any]] = [begins, text, *between, ends]
    return named(*[{**each, "sequence_number": number} for number, each in enumerate(events)])


def named(*events: Mapping[str, Any]) -> Behaviour:
    """A stream of events with `event:` lines, without an end of its own."""
    return stream([f"event: {each['type']}\ndata: {json.dumps(each)}\n\n".encode() for each in events], done=False)


def message(usage: Any, content: Iterable[Any] = (), **more: Any) -> dict[str, Any]:
    said = [*content, {"type": "text", "text": "Hi"}]
    head = {"id": "msg_1", "type": "message", "role": "assistant", "model": "up", "content": said}
    return {**head, "stop_reason": "end_turn", "stop_sequence": None, "usage": usage, **more}


BLOCK: tuple[dict[str, Any], ...] = (
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi"}},
    {"type": "content_block_stop", "index": 0},
)


def message_start(usage: Any) -> dict[str, Any]:
    return {"type": "message_start", "message": {**message(usage), "content": [], "stop_reason": None}}


def message_delta(usage: Any, reason: str | None = "end_turn") -> dict[str, Any]:
    return {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": usage}


STOP = {"type": "message_stop"}


def message_events(first: Any, last: Any) -> Behaviour:
    """A stream with these two reports of usage."""
    return named(message_start(first), *BLOCK, message_delta(last), STOP)


def candidate(text: str | None = "Hi", finish: str | None = "STOP", **more: Any) -> dict[str, Any]:
    parts = [] if text is None else [{"text": text}]
    ended = {} if finish is None else {"finishReason": finish}
    return {"index": 0, "content": {"role": "model", "parts": parts}, **ended, **more}


def gemini(usage: Any, *candidates: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    reported = {} if usage is None else {"usageMetadata": usage}
    return {"candidates": list(candidates or [candidate()]), **reported, "modelVersion": "up", **more}


def gemini_events(*chunks: Any) -> Behaviour:
    return stream([f"data: {json.dumps(each)}\r\n\r\n".encode() for each in chunks], done=False)


EMBEDDED = {"object": "list", "model": "up", "data": [{"object": "embedding", "index": 0, "embedding": [0.1, 0.2]}]}
PICTURE = {"created": 1, "data": [{"b64_json": "AAAA"}]}
RANKED = {"model": "up", "results": [{"index": 1, "relevance_score": 0.9}]}


def ways(kind: str, usage: Any, **more: Any) -> dict[str, tuple[Ask, Behaviour]]:
    """Every way in which an upstream of this format can report this usage."""
    match kind:
        case "chat" | "text-price":
            beside = stream([chat_chunk("Hi"), chat_chunk(finish="stop"), chat_chunk(choices=[], usage=usage, **more)])
            within = stream([chat_chunk("Hi"), chat_chunk(finish="stop", usage=usage, **more)])
            return {
                "plain": (asks_chat(kind), chat_answer(usage, **more)),
                "stream": (asks_chat(kind, **STREAMED), beside),
                "with the finish": (asks_chat(kind, **STREAMED), within),
            }
        case "completions":
            begun = {**completion(None), "choices": [{"index": 0, "text": "Hi", "finish_reason": None}]}
            return {
                "plain": (asks_completions(), ok_json(completion(usage))),
                "stream": (asks_completions(**STREAMED), stream([begun, completion(usage)])),
            }
        case "responses":
            return {
                "plain": (asks_responses(), ok_json(response(usage, **more))),
                "stream": (asks_responses(stream=True), response_events(response(usage, **more))),
            }
        case "messages":
            return {
                "plain": (asks_messages(), ok_json(message(usage, **more))),
                "stream": (asks_messages(stream=True), message_events({**usage, "output_tokens": 1}, usage)),
            }
        case "gemini":
            events = gemini_events(gemini(None, candidate(finish=None)), gemini(usage, candidate(None), **more))
            return {
                "plain": (asks_gemini(), ok_json(gemini(usage, **more))),
                "stream": (asks_gemini(is_stream=True), events),
            }
        case "embeddings":
            return {"plain": (asks_embeddings(), ok_json({**EMBEDDED, "usage": usage}))}
        case "images":
            done = {"type": "image_generation.completed", "b64_json": "AAAA", "usage": usage}
            return {
                "plain": (asks_images(), ok_json({**PICTURE, "usage": usage})),
                "stream": (asks_images(stream=True), named(done)),
            }
        case "transcriptions" | "seconds":
            done = {"type": "transcript.text.done", "text": "Hi", "usage": usage}
            plain = {"text": "Hi", "usage": usage, **more}
            return {
                "plain": (asks_transcription(kind), ok_json(plain)),
                "stream": (asks_transcription(kind, ("stream", "true")), named({**done, **more})),
            }
        case "speech":
            pieces = {"type": "speech.audio.delta", "audio": "AAAA"}, {"type": "speech.audio.done", "usage": usage}
            return {"stream": (asks_speech(stream_format="sse"), named(*pieces))}
        case "rerank":
            return {"plain": (asks_rerank(), ok_json({**RANKED, **usage}))}
    raise AssertionError(kind)


# ----------------------------------------------------------------------------------------------------------- the check


def play(gateway: Gateway, upstream: ScriptedUpstream, ask: Ask, said: Behaviour) -> tuple[Answer, dict[str, Any]]:
    """The client's answer, and the record of the call."""
    upstream.answer_with(said)
    answer = ask.send(gateway)
    return answer, gateway.call(answer.id)


def text_of(body: bytes) -> str:
    """The text in a stream of any format."""
    data = [line.removeprefix(b"data: ") for line in body.splitlines() if line.startswith(b"data: {")]
    return "".join([text for event in map(json.loads, data) for text in _texts(event)])


def _texts(event: Mapping[str, Any]) -> Iterable[str]:
    kind = event.get("type")
    if kind == "response.output_text.delta":
        yield event["delta"]
    elif kind == "content_block_delta":
        yield event["delta"].get("text", "")
    elif kind == "transcript.text.done":
        yield event["text"]
    for choice in event.get("choices") or ():
        yield choice.get("text") or choice.get("delta", {}).get("content") or ""
    for each in event.get("candidates", ()):
        yield from [part.get("text", "") for part in each.get("content", {}).get("parts", ())]


def check(record: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Whether the record has these values; money to a billionth of a dollar."""
    seen = {name: record[name] for name in expected}
    if seen.get("cost_usd") is not None and expected["cost_usd"] is not None:
        assert seen["cost_usd"] == pytest.approx(expected["cost_usd"], abs=1e-9), record
        seen["cost_usd"] = expected["cost_usd"]
    assert seen == dict(expected), record


def usd(prompt: int = 0, cached: int = 0, output: int = 0, **units: int) -> float:
    """The cost at `PRICE`: `prompt` tokens at the full price, `cached` ones beside them, and further rows."""
    rows = {"input": prompt, "cached_input": cached, "output": output, **units}
    return float(sum([count * PRICE[row] / (1e3 if row.endswith("_per_1000") else 1e6) for row, count in rows.items()]))
