"""Answers of vLLM and Ollama in the shape of their recordings: their members, the order of these, where the usage is.

The values are this project's own. Shapes come from recorded answers in the named issues, or from the programs' own
tests and sources.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import CHUNKED, Behaviour, chunk, error_json, ok_json, raw, stream
from tests.flows.gateway_process import Gateway

from .reports import (
    BLOCK,
    STOP,
    STREAMED,
    Ask,
    asks_chat,
    asks_completions,
    asks_embeddings,
    asks_messages,
    asks_responses,
    check,
    configuration,
    message_delta,
    message_start,
    named,
    play,
    response,
    text_of,
)

CHAT, CHAT_STREAM = asks_chat(), asks_chat(**STREAMED)
COUNTS = {"prompt_tokens": 30, "completion_tokens": 25, "usage_source": "reported"}
DONE, BROKEN, FREE = {"ended": "done"}, {"ended": "error", "truncated": True}, {"ended": "error", "cost_usd": 0.0}
USAGE = {"prompt_tokens": 30, "total_tokens": 55, "completion_tokens": 25}
VLLM = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "qwen"}
OLLAMA = {**VLLM, "id": "chatcmpl-774", "system_fingerprint": "fp_ollama"}
FAILED = {"message": "EngineCore encountered an issue. See stack trace (above) for the root cause.",
          "type": "InternalServerError", "param": None, "code": 500}  # fmt: skip


class Row(NamedTuple):
    name: str
    source: str
    ask: Ask
    said: Behaviour
    recorded: Mapping[str, Any]
    text: str | None = None
    """What a stream says."""
    status: int = 200


def of_vllm(delta: Any, finish: str | None = None, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish, "token_ids": None}
    return {**VLLM, "choices": [{**choice, **more}]}


def of_ollama(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    """A chunk with the role, as each of Ollama's has it."""
    said = {"role": "assistant", "content": "", **delta}
    return {**OLLAMA, "choices": [{"index": 0, "delta": said, "finish_reason": finish}]}


def plain(choice: Mapping[str, Any], **more: Any) -> Behaviour:
    return ok_json({**VLLM, "object": "chat.completion", "choices": [{"index": 0, **choice}], **more})


FIRST = {**VLLM, "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None,
                              "finish_reason": None}], "prompt_token_ids": None, "prompt_text": None}  # fmt: skip
CACHED = {**VLLM, "choices": [], "usage": {**USAGE, "prompt_tokens_details": {"cached_tokens": 16}}}
MESSAGE = {"role": "assistant", "content": "Hi", "refusal": None, "annotations": None, "audio": None,
           "function_call": None, "tool_calls": [], "reasoning": None}  # fmt: skip
TURNS = {"input_tokens": 30, "output_tokens": 25, "total_tokens": 55,
         "input_tokens_details": {"cached_tokens": 16, "cache_write_tokens": 8, "input_tokens_per_turn": [],
                                  "cached_tokens_per_turn": []},
         "output_tokens_details": {"reasoning_tokens": 5, "tool_output_tokens": 0, "output_tokens_per_turn": [],
                                   "tool_output_tokens_per_turn": []}}  # fmt: skip
TEXT_FRAME = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "qwen"}


def text_frame(text: str, finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish, "stop_reason": None,
              "prompt_token_ids": None, "token_ids": None}  # fmt: skip
    return {**TEXT_FRAME, "choices": [choice]}


