"""A stream that was not asked for becomes the plain answer that the official SDKs would make of it."""

from __future__ import annotations

import json
import sys
from types import FrameType
from typing import Any

import pytest

from gateway.formats import gathered
from gateway.formats.reader import objects


def stream(*events: Any, end: bytes = b"\n\n") -> bytes:
    return b"".join(b"data: " + json.dumps(event).encode() + end for event in events)


def chunk(delta: dict[str, Any], reason: str | None = None, index: int = 0) -> dict[str, Any]:
    choices = [{"index": index, "delta": delta, "finish_reason": reason}]
    return {"id": "c", "object": "chat.completion.chunk", "model": "m", "choices": choices}


def call(index: int, arguments: str, **more: Any) -> dict[str, Any]:
    return {"tool_calls": [{"index": index, "function": {"arguments": arguments, **more.pop("named", {})}, **more}]}


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n"])
def test_chunks_of_several_choices_and_calls(end: bytes) -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 2}
    text = stream(
        chunk({"role": "assistant", "content": ""}),
        chunk({"content": "He"}),
        chunk({"content": "other"}, "length", index=1),
        chunk({"content": "llo", "reasoning_content": "hm"}),
        chunk(call(0, "", id="a", type="function", named={"name": "f"})),
        chunk(call(1, '{"y"', id="b", type="function", named={"name": "g"})),
        chunk(call(0, '{"x":1}')),
        chunk(call(1, ":2}")),
        chunk({}, "tool_calls"),
        {"id": "c", "object": "chat.completion.chunk", "choices": [], "usage": usage},
        end=end,
    )
    answer = json.loads(
        gathered.whole(gathered.GatheredChat, b"\xef\xbb\xbf: a comment" + end + text + b"data: [DONE]\n\n") or b""
    )
    assert (answer["object"], answer["usage"], [each["finish_reason"] for each in answer["choices"]]) == (
        "chat.completion", usage, ["tool_calls", "length"],
    )  # fmt: skip
    message = answer["choices"][0]["message"]
    assert (message["role"], message["content"], message["reasoning_content"]) == ("assistant", "Hello", "hm")
    assert [(each["id"], each["function"]) for each in message["tool_calls"]] == [
        ("a", {"arguments": '{"x":1}', "name": "f"}), ("b", {"arguments": '{"y":2}', "name": "g"}),
    ]  # fmt: skip


def test_a_message_is_that_of_anthropics_sdk() -> None:
    from anthropic.lib.streaming._messages import accumulate_event
    from anthropic.types import Message, RawMessageStreamEvent
    from pydantic import TypeAdapter

    start = {
        "id": "m", "type": "message", "role": "assistant", "model": "c", "content": [], "stop_reason": None,
        "stop_sequence": None, "usage": {"input_tokens": 9, "output_tokens": 1, "cache_read_input_tokens": 4},
    }  # fmt: skip
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": start},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "H"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "i"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_start", "index": 1,
         "content_block": {"type": "tool_use", "id": "t", "name": "f", "input": {}}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": '{"x":'}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": "1}"}},
        {"type": "content_block_stop", "index": 1},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use", "stop_sequence": None},
         "usage": {"output_tokens": 12}},
        {"type": "message_stop"},
    ]  # fmt: skip
    whole: Any = None
    json_bufs: dict[int, bytes] = {}
    adapter: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
    for each in events:
        parsed = adapter.validate_python(json.loads(json.dumps(each)))
        whole = accumulate_event(event=parsed, current_snapshot=whole, json_bufs=json_bufs)
    made: Any = Message.model_validate_json(gathered.whole(gathered.GatheredMessage, stream(*events)) or b"")
    assert made.model_dump() == whole.model_dump()


def test_geminis_chunks_are_parts_of_one_answer() -> None:
    def part(text: str, **more: Any) -> dict[str, Any]:
        return {"candidates": [{"content": {"role": "model", "parts": [{"text": text}]}, "index": 0, **more}]}

    usage = {"usageMetadata": {"promptTokenCount": 1}, "modelVersion": "g"}
    answer = json.loads(
        gathered.whole(gathered.GatheredContent, stream(part("He"), part("llo", finishReason="STOP") | usage)) or b""
    )
    parts = [{"text": "He"}, {"text": "llo"}]
    assert answer == {
        **usage, "candidates": [{"content": {"role": "model", "parts": parts}, "index": 0, "finishReason": "STOP"}],
    }  # fmt: skip
    assert gathered.whole(gathered.GatheredContent, stream(part("He"))) is None


