"""Pieces of answers that no document has, as people reported them: what a client of another format gets of them, and
what is recorded of those that are passed on."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.formats import reported_usage
from gateway.formats.anthropic.reader import MessagesScan
from gateway.formats.events import Unfit
from gateway.formats.format import ScanInput
from gateway.formats.openai.frame import as_chat
from gateway.formats.openai.reader import ChatReader
from gateway.formats.openai.responses_scan import ResponsesScan
from tests.wings.translate.test_streams_are_whole import ASKED, sdks
from tests.wings.translate.translated import plain, streamed

from .played import USAGE, chat_chunk, named, response_events, usage_chunk
from .usage_answers import data_of

WARM = "It is warm."
REFERENCES = [
    {"content": [{"type": "text", "text": "It is "}, {"type": "reference", "reference_ids": [1]}]},
    {"content": [{"type": "reference", "reference_ids": ["source-2"]}]},
    {"content": [{"type": "text", "text": "warm."}, {"type": "tool_reference", "tool": "web_search", "title": "x"}]},
]
"""Mistral's (vercel/ai#4747, mistralai/client-python#325, suitenumerique/conversations#51)."""


def said(shown: dict[str, Any]) -> str:
    """The text of a message or a response."""
    content = shown["content"] if "content" in shown else shown["output"][0]["content"]
    return "".join([part["text"] for part in content])


@pytest.mark.parametrize("way", ["messages", "responses"])
def test_references_of_mistral_are_no_text(way: str) -> None:
    parts = [part for delta in REFERENCES for part in delta["content"]]
    choice = {"index": 0, "message": {"role": "assistant", "content": parts}, "finish_reason": "stop"}
    assert said(plain(way, ASKED[way], {"choices": [choice], "usage": USAGE})) == WARM
    chunks = [*map(chat_chunk, REFERENCES), chat_chunk(None, "stop"), usage_chunk()]
    body = streamed(way, {**ASKED[way], "stream": True}, chunks)
    shown = sdks().message(body).to_dict() if way == "messages" else data_of(body)[-1]["response"]
    assert said(shown) == WARM


def test_thoughts_of_magistral_are_a_list_of_texts() -> None:
    """BerriAI/litellm#16272. `end_turn`: vercel/modelfusion#343, aws-samples/bedrock-access-gateway#11."""
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
    chunks = [chat_chunk({"content": [thought]}), chat_chunk({"content": WARM}, "end_turn"), usage_chunk()]
    shown = sdks().message(streamed("messages", {**ASKED["messages"], "stream": True}, chunks)).to_dict()
    assert [part.get("thinking", part.get("text")) for part in shown["content"]] == ["hm", WARM]
    assert shown["stop_reason"] == "end_turn"


HEAD = {"id": "msg_1", "type": "message", "role": "assistant", "model": "up", "content": [], "stop_reason": None}
ZEROS = {"input_tokens": 0, "output_tokens": 0}
BEGUN = {"type": "message_start", "message": {**HEAD, "stop_sequence": None, "usage": ZEROS}}
ENDED = {"type": "message_delta", "delta": {"stop_reason": "end_turn"},
         "usage": {"input_tokens": 30, "output_tokens": 25}}  # fmt: skip


