"""An upstream's answers in each format around a shape of a report, and the usage that a client reads of an answer."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tests.fakes.scripted import Behaviour, answer, ok_json, stream

from .usage_shapes import Counts

if TYPE_CHECKING:  # imported where they are used: importing an SDK costs every collecting process
    import httpx2

Members = Mapping[str, Any]
Places = Sequence[tuple[str, Members]]
TEXT = "Hi there"


def events(*values: Mapping[str, Any]) -> Behaviour:
    """A stream of events whose type is also their name."""
    return stream([f"event: {each['type']}\ndata: {json.dumps(each)}\n\n".encode() for each in values], done=False)


def _by_place(places: Places) -> dict[str, list[Members]]:
    found: dict[str, list[Members]] = defaultdict(list)
    for place, members in places:
        found[place].append(members)
    return found


def _one(found: Mapping[str, Sequence[Members]], place: str) -> Members:
    return found[place][0] if place in found else {}


# ------------------------------------------------------------------------------------------------ chat and completions


def _choice_of(members: Members, choice: dict[str, Any]) -> dict[str, Any]:
    """Members of an answer or a chunk with one choice; those named `choice` belong to it."""
    beside = {name: value for name, value in members.items() if name != "choice"}
    return {"choices": [{"index": 0, **choice, **members.get("choice", {})}], **beside}


def chat_plain(members: Members) -> Behaviour:
    said = {"message": {"role": "assistant", "content": TEXT}, "finish_reason": "stop"}
    return ok_json({"id": "c", "object": "chat.completion", "created": 1, "model": "m", **_choice_of(members, said)})


def _chunks(named: Members, places: Places, piece: Callable[[str], dict[str, Any]]) -> Behaviour:
    found = _by_place(places)
    first, second = TEXT.split()
    chunks = [
        {**named, **_choice_of(_one(found, "begin"), {**piece(first), "finish_reason": None})},
        {**named, **_choice_of(_one(found, "text"), {**piece(f" {second}"), "finish_reason": None})},
        {**named, **_choice_of(_one(found, "finish"), {**piece(""), "finish_reason": "stop"})},
    ]
    for place, members in places:
        if place == "after":
            chunks.append({**named, **_choice_of(members, {**piece(""), "finish_reason": None})})
        elif place == "last" and members:
            chunks.append({**named, "choices": [], **members})
    return stream(chunks)


def chat_stream(places: Places) -> Behaviour:
    named = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return _chunks(named, places, lambda text: {"delta": {"content": text} if text else {}})


def completions_plain(members: Members) -> Behaviour:
    said = {"text": TEXT, "logprobs": None, "finish_reason": "stop"}
    return ok_json({"id": "c", "object": "text_completion", "created": 1, "model": "m", **_choice_of(members, said)})


def completions_stream(places: Places) -> Behaviour:
    named = {"id": "c", "object": "text_completion", "created": 1, "model": "m"}
    return _chunks(named, places, lambda text: {"text": text, "logprobs": None})


# ------------------------------------------------------------------------------------------------------------ Messages


def _message(members: Members, content: Sequence[Members], stop: str | None) -> dict[str, Any]:
    head = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": list(content)}
    return {**head, "stop_reason": stop, "stop_sequence": None, **members}


def messages_plain(members: Members) -> Behaviour:
    return ok_json(_message(members, [{"type": "text", "text": TEXT}], "end_turn"))


def messages_stream(places: Places) -> Behaviour:
    found = _by_place(places)

    def delta(reason: str | None, members: Members) -> dict[str, Any]:
        return {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, **members}

    return events(
        {"type": "message_start", "message": _message(_one(found, "begin"), [], None)},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": TEXT}},
        {"type": "content_block_stop", "index": 0},
        *[delta(None, members) for members in found["early"]],
        delta("end_turn", _one(found, "finish")),
        *[delta("end_turn", members) for members in found["late"]],
        {"type": "message_stop"},
    )


# ----------------------------------------------------------------------------------------------------------- Responses


def _response(members: Members, status: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": TEXT, "annotations": []}]
    said = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content}
    head = {"id": "resp_1", "object": "response", "created_at": 1, "status": status, "model": "m"}
    ended: dict[str, Any] = {"incomplete_details": {"reason": "max_output_tokens"}} if status == "incomplete" else {}
    beside = {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True}
    return {**head, "output": [] if status == "in_progress" else [said], **beside, **ended, **members}


def responses_plain(members: Members) -> Behaviour:
    return ok_json(_response(members, "completed"))


def responses_stream(places: Places) -> Behaviour:
    found = _by_place(places)
    place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "in_progress", "content": []}
    part = {"type": "output_text", "text": "", "annotations": []}
    ending = ("incomplete", found["incomplete"][0]) if "incomplete" in found else ("completed", _one(found, "last"))
    said: list[dict[str, Any]] = [
        {"type": "response.created", "response": _response(_one(found, "begin"), "in_progress")},
        *[{"type": "response.in_progress", "response": _response(each, "in_progress")} for each in found["progress"]],
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.content_part.added", **place, "part": part},
        {"type": "response.output_text.delta", **place, "delta": TEXT, "logprobs": []},
        {"type": f"response.{ending[0]}", "response": _response(ending[1], ending[0])},
    ]
    return events(*[each | {"sequence_number": number} for number, each in enumerate(said)])


def compact_plain(members: Members) -> Behaviour:
    item = {"type": "compaction", "id": "cmp_1", "encrypted_content": "xyz"}
    return ok_json(
        {"id": "resp_1", "object": "response.compaction", "created_at": 1, "model": "m", "output": [item], **members}
    )


# -------------------------------------------------------------------------------------------------------------- Gemini


def _candidate(text: str | None, finish: str | None) -> dict[str, Any]:
    ended = {} if finish is None else {"finishReason": finish}
    parts = [] if text is None else [{"text": text}]
    return {"candidates": [{"index": 0, "content": {"role": "model", "parts": parts}, **ended}]}


def gemini_plain(members: Members) -> Behaviour:
    return ok_json({**_candidate(TEXT, "STOP"), "modelVersion": "m", **members})


def gemini_stream(places: Places) -> Behaviour:
    found = _by_place(places)
    first, second = TEXT.split()
    chunks = [
        {**_candidate(first, None), **_one(found, "begin")},
        {**_candidate(f" {second}", None), **_one(found, "text")},
        {**_candidate(None, "STOP"), **_one(found, "finish")},
    ]
    for place, members in places:
        if place == "after":
            chunks.append({**_candidate(None, None), **members})
        elif place == "last" and members:
            chunks.append({**members})
    return stream(
        [f"data: {json.dumps({**each, 'modelVersion': 'm'})}\r\n\r\n".encode() for each in chunks], done=False
    )


# ------------------------------------------------------------------------------------------------------- other formats


def embeddings_plain(members: Members) -> Behaviour:
    data = [{"object": "embedding", "index": 0, "embedding": [0.1, 0.2]}]
    return ok_json({"object": "list", "model": "m", "data": data, **members})


def embed_content_plain(members: Members) -> Behaviour:
    return ok_json({"embedding": {"values": [0.25, -0.5]}, **members})


def batch_embed_contents_plain(members: Members) -> Behaviour:
    return ok_json({"embeddings": [{"values": [0.25, -0.5]}], **members})


def moderations_plain(members: Members) -> Behaviour:
    return ok_json({"id": "modr-1", "model": "m", "results": [{"flagged": False}], **members})


def rerank_plain(members: Members) -> Behaviour:
    return ok_json({"model": "m", "results": [{"index": 1, "relevance_score": 0.9}], **members})


def images_plain(members: Members) -> Behaviour:
    return ok_json({"created": 1, "data": [{"b64_json": "AAAA"}], **members})


def pictures_stream(kind: str) -> Callable[[Places], Behaviour]:
    def written(places: Places) -> Behaviour:
        picture = {"b64_json": "AAAA", "size": "1024x1024"}
        return events(
            {"type": f"{kind}.partial_image", "partial_image_index": 0, **picture},
            {"type": f"{kind}.completed", **picture, **_one(_by_place(places), "last")},
        )

    return written


def transcriptions_plain(members: Members) -> Behaviour:
    return ok_json({"text": TEXT, **members})


def transcriptions_stream(places: Places) -> Behaviour:
    return events(
        {"type": "transcript.text.delta", "delta": TEXT},
        {"type": "transcript.text.done", "text": TEXT, **_one(_by_place(places), "last")},
    )


def speech_stream(places: Places) -> Behaviour:
    return events(
        {"type": "speech.audio.delta", "audio": "AAAA"},
        {"type": "speech.audio.done", **_one(_by_place(places), "last")},
    )


def speech_bytes(_: Places) -> Behaviour:
    return answer(b"ID3\4\0\0\0\0\0\0" + bytes(400), headers=[("Content-Type", "audio/mpeg")])


# ------------------------------------------------------------------------------------------------- what a client reads


def data_of(body: bytes) -> list[Any]:
    """The JSON of a plain answer, or of each event."""
    if body.lstrip()[:1] == b"{":
        return [json.loads(body)]
    lines = [line[5:].strip() for line in body.splitlines() if line.startswith(b"data:")]
    return [json.loads(line) for line in lines if line != b"[DONE]"]


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _within(details: Any, name: str) -> int:
    if isinstance(details, Mapping):
        return _number(details.get(name))
    return _number(getattr(details, name, None))


class SDKs:
    """The official SDKs, each reading the body of one answer."""

    def __init__(self) -> None:
        import anthropic
        import openai

        self._body, self._type = b"", ""
        self._openai = openai.OpenAI(api_key="k", base_url="http://sdk/v1", http_client=self._client(), max_retries=0)
        self._anthropic = anthropic.Anthropic(
            api_key="k", base_url="http://sdk", http_client=self._client(), max_retries=0
        )

    def _client(self) -> httpx2.Client:
        import httpx2

        def reply(request: httpx2.Request) -> httpx2.Response:
            return httpx2.Response(200, content=self._body, headers={"content-type": self._type})

        return httpx2.Client(transport=httpx2.MockTransport(reply))

    def of_chat(self, body: bytes, *, is_stream: bool) -> Counts | None:
        """The last usage that is given, as agents read it (openai-agents-js#1474)."""
        create = self._openai.chat.completions.create
        self._take(body, is_stream=is_stream)
        if is_stream:
            found = [each.usage for each in create(model="m", messages=[], stream=True) if each.usage is not None]
        else:
            given = create(model="m", messages=[])
            found = [given.usage] if given.usage is not None else []
        return _of_chat(found[-1]) if found else None

    def of_completions(self, body: bytes, *, is_stream: bool) -> Counts | None:
        create = self._openai.completions.create
        self._take(body, is_stream=is_stream)
        if is_stream:
            found = [each.usage for each in create(model="m", prompt="x", stream=True) if each.usage is not None]
        else:
            given = create(model="m", prompt="x")
            found = [given.usage] if given.usage is not None else []
        return _of_chat(found[-1]) if found else None

    def of_responses(self, body: bytes, *, is_stream: bool) -> Counts | None:
        create = self._openai.responses.create
        self._take(body, is_stream=is_stream)
        if is_stream:
            *_, last = create(model="m", input="x", stream=True)
            usage = last.response.usage  # type: ignore[union-attr]
        else:
            usage = create(model="m", input="x").usage
        return None if usage is None else _of_responses(usage)

    def of_messages(self, body: bytes, *, is_stream: bool) -> Counts | None:
        self._take(body, is_stream=is_stream)
        if is_stream:
            with self._anthropic.messages.stream(model="m", max_tokens=9, messages=[]) as given:
                usage = given.get_final_message().usage
        else:
            usage = self._anthropic.messages.create(model="m", max_tokens=9, messages=[]).usage
        return None if usage is None else _of_messages(usage)

    def message(self, body: bytes) -> Any:
        """A streamed message, assembled."""
        self._take(body, is_stream=True)
        with self._anthropic.messages.stream(model="m", max_tokens=9, messages=[]) as given:
            return given.get_final_message()

    def completion(self, body: bytes) -> Any:
        """A streamed chat completion, assembled."""
        self._take(body, is_stream=True)
        with self._openai.chat.completions.stream(model="m", messages=[]) as given:
            for _ in given:
                pass
            return given.current_completion_snapshot

    def chat(self, body: bytes) -> Any:
        """The message of a streamed chat."""
        return self.completion(body).choices[0].message

    def _take(self, body: bytes, *, is_stream: bool) -> None:
        self._body, self._type = body, "text/event-stream" if is_stream else "application/json"


def _of_chat(usage: Any) -> Counts:
    before, after = usage.prompt_tokens_details, usage.completion_tokens_details
    return Counts(
        _number(usage.prompt_tokens), _number(usage.completion_tokens), _within(before, "cached_tokens"),
        _within(before, "cache_write_tokens"), _within(after, "reasoning_tokens"),
    )  # fmt: skip


def _of_responses(usage: Any) -> Counts:
    before, after = usage.input_tokens_details, usage.output_tokens_details
    return Counts(
        _number(usage.input_tokens), _number(usage.output_tokens), _within(before, "cached_tokens"),
        _within(before, "cache_write_tokens"), _within(after, "reasoning_tokens"),
    )  # fmt: skip


def _of_messages(usage: Any) -> Counts:
    read, written = _number(usage.cache_read_input_tokens), _number(usage.cache_creation_input_tokens)
    thinking = _within(getattr(usage, "output_tokens_details", None), "thinking_tokens")
    return Counts(
        _number(usage.input_tokens) + read + written, _number(usage.output_tokens), read, written, thinking
    )  # fmt: skip


def of_gemini(body: bytes, *, is_stream: bool) -> Counts | None:
    """The usage of the last chunk that has one, in google-genai's own type."""
    from google.genai import types

    kind = types.GenerateContentResponseUsageMetadata
    found = [each["usageMetadata"] for each in data_of(body) if each.get("usageMetadata") is not None]
    if not found:
        return None
    usage = kind.model_validate(found[-1])
    thoughts = usage.thoughts_token_count or 0
    return Counts(
        (usage.prompt_token_count or 0) + (usage.tool_use_prompt_token_count or 0),
        (usage.candidates_token_count or 0) + thoughts, usage.cached_content_token_count or 0, 0, thoughts,
    )  # fmt: skip


def of_members(*names: tuple[str, str]) -> Callable[..., Counts | None]:
    """Reads formats whose SDK has no more than these members, of prompt and of output, in the last event."""

    def read(body: bytes, *, is_stream: bool) -> Counts | None:
        usage = (data_of(body)[-1].get("usage") or {}) if body[:3] != b"ID3" else {}
        for prompt, output in names:
            if prompt in usage or output in usage:
                return Counts(_number(usage.get(prompt)), _number(usage.get(output)))
        return Counts(0, 0) if usage else None

    return read


def of_metadata(body: bytes, *, is_stream: bool) -> Counts | None:
    usage = data_of(body)[-1].get("usageMetadata")
    return None if usage is None else Counts(_number(usage.get("promptTokenCount")), 0)


def of_rerank(body: bytes, *, is_stream: bool) -> Counts | None:
    """Each service has names of its own for the tokens that it bills."""
    whole = data_of(body)[-1]
    usage, meta = whole.get("usage") or {}, whole.get("meta") or {}
    if not usage and not meta:
        return None
    tokens = usage.get("total_tokens", usage.get("prompt_tokens", (meta.get("tokens") or {}).get("input_tokens")))
    return Counts(_number(tokens), 0)


def of_compact(body: bytes, *, is_stream: bool) -> Counts | None:
    usage = data_of(body)[-1].get("usage")
    if usage is None:
        return None
    before, after = usage.get("input_tokens_details"), usage.get("output_tokens_details")
    return Counts(
        _number(usage.get("input_tokens")), _number(usage.get("output_tokens")), _within(before, "cached_tokens"),
        _within(before, "cache_write_tokens"), _within(after, "reasoning_tokens"),
    )  # fmt: skip
