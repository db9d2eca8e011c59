"""Pictures, sounds and files in base64 are no text: a call that holds some fits a quota that its tokens fit.

What a picture costs is said by each vendor (OpenAI: images and vision; Anthropic: width x height / 750; Google: 258
for a tile), and never follows from the length of its base64.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import ok_json
from tests.flows.gateway_process import Gateway, eventually, key

from .played import USAGE, ask, chat_answer, configuration, gemini_chunk

DATA = "iVBORw0KGgoAAAANSUhEUgAA" * 20_000
"""480 KB of base64: 120,000 tokens, if it were text."""

ROOM = 60_000
"""Tokens of the quota."""

URL = f"data:image/png;base64,{DATA}"
PDF = f"data:application/pdf;base64,{DATA}"
SOURCE = {"type": "base64", "media_type": "image/png", "data": DATA}
DOCUMENT = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": DATA}}
INLINE = {"inlineData": {"mimeType": "image/png", "data": DATA}}
CALL = {"id": "call_a", "type": "function", "function": {"name": "look", "arguments": "{}"}}
USE = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}
FUNCTION_CALL = {"type": "function_call", "call_id": "call_a", "name": "look", "arguments": "{}"}


class Row(NamedTuple):
    """Where a format holds bytes."""

    name: str
    source: str
    model: str
    members: dict[str, Any]


def chat(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [{"type": "text", "text": "What is it?"}, *parts]}]}


def messages(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [{"type": "text", "text": "What is it?"}, *parts]}]}


def items(*given: dict[str, Any]) -> dict[str, Any]:
    return {"input": [{"role": "user", "content": "What is it?"}, *given]}


def contents(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"contents": [{"role": "user", "parts": [{"text": "What is it?"}, *parts]}]}


ROWS = (
    Row("image_url", "diegosouzapw/OmniRoute#8368, digitallyinduced/haskell-agent#599", "chat",
        chat({"type": "image_url", "image_url": {"url": URL}})),
    Row("image_url as text", "diegosouzapw/OmniRoute#8401", "chat", chat({"type": "image_url", "image_url": URL})),
    Row("a picture of a tool", "open-webui/open-webui#29818", "chat", {"messages": [
        {"role": "user", "content": "Look."}, {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_a", "content": [{"type": "image_url", "image_url": {"url": URL}}]},
    ]}),
    Row("a file", "mistralai/client-python#502", "chat",
        chat({"type": "file", "file": {"filename": "a.pdf", "file_data": PDF}})),
    Row("a document_url", "mistralai/client-python#502", "chat", chat({"type": "document_url", "document_url": PDF})),
    Row("a sound", "diegosouzapw/OmniRoute#8401", "chat",
        chat({"type": "input_audio", "input_audio": {"data": DATA, "format": "wav"}})),
    Row("a video", "diegosouzapw/OmniRoute#8401", "chat",
        chat({"type": "video_url", "video_url": {"url": f"data:video/mp4;base64,{DATA}"}})),
    Row("a source in a chat", "diegosouzapw/OmniRoute#8368", "chat", chat({"type": "image", "source": SOURCE})),
    Row("image_url, translated", "diegosouzapw/OmniRoute#8368", "chat-over-messages",
        chat({"type": "image_url", "image_url": {"url": URL}})),
    Row("a source", "diegosouzapw/OmniRoute#8368", "messages", messages({"type": "image", "source": SOURCE})),
    Row("a document", "kelviq/tare#6", "messages", messages(DOCUMENT)),
    Row("a picture as a result", "kelviq/tare#6, earendil-works/pi#1441", "messages", {"messages": [
        {"role": "user", "content": "Look."}, {"role": "assistant", "content": [USE]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": [
            {"type": "image", "source": SOURCE}]}]},
    ]}),
    Row("a document as a result", "kelviq/tare#6", "messages", {"messages": [
        {"role": "user", "content": "Look."}, {"role": "assistant", "content": [USE]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": [DOCUMENT]}]},
    ]}),
    Row("a source, translated", "diegosouzapw/OmniRoute#8368", "messages-over-chat",
        messages({"type": "image", "source": SOURCE})),
    Row("input_image", "diegosouzapw/OmniRoute#8368, digitallyinduced/haskell-agent#599", "responses",
        items({"role": "user", "content": [{"type": "input_image", "image_url": URL}]})),
    Row("input_file", "mistralai/client-python#502", "responses",
        items({"role": "user", "content": [{"type": "input_file", "filename": "a.pdf", "file_data": PDF}]})),
    Row("input_audio", "diegosouzapw/OmniRoute#8401", "responses",
        items({"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": DATA, "format": "wav"}}]})),
    Row("pictures as an output", "NousResearch/hermes-agent#108320, raine/claude-code-proxy#59", "responses",
        items(FUNCTION_CALL, {"type": "function_call_output", "call_id": "call_a", "output": [
            {"type": "input_image", "image_url": URL}]})),
    Row("a file as an output", "raine/claude-code-proxy#59", "responses",
        items(FUNCTION_CALL, {"type": "function_call_output", "call_id": "call_a", "output": [
            {"type": "input_file", "filename": "a.pdf", "file_data": PDF}]})),
    Row("a screen", "NousResearch/hermes-agent#108320", "responses",
        items({"type": "computer_call_output", "call_id": "call_a", "output": {
            "type": "computer_screenshot", "image_url": URL}})),
    Row("a picture that was made", "BerriAI/litellm#32865", "responses",
        items({"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": DATA})),
    Row("thoughts that are encrypted", "UKGovernmentBEIS/inspect_ai#4184", "responses",
        items({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": DATA[:200_000]})),
    Row("input_image, translated", "diegosouzapw/OmniRoute#8368", "responses-over-chat",
        items({"role": "user", "content": [{"type": "input_image", "image_url": URL}]})),
    Row("inlineData", "diegosouzapw/OmniRoute#8368", "gemini", contents(INLINE)),
    Row("inline_data", "diegosouzapw/OmniRoute#8368", "gemini",
        contents({"inline_data": {"mime_type": "image/png", "data": DATA}})),
    Row("a picture as a functionResponse", "google-gemini/gemini-cli#17923", "gemini", {"contents": [
        {"role": "user", "parts": [{"text": "Look."}]},
        {"role": "model", "parts": [{"functionCall": {"name": "look", "args": {}}}]},
        {"role": "user", "parts": [{"functionResponse": {"name": "look", "response": {}, "parts": [INLINE]}}]},
    ]}),
    Row("a signature of thoughts", "UKGovernmentBEIS/inspect_ai#4184", "gemini", {"contents": [
        {"role": "user", "parts": [{"text": "Look."}]},
        {"role": "model", "parts": [{"text": "Yes.", "thoughtSignature": DATA[:200_000]}]},
        {"role": "user", "parts": [{"text": "And?"}]},
    ]}),
)  # fmt: skip


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    """Each row has a key of its own, whose quota it has not used."""
    made = configuration(shared_upstream.url)
    made["keys"] = [key(f"row-{number}", quotas=[{"tokens": ROOM, "per": "day"}]) for number in range(len(ROWS))]
    return start_shared_gateway(made)


ANSWERS = {
    "chat": chat_answer(),
    "chat-over-messages": ok_json({
        "id": "msg_1", "type": "message", "role": "assistant", "model": "up", "stop_reason": "end_turn",
        "content": [{"type": "text", "text": "Hi"}], "stop_sequence": None,
        "usage": {"input_tokens": 30, "output_tokens": 25},
    }),
    "responses": ok_json({
        "id": "resp_1", "object": "response", "created_at": 1, "status": "completed", "model": "up", "output": [],
        "usage": {"input_tokens": 30, "output_tokens": 25, "total_tokens": 55},
    }),
    "gemini": ok_json(gemini_chunk()),
    "messages-over-chat": chat_answer(), "responses-over-chat": chat_answer(),
}  # fmt: skip
ANSWERS["messages"] = ANSWERS["chat-over-messages"]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.model} {row.name} [{row.source}]")
def test_it_fits_the_quota(row: Row, gateway: Gateway, upstream: ScriptedUpstream) -> None:
    who = f"row-{ROWS.index(row)}"
    upstream.answer_with(chat_answer(), ANSWERS[row.model])
    assert ask(gateway, "chat", who=who).status == 200  # the first call of a window is admitted whatever its estimate
    answer = ask(gateway, row.model, who=who, **row.members)
    assert answer.status == 200, answer.body[:300]

    def used() -> int | None:
        (quota,) = gateway.get("/v1/key", key=who).json["quotas"]
        return None if quota["reserved"] else quota["used"]

    assert eventually(used) == 2 * USAGE["total_tokens"]
