"""The ceiling of a report is never below what was reserved for its call: what a reservation allows is believed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.config import Model, Route
from gateway.formats.ceilings import ADDED_TEXT_TOKENS
from gateway.formats.table import FORMATS
from gateway.quota import windows
from gateway.records import Call, Document, Endpoint, ItemRef, Key, LineCeilings, Params, Usage
from gateway.relay import charge
from gateway.relay.charge import SentRequest
from gateway.wings.stored.batch_results import BatchSize

KEPT_TOKENS = 3_000_000
"""More than any allowance: what ten long answers have that a call continues."""

TEXT = "Hello"
PICTURE = {"image_url": "https://example.com/a.png"}
MESSAGES = [{"role": "user", "content": TEXT}]
FEW: dict[str, Any] = {"model": "m", "max_tokens": 10, "messages": MESSAGES}


def sent(endpoint: Endpoint, params: Params) -> SentRequest:
    model = Model(routes=(Route(upstream="u"),))
    call = Call("r", 0.0, Key("k"), endpoint, params, model, label_model="m", arrived=0.0)
    return SentRequest(call, None, params.output_limit, pieces=[b"x" * 100])


@pytest.mark.parametrize("endpoint", FORMATS)
@pytest.mark.parametrize("limit", [None, 100])
def test_what_was_reserved_is_believed(endpoint: Endpoint, limit: int | None) -> None:
    params = Params(Document("", {}), "m", prompt_tokens=KEPT_TOKENS, output_limit=limit)
    asked = sent(endpoint, params)
    report = Usage(KEPT_TOKENS, windows.output_limit(asked.call), source="reported")
    assert asked.bounded(report) is report
    charged = charge.of_plain(asked, report, b"{}", "m")
    assert charged == charge.Charge(report)


def read(endpoint: Endpoint, body: dict[str, Any]) -> SentRequest:
    return sent(endpoint, FORMATS[endpoint].read(json.dumps(body).encode(), lambda model: None))


FILM = {"fileData": {"fileUri": "https://www.youtube.com/watch?v=1"}}
RESULT = {"functionResponse": {"name": "f", "response": {}, "parts": [FILM]}}

READING: list[tuple[Endpoint, dict[str, Any]]] = [
    ("chat", FEW | {"messages": [{"role": "assistant", "audio": {"id": f"audio_{n}"}} for n in range(7)] + MESSAGES}),
    ("chat", FEW | {"messages": [{"role": "assistant", "content": TEXT, "images": [PICTURE] * 14}, *MESSAGES]}),
    ("chat", FEW | {"extra_body": {"google": {"thinking_config": {}}}}),
    ("generate_content", {"contents": [{"parts": [RESULT]}]}),
    ("generate_content", {"contents": [{"parts": [{"text": TEXT}]}], "systemInstruction": {"parts": [FILM]}}),
    ("generate_content", {"contents": [{"parts": [{"text": TEXT}]}], "system_instruction": {"parts": FILM}}),
    ("responses", {"model": "m", "input": [{"type": "image_generation_call", "result": "aGk="}] * 14}),
    ("responses", {"model": "m", "input": [{"type": "compaction", "encrypted_content": "aGk="}]}),
    ("messages", FEW | {"mcp_servers": [{"type": "url", "url": "https://example.com", "name": "a"}]}),
    ("messages", FEW | {"container": {"skills": [{"type": "anthropic", "skill_id": "pptx"}]}}),
    ("responses", {"model": "m", "input": [{"type": "item_reference", "id": "msg_1"}]}),
    ("responses", {"model": "m", "input": [{"type": "web_search_call", "id": "ws_1"}]}),
    ("responses", {"model": "m", "input": TEXT, "previous_response_id": "resp_1"}),
    ("responses", {"model": "m", "input": TEXT, "conversation": {"id": "conv_1"}}),
    ("embed_content", {"content": {"parts": [{"fileData": {"fileUri": "https://example.com/a.mp4"}}]}}),
    ("batch_embed_contents", {
        "requests": [{"model": "models/m", "content": {"parts": [{"file_data": {"file_uri": "https://example.com/a"}}]}}]
    }),
    ("image_edits", {"model": "m", "prompt": TEXT, "images": [PICTURE] * 16}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("endpoint", "body"), READING, ids=[f"{name}{place}" for place, (name, _) in enumerate(READING)]
)
def test_what_the_request_only_names_is_believed(endpoint: Endpoint, body: dict[str, Any]) -> None:
    asked = read(endpoint, body)
    report = Usage(900_000, 1, source="reported")
    assert asked.bounded(report) is report
    assert asked.prompt_ceiling() < 2 * ADDED_TEXT_TOKENS  # a senseless report stays bounded


def test_what_a_call_refers_to_is_believed_whatever_names_it() -> None:
    for more in ({"refers_to": "file_1"}, {"items": (ItemRef("msg_1", "input[0]", is_sole=True),)}):
        asked = sent("chat", Params(Document("", {}), "m", **more))  # type: ignore[arg-type]
        assert asked.allows(Usage(900_000, 0))


def test_the_lines_of_a_batch_are_believed_up_to_their_reservation() -> None:
    tool = {"mcp_servers": [{"type": "url", "url": "https://example.com", "name": "a"}]}
    requests = [{"custom_id": str(place), "params": FEW | tool} for place in range(3)]
    params = FORMATS["message_batches"].read(json.dumps({"requests": requests}).encode(), lambda model: None)
    reserved = Usage(params.prompt_tokens, params.output_limit or 0)
    most = BatchSize(params.lines, reserved, params.line_ceilings).most
    assert most.prompt > ADDED_TEXT_TOKENS
    assert most.prompts >= reserved.prompt_tokens
    assert most != LineCeilings()
