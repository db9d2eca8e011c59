"""The official SDK against the simulator, with the gateway between them: its results are those without a gateway.

Each test runs with one worker, with two, and with a gateway in front of a gateway. After each test the sums of gateway
and simulator have to be equal, to the token.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

from tests.conftest import StartsGateways
from tests.fakes.scripted import dead_port
from tests.flows import client
from tests.flows.client import Answer
from tests.flows.gateway_process import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    SIMULATOR,
    Gateway,
    Process,
    eventually,
    key,
    model,
    secret,
    settings,
)

REASONER = "deepseek-reasoner"
HELLO: list[Any] = [{"role": "user", "content": "Hello, how are you today?"}]
PROMPT = "Once upon a time"


@contextmanager
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    made = Process(tmp_path_factory.mktemp("simulator"), SIMULATOR, "--port", "0")
    try:
        yield made.wait_for(r"serves (http://127\.0\.0\.1:\d+/v1)\n")[1]
    finally:
        made.end()


@pytest.fixture(scope="module")
def simulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the upstream."""
    with simulated(tmp_path_factory) as address:
        yield address


@pytest.fixture(scope="module")
def other_simulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A second simulator, with the same answers and its own ledger."""
    with simulated(tmp_path_factory) as address:
        yield address


def ask_ledger(simulator: str, method: str) -> Answer:
    """What the simulator has served; DELETE forgets it."""
    port = int(simulator.split(":")[2].removesuffix("/v1"))
    return client.request(port, method, "/simulator/ledger", None, {})


@pytest.fixture(scope="module", params=["one worker", "two workers", "in front of itself"])
def gateway(request: pytest.FixtureRequest, start_shared_gateway: StartsGateways, simulator: str) -> Gateway:
    ask_ledger(simulator, "DELETE")
    keys = [
        key("alice", quotas=[{"tokens": 100_000_000, "per": "day"}]),
        key("bob", models=["gpt-3.5-*"], limits={"max_tokens": 100, "n": 2}),
        key("rate", quotas=[{"requests": 1, "per": "hour"}]),
        key("spent", quotas=[{"requests": 1, "per": "day"}]),
    ]
    models = {REASONER: model("chat"), "unreachable": model("chat", "dead")}
    upstreams = {"dead": {"base_url": f"http://127.0.0.1:{dead_port()}/v1"}}
    workers = 2 if request.param == "two workers" else 1
    config = settings(simulator, keys=keys, models=models, upstreams=upstreams, server={"workers": workers})
    if request.param != "in front of itself":
        return start_shared_gateway(config)
    inner = start_shared_gateway(settings(simulator, models=models, upstreams=upstreams))
    config["upstreams"]["main"] = {"base_url": f"{inner.url}/v1", "api_key": secret("alice")}
    return start_shared_gateway(config)


@pytest.fixture(autouse=True)
def books_agree(gateway: Gateway, simulator: str) -> Iterator[None]:
    """Every token that the simulator has served is in the report, and none that it has not."""
    yield
    totals = ask_ledger(simulator, "GET").json["totals"]
    served = (totals["prompt_tokens"], totals["completion_tokens"])

    def recorded() -> tuple[int, int]:
        rows = gateway.usage(group_by="month")
        assert sum(row["estimated_tokens"] for row in rows) == 0
        return sum(row["prompt_tokens"] for row in rows), sum(row["completion_tokens"] for row in rows)

    assert eventually(lambda: served == recorded() and served)


@pytest.fixture(scope="module")
def sdk(gateway: Gateway) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{gateway.url}/v1", api_key=secret("alice"), max_retries=0, timeout=60) as made:
        yield made


@pytest.fixture
async def async_sdk(gateway: Gateway) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=secret("alice"), max_retries=0, timeout=60) as made:
        yield made


@pytest.fixture(scope="module")
def direct(other_simulator: str) -> Iterator[OpenAI]:
    """Without a gateway."""
    with OpenAI(base_url=other_simulator, api_key="any", max_retries=0, timeout=60) as made:
        yield made


def said(answer: BaseModel) -> dict[str, Any]:
    """An answer without what differs from call to call."""
    return {name: value for name, value in answer.model_dump().items() if name not in ("id", "created")}


# --------------------------------------------------------------------------------------------------------- completions

FORMS: dict[str, Any] = {
    "text": PROMPT,
    "texts": [PROMPT, "In the end", ""],
    "tokens": [1, 2, 3, 4],
    "token lists": [[1, 2], [3]],
}


@pytest.mark.parametrize("form", FORMS)
def test_prompt_forms(sdk: OpenAI, gateway: Gateway, form: str) -> None:
    answer = sdk.completions.create(model=COMPLETIONS, prompt=FORMS[form], max_tokens=7, seed=1)
    count = {"texts": 3, "token lists": 2}.get(form, 1)
    assert [choice.index for choice in answer.choices] == list(range(count))
    assert answer.object == "text_completion"
    assert answer.usage is not None
    assert answer.usage.completion_tokens <= 7 * count
    record = gateway.call(answer._request_id or "")
    assert (record["prompt_tokens"], record["completion_tokens"]) == (
        answer.usage.prompt_tokens,
        answer.usage.completion_tokens,
    )


COMPLETION_CALLS: list[dict[str, Any]] = [
    {},
    {"n": 2, "max_tokens": 5},
    {"n": 2, "best_of": 4, "max_tokens": 5},
    {"prompt": ["a", "b"], "n": 2, "max_tokens": 3},
    {"echo": True, "logprobs": 2, "max_tokens": 4},
    {"echo": True, "max_tokens": 0},
    {"logprobs": 0},
    {"stop": ["the", "a"], "max_tokens": 50},
    {"stop": " the"},
    {"suffix": " and they lived happily ever after."},
    {"temperature": 0.0, "top_p": 0.5, "presence_penalty": -2, "frequency_penalty": 2, "logit_bias": {"50256": -100}},
    {"user": "user-1", "seed": 2**63 - 1},
    {"extra_body": {"unknown": {"deep": [1, None, "\u2603"]}}},
    {"best_of": 0},
]  # fmt: skip


@pytest.mark.parametrize("changes", COMPLETION_CALLS, ids=json.dumps)
def test_completion_is_the_upstream_s_own(sdk: OpenAI, direct: OpenAI, changes: dict[str, Any]) -> None:
    asked: dict[str, Any] = {"model": COMPLETIONS, "prompt": PROMPT, "seed": 7} | changes
    answer = sdk.completions.create(**asked)
    assert said(answer) == said(direct.completions.create(**asked))
    assert len(answer.choices) == changes.get("n", 1) * len(changes.get("prompt", [PROMPT]))


def test_logprobs_with_echo(sdk: OpenAI) -> None:
    answer = sdk.completions.create(model=COMPLETIONS, prompt=PROMPT, echo=True, logprobs=2, max_tokens=3)
    (choice,) = answer.choices
    assert choice.text.startswith(PROMPT)
    assert choice.logprobs is not None
    assert choice.logprobs.token_logprobs is not None
    assert choice.logprobs.token_logprobs[0] is None
    assert "".join(choice.logprobs.tokens or []) == choice.text


@pytest.mark.parametrize("asks_usage", [False, True])
@pytest.mark.parametrize("changes", [{}, {"n": 3}, {"logprobs": 1, "echo": True}, {"stop": " the"}], ids=json.dumps)
def test_streamed_completion(sdk: OpenAI, direct: OpenAI, changes: dict[str, Any], asks_usage: bool) -> None:
    asked: dict[str, Any] = {
        "model": COMPLETIONS,
        "prompt": PROMPT,
        "seed": 7,
        "max_tokens": 20,
        "stream": True,
    } | changes
    if asks_usage:
        asked["stream_options"] = {"include_usage": True}
    got, expected = (list(each.completions.create(**asked)) for each in (sdk, direct))
    assert [said(chunk) for chunk in got] == [said(chunk) for chunk in expected]
    assert len({chunk.id for chunk in got}) == 1
    reports = [chunk.usage for chunk in got if chunk.usage]
    assert len(reports) == int(asks_usage)
    whole = sdk.completions.create(**{**asked, "stream": False, "stream_options": openai.omit})
    for choice in whole.choices:
        pieces = [each.text for chunk in got for each in chunk.choices if each.index == choice.index]
        assert "".join(pieces) == choice.text


# ---------------------------------------------------------------------------------------------------------------- chat

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CHAT_CALLS: list[dict[str, Any]] = [
    {},
    {"n": 2},
    {"max_tokens": 5},
    {"max_completion_tokens": 5},
    {"max_tokens": 9, "max_completion_tokens": 4},
    {"logprobs": True, "top_logprobs": 3, "max_tokens": 5},
    {"tools": [WEATHER]},
    {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "get_weather"}}},
    {"tools": [WEATHER], "tool_choice": "none"},
    {"response_format": {"type": "json_object"}},
    {"model": REASONER},
    {"model": REASONER, "n": 2, "max_tokens": 10},
    {"stop": "the"},
    {"messages": [{"role": "user", "content": [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}},
    ]}]},
    {"messages": [*HELLO, {"role": "assistant", "content": None, "tool_calls": [
        {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
    ]}, {"role": "tool", "tool_call_id": "call_1", "content": "sunny"}], "tools": [WEATHER]},
]  # fmt: skip


@pytest.mark.parametrize("changes", CHAT_CALLS, ids=lambda changes: json.dumps(changes)[:60])
def test_chat_is_the_upstream_s_own(sdk: OpenAI, direct: OpenAI, changes: dict[str, Any]) -> None:
    asked: dict[str, Any] = {"model": CHAT, "messages": HELLO, "seed": 7} | changes
    answer = sdk.chat.completions.create(**asked)
    assert said(answer) == said(direct.chat.completions.create(**asked))
    assert len(answer.choices) == changes.get("n", 1)


@pytest.mark.parametrize("asks_usage", [False, True])
@pytest.mark.parametrize("changes", CHAT_CALLS, ids=lambda changes: json.dumps(changes)[:60])
def test_streamed_chat(sdk: OpenAI, direct: OpenAI, changes: dict[str, Any], asks_usage: bool) -> None:
    asked: dict[str, Any] = {"model": CHAT, "messages": HELLO, "seed": 7, "stream": True} | changes
    if asks_usage:
        asked["stream_options"] = {"include_usage": True}
    got, expected = (list(each.chat.completions.create(**asked)) for each in (sdk, direct))
    assert [said(chunk) for chunk in got] == [said(chunk) for chunk in expected]
    assert len([chunk for chunk in got if chunk.usage]) == int(asks_usage)


def test_reasoning_is_passed_on_and_counted(sdk: OpenAI, gateway: Gateway) -> None:
    answer = sdk.chat.completions.create(model=REASONER, messages=HELLO)
    assert getattr(answer.choices[0].message, "reasoning_content", "")
    assert answer.usage is not None
    assert answer.usage.completion_tokens_details is not None
    reasoning = answer.usage.completion_tokens_details.reasoning_tokens
    assert reasoning
    assert gateway.call(answer._request_id or "")["reasoning_tokens"] == reasoning


def test_structured_output(sdk: OpenAI) -> None:
    class Weather(BaseModel):
        city: str
        degrees: float
        is_sunny: bool

    answer = sdk.chat.completions.parse(model=CHAT, messages=HELLO, response_format=Weather)
    assert isinstance(answer.choices[0].message.parsed, Weather)


def test_stream_helper(sdk: OpenAI) -> None:
    with sdk.chat.completions.stream(model=CHAT, messages=HELLO, tools=[WEATHER]) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert "chunk" in kinds
    assert final.choices[0].message.tool_calls is not None
    assert json.loads(final.choices[0].message.tool_calls[0].function.arguments)["city"]


async def test_async_chat(async_sdk: AsyncOpenAI) -> None:
    whole = await async_sdk.chat.completions.create(model=CHAT, messages=HELLO, seed=3)
    pieces = []
    async for chunk in await async_sdk.chat.completions.create(model=CHAT, messages=HELLO, seed=3, stream=True):
        assert chunk.usage is None
        pieces += [choice.delta.content or "" for choice in chunk.choices]
    assert "".join(pieces) == whole.choices[0].message.content


async def test_async_completion(async_sdk: AsyncOpenAI) -> None:
    whole = await async_sdk.completions.create(model=COMPLETIONS, prompt=PROMPT, seed=3)
    stream = await async_sdk.completions.create(model=COMPLETIONS, prompt=PROMPT, seed=3, stream=True)
    assert "".join([choice.text async for chunk in stream for choice in chunk.choices]) == whole.choices[0].text


# ---------------------------------------------------------------------------------------------------------- embeddings


@pytest.mark.parametrize("given", FORMS)
def test_embeddings(sdk: OpenAI, direct: OpenAI, given: str) -> None:
    """The SDK asks for base64 by itself, and reads it."""
    value = ["a", "b", "c"] if given == "texts" else FORMS[given]  # an empty input is refused
    answer = sdk.embeddings.create(model=EMBEDDINGS, input=value)
    expected = direct.embeddings.create(model=EMBEDDINGS, input=value)
    assert [each.embedding for each in answer.data] == [each.embedding for each in expected.data]
    assert answer.usage == expected.usage
    assert len(answer.data[0].embedding) == 1536


def test_embeddings_in_both_encodings(sdk: OpenAI) -> None:
    numbers = sdk.embeddings.create(model=EMBEDDINGS, input="x", encoding_format="float", dimensions=8)
    coded = sdk.embeddings.with_raw_response.create(model=EMBEDDINGS, input="x", encoding_format="base64", dimensions=8)
    (found,) = json.loads(coded.text)["data"]
    assert struct.unpack("<8f", base64.b64decode(found["embedding"])) == pytest.approx(numbers.data[0].embedding)


# -------------------------------------------------------------------------------------------------------------- models


def test_models(sdk: OpenAI) -> None:
    names = [each.id for each in sdk.models.list()]
    assert names == sorted({COMPLETIONS, CHAT, EMBEDDINGS, REASONER, "unreachable"})
    found = sdk.models.retrieve(CHAT)
    assert (found.id, found.object) == (CHAT, "model")
    with pytest.raises(openai.NotFoundError) as caught:
        sdk.models.retrieve("no-such-model")
    assert caught.value.code == "model_not_found"


# -------------------------------------------------------------------------------------------------------------- errors


def check_error(error: openai.APIStatusError, param: str | None, code: str | None) -> None:
    assert (error.param, error.code) == (param, code)
    assert error.request_id is not None
    assert error.request_id.startswith("req_")
    assert isinstance(error.body, dict)
    assert sorted(error.body) == ["code", "message", "param", "type"]


def test_wrong_key(sdk: OpenAI) -> None:
    with pytest.raises(openai.AuthenticationError) as caught:
        sdk.with_options(api_key="sk-gw-wrong-0123456789abcdef").completions.create(model=COMPLETIONS, prompt=PROMPT)
    check_error(caught.value, None, "invalid_api_key")


@pytest.mark.parametrize("stream", [False, True])
def test_bad_request(sdk: OpenAI, stream: bool) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        sdk.completions.create(model=COMPLETIONS, prompt=PROMPT, n=129, stream=stream)
    check_error(caught.value, "n", "integer_above_max_value")


def test_limit_of_the_key(sdk: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="This key allows a value <= 2") as caught:
        sdk.with_options(api_key=secret("bob")).completions.create(model=COMPLETIONS, prompt=PROMPT, n=3)
    check_error(caught.value, "n", "integer_above_max_value")


@pytest.mark.parametrize("name", ["no-such-model", CHAT])
def test_model_that_is_not_for_this_key(sdk: OpenAI, name: str) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        sdk.with_options(api_key=secret("bob")).chat.completions.create(model=name, messages=HELLO)
    check_error(caught.value, None, "model_not_found")


def test_refusal_of_the_upstream(sdk: OpenAI) -> None:
    """What the gateway does not check, the upstream does; its answer is the client's."""
    with pytest.raises(openai.BadRequestError) as caught:
        sdk.embeddings.create(model=EMBEDDINGS, input="x", dimensions=100_000)
    assert caught.value.param == "dimensions"


