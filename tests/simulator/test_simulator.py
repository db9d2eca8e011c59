"""What a caller of the simulated upstream may rely on: the API's shapes, the same text every time, counts that add up.

The official SDK is the client wherever it can say what is meant; what it cannot (malformed bodies, a broken stream, the
ledger) goes over aiohttp's client.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import math
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from gateway.simulator import Settings, build_app, count_tokens, serve, serve_on, server, split_tokens
from gateway.simulator.choices import bound, example
from gateway.simulator.text import VOCABULARY, dice, key_of, write
from tests.patience import at_least

KEY = "sk-simulated-0123456789abcdef"
INSTRUCT = "gpt-3.5-turbo-instruct"
CHAT = "gpt-4o-mini"
REASONER = "deepseek-reasoner"
EMBEDDING = "text-embedding-3-small"

HELLO: list[Any] = [{"role": "user", "content": "Tell me a story."}]
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
                "days": {"type": "integer", "minimum": 2},
            },
            "required": ["city", "unit"],
        },
    },
}


@dataclass
class Upstream:
    """A served simulator: by the SDK, by plain HTTP, and its ledger."""

    url: str
    sdk: Any
    """The official client. Its overloads know literal types only, where tables hold mappings."""
    http: aiohttp.ClientSession

    async def post(self, path: str, body: Any, headers: dict[str, str] | None = None) -> tuple[int, Any]:
        sent = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json", **(headers or {})}
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.http.post(self.url + path, data=data, headers=sent) as response:
            return response.status, await response.json()

    async def ledger(self) -> Any:
        async with self.http.get(f"{self.url}/simulator/ledger") as response:
            return await response.json()

    async def ledger_with(self, calls: int) -> Any:
        """The ledger once so many calls have ended."""
        async with asyncio.timeout(30):
            while True:
                ledger = await self.ledger()
                if ledger["totals"]["calls"] >= calls:
                    return ledger
                await asyncio.sleep(0.005)


@asynccontextmanager
async def serving(build: Callable[[Settings], web.Application]) -> AsyncIterator[Upstream]:
    """A simulator with an application of this kind."""
    import openai

    runner, port = await serve("127.0.0.1", 0, Settings(api_key=KEY), build)
    url = f"http://127.0.0.1:{port}"
    http_client = openai.DefaultAsyncHttpxClient(verify=False)  # nothing here is TLS, and loading roots takes long
    async with (
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0, http_client=http_client) as sdk,
        aiohttp.ClientSession() as http,
    ):
        yield Upstream(url, sdk, http)
    await runner.cleanup()


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    async with serving(build_app) as served:
        yield served


# -------------------------------------------------------------------------------------------------------------- tokens


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", []),
        ("Say hi.", ["Say", " hi", "."]),
        ("a  b\n\nc", ["a", " ", " b", "\n", "\n", "c"]),
        ("<|endoftext|>", ["<|endoftext|>"]),
        ("f(x) !", ["f", "(", "x", ")", " !"]),
        ("Grüße, 世界", ["Grüße", ",", " 世界"]),
    ],
)
def test_token_rule(text: str, tokens: list[str]) -> None:
    assert split_tokens(text) == tokens
    assert "".join(tokens) == text


@pytest.mark.parametrize("number", range(50))
def test_generated_tokens_are_those_that_a_caller_counts(number: int) -> None:
    tokens = write(key_of(number), None)
    assert 20 <= len(tokens) <= 65
    assert split_tokens("".join(tokens)) == tokens
    assert write(key_of(number), 500)[: len(tokens)] == tokens
    assert len(write(key_of(number), 500)) == 500


def test_no_word_that_may_follow_an_article_begins_with_a_vowel() -> None:
    text = "".join("".join(write(key_of(number), 400)) for number in range(20))
    words = text.split()
    followers = {b for a, b in itertools.pairwise(words) if a.lower() == "a"}
    assert followers
    assert not [word for word in followers if word[0] in "aeiou"]


@pytest.mark.parametrize(
    ("limit", "stops", "text", "reason"),
    [
        (None, [], "one two, two three", "stop"),
        (4, [], "one two, two", "length"),
        (5, [], "one two, two three", "stop"),
        (None, ["two"], "one ", "stop"),
        (None, ["three", ","], "one two", "stop"),
        (None, ["wo", "two"], "one ", "stop"),  # complete at the same time, and the longer one begins earlier
        (None, ["two, two", "wo"], "one t", "stop"),  # the shorter one is complete first
        (2, ["three"], "one two", "length"),
        (None, ["one"], "", "stop"),
        (0, [], "", "length"),
        (None, [""], "one two, two three", "stop"),
    ],
)
def test_limit_then_stop(limit: int | None, stops: list[str], text: str, reason: str) -> None:
    tokens, finish_reason = bound(["one", " two", ",", " two", " three"], limit, stops)
    assert ("".join(tokens), finish_reason) == (text, reason)
    assert tokens == split_tokens(text)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "integer", "minimum": 7}, 7),
        ({"type": ["number", "null"]}, 1),
        ({"const": "x"}, "x"),
        ({"enum": ["only"]}, "only"),
        ({"anyOf": [{"type": "null"}, {"type": "string"}]}, None),
        ({"type": "array", "items": {"type": "null"}}, [None]),
        ({"properties": {"a": {"const": 1}, "b": {}}, "required": ["a"]}, {"a": 1}),
        ({"$ref": "#/$defs/N", "$defs": {"N": {"type": "integer"}}}, 1),
        ({"properties": {"a": {"const": 1}}, "required": [["a"]]}, {"a": 1}),
        ({"type": "object"}, {}),
        (True, None),
    ],
)
def test_example_fits_its_schema(schema: Any, value: Any) -> None:
    assert example(schema, dice(b"key")) == value


def test_example_of_a_schema_that_contains_itself_ends() -> None:
    assert json.dumps(example({"properties": {"child": {"$ref": "#"}}}, dice(b"key")))


# --------------------------------------------------------------------------------------------------------- completions


@pytest.mark.parametrize(
    ("prompt", "prompts", "tokens"),
    [
        ("Say hi.", 1, 3),
        ("", 1, 0),
        (None, 1, 1),
        (["one two", "three"], 2, 3),
        ([1, 2, 3, 4], 1, 4),
        ([[1, 2], [3], [70000]], 3, 4),
    ],
)
async def test_prompt_forms(upstream: Upstream, prompt: Any, prompts: int, tokens: int) -> None:
    status, answer = await upstream.post("/v1/completions", {"model": INSTRUCT, "prompt": prompt, "n": 2})
    assert status == 200
    assert answer["object"] == "text_completion"
    assert [choice["index"] for choice in answer["choices"]] == list(range(2 * prompts))
    assert {choice["finish_reason"] for choice in answer["choices"]} == {"length"}
    assert answer["usage"] == {
        "prompt_tokens": tokens,
        "completion_tokens": 16 * 2 * prompts,
        "total_tokens": tokens + 16 * 2 * prompts,
    }


async def test_same_request_same_text_and_other_seed_other_text(upstream: Upstream) -> None:
    async def texts(**changes: Any) -> list[str]:
        answer = await upstream.sdk.completions.create(**{"model": INSTRUCT, "prompt": "Once", "n": 2, **changes})
        return [choice.text for choice in answer.choices]

    first = await texts()
    assert first == await texts()
    assert first[0] != first[1]
    assert first[0].startswith(" ")
    assert first != await texts(seed=7)
    assert await texts(seed=7) == await texts(seed=7)
    assert await texts(prompt=["Twice", "Once"]) == [*await texts(prompt="Twice"), *first]
    assert [text[: len(short)] for text, short in zip(await texts(max_tokens=30), first, strict=True)] == first


async def test_natural_end_is_stop_and_the_count_is_the_rule(upstream: Upstream) -> None:
    answer = await upstream.sdk.completions.create(model=INSTRUCT, prompt="Once", max_tokens=500)
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens == count_tokens(answer.choices[0].text)


async def test_stop_cuts_before_it_and_what_is_left_is_counted(upstream: Upstream) -> None:
    whole = await upstream.sdk.completions.create(model=INSTRUCT, prompt="Once", max_tokens=60)
    stop = whole.choices[0].text[11:14]
    cut = await upstream.sdk.completions.create(model=INSTRUCT, prompt="Once", max_tokens=60, stop=["@@", stop])
    assert cut.choices[0].text == whole.choices[0].text.partition(stop)[0]
    assert cut.choices[0].finish_reason == "stop"
    assert cut.usage.completion_tokens == count_tokens(cut.choices[0].text)


async def test_best_of_pays_for_every_candidate_and_returns_the_likeliest(upstream: Upstream) -> None:
    body: dict[str, Any] = {"model": INSTRUCT, "prompt": ["Once", "Twice"], "max_tokens": 10, "logprobs": 0}
    every = await upstream.sdk.completions.create(**body, n=4)
    best = await upstream.sdk.completions.create(**body, n=1, best_of=4)
    assert best.usage.completion_tokens == 2 * 4 * 10
    assert [choice.index for choice in best.choices] == [0, 1]

    def total(choice: Any) -> float:
        return float(sum(choice.logprobs.token_logprobs))

    for number, choice in enumerate(best.choices):
        assert choice.text == max(every.choices[4 * number : 4 * number + 4], key=total).text


@pytest.mark.parametrize("prompt", ["Once upon a time, Grüße", [5, 6, 7], ""])
@pytest.mark.parametrize("echo", [True, False])
async def test_logprobs_and_offsets_fit_the_text(upstream: Upstream, prompt: Any, echo: bool) -> None:
    answer = await upstream.sdk.completions.create(
        model=INSTRUCT, prompt=prompt, echo=echo, logprobs=3, max_tokens=5, n=2
    )
    read = prompt if isinstance(prompt, str) else "".join(VOCABULARY[number] for number in prompt)
    for choice in answer.choices:
        logprobs = choice.logprobs
        assert "".join(logprobs.tokens) == choice.text
        assert choice.text.startswith(read if echo else " ")
        full = choice.text if echo else read + choice.text
        for offset, token in zip(logprobs.text_offset, logprobs.tokens, strict=True):
            assert full[offset : offset + len(token)] == token
        has_no_past = echo and read != ""
        assert [value is None for value in logprobs.token_logprobs] == [
            has_no_past and i == 0 for i in range(len(logprobs.tokens))
        ]
        for token, value, top in zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, strict=True):
            if value is not None:
                assert len(top) == 3
                assert top[token] == value == max(top.values())
    assert answer.usage.completion_tokens == 10


async def test_echo_of_nothing_more_is_the_prompt(upstream: Upstream) -> None:
    answer = await upstream.sdk.completions.create(
        model=INSTRUCT, prompt="Just this", echo=True, max_tokens=0, logprobs=1, suffix="ignored"
    )
    assert answer.choices[0].text == "Just this"
    assert answer.choices[0].logprobs.tokens == ["Just", " this"]
    assert answer.usage.completion_tokens == 0


@pytest.mark.parametrize("tokens_per_event", [1, 3, 7])
@pytest.mark.parametrize("echo", [True, False])
async def test_completion_stream_joined_is_the_plain_answer(
    upstream: Upstream, tokens_per_event: int, echo: bool
) -> None:
    body: dict[str, Any] = {
        "model": INSTRUCT, "prompt": ["Once", "Twice upon"], "n": 2, "echo": echo, "logprobs": 2, "max_tokens": 25,
        "extra_body": {"simulate": {"tokens_per_event": tokens_per_event}},
    }  # fmt: skip
    plain = await upstream.sdk.completions.create(**body)
    texts = [""] * 4
    logprobs: list[dict[str, list[Any]]] = [{} for _ in texts]
    finish: list[str | None] = [None] * 4
    order: list[int] = []
    usages = []
    stream = await upstream.sdk.completions.create(**body, stream=True, stream_options={"include_usage": True})
    async for chunk in stream:
        assert chunk.object == "text_completion"
        usages.append(chunk.usage)
        for choice in chunk.choices:
            assert finish[choice.index] is None
            order.append(choice.index)
            texts[choice.index] += choice.text
            finish[choice.index] = choice.finish_reason
            for name, values in choice.logprobs.model_dump().items():
                logprobs[choice.index].setdefault(name, []).extend(values)
    assert texts == [choice.text for choice in plain.choices]
    assert finish == [choice.finish_reason for choice in plain.choices]
    assert logprobs == [choice.logprobs.model_dump() for choice in plain.choices]
    assert usages == [None] * (len(usages) - 1) + [plain.usage]
    assert order[:8] == [0, 1, 2, 3, 0, 1, 2, 3]


# ---------------------------------------------------------------------------------------------------------------- chat


async def test_chat_answer(upstream: Upstream) -> None:
    answer = await upstream.sdk.chat.completions.create(model=CHAT, messages=HELLO, n=3)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in answer.choices}) == 3
    assert {choice.finish_reason for choice in answer.choices} == {"stop"}
    assert answer.usage.prompt_tokens == 1 + count_tokens("Tell me a story.")
    assert answer.usage.completion_tokens == sum(count_tokens(c.message.content or "") for c in answer.choices)
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


@pytest.mark.parametrize(
    "limits", [{"max_tokens": 5}, {"max_completion_tokens": 5}, {"max_tokens": 5, "max_completion_tokens": 9}]
)
async def test_chat_limit(upstream: Upstream, limits: dict[str, int]) -> None:
    answer = await upstream.sdk.chat.completions.create(model=CHAT, messages=HELLO, **limits)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 5


async def test_chat_prompt_counts_parts_tools_and_earlier_calls(upstream: Upstream) -> None:
    calls = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    messages: list[Any] = [
        {"role": "system", "content": "Be kind."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": "data:,"}}],
        },
        {"role": "assistant", "content": None, "tool_calls": calls},
    ]
    answer = await upstream.sdk.chat.completions.create(
        model=CHAT, messages=messages, tools=[WEATHER], tool_choice="none"
    )
    compact = (json.dumps(value, separators=(",", ":")) for value in (calls, [WEATHER]))
    assert answer.usage.prompt_tokens == (1 + 3) + (1 + 4 + 85) + 1 + sum(map(count_tokens, compact))
    assert answer.choices[0].message.tool_calls is None


async def test_chat_logprobs(upstream: Upstream) -> None:
    answer = await upstream.sdk.chat.completions.create(model=CHAT, messages=HELLO, logprobs=True, top_logprobs=2)
    choice = answer.choices[0]
    assert "".join(entry.token for entry in choice.logprobs.content) == choice.message.content
    for entry in choice.logprobs.content:
        assert bytes(entry.bytes).decode() == entry.token
        assert entry.top_logprobs[0].token == entry.token
        assert len(entry.top_logprobs) == 2


async def collect(stream: Any) -> tuple[list[dict[str, Any]], list[Any]]:
    """The messages of a chat stream, put together, and the usage of each chunk."""
    messages: dict[int, dict[str, Any]] = {}
    usages = []
    async for chunk in stream:
        assert chunk.object == "chat.completion.chunk"
        usages.append(chunk.usage)
        for choice in chunk.choices:
            delta = choice.delta.model_dump(exclude_none=True)
            if choice.index not in messages:
                assert delta["role"] == "assistant"
                messages[choice.index] = {"content": "", "reasoning_content": "", "calls": [], "finish": None}
            message = messages[choice.index]
            assert message["finish"] is None
            message["finish"] = choice.finish_reason
            for name in ("content", "reasoning_content"):
                message[name] += delta.get(name, "")
            for call in delta.get("tool_calls", []):
                if "id" in call:
                    message["calls"].append([call["id"], call["function"]["name"], ""])
                message["calls"][call["index"]][2] += call["function"]["arguments"]
    return [messages[index] for index in sorted(messages)], usages


@pytest.mark.parametrize("tokens_per_event", [1, 4])
@pytest.mark.parametrize(
    "changes",
    [
        {"model": CHAT},
        {"model": CHAT, "stop": "."},
        {"model": CHAT, "tools": [WEATHER]},
        {"model": CHAT, "response_format": {"type": "json_object"}},
        {"model": REASONER},
        {"model": REASONER, "tools": [WEATHER]},
        {"model": REASONER, "max_tokens": 3},
    ],
)
async def test_chat_stream_joined_is_the_plain_answer(
    upstream: Upstream, changes: dict[str, Any], tokens_per_event: int
) -> None:
    body: dict[str, Any] = {
        "messages": HELLO, "n": 2, "extra_body": {"simulate": {"tokens_per_event": tokens_per_event}}, **changes
    }  # fmt: skip
    plain = await upstream.sdk.chat.completions.create(**body)
    stream = await upstream.sdk.chat.completions.create(**body, stream=True, stream_options={"include_usage": True})
    messages, usages = await collect(stream)
    for message, choice in zip(messages, plain.choices, strict=True):
        said = choice.message.model_dump()
        assert message["content"] == (said["content"] or "")
        assert message["reasoning_content"] == said.get("reasoning_content", "")
        called = [[c["id"], c["function"]["name"], c["function"]["arguments"]] for c in said["tool_calls"] or []]
        assert message["calls"] == called
        assert message["finish"] == choice.finish_reason
    assert usages == [None] * (len(usages) - 1) + [plain.usage]
    ledger = await upstream.ledger()
    plain_entry, stream_entry = ledger["calls"][1], ledger["calls"][0]
    for name in ("prompt_tokens", "completion_tokens", "reasoning_tokens"):
        assert plain_entry[name] == stream_entry[name]


async def test_no_usage_in_a_stream_that_did_not_ask(upstream: Upstream) -> None:
    body = {"model": CHAT, "messages": HELLO, "stream": True}
    headers = {"Authorization": f"Bearer {KEY}"}
    async with upstream.http.post(f"{upstream.url}/v1/chat/completions", json=body, headers=headers) as response:
        assert response.headers["Content-Type"].startswith("text/event-stream")
        text = await response.text()
    assert text.endswith("\n\ndata: [DONE]\n\n")
    events = [json.loads(event.removeprefix("data: ")) for event in text.split("\n\n")[:-2]]
    assert all("usage" not in event for event in events)
    assert all(event["choices"] for event in events)


# ------------------------------------------------------------------------------------------------------ tools and JSON


@pytest.mark.parametrize("tool_choice", ["auto", "required", {"type": "function", "function": {"name": "get_weather"}}])
async def test_tool_call_has_the_required_arguments(upstream: Upstream, tool_choice: Any) -> None:
    answer = await upstream.sdk.chat.completions.create(
        model=CHAT, messages=HELLO, tools=[WEATHER], tool_choice=tool_choice
    )
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    (call,) = choice.message.tool_calls
    assert call.type == "function"
    assert call.function.name == "get_weather"
    arguments = json.loads(call.function.arguments)
    assert set(arguments) == {"city", "unit"}
    assert arguments["unit"] in ("celsius", "fahrenheit")
    assert answer.usage.completion_tokens == 1 + count_tokens(call.function.arguments)


async def test_tool_result_is_answered_in_words(upstream: Upstream) -> None:
    messages = [*HELLO, {"role": "tool", "tool_call_id": "call_1", "content": "sunny"}]
    answer = await upstream.sdk.chat.completions.create(model=CHAT, messages=messages, tools=[WEATHER])
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].message.content


@pytest.mark.parametrize(("limit", "arguments"), [(0, None), (1, ""), (4, '{"city')])
async def test_tool_call_is_cut_by_the_limit(upstream: Upstream, limit: int, arguments: str | None) -> None:
    answer = await upstream.sdk.chat.completions.create(
        model=CHAT, messages=HELLO, tools=[WEATHER], max_completion_tokens=limit
    )
    choice = answer.choices[0]
    assert choice.finish_reason == "length"
    said = [call.function.arguments for call in choice.message.tool_calls or [] if call.type == "function"]
    assert said == ([] if arguments is None else [arguments])
    assert answer.usage.completion_tokens == limit


async def test_json_mode_parses(upstream: Upstream) -> None:
    answer = await upstream.sdk.chat.completions.create(
        model=CHAT, messages=HELLO, response_format={"type": "json_object"}
    )
    assert isinstance(json.loads(answer.choices[0].message.content or ""), dict)
    schema: dict[str, object] = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "ages": {"type": "array", "items": {"type": "integer"}}},
        "required": ["name", "ages"],
    }
    answer = await upstream.sdk.chat.completions.create(
        model=CHAT,
        messages=HELLO,
        response_format={"type": "json_schema", "json_schema": {"name": "person", "schema": schema}},
    )
    person = json.loads(answer.choices[0].message.content or "")
    assert isinstance(person["name"], str)
    assert person["ages"] == [1]


async def test_reasoning_comes_first_and_is_part_of_the_completion(upstream: Upstream) -> None:
    answer = await upstream.sdk.chat.completions.create(model=REASONER, messages=HELLO)
    message = answer.choices[0].message.model_dump()
    thought, said = count_tokens(message["reasoning_content"]), count_tokens(message["content"])
    assert thought > 0
    assert said > 0
    assert answer.usage.completion_tokens == thought + said
    assert answer.usage.completion_tokens_details.reasoning_tokens == thought


# ---------------------------------------------------------------------------------------------------------- embeddings


@pytest.mark.parametrize(
    ("given", "vectors", "tokens"),
    [("Say hi.", 1, 3), (["one", "two three"], 2, 3), ([1, 2, 3], 1, 3), ([[1], [2, 3]], 2, 3), (" ", 1, 1)],
)
async def test_embeddings_in_both_encodings_are_the_same_unit_vectors(
    upstream: Upstream, given: Any, vectors: int, tokens: int
) -> None:
    body = {"model": EMBEDDING, "input": given, "dimensions": 8}
    _, floats = await upstream.post("/v1/embeddings", {**body, "encoding_format": "float"})
    _, packed = await upstream.post("/v1/embeddings", {**body, "encoding_format": "base64"})
    assert [item["index"] for item in floats["data"]] == list(range(vectors))
    for plain, encoded in zip(floats["data"], packed["data"], strict=True):
        assert plain["embedding"] == list(struct.unpack("<8f", base64.b64decode(encoded["embedding"])))
        assert math.isclose(math.hypot(*plain["embedding"]), 1, abs_tol=1e-6)
    assert floats["usage"] == packed["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    answer = await upstream.sdk.embeddings.create(**body)
    assert [item.embedding for item in answer.data] == [item["embedding"] for item in floats["data"]]


async def test_embedding_without_dimensions_has_openais(upstream: Upstream) -> None:
    answer = await upstream.sdk.embeddings.create(model=EMBEDDING, input="hi")
    assert len(answer.data[0].embedding) == 1536


# -------------------------------------------------------------------------------------------------- models and refusals


async def test_models(upstream: Upstream) -> None:
    import openai

    names = [model.id async for model in upstream.sdk.models.list()]
    assert names == [INSTRUCT, CHAT, "gpt-4.1-mini", REASONER, EMBEDDING, "claude-sonnet-5"]
    assert (await upstream.sdk.models.retrieve(CHAT)).id == CHAT
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        await upstream.sdk.models.retrieve("gpt-9")


_COMPLETION: dict[str, Any] = {"model": INSTRUCT, "prompt": "hi"}
_CHAT: dict[str, Any] = {"model": CHAT, "messages": HELLO}
_VALID = {"completions": _COMPLETION, "chat/completions": _CHAT, "embeddings": {"model": EMBEDDING, "input": "hi"}}


@pytest.mark.parametrize(
    ("path", "body", "answer"),
    [
        # Bytes are sent unchanged, a mapping changes a valid body. The answer is status, param and code.
        ("completions", b"{", (400, None, None)),
        ("completions", b"[]", (400, None, None)),
        ("completions", b'{"prompt": "hi"}', (400, "model", None)),
        ("completions", b'{"model": "m"}', (400, "prompt", None)),
        ("completions", {"prompt": []}, (400, "prompt", None)),
        ("completions", {"prompt": [[1], []]}, (400, "prompt", None)),
        ("completions", {"prompt": [1, "a"]}, (400, "prompt", None)),
        ("completions", {"n": 129}, (400, "n", None)),
        ("completions", {"n": "2"}, (400, "n", None)),
        ("completions", {"max_tokens": -1}, (400, "max_tokens", None)),
        ("completions", {"stop": list("abcde")}, (400, "stop", None)),
        ("completions", {"model": "gpt-9"}, (404, None, "model_not_found")),
        ("completions", {"model": CHAT}, (404, None, "model_not_found")),
        ("chat/completions", {"model": INSTRUCT}, (404, None, "model_not_found")),
        ("chat/completions", {"messages": []}, (400, "messages", None)),
        ("chat/completions", {"logprobs": 1}, (400, "logprobs", None)),
        ("embeddings", {"input": []}, (400, "input", None)),
        ("embeddings", {"dimensions": 0}, (400, "dimensions", None)),
        ("embeddings", {"model": CHAT}, (404, None, "model_not_found")),
        ("completions", {"simulate": 1}, (400, "simulate", None)),
        ("completions", {"simulate": {"speed": 1}}, (400, "simulate.speed", None)),
        ("completions", {"simulate": {"status": 99}}, (400, "simulate.status", None)),
        ("nothing", b"{}", (404, None, None)),
        ("models", b"{}", (405, None, None)),
    ],
)
async def test_refusals(upstream: Upstream, path: str, body: Any, answer: tuple[int, str | None, str | None]) -> None:
    status, refusal = await upstream.post(f"/v1/{path}", body if isinstance(body, bytes) else _VALID[path] | body)
    error = refusal["error"]
    assert (status, error["param"], error["code"]) == answer
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize("header", [{}, {"Authorization": "Basic eA=="}, {"Authorization": "Bearer wrong"}])
async def test_a_key_is_required(upstream: Upstream, header: dict[str, str]) -> None:
    async with upstream.http.post(f"{upstream.url}/v1/completions", json=_COMPLETION, headers=header) as response:
        assert response.status == 401
        assert (await response.json())["error"]["code"] == "invalid_api_key"


async def test_headers_and_an_application_without_a_key() -> None:
    async with TestClient(TestServer(build_app(Settings()), host="127.0.0.1")) as client:
        response = await client.post("/v1/completions", json=_COMPLETION)
        assert response.status == 200
        assert response.headers["x-request-id"].startswith("req_")
        assert response.headers["openai-version"] == "2020-10-01"
        assert int(response.headers["openai-processing-ms"]) >= 0
        ledger = await (await client.get("/simulator/ledger")).json()
        assert ledger["calls"][0]["id"] == response.headers["x-request-id"]


# ------------------------------------------------------------------------------------------------- simulate and ledger


async def test_simulated_length_decides_both_endpoints(upstream: Upstream) -> None:
    simulate = {"extra_body": {"simulate": {"tokens": 333}}}
    answer = await upstream.sdk.completions.create(model=INSTRUCT, prompt="hi", max_tokens=1000, **simulate)
    said = await upstream.sdk.chat.completions.create(model=CHAT, messages=HELLO, **simulate)
    assert answer.usage.completion_tokens == said.usage.completion_tokens == 333


@pytest.mark.parametrize(
    ("simulate", "status", "code"),
    [
        ({"status": 503}, 503, None),
        ({"error": {"message": "no", "type": "t", "code": "c"}}, 500, "c"),
        ({"status": 429, "error": {"code": "rate_limit_exceeded"}}, 429, "rate_limit_exceeded"),
        ({"status": 200, "error": {"message": "in a 200"}}, 200, None),
    ],
)
async def test_simulated_error(upstream: Upstream, simulate: Any, status: int, code: str | None) -> None:
    got, answer = await upstream.post("/v1/chat/completions", {**_CHAT, "stream": True, "simulate": simulate})
    assert (got, answer["error"]["code"]) == (status, code)
    entry = (await upstream.ledger())["calls"][0]
    assert (entry["status"], entry["ended"], entry["completion_tokens"]) == (status, "error", 0)


@pytest.mark.parametrize("events", [0, 1, 4])
async def test_simulated_cut_breaks_the_stream_without_done(upstream: Upstream, events: int) -> None:
    body = {**_CHAT, "stream": True, "simulate": {"cut_after_events": events}}
    received = bytearray()

    async def read(response: aiohttp.ClientResponse) -> None:
        async for data in response.content.iter_any():
            received.extend(data)

    headers = {"Authorization": f"Bearer {KEY}"}
    async with upstream.http.post(f"{upstream.url}/v1/chat/completions", json=body, headers=headers) as response:
        assert response.status == 200
        with pytest.raises(aiohttp.ClientPayloadError):
            await read(response)
    assert received.count(b"data: {") == events
    assert b"[DONE]" not in received
    entry = (await upstream.ledger())["calls"][0]
    assert (entry["ended"], entry["completion_tokens"]) == ("cut", max(0, events - 1))


class SleptClock:
    """A clock of the simulator that only sleeping moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._now_s = 0.0
        self._turn = asyncio.sleep
        monkeypatch.setattr(server, "time", SimpleNamespace(monotonic=self.monotonic))
        monkeypatch.setattr(server.asyncio, "sleep", self._sleep)

    def monotonic(self) -> float:
        return self._now_s

    async def _sleep(self, seconds: float) -> None:
        self._now_s += seconds
        await self._turn(0)


