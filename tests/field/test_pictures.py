"""Pictures in answers of chat, for clients of the other formats.

`images` of a message or a delta: openrouter.ai/docs, "Image Generation"; BerriAI/litellm#13983. In the content:
nordeim/openclaw-curated-skills, gemini-image-generator. In Responses they are items of the image tool
(BerriAI/litellm#16586, kittors/CliRelay#1039), in Messages blocks of requests (CliRelay#1039,
badrisnarayanan/antigravity-claude-proxy#102). A picture that is lost is paid for.
"""

from __future__ import annotations

from typing import Any

import pytest

from gateway.formats.events import Unfit
from gateway.formats.openai.completions import facts
from gateway.wings.fan_out.answer import ChatChoice
from tests.wings.translate.test_translate import output_of, sdk_message, sdk_response
from tests.wings.translate.translated import asked, plain, streamed

DATA = "iVBORw0KGgo="
URL = f"data:image/png;base64,{DATA}"
ADDRESS = "https://pictures.test/1.png"
ASKED: dict[str, dict[str, Any]] = {
    "responses": {"model": "m", "input": "x"},
    "messages": {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}]},
}
FORMS = ("images", "content")


def said(form: str, url: str) -> dict[str, Any]:
    part = {"type": "image_url", "image_url": {"url": url}}
    if form == "images":
        return {"content": "Here:", "images": [part]}
    return {"content": [{"type": "text", "text": "Here:"}, part]}


def answer(form: str, url: str) -> dict[str, Any]:
    return {"model": "m", "choices": [{"index": 0, "message": said(form, url), "finish_reason": "stop"}]}


def chunks(form: str, url: str) -> list[dict[str, Any]]:
    deltas = [({"content": "A "}, None), (said(form, url), None), ({"content": " done"}, "stop")]
    return [{"choices": [{"index": 0, "delta": delta, "finish_reason": end}]} for delta, end in deltas]


def image(source: dict[str, str]) -> dict[str, Any]:
    return {"type": "image", "source": source}


BLOCKS = {
    URL: image({"type": "base64", "media_type": "image/png", "data": DATA}),
    ADDRESS: image({"type": "url", "url": ADDRESS}),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("url", BLOCKS)
def test_a_client_of_messages_gets_a_block(form: str, url: str) -> None:
    whole = plain("messages", ASKED["messages"], answer(form, url))
    assert whole["content"] == [{"type": "text", "text": "Here:"}, BLOCKS[url]]
    message = sdk_message(streamed("messages", ASKED["messages"], chunks(form, url)))
    blocks = [block.to_dict() for block in message.content]
    assert [block["type"] for block in blocks] == ["text", "image", "text"]
    assert blocks[0]["text"] == "A Here:"
    assert blocks[1] == BLOCKS[url]
    assert message.stop_reason == "end_turn"


@pytest.mark.parametrize("form", FORMS)
def test_a_client_of_responses_gets_an_item(form: str) -> None:
    seen = output_of(sdk_response(streamed("responses", ASKED["responses"], chunks(form, URL))))
    assert [item["type"] for item in seen] == ["message", "image_generation_call", "message"]
    assert seen[1] == {"id": "ig_ID_2", "type": "image_generation_call", "status": "completed", "result": DATA}
    whole = plain("responses", ASKED["responses"], answer(form, URL))["output"]
    assert [item.get("result") for item in whole] == [None, DATA]


def test_an_address_is_a_text_of_a_response() -> None:
    """Such an item holds data alone."""
    content = plain("responses", ASKED["responses"], answer("images", ADDRESS))["output"][0]["content"]
    assert content[0]["text"] == f"Here:![image]({ADDRESS})"


BEHIND = [
    {"type": "text", "text": "(Your last message had this picture.)"}, {"type": "image_url", "image_url": {"url": URL}},
]  # fmt: skip


def test_it_goes_back_behind_the_results_of_tools() -> None:
    """A message of the assistant cannot hold it, and no message may come between a call and its result."""
    used = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
    messages = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": [{"type": "text", "text": "Here:"}, BLOCKS[URL], used]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "r"}]},
    ]
    sent = asked("messages", {**ASKED["messages"], "messages": messages}).body["messages"]
    assert [message["role"] for message in sent] == ["user", "assistant", "tool", "user"]
    assert sent[1]["content"] == "Here:"
    assert sent[3]["content"] == BEHIND
    messages[2] = {"role": "user", "content": "And blue?"}
    del messages[1]["content"][2]  # type: ignore[attr-defined]
    sent = asked("messages", {**ASKED["messages"], "messages": messages}).body["messages"]
    assert sent[2]["content"] == [*BEHIND, {"type": "text", "text": "And blue?"}]


def test_an_item_goes_back_as_a_picture() -> None:
    made = {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": DATA}
    items = [{"role": "user", "content": "x"}, made, {"role": "user", "content": "And blue?"}]
    sent = asked("responses", {"model": "m", "input": items}).body["messages"]
    assert [message["content"] for message in sent] == ["x", BEHIND, "And blue?"]


@pytest.mark.parametrize("form", FORMS)
def test_a_completion_cannot_hold_it(form: str) -> None:
    with pytest.raises(Unfit):
        ChatChoice(0, has_logprobs=False).completions_choice(said(form, URL), None, "stop", 0)


def test_an_answer_of_a_picture_alone_is_one() -> None:
    """Without a count of tokens, an answer of nothing is a failure."""
    body = b'{"choices": [{"index": 0, "message": {"content": "", "images": [{"image_url": {"url": "x"}}]}}]}'
    assert not facts(body).is_error
    assert facts(body.replace(b'"images"', b'"others"')).is_error