def test_quota_that_is_spent_is_not_tried_again(gateway: Gateway) -> None:
    with OpenAI(base_url=f"{gateway.url}/v1", api_key=secret("spent"), max_retries=2, timeout=60) as sdk:
        sdk.completions.create(model=COMPLETIONS, prompt=PROMPT)
        before = gateway.metric("gateway_requests_total", key="spent", status="429")
        with pytest.raises(openai.RateLimitError) as caught:
            sdk.completions.create(model=COMPLETIONS, prompt=PROMPT)
    check_error(caught.value, None, "insufficient_quota")
    assert caught.value.type == "insufficient_quota"
    assert gateway.metric("gateway_requests_total", key="spent", status="429") == before + 1


def test_rate_that_is_spent(gateway: Gateway) -> None:
    with OpenAI(base_url=f"{gateway.url}/v1", api_key=secret("rate"), max_retries=0, timeout=60) as sdk:
        sdk.completions.create(model=COMPLETIONS, prompt=PROMPT)
        with pytest.raises(openai.RateLimitError) as caught:
            sdk.completions.create(model=COMPLETIONS, prompt=PROMPT)
    check_error(caught.value, None, "rate_limit_exceeded")
    assert caught.value.type == "requests"
    assert 0 < int(caught.value.response.headers["retry-after"]) <= 3600


def test_upstream_that_is_down(sdk: OpenAI) -> None:
    with pytest.raises(openai.InternalServerError) as caught:
        sdk.chat.completions.create(model="unreachable", messages=HELLO)
    assert caught.value.status_code == 502
    check_error(caught.value, None, "upstream_error")


@pytest.mark.parametrize("status", [500, 503])
def test_upstream_that_fails(sdk: OpenAI, status: int) -> None:
    with pytest.raises(openai.InternalServerError) as caught:
        sdk.chat.completions.create(model=CHAT, messages=HELLO, extra_body={"simulate": {"status": status}})
    assert caught.value.status_code == {500: 502, 503: 503}[status]
    check_error(caught.value, None, "upstream_error")


def test_request_id(sdk: OpenAI, gateway: Gateway) -> None:
    answer = sdk.completions.create(model=COMPLETIONS, prompt=PROMPT)
    assert answer._request_id is not None
    assert gateway.call(answer._request_id)["key"] == "alice"
