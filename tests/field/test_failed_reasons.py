"""Reasons to finish by other names than OpenAI's: a translation never makes a whole answer of half a one."""

from __future__ import annotations

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import ok_json, stream
from tests.flows.gateway_process import Gateway

from .reports import asks_messages, asks_responses, chat_chunk, configuration, play
from .test_failures_in_answers import ENDS

USAGE = {"prompt_tokens": 30, "completion_tokens": 252, "total_tokens": 282}
FAILED = {"error": "razzant/claudexor#144", "insufficient_system_resource": "can1357/oh-my-pi#8563",
          "abort": "vllm-project/vllm#57082"}  # fmt: skip
"""Reasons that mean a failure: of OpenRouter (openrouter.ai, errors), of DeepSeek (api-docs.deepseek.com, create chat
completion) and of vLLM (`FinishReason.ABORT`)."""

NAMES = {
    "MAX_TOKENS": ("max_tokens", "incomplete", "QwenLM/qwen-code#9884"),
    "max_tokens": ("max_tokens", "incomplete", "ferro-labs/ai-gateway#142"),
    "STOP": ("end_turn", "completed", "QwenLM/qwen-code#9884"),
    "end_turn": ("end_turn", "completed", "ferro-labs/ai-gateway#142"),
}
"""Reasons that relays pass on from Gemini, Cohere, Anthropic and Bedrock, each with the stop reason of Messages and the
status of a response that it means."""
ASKS = {"messages": asks_messages("messages-over-chat"), "responses": asks_responses("responses-over-chat")}


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    return start_shared_gateway(configuration(shared_upstream.url))


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("way", ["messages", "responses"])
@pytest.mark.parametrize("reason", FAILED, ids=[f"{reason}: {source}" for reason, source in FAILED.items()])
def test_half_an_answer_is_not_translated_to_a_whole_one(
    gateway: Gateway, upstream: ScriptedUpstream, reason: str, way: str, is_stream: bool
) -> None:
    said = {"role": "assistant", "content": "Half"}
    plain = ok_json(chat_chunk(choices=[{"index": 0, "message": said, "finish_reason": reason}], usage=USAGE))
    streamed = stream([chat_chunk("Half"), chat_chunk(finish=reason), chat_chunk(choices=[], usage=USAGE)])
    ask = ASKS[way].with_members(stream=is_stream)
    answer, _ = play(gateway, upstream, ask, streamed if is_stream else plain)
    shown = answer.body.decode().replace('": "', '":"')
    assert not [sign for sign in ENDS if sign in shown]


@pytest.mark.parametrize("way", ASKS)
@pytest.mark.parametrize("reason", NAMES, ids=[f"{reason}: {row[-1]}" for reason, row in NAMES.items()])
def test_a_reason_by_another_name_keeps_its_meaning(
    gateway: Gateway, upstream: ScriptedUpstream, reason: str, way: str
) -> None:
    said = {"role": "assistant", "content": "Half"}
    plain = ok_json(chat_chunk(choices=[{"index": 0, "message": said, "finish_reason": reason}], usage=USAGE))
    answer, record = play(gateway, upstream, ASKS[way], plain)
    stop_reason, status, _ = NAMES[reason]
    shown = answer.json["stop_reason"] if way == "messages" else answer.json["status"]
    assert (shown, record["usage_source"]) == (stop_reason if way == "messages" else status, "reported")