VLLM_ROWS = (
    Row(
        "reasoning, then text, and a stop token as the stop_reason",
        "vllm-project/vllm#42167; protocol.py",
        CHAT_STREAM,
        stream(
            [
                FIRST,
                of_vllm({"reasoning": "Hm"}),
                of_vllm({"content": "Hi"}),
                of_vllm({"content": " there", "reasoning_content": None}, "stop", stop_reason=151336),
                CACHED,
            ]
        ),
        DONE | COUNTS | {"cached_tokens": 16},
        "Hi there",
    ),
    Row(
        "continuous_usage_stats: details in the last report alone",
        "vllm-project/vllm#9357",
        CHAT_STREAM,
        stream(
            [
                {**of_vllm({"content": "Hi"}), "usage": {**USAGE, "completion_tokens": 7, "total_tokens": 37}},
                {**of_vllm({"content": " there"}, "stop", stop_reason=None), "usage": USAGE},
                CACHED,
            ]
        ),
        DONE | COUNTS | {"cached_tokens": 16},
        "Hi there",
    ),
    Row(
        "a plain answer with all its own members",
        "vLLM 0.26, protocol.py",
        CHAT,
        plain(
            {
                "message": MESSAGE,
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
                "token_ids": None,
                "routed_experts": None,
            },
            service_tier=None,
            system_fingerprint="vllm-0.26.0-tp4-628bf3dd",
            usage={**USAGE, "prompt_tokens_details": None, "completion_tokens_details": None},
            prompt_logprobs=None,
            prompt_token_ids=None,
            prompt_text=None,
            kv_transfer_params=None,
            ec_transfer_params=None,
            metrics=None,
        ),
        DONE | COUNTS,
    ),
    Row(
        "frames of completions",
        "vllm, tests/entrypoints/openai/completion/test_stream_frame_template.py",
        asks_completions(**STREAMED),
        stream([text_frame("Hi"), text_frame(" there", "length"), {**TEXT_FRAME, "choices": [], "usage": USAGE}]),
        DONE | COUNTS,
        "Hi there",
    ),
    Row(
        "a response with counts by turn",
        "vllm, entrypoints/openai/responses/protocol.py, ResponseUsage",
        asks_responses(),
        ok_json(response(TURNS, kv_transfer_params=None, input_messages=None, output_messages=None)),
        DONE | COUNTS | {"cached_tokens": 16, "reasoning_tokens": 5, "units": {"cache_write": 8}},
    ),
    Row("an engine that is dead", "vllm-project/vllm-ascend#5033", CHAT, error_json(500, **FAILED), FREE, None, 502),
    Row(
        "an engine that dies in a stream, and its [DONE]",
        "vllm, serving.py, create_streaming_error_response",
        CHAT_STREAM,
        stream([FIRST, of_vllm({"content": "Hi"}), {"error": FAILED}]),
        BROKEN,
        "Hi",
    ),
)
NOTHING = {"index": 0, "message": {"role": "", "content": ""}, "finish_reason": None}
ZEROS = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
OLLAMA_ROWS = (
    Row(
        "reasoning, and the role in each chunk", "ollama, openai/openai.go, ToChunk", CHAT_STREAM,
        stream([of_ollama(reasoning="Okay"), of_ollama(content="Hi"), of_ollama(content=" there"), of_ollama("stop"),
                {**OLLAMA, "choices": [], "usage": USAGE}]),
        DONE | COUNTS, "Hi there",
    ),
    Row(
        "the usage with timings beside it", "Ollama 0.40", CHAT_STREAM,
        stream([of_ollama(content="Hi"), of_ollama("stop"),
                {**OLLAMA, "choices": [], "usage": USAGE, "timings": {"prompt_n": 30, "predicted_n": 25}}]),
        DONE | COUNTS, "Hi",
    ),
    Row(
        "an empty answer: the runner failed", "ollama, openai/openai.go, ToChatCompletion of an empty response", CHAT,
        plain(NOTHING, created=-62135596800, model="", usage=ZEROS), FREE, None, 502,
    ),
    Row(
        "empty embeddings: the runner failed", "ollama, openai/openai.go, ToEmbeddingList", asks_embeddings(),
        ok_json({"object": "", "data": None, "model": "", "usage": {"prompt_tokens": 0, "total_tokens": 0}}),
        FREE, None, 502,
    ),
    Row(
        "an error as a line of its own in a stream", "ollama, docs/api/errors.mdx", CHAT_STREAM,
        raw(CHUNKED, chunk(f"data: {json.dumps(of_ollama(content='Hi'))}\n\n".encode()),
            chunk(b'{"error":"an error was encountered while running the model"}\n'), b"0\r\n\r\n"),
        BROKEN, "Hi",
    ),
    Row(
        "Messages: the prompt in the last report alone", "ollama/ollama#13934", asks_messages(stream=True),
        named(message_start({"input_tokens": 0, "output_tokens": 0}), *BLOCK,
              message_delta({"input_tokens": 30, "output_tokens": 25}), STOP), DONE | COUNTS, "Hi",
    ),
)  # fmt: skip
ROWS = VLLM_ROWS + OLLAMA_ROWS


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    return start_shared_gateway(configuration(shared_upstream.url))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.name} [{row.source}]")
def test_recorded(gateway: Gateway, upstream: ScriptedUpstream, row: Row) -> None:
    answer, record = play(gateway, upstream, row.ask, row.said)
    assert answer.status == row.status
    if row.text is not None:
        assert text_of(answer.body) == row.text
        assert (b"[DONE]" in answer.body) is (record["ended"] == "done" and row.ask.path != "/v1/messages")
    check(record, row.recorded)


STREAMS = tuple(row for row in ROWS if row.ask is CHAT_STREAM and row.recorded["ended"] == "done")


@pytest.mark.parametrize("name", ["messages-over-chat", "responses-over-chat"])
@pytest.mark.parametrize("row", STREAMS, ids=lambda row: row.name)
def test_translated(gateway: Gateway, upstream: ScriptedUpstream, row: Row, name: str) -> None:
    ask = asks_messages(name, stream=True) if name.startswith("messages") else asks_responses(name, stream=True)
    answer, record = play(gateway, upstream, ask, row.said)
    assert text_of(answer.body) == row.text
    assert b'"stop_sequence":"' not in answer.body.replace(b" ", b"")  # a stop token is none
    check(record, row.recorded)
