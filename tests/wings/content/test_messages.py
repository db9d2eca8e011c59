"""Requests and answers of each format as messages of the conventions for generative AI."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.records import Endpoint
from gateway.wings.content.digest import KeptBody, KeptCall, exported
from gateway.wings.content.messages import of_answer, of_raw, of_request, of_stream
from gateway.wings.content.otlp import request_of
from gateway.wings.content.redaction import Redactor
from tests.fakes.collector import spans_of
from tests.fakes.scripted import event


def text(content: str) -> dict[str, Any]:
    return {"type": "text", "content": content}


def message(role: str, *parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"role": role, "parts": [*parts], **more}


def called(name: str, arguments: Any, call_id: str | None = None) -> dict[str, Any]:
    return {"type": "tool_call", "id": call_id, "name": name, "arguments": arguments}


def response(given: Any, call_id: str | None = None) -> dict[str, Any]:
    return {"type": "tool_call_response", "id": call_id, "response": given}


LOOK = {"name": "look", "arguments": '{"at": 1}'}

REQUESTS: list[tuple[Endpoint, dict[str, Any], list[Any], list[Any]]] = [
    ("completions", {"prompt": ["a", "b"]}, [], [message("user", text("a")), message("user", text("b"))]),
    ("completions", {"prompt": [1, 2]}, [], [message("user", {"type": "tokens", "content": [1, 2]})]),
    ("completions", {}, [], []),
    ("embeddings", {"input": "a"}, [], [message("user", text("a"))]),
    ("chat", {"messages": [{"role": "developer", "content": "a"}]}, [], [message("developer", text("a"))]),
    ("chat", {"messages": [{"role": "assistant", "content": None, "reasoning_content": "hm",
                            "tool_calls": [{"id": "c", "type": "function", "function": LOOK}]},
                           {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "b"}]}]}, [],
     [message("assistant", {"type": "reasoning", "content": "hm"}, called("look", {"at": 1}, "c")),
      message("tool", response([{"type": "text", "text": "b"}], "c"))]),
    ("chat", {"messages": [{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": "http://i"}},
        {"type": "input_audio", "input_audio": {"format": "wav"}}]}]}, [],
     [message("user", {"type": "uri", "modality": "image", "uri": "http://i"},
              {"type": "input_audio", "input_audio": {"format": "wav"}})]),
    ("messages", {"system": [{"type": "text", "text": "s"}], "messages": [
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "t", "signature": "x"},
                                          {"type": "tool_use", "id": "c", "name": "look", "input": {"at": 1}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "b"}]}]},
     [text("s")],
     [message("assistant", {"type": "reasoning", "content": "t"}, called("look", {"at": 1}, "c")),
      message("user", response("b", "c"))]),
    ("responses", {"instructions": "s", "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": "http://i"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "t"}]},
        {"type": "function_call", "call_id": "c", **LOOK},
        {"type": "function_call_output", "call_id": "c", "output": "b"},
        {"type": "web_search_call", "id": "w"}]},
     [text("s")],
     [message("user", text("a"), {"type": "uri", "modality": "image", "uri": "http://i"}),
      message("assistant", {"type": "reasoning", "content": "t"}), message("assistant", called("look", {"at": 1}, "c")),
      message("tool", response("b", "c")), message("assistant", {"type": "web_search_call", "id": "w"})]),
    ("generate_content", {"systemInstruction": {"parts": [{"text": "s"}]}, "contents": [
        {"role": "user", "parts": [{"text": "a"}, {"fileData": {"fileUri": "gs://f"}}]},
        {"role": "model", "parts": [
            {"text": "t", "thought": True}, {"functionCall": {"name": "look", "args": {"at": 1}}}]},
        {"role": "user", "parts": [{"functionResponse": {"name": "look", "response": {"x": 2}}}]}]},
     [text("s")],
     [message("user", text("a"), {"type": "fileData", "fileData": {"fileUri": "gs://f"}}),
      message("assistant", {"type": "reasoning", "content": "t"}, called("look", {"at": 1})),
      message("user", response({"x": 2}, "look"))]),
    ("rerank", {"query": "a"}, [], [message("user", text('{"query": "a"}'))]),
]  # fmt: skip


@pytest.mark.parametrize(("endpoint", "members", "system", "messages"), REQUESTS)
def test_requests(endpoint: Endpoint, members: dict[str, Any], system: list[Any], messages: list[Any]) -> None:
    assert of_request(endpoint, members) == (system, messages)


@pytest.mark.parametrize("junk", [None, 1, "a", [1, None, [], "a"], {"a": 1}, [{"role": 1, "content": {"type": []}}]])
@pytest.mark.parametrize("endpoint", ["chat", "messages", "responses", "generate_content", "completions"])
def test_junk_is_no_fault(endpoint: Endpoint, junk: Any) -> None:
    """A body that an upstream refused is exported, too."""
    names = ("messages", "system", "input", "instructions", "contents", "systemInstruction", "prompt")
    of_request(endpoint, dict.fromkeys(names, junk))
    of_answer(endpoint, dict.fromkeys(("choices", "content", "output", "candidates"), junk))


ANSWERS: list[tuple[Endpoint, dict[str, Any], list[Any]]] = [
    ("completions", {"choices": [{"text": "a", "finish_reason": "length"}, {"text": "b"}]},
     [message("assistant", text("a"), finish_reason="length"), message("assistant", text("b"), finish_reason="stop")]),
    ("chat", {"choices": [{"message": {"role": "assistant", "content": None, "refusal": "no"}}]},
     [message("assistant", text("no"), finish_reason="stop")]),
    ("messages", {"content": [{"type": "text", "text": "a"}], "stop_reason": "max_tokens"},
     [message("assistant", text("a"), finish_reason="max_tokens")]),
    ("responses", {"output": [{"type": "reasoning", "summary": []},
                              {"type": "message", "content": [{"type": "output_text", "text": "a"}]}],
                   "incomplete_details": {"reason": "max_output_tokens"}},
     [message("assistant", {"type": "reasoning", "content": ""}, text("a"), finish_reason="max_output_tokens")]),
    ("generate_content", {"candidates": [{"content": {"parts": [{"text": "a"}]}, "finishReason": "STOP"}]},
     [message("assistant", text("a"), finish_reason="STOP")]),
    ("embeddings", {"data": [{"embedding": [0.1]}]}, []),
    ("chat", {"error": {"message": "no"}}, []),
]  # fmt: skip


@pytest.mark.parametrize(("endpoint", "answer", "messages"), ANSWERS)
def test_answers(endpoint: Endpoint, answer: dict[str, Any], messages: list[Any]) -> None:
    assert of_answer(endpoint, answer) == messages


def test_a_response_that_breaks_off_has_its_text_once() -> None:
    """Its later events repeat the text of the first ones."""
    events = [
        {"type": "response.output_text.delta", "delta": "Half \"a\" \u2603"},
        {"type": "response.output_text.done", "text": "Half \"a\" \u2603"},
    ]  # fmt: skip
    found = of_stream("responses", b"".join(map(event, events)), is_cut=False)
    assert found == [message("assistant", text('Half "a" \u2603'), finish_reason="cut")]


def test_a_body_that_is_not_read() -> None:
    assert of_raw("x", "user") == [message("user", text("x"))]
    assert of_raw("x", "assistant") == [message("assistant", text("x"), finish_reason="cut")]


def test_a_span_has_the_messages_as_json_and_no_half_of_a_pair() -> None:
    facts = {
        "call": "req_1", "name": "chat m", "trace_id": "ab" * 16, "span_id": "cd" * 8, "began": 1.5, "duration_s": 0.25,
        "is_error": True, "attributes": {"gateway.key": "k", "gateway.cost_usd": 0.5, "gateway.truncated": False},
    }  # fmt: skip
    body = b'{"messages": [{"role": "user", "content": "half \\ud83d of a pair"}]}'
    call = exported(KeptCall(facts, KeptBody("chat", body)), Redactor([], []))
    (span,) = spans_of(request_of(call))
    assert (span.name, span.trace, span.id, span.parent, span.kind, span.is_error, span.began_s, span.duration_s) == (
        "chat m", "ab" * 16, "cd" * 8, "", "client", True, 1.5, 0.25,
    )  # fmt: skip
    asked = json.loads(span.attributes.pop("gen_ai.input.messages"))
    assert asked == [message("user", text("half ? of a pair"))]
    assert span.attributes == facts["attributes"]
    assert span.resource["service.name"] == "completions-gateway"
