"""The formats that the tests' simulated upstream has beside those of `gateway simulate`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.fakes.simulator.server import build_app

from .test_simulator import CHAT, EMBEDDING, INSTRUCT, REASONER, Upstream, serving


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    async with serving(build_app) as served:
        yield served


async def test_models(upstream: Upstream) -> None:
    names = [model.id async for model in upstream.sdk.models.list() if not model.id.startswith(("claude", "gemini"))]
    media = ["gpt-realtime", "whisper-1", "gpt-4o-mini-transcribe", "tts-1", "gpt-image-1", "dall-e-2"]
    assert names == [INSTRUCT, CHAT, "gpt-4.1-mini", REASONER, EMBEDDING, *media]


@pytest.mark.parametrize("of", ["Schema", "JsonSchema"])
async def test_gemini_s_schemas_are_answered(upstream: Upstream, of: str) -> None:
    kinds = ("OBJECT", "INTEGER") if of == "Schema" else ("object", "integer")
    schema = {"type": kinds[0], "properties": {"type": {"type": kinds[1]}}, "required": ["type"]}
    parameters = {"name": "f", "parameters" if of == "Schema" else "parametersJsonSchema": schema}
    changes = [{"generationConfig": {f"response{of}": schema}}, {"tools": [{"functionDeclarations": [parameters]}]}]
    found = []
    for change in changes:
        asked = {"contents": [{"parts": [{"text": "Hi"}]}]} | change
        _, answer = await upstream.post("/v1beta/models/gemini-2.5-flash:generateContent", asked)
        found.append(answer["candidates"][0]["content"]["parts"][0])
    assert found == [{"text": '{"type": 1}'}, {"functionCall": {"name": "f", "args": {"type": 1}}}]


# ---------------------------------------------------------------------------------------------------- stored responses


async def test_a_stored_response_is_continued_and_read_until_it_is_deleted(upstream: Upstream) -> None:
    import openai

    responses = upstream.sdk.responses
    first = await responses.create(model=CHAT, input="Tell me a story.")
    second = await responses.create(model=CHAT, input="Go on.", previous_response_id=first.id)
    assert second.usage.input_tokens > first.usage.total_tokens
    assert (await responses.retrieve(first.id)).output_text == first.output_text
    items = await responses.input_items.list(second.id)
    assert len(items.data) == 3
    await responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        await responses.retrieve(first.id)
    with pytest.raises(openai.BadRequestError, match="not found"):
        await responses.create(model=CHAT, input="Go on.", previous_response_id=first.id)
    kept_nowhere = await responses.create(model=CHAT, input="Hi", store=False)
    with pytest.raises(openai.NotFoundError):
        await responses.retrieve(kept_nowhere.id)
    with pytest.raises(openai.BadRequestError, match="synchronous"):
        await responses.cancel(second.id)


async def test_a_background_response_goes_on_by_itself(upstream: Upstream) -> None:
    responses = upstream.sdk.responses
    made = await responses.create(model=CHAT, input="Hi", background=True, extra_body={"simulate": {"delay_s": 0.2}})
    assert (made.status, made.usage, made.output) == ("queued", None, [])
    (call,) = (await upstream.ledger_with(1))["calls"]
    now = await responses.retrieve(made.id)
    assert now.status == "completed"
    assert (call["ended"], call["completion_tokens"]) == ("done", now.usage.output_tokens)
    slow = {"simulate": {"delay_s": 60}}
    made = await responses.create(model=CHAT, input="Hi", background=True, extra_body=slow)
    assert (await responses.cancel(made.id)).status == "cancelled"
    assert (await responses.cancel(made.id)).status == "cancelled"
    assert {call["ended"] for call in (await upstream.ledger_with(2))["calls"]} == {"done", "aborted"}


async def read_into(stream: AsyncIterator[Any], into: list[Any]) -> None:
    """Every event of a stream, also of one that breaks off."""
    async for event in stream:
        into.append(event)  # noqa: PERF401 - a comprehension would lose them


async def test_the_stream_of_a_background_response_is_resumed(upstream: Upstream) -> None:
    import httpx2
    import openai

    responses = upstream.sdk.responses
    asked = {"model": CHAT, "input": "Tell me a story.", "background": True, "stream": True}
    cut = {"simulate": {"tokens_per_s": 100, "cut_after_events": 5}}
    seen: list[Any] = []
    broken = await responses.create(**asked, extra_body=cut)
    with pytest.raises((openai.APIError, httpx2.HTTPError)):
        await read_into(broken, seen)
    await broken.close()
    assert [event.type for event in seen[:3]] == ["response.created", "response.queued", "response.in_progress"]
    assert [event.sequence_number for event in seen] == [0, 1, 2, 3, 4]
    made = seen[0].response.id
    assert seen[0].response.status == "queued"
    seen += [event async for event in await responses.retrieve(made, stream=True, starting_after=4)]
    assert [event.sequence_number for event in seen] == list(range(len(seen)))
    assert seen[-1].type == "response.completed"
    whole = await responses.retrieve(made)
    assert seen[-1].response == whole
    assert "".join(event.delta for event in seen if event.type == "response.output_text.delta") == whole.output_text
    again = [event async for event in await responses.retrieve(made, stream=True)]
    assert again == seen
    (call,) = (await upstream.ledger_with(1))["calls"]
    assert (call["ended"], call["completion_tokens"], call["stream"]) == ("done", whole.usage.output_tokens, True)


async def test_the_stream_of_a_cancelled_response_ends(upstream: Upstream) -> None:
    responses = upstream.sdk.responses
    stream = await responses.create(
        model=CHAT, input="Hi", background=True, stream=True, extra_body={"simulate": {"delay_s": 60}}
    )
    seen = []
    async for event in stream:
        seen.append(event.type)
        if len(seen) == 2:
            assert (await responses.cancel(event.response.id)).status == "cancelled"
    assert seen == ["response.created", "response.queued"]


async def test_what_has_no_stream_to_resume(upstream: Upstream) -> None:
    import openai

    made = await upstream.sdk.responses.create(model=CHAT, input="Hi")
    with pytest.raises(openai.BadRequestError, match="cannot be streamed"):
        await upstream.sdk.responses.retrieve(made.id, stream=True)


# ------------------------------------------------------------------------------------------------------- conversations


async def test_a_conversation_grows_by_its_responses(upstream: Upstream) -> None:
    conversations, responses = upstream.sdk.conversations, upstream.sdk.responses
    said = {"type": "message", "role": "user", "content": "I am Ada."}
    made = await conversations.create(items=[said], metadata={"topic": "sea"})
    first = await responses.create(model=CHAT, input="Tell me a story.", conversation=made.id)
    assert first.conversation.id == made.id
    async with responses.stream(model=CHAT, input="Go on.", conversation={"id": made.id}) as stream:
        second = await stream.get_final_response()
    assert second.usage.input_tokens > first.usage.total_tokens
    third = await responses.create(model=CHAT, input="The end?", conversation=made.id, background=True)
    assert (await upstream.ledger_with(3))["totals"]["calls"] == 3
    items = [item async for item in conversations.items.list(made.id, order="asc", limit=2)]
    assert [item.role for item in items] == ["user", *["user", "assistant"] * 3]
    assert [item.content[0].text for item in items[:3]] == ["I am Ada.", "Tell me a story.", first.output_text]
    assert items[-1].content[0].text == (await responses.retrieve(third.id)).output_text
    newest = await conversations.items.list(made.id, limit=1)
    assert (newest.data[0], newest.has_more) == (items[-1], True)


async def test_items_and_metadata_of_a_conversation(upstream: Upstream) -> None:
    import openai

    conversations = upstream.sdk.conversations
    made = await conversations.create()
    assert (await conversations.update(made.id, metadata={"a": "b"})).metadata == {"a": "b"}
    assert (await conversations.retrieve(made.id)).metadata == {"a": "b"}
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    added = await conversations.items.create(made.id, items=[call])
    (item,) = added.data
    assert (item.type, item.name, item.id[:3]) == ("function_call", "f", "fc_")
    assert await conversations.items.retrieve(item.id, conversation_id=made.id) == item
    await conversations.items.delete(item.id, conversation_id=made.id)
    with pytest.raises(openai.NotFoundError, match="Item with id"):
        await conversations.items.retrieve(item.id, conversation_id=made.id)
    assert (await conversations.delete(made.id)).deleted
    with pytest.raises(openai.NotFoundError, match="Conversation with id"):
        await conversations.retrieve(made.id)
    with pytest.raises(openai.NotFoundError, match="Conversation with id"):
        await upstream.sdk.responses.create(model=CHAT, input="Hi", conversation=made.id)


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/conversations", {"items": "all"}, 400), ("/v1/conversations", [], 400),
        ("/v1/conversations", b"{", 400), ("/v1/conversations/conv_x", {}, 404),
        (
            "/v1/responses",
            {"model": CHAT, "input": "x", "conversation": "conv_x", "previous_response_id": "resp_x"}, 400,
        ),
    ],
)  # fmt: skip
async def test_refusals_of_conversations(upstream: Upstream, path: str, body: Any, status: int) -> None:
    got, answer = await upstream.post(path, body)
    assert (got, answer["error"]["type"]) == (status, "invalid_request_error")
    async with upstream.http.post(f"{upstream.url}/v1/conversations", json={}) as refused:
        assert refused.status == 401