def message(*events: tuple[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """A message whose counts are in its last report alone (sgl-project/sglang#20678, CLIProxyAPI#1700)."""
    members = {"content_block_start": "content_block", "content_block_delta": "delta"}
    blocks = [{"type": kind, "index": 0, members[kind]: value} for kind, value in events]
    return [BEGUN, *blocks, {"type": "content_block_stop", "index": 0}, ENDED, {"type": "message_stop"}]


def of_chat(*events: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    """What a chat client has of such a message: its deltas as one."""
    body = streamed("anthropic", ASKED["anthropic"], message(*events))
    found: dict[str, Any] = {}
    for line in body.decode().split("\n\n")[:-2]:
        chunk = json.loads(line.removeprefix("data: "))
        for choice in chunk["choices"]:
            for name, value in choice["delta"].items():
                found[name] = found[name] + value if name in found else value
        found["usage"] = chunk["usage"]
    return found


def test_a_block_without_its_text_begins_empty() -> None:
    """BerriAI/litellm#28069."""
    shown = of_chat(
        ("content_block_start", {"type": "text"}), ("content_block_delta", {"type": "text_delta", "text": "Hi"})
    )
    assert (shown["content"], shown["usage"]["prompt_tokens"], shown["usage"]["completion_tokens"]) == ("Hi", 30, 25)


def test_a_thought_that_begins_with_its_block_is_kept_whole() -> None:
    """can1357/oh-my-pi#8319: its signature is of all of it."""
    shown = of_chat(
        ("content_block_start", {"type": "thinking", "thinking": "Let", "signature": ""}),
        ("content_block_delta", {"type": "thinking_delta", "thinking": " me."}),
        ("content_block_delta", {"type": "signature_delta", "signature": "sig"}),
    )
    assert shown["reasoning_content"] == "Let me."
    assert shown["thinking_blocks"] == [{"type": "thinking", "thinking": "Let me.", "signature": "sig"}]


def test_arguments_without_the_beginning_of_their_call_are_an_error() -> None:
    with pytest.raises(Unfit):
        of_chat(("content_block_delta", {"type": "input_json_delta", "partial_json": "{}"}))


def test_zeros_in_the_first_report_of_a_message_are_none() -> None:
    """sgl-project/sglang#20678, router-for-me/CLIProxyAPI#1700."""
    scan = MessagesScan(ScanInput())
    scan.feed(named(*message(("content_block_start", {"type": "text", "text": "Hi"}))))
    assert scan.usage is not None
    assert scan.usage[:2] == (30, 25)


RESPONSES: dict[str, dict[str, Any]] = {
    "an item that is null [openai/openai-python#3126]": {"item": None, "output_index": 0},
    "an item that is missing [openai/openai-python#3131]": {"output_index": 0},
    "no index, and no id of the item [ggml-org/llama.cpp#20607, lemonade-sdk/lemonade#3607]": {
        "item": {"type": "function_call", "call_id": "call_a", "name": "look", "arguments": ""},
    },
}  # fmt: skip


@pytest.mark.parametrize("given", RESPONSES.values(), ids=RESPONSES)
def test_events_of_responses_that_lack_members_are_passed_on(given: dict[str, Any]) -> None:
    first, *others = response_events()
    items = [{"type": f"response.output_item.{what}", "sequence_number": 1, **given} for what in ("added", "done")]
    sent = named(first, *items, *others)
    scan = ResponsesScan(ScanInput())
    passed, _ = scan.feed(sent)
    assert scan.is_complete
    assert scan.usage is not None
    assert passed + scan.last(scan.usage) == sent


def test_a_response_that_ends_without_status_and_usage_is_whole() -> None:
    """rowboatlabs/rowboat#113; the output beside the response: makecindy/cindy#4509."""
    first, delta, end = response_events()
    bare = {**end["response"], "status": None, "usage": None}
    output = bare.pop("output")
    scan = ResponsesScan(ScanInput())
    scan.feed(named(first, delta, {**end, "response": bare, "output": output}))
    assert scan.is_complete
    assert (scan.usage, scan.error) == (None, None)


USAGES: dict[str, tuple[dict[str, Any], tuple[int, int, int, int]]] = {
    "thoughts beside the output, a part cached [Wei-Shaw/sub2api#5771, UKGovernmentBEIS/inspect_ai#5528]": (
        {"prompt_tokens": 10120, "completion_tokens": 1499, "total_tokens": 14428,
         "prompt_tokens_details": {"cached_tokens": 128}, "completion_tokens_details": {"reasoning_tokens": 2809}},
        (10120, 4308, 128, 2809),
    ),
    "more cached than the prompt has [AstrBotDevs/AstrBot#9905]": (
        {"prompt_tokens": 100, "completion_tokens": 5, "total_tokens": 105,
         "prompt_tokens_details": {"cached_tokens": 900}},
        (100, 5, 100, 0),
    ),
    "writes of Bedrock beside the prompt [ENTERPILOT/GoModel#726]": (
        {"prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 714, "cache_write_input_tokens": 700},
        (709, 5, 0, 0),
    ),
    "a cost of 0, because the key is the customer's own [tailcallhq/forgecode#1641]": (
        {"prompt_tokens": 9171, "completion_tokens": 113, "total_tokens": 9284, "cost": 0, "is_byok": True,
         "cost_details": {"upstream_inference_cost": 0.0360795},
         "completion_tokens_details": {"reasoning_tokens": 55, "image_tokens": 0}},
        (9171, 113, 0, 55),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("report", "counts"), USAGES.values(), ids=USAGES)
def test_what_a_report_means_is_charged_and_shown(report: dict[str, Any], counts: tuple[int, ...]) -> None:
    found = ChatReader().facts({"choices": [], "usage": report})
    assert found is not None
    charged = reported_usage.coherent(found)
    assert charged[:4] == counts
    shown = as_chat(charged)
    assert (shown["prompt_tokens"], shown["completion_tokens"]) == counts[:2]