def test_half_a_stream_is_no_answer() -> None:
    assert gathered.whole(gathered.GatheredChat, stream(chunk({"content": "He"}))) is None
    assert (
        gathered.whole(gathered.GatheredMessage, stream({"type": "message_start", "message": {"content": []}})) is None
    )
    assert (
        gathered.whole(gathered.GatheredResponse, stream({"type": "response.created", "response": {"id": "r"}})) is None
    )
    assert gathered.whole(gathered.GatheredChat, b"data: x\n\n") is None


def test_an_error_in_the_stream_is_the_answer() -> None:
    error = {"error": {"message": "no"}}
    assert json.loads(gathered.whole(gathered.GatheredChat, stream(chunk({"content": "He"}), error)) or b"") == error
    failed = {"type": "error", "error": {"type": "overloaded_error", "message": "no"}}
    assert json.loads(gathered.whole(gathered.GatheredMessage, stream(failed)) or b"") == failed
    response = {"id": "r", "status": "completed"}
    ended = {"type": "response.completed", "response": response}
    assert json.loads(gathered.whole(gathered.GatheredResponse, stream(ended)) or b"") == {**response, "output": []}
    renamed = {"type": "response.done", "response": response}  # can1357/oh-my-pi#4692
    assert json.loads(gathered.whole(gathered.GatheredResponse, stream(renamed)) or b"") == {**response, "output": []}
    # ChatGPT's backend names its output before the end alone: BerriAI/litellm#32724
    item = {"type": "message", "content": [{"type": "output_text", "text": "Hi"}]}
    done = {"type": "response.output_item.done", "output_index": 0, "item": item}
    assert json.loads(gathered.whole(gathered.GatheredResponse, stream(done, ended)) or b"")["output"] == [item]


def test_the_work_for_many_chunks_of_gemini_grows_with_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of all parts for each chunk took seconds for 20,000."""
    looked_at = 0

    def counted(value: Any) -> list[dict[str, Any]]:
        nonlocal looked_at
        found = objects(value)
        looked_at += len(found)
        return found

    monkeypatch.setattr(gathered, "objects", counted)
    number = 1000
    text = stream(
        {"candidates": [{"content": None}]},
        *[{"candidates": [{"content": {"role": "model", "parts": [{"text": "w"}]}}]}] * number,
        {"candidates": [{"content": {"role": "model"}, "finishReason": "STOP"}]},
    )
    answer = json.loads(gathered.whole(gathered.GatheredContent, text) or b"")
    assert answer["candidates"] == [
        {"content": {"role": "model", "parts": [{"text": "w"}] * number}, "finishReason": "STOP"}
    ]
    assert looked_at <= 3 * number


def test_calls_of_tools_are_joined_by_their_index() -> None:
    calls = [{"index": number, "function": {"name": "f", "arguments": "{"}} for number in range(3)]
    more = [{"index": number, "function": {"arguments": "}"}} for number in range(3)]
    text = b"\xef\xbb\xbf" + stream(
        chunk({"content": "He", "tool_calls": calls}), chunk({"content": "llo", "tool_calls": more}, "tool_calls")
    )
    once = gathered.whole(gathered.GatheredChat, text)
    assert once is not None
    assert b'"Hello"' in once
    assert once.count(b'"{}"') == 3


def test_the_work_for_many_calls_of_tools_grows_with_their_number() -> None:
    """Looking for the piece's call among all others took hours for an answer of 16 MB."""

    def entered(number: int) -> int:
        found = 0

        def count(frame: FrameType, event: str, value: object) -> None:
            nonlocal found
            found += event == "call"

        gathering = gathered.GatheredChat()
        pieces = [{"index": at, "function": {"arguments": "{"}} for at in range(number)]
        text = stream(chunk({"tool_calls": [{"index": 0}]}), chunk({"tool_calls": pieces}, "tool_calls"))
        sys.setprofile(count)
        try:
            gathering.whole(text)
        finally:
            sys.setprofile(None)
        return found

    assert entered(2000) < 3 * entered(1000)