async def test_pace_is_kept(upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    pace = {"delay_s": 0.05, "tokens_per_s": 200, "tokens_per_event": 5, "tokens": 20}
    clock = SleptClock(monkeypatch)
    for stream in (False, True):
        started = clock.monotonic()
        body = {**_CHAT, "n": 2, "stream": stream, "simulate": pace}
        headers = {"Authorization": f"Bearer {KEY}"}
        async with upstream.http.post(f"{upstream.url}/v1/chat/completions", json=body, headers=headers) as response:
            head_s = clock.monotonic() - started
            await response.read()
        assert head_s >= 0.05
        assert clock.monotonic() - started == pytest.approx(0.15)


async def test_client_that_leaves_a_stream_is_aborted_with_what_was_generated(upstream: Upstream) -> None:
    stream = await upstream.sdk.chat.completions.create(
        model=CHAT,
        messages=HELLO,
        stream=True,
        extra_body={"simulate": {"tokens": 1000, "tokens_per_s": 20}},
    )
    seen = 0
    async for chunk in stream:
        seen += bool(chunk.choices[0].delta.content)
        if seen == 3:
            break
    assert (await upstream.ledger())["open"] == 1
    await stream.close()
    ledger = await upstream.ledger_with(1)
    entry = ledger["calls"][0]
    assert entry["ended"] == "aborted"
    assert entry["ended"] == "aborted"
    assert 3 <= entry["completion_tokens"] < 100
    assert ledger["open"] == 0
    assert ledger["totals"] == {
        "calls": 1,
        "prompt_tokens": 1 + count_tokens("Tell me a story."),
        "completion_tokens": entry["completion_tokens"],
        "reasoning_tokens": 0,
        "audio_ms": 0,
        "characters": 0,
        "images": 0,
        "tasks": 0,
        "aborted": 1,
        "errors": 0,
    }


async def test_client_that_leaves_a_plain_answer_is_aborted(upstream: Upstream) -> None:
    body = {**_CHAT, "simulate": {"tokens": 1000, "tokens_per_s": 20}}
    call = asyncio.ensure_future(upstream.post("/v1/chat/completions", body))
    while not (await upstream.ledger())["open"]:  # noqa: ASYNC110 - it is asked over HTTP
        await asyncio.sleep(0.005)
    await at_least(0.1)  # two tokens
    call.cancel()
    entry = (await upstream.ledger_with(1))["calls"][0]
    assert entry["ended"] == "aborted"
    assert 0 < entry["completion_tokens"] < 200


async def test_ledger_counts_errors_and_can_be_reset(upstream: Upstream) -> None:
    await upstream.post("/v1/chat/completions", _CHAT)
    await upstream.post("/v1/completions", b"{ no json")
    ledger = await upstream.ledger()
    assert [(call["endpoint"], call["status"], call["ended"]) for call in ledger["calls"]] == [
        ("completions", 400, "error"), ("chat", 200, "done"),
    ]  # fmt: skip
    assert ledger["totals"]["calls"] == 2
    assert ledger["totals"]["errors"] == 1
    async with upstream.http.delete(f"{upstream.url}/simulator/ledger") as response:
        assert response.status == 204
    ledger = await upstream.ledger()
    assert ledger["calls"] == []
    assert set(ledger["totals"].values()) == {0}


async def test_ledger_is_bounded_and_its_sums_are_not(upstream: Upstream) -> None:
    await upstream.post("/v1/completions", {**_COMPLETION, "prompt": "word " * 60_000, "max_tokens": 0})
    assert (await upstream.ledger())["calls"][0]["prompt_tokens"] == 60_001
    for _ in range(100):
        await upstream.post("/v1/completions", {**_COMPLETION, "max_tokens": 1})
    ledger = await upstream.ledger()
    assert len(ledger["calls"]) == 100
    assert ledger["totals"]["calls"] == 101
    assert ledger["totals"]["completion_tokens"] == 100


async def test_serving_on_a_taken_port_and_on_a_socket() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    runner = await serve_on(listener, Settings())
    with pytest.raises(OSError, match="in use"):
        await serve("127.0.0.1", listener.getsockname()[1], Settings())
    await runner.cleanup()
    assert listener.fileno() == -1


@pytest.mark.parametrize("fault", [{"tokens_per_event": 0}, {"tokens_per_s": 0}, {"first_token_delay_s": -1}])
def test_settings_refuse_nonsense(fault: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be"):
        Settings(**fault)


# ----------------------------------------------------------------------------------------------------------- responses


async def test_a_response_says_what_a_chat_says(upstream: Upstream) -> None:
    chat = await upstream.sdk.chat.completions.create(model=CHAT, messages=HELLO)
    made = await upstream.sdk.responses.create(model=CHAT, input="Tell me a story.")
    assert made.output_text == chat.choices[0].message.content
    assert (made.usage.input_tokens, made.usage.output_tokens) == (
        chat.usage.prompt_tokens, chat.usage.completion_tokens,
    )  # fmt: skip


@pytest.mark.parametrize("model", [CHAT, REASONER])
@pytest.mark.parametrize("tools", [[], [{"type": "function", **WEATHER["function"]}]])
async def test_a_streamed_response_is_the_plain_one(upstream: Upstream, model: str, tools: list[Any]) -> None:
    asked = {"model": model, "input": "Tell me a story.", "tools": tools}
    plain = await upstream.sdk.responses.create(**asked)
    async with upstream.sdk.responses.stream(**asked) as stream:
        events = [event async for event in stream]
        whole = await stream.get_final_response()
    assert whole.output_text == plain.output_text
    assert [item.type for item in whole.output] == [item.type for item in plain.output]
    assert whole.usage == plain.usage
    assert events[-1].type == "response.completed"
    ledger = await upstream.ledger_with(2)
    for call in ledger["calls"]:
        assert (call["prompt_tokens"], call["completion_tokens"], call["reasoning_tokens"], call["endpoint"]) == (
            plain.usage.input_tokens, plain.usage.output_tokens,
            plain.usage.output_tokens_details.reasoning_tokens, "responses",
        )  # fmt: skip


async def test_a_response_is_incomplete_at_its_limit(upstream: Upstream) -> None:
    made = await upstream.sdk.responses.create(model=CHAT, input="Tell me a story.", max_output_tokens=16)
    assert (made.status, made.incomplete_details.reason, made.usage.output_tokens) == (
        "incomplete", "max_output_tokens", 16,
    )  # fmt: skip
    async with upstream.sdk.responses.stream(model=CHAT, input="Tell me a story.", max_output_tokens=16) as stream:
        assert [event.type async for event in stream][-1] == "response.incomplete"


async def test_the_loop_of_an_agent_ends(upstream: Upstream) -> None:
    tools = [{"type": "function", **WEATHER["function"]}]
    first = await upstream.sdk.responses.create(model=CHAT, input="Weather?", tools=tools)
    (call,) = first.output
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    asked = [{"role": "user", "content": "Weather?"}, call.model_dump(exclude_none=True), result]
    second = await upstream.sdk.responses.create(model=CHAT, input=asked, tools=tools)
    assert [item.type for item in second.output] == ["message"]


@pytest.mark.parametrize(
    "member", [{"background": True}, {"previous_response_id": "resp_x"}, {"conversation": "conv_x"}]
)
async def test_no_response_is_stored(upstream: Upstream, member: dict[str, Any]) -> None:
    status, refusal = await upstream.post("/v1/responses", {"model": CHAT, "input": "Hi", **member})
    assert (status, refusal["error"]["message"]) == (
        400, "No response is stored here: send the whole conversation as 'input'.",
    )  # fmt: skip
    made = await upstream.sdk.responses.create(model=CHAT, input="Hi")
    async with upstream.http.get(f"{upstream.url}/v1/responses/{made.id}") as missing:
        assert missing.status == 404
