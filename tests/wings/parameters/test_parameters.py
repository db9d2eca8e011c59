"""Members and headers that the configuration sets, adds and removes, by model and alias, in each format."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest
from aiohttp.test_utils import TestClient

from tests.fakes import scripted
from tests.fakes.scripted import Scripted
from tests.web.conftest import ADMIN_TOKEN, AUTH, KEY, Inside

GOOD = scripted.ok_json(
    {
        "id": "c", "object": "chat.completion", "created": 1, "model": "up",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Hi"}}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4},
    }
)  # fmt: skip
MESSAGES = [{"role": "user", "content": "Hi"}]
CHAT = {"model": "high", "messages": MESSAGES}
SETTINGS = {
    "models": {
        "m": {"routes": [{"upstream": "up"}], "max_output_tokens": 100},
        "capped": {"routes": [{"upstream": "up"}], "max_output_tokens": 100},
        "ears": {"routes": [{"upstream": "up"}], "endpoints": ["transcriptions"]},
    },
    "aliases": {"high": "m", "low": "m"},
    "parameters": {
        "models": {
            "high": [
                {
                    "endpoints": ["chat"],
                    "set": {"reasoning_effort": "high"},
                    "headers": {"X-Stainless-A": "secret-9"},
                },
                {"endpoints": ["responses"], "set": {"reasoning.effort": "high"}},
                {"endpoints": ["messages"], "set": {"thinking": {"type": "disabled"}}},
                {"endpoints": ["generate_content"], "set": {"generationConfig.temperature": 0}},
            ],
            "m": {"endpoints": ["chat"], "default": {"temperature": 0.5}, "remove": ["seed"]},
            "capped": {"set": {"max_tokens": 50}},
            "low": {"endpoints": ["messages"], "set": {"top_k": 1}},
            "ears": {"set": {"language": "de"}},
        }
    },
    "keys": [{"id": "k", "secret": KEY}, {"id": "tight", "secret": f"{KEY}-tight", "limits": {"max_tokens": 10}}],
}
TIGHT = {"Authorization": f"Bearer {KEY}-tight"}


class Place(NamedTuple):
    client: TestClient[Any, Any]
    upstream: Scripted

    async def post(
        self, body: dict[str, Any], path: str = "/v1/chat/completions", headers: Any = AUTH
    ) -> tuple[int, Any, str | None]:
        """Returns status, answer, and what the gateway says that it has changed."""
        async with self.client.post(path, json=body, headers=headers) as answer:
            return answer.status, await answer.json(), answer.headers.get("x-gateway-amended")

    @property
    def sent(self) -> Any:
        return self.upstream.requests[-1].json


@pytest.fixture
async def place(inside: Inside) -> AsyncIterator[Place]:
    async with Scripted(always=GOOD) as upstream:
        able = {"responses": True, "messages": True, "generate_content": True}
        upstreams = {"up": {"base_url": upstream.url, "api_key": "upstream-secret-key", "capabilities": able}}
        yield Place(await inside(upstream.url, **SETTINGS, upstreams=upstreams), upstream)


async def test_an_alias_with_parameters_of_its_own(place: Place) -> None:
    status, _, said = await place.post({**CHAT, "seed": 4, "reasoning_effort": "low"})
    assert status == 200
    assert place.sent == {"temperature": 0.5, "model": "m", "messages": MESSAGES, "reasoning_effort": "high"}
    assert place.upstream.requests[-1].headers["x-stainless-a"] == "secret-9"
    assert said == (
        "parameters removed seed, added temperature, set reasoning_effort; parameters set header x-stainless-a"
    )
    async with place.client.get("/admin/api/calls", headers={"Authorization": f"Bearer {ADMIN_TOKEN}"}) as answer:
        (record,) = (await answer.json())["data"]
    assert (record["model"], record["amended"]) == ("high", said)


async def test_another_alias_has_only_those_of_the_model(place: Place) -> None:
    status, _, said = await place.post({**CHAT, "model": "low", "temperature": 1})
    assert (status, said) == (200, None)
    assert place.sent == {"model": "m", "messages": MESSAGES, "temperature": 1}


@pytest.mark.parametrize(
    ("path", "body", "changed"),
    [
        ("/v1/responses", {"model": "high", "input": "Hi", "reasoning": {"summary": "auto"}},
         {"reasoning": {"summary": "auto", "effort": "high"}}),
        ("/v1/messages", {"model": "high", "max_tokens": 5, "messages": MESSAGES}, {"thinking": {"type": "disabled"}}),
        ("/v1beta/models/high:generateContent",
         {"contents": [{"parts": [{"text": "Hi"}]}], "generationConfig": {"topP": 1}},
         {"generationConfig": {"topP": 1, "temperature": 0}}),
        ("/openai/deployments/high/chat/completions", {"messages": MESSAGES}, {"reasoning_effort": "high"}),
    ],
)  # fmt: skip
async def test_each_format_has_its_own_members(
    place: Place, path: str, body: dict[str, Any], changed: dict[str, Any]
) -> None:
    await place.post(body, path)
    assert place.sent.items() >= changed.items()


async def test_the_same_in_a_long_body(place: Place) -> None:
    long = [{"role": "user", "content": "é" * 100_000}]
    status, *_ = await place.post({"seed": 1, **CHAT, "messages": long})
    assert status == 200
    assert place.sent == {"reasoning_effort": "high", "temperature": 0.5, "model": "m", "messages": long}


async def test_no_parameter_goes_beyond_a_limit_of_the_key(place: Place) -> None:
    status, answer, _ = await place.post({**CHAT, "model": "capped"}, headers=TIGHT)
    assert (status, answer["error"]["param"]) == (400, "max_tokens")
    assert answer["error"]["message"].endswith("(The gateway has changed this request: parameters set max_tokens.)")
    assert place.upstream.hits == 0


async def test_a_parameter_may_bring_a_call_within_a_limit(place: Place) -> None:
    status, *_ = await place.post({**CHAT, "model": "capped", "max_tokens": 90_000})
    assert (status, place.sent["max_tokens"]) == (200, 50)


async def test_a_batch_of_messages_is_refused(place: Place) -> None:
    params = {"model": "capped", "max_tokens": 5, "messages": MESSAGES}
    status, answer, _ = await place.post({"requests": [{"custom_id": "a", "params": params}]}, "/v1/messages/batches")
    assert status == 400
    assert "cannot do in batches" in answer["error"]["message"]
    params["model"] = "low"  # whose rule holds at one endpoint
    status, *_ = await place.post({"requests": [{"custom_id": "a", "params": params}]}, "/v1/messages/batches")
    assert (status, place.upstream.hits) == (400, 0)


async def test_the_list_of_models_shows_them(place: Place) -> None:
    async with place.client.get("/v1/models/high", headers=AUTH) as answer:
        shown = await answer.json()
    assert shown["parameters"][:2] == [
        {"endpoints": ["chat"], "default": {"temperature": 0.5}, "remove": ["seed"]},
        {"endpoints": ["chat"], "set": {"reasoning_effort": "high"}, "headers": ["X-Stainless-A"]},
    ]
    async with place.client.get("/v1/models", headers=AUTH) as answer:
        listed = await answer.json()
    assert "secret-9" not in json.dumps(listed)
    assert {each["id"]: len(each.get("parameters", ())) for each in listed["data"]} == {
        "capped": 1, "ears": 1, "high": 5, "low": 2, "m": 1,
    }  # fmt: skip


CHUNK = {
    "id": "c", "object": "chat.completion.chunk", "created": 1, "model": "up",
    "choices": [{"index": 0, "delta": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}],
}  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
async def test_openai_python_calls_an_alias_with_parameters(inside: Inside, *, stream: bool) -> None:
    import openai

    async with Scripted(always=scripted.stream([CHUNK]) if stream else GOOD) as upstream:
        gateway = await inside(upstream.url, **SETTINGS)
        async with openai.AsyncOpenAI(api_key=KEY, base_url=str(gateway.make_url("/v1")), max_retries=0) as client:
            if stream:
                async for _ in await client.chat.completions.create(**CHAT, stream=True):
                    pass
            else:
                await client.chat.completions.create(**CHAT)
    sent = upstream.requests[0].json
    assert (sent["model"], sent["reasoning_effort"], sent.get("stream", False)) == ("m", "high", stream)
