"""LiteLLM's proxy as a reseller behind a whole gateway, asked by the official SDK: usage, errors and streams are right.

It is another's program, so this is what its authors think an upstream is like, and not what we think it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.conftest import StartsGateways
from tests.fakes.litellm_proxy import KEY, LiteLLM
from tests.flows.client import Answer
from tests.flows.gateway_process import Gateway, key, secret, settings

pytestmark = pytest.mark.timeout(180)  # the first of them waits until it has started

SAYS = "Hello from the reseller"
HELLO: Any = [{"role": "user", "content": "Hello"}]
TEACHERS: dict[str, Any] = {
    "chat-one": SAYS,
    "text-one": SAYS,
    "vector-one": [0.25, -0.5, 1.0],
    "limited-one": "litellm.RateLimitError",
    "failing-one": "litellm.InternalServerError",
    "refusing-one": "litellm.ContextWindowExceededError",
}
"""Its models, by the names that only it and the gateway know."""
USAGE: Any = {"include_usage": True}


@pytest.fixture(scope="module")
def reseller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiteLLM]:
    with LiteLLM(tmp_path_factory.mktemp("litellm"), **TEACHERS) as made:
        yield made


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, reseller: LiteLLM) -> Gateway:
    upstreams = {
        "reseller": {"base_url": reseller.url, "api_key": KEY},
        "without-key": {"base_url": reseller.url, "api_key": "sk-another-key-that-nobody-may-see"},
    }
    routes = {name.removesuffix("-one"): {"upstream": "reseller", "model": name} for name in TEACHERS}
    routes["unknown"] = {"upstream": "reseller", "model": "nobody-one"}
    routes["stranger"] = {"upstream": "without-key", "model": "chat-one"}
    models = {name: {"routes": [route], "max_output_tokens": 100} for name, route in routes.items()}
    keys = [key("alice", quotas=[{"tokens": 10**9, "per": "day"}])]
    return start_shared_gateway({**settings(reseller.url, keys=keys), "upstreams": upstreams, "models": models})


@pytest.fixture
def sdk(gateway: Gateway) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{gateway.url}/v1", api_key=secret("alice"), max_retries=0) as made:
        yield made


def record(gateway: Gateway, answer_id: Any) -> dict[str, Any]:
    """The gateway's record of a call; its usage has to be the reported one."""
    found = gateway.call(answer_id)
    assert (found["status"], found["ended"], found["usage_source"]) == (200, "done", "reported")
    return found


def newest(gateway: Gateway) -> dict[str, Any]:
    """The gateway's record of the call that ended last."""
    return record(gateway, gateway.calls(limit=1)[0]["id"])


def check_nothing_of_its_own(answer: Answer) -> None:
    shown = answer.body.decode() + repr([line for line in answer.header_lines if not line[0].startswith("x-gateway-")])
    for word in ("-one", "litellm", "LiteLLM", "behind-it", "127.0.0.1", KEY):
        assert word not in shown.replace('"model":"chat-one"', "")


def test_chat(gateway: Gateway, sdk: OpenAI) -> None:
    made = sdk.chat.completions.create(model="chat", messages=HELLO)
    assert made.choices[0].message.content == SAYS
    assert made.usage is not None
    books = record(gateway, made._request_id)
    assert (books["prompt_tokens"], books["completion_tokens"]) == (10, 20) == (
        made.usage.prompt_tokens, made.usage.completion_tokens
    )  # fmt: skip
    assert (books["model"], books["routed_model"], books["returned_model"]) == ("chat", "chat-one", "chat-one")


def test_completion(gateway: Gateway, sdk: OpenAI) -> None:
    made = sdk.completions.create(model="text", prompt="Hello")
    assert (made.object, made.choices[0].text) == ("text_completion", SAYS)
    assert made.usage is not None
    books = record(gateway, made._request_id)
    assert (books["prompt_tokens"], books["completion_tokens"]) == (10, 20)
    assert made.usage.total_tokens == 30


@pytest.mark.parametrize("is_asked", [True, False])
def test_chat_stream(gateway: Gateway, sdk: OpenAI, is_asked: bool) -> None:
    """Its usage chunk has a choice that says nothing; who did not ask for usage sees no such chunk."""
    more: Any = {"stream_options": USAGE} if is_asked else {}
    chunks = list(sdk.chat.completions.create(model="chat", messages=HELLO, stream=True, **more))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == SAYS
    assert [chunk.choices[0].finish_reason for chunk in chunks].count("stop") == 1
    check_usage_of(gateway, [chunk.usage for chunk in chunks], is_asked=is_asked)


@pytest.mark.parametrize("is_asked", [True, False])
def test_completion_stream(gateway: Gateway, sdk: OpenAI, is_asked: bool) -> None:
    more: Any = {"stream_options": USAGE} if is_asked else {}
    chunks = list(sdk.completions.create(model="text", prompt="Hello", stream=True, **more))
    texts = [getattr(choice, "text", None) or "" for chunk in chunks for choice in chunk.choices]
    assert "".join(texts) == SAYS
    assert {chunk.object for chunk in chunks} == {"text_completion"}
    check_usage_of(gateway, [chunk.usage for chunk in chunks], is_asked=is_asked)


def check_usage_of(gateway: Gateway, usages: list[Any], *, is_asked: bool) -> None:
    """The last chunk has the usage if the client asked for it; the gateway's record always has it."""
    books = newest(gateway)
    assert books["stream"]
    assert books["completion_tokens"] > 0
    received = [usage for usage in usages if usage is not None]
    assert len(received) == is_asked
    if is_asked:
        assert usages[-1] is not None
        assert (received[0].prompt_tokens, received[0].completion_tokens) == (
            books["prompt_tokens"], books["completion_tokens"]
        )  # fmt: skip


def test_embeddings(gateway: Gateway, sdk: OpenAI) -> None:
    made = sdk.embeddings.create(model="vector", input="Hello")
    assert made.data[0].embedding == [0.25, -0.5, 1.0]
    assert record(gateway, made._request_id)["prompt_tokens"] == made.usage.prompt_tokens == 10


@pytest.mark.parametrize("is_stream", [True, False])
def test_a_model_that_it_does_not_know_is_its_own_400(gateway: Gateway, sdk: OpenAI, is_stream: bool) -> None:
    """The error names the model as the client named it."""
    with pytest.raises(openai.BadRequestError) as raised:
        sdk.chat.completions.create(model="unknown", messages=HELLO, stream=is_stream)
    error = raised.value
    assert (error.type, error.param, error.code) == ("invalid_request_error", None, None)
    assert "Invalid model name passed in model=unknown." in error.message
    check_nothing_of_its_own(gateway.chat(model="unknown"))


def test_what_its_model_refuses_is_the_clients_to_change(gateway: Gateway, sdk: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        sdk.chat.completions.create(model="refusing", messages=HELLO)
    assert "mock context window exceeded" in raised.value.message
    assert not raised.value.message.startswith("litellm.")
    check_nothing_of_its_own(gateway.chat(model="refusing"))


def test_its_limit_is_said_to_be_its_own(gateway: Gateway, sdk: OpenAI) -> None:
    with pytest.raises(openai.RateLimitError) as raised:
        sdk.chat.completions.create(model="limited", messages=HELLO)
    assert raised.value.code == "upstream_rate_limited"
    assert "not of your key" in raised.value.message
    answer = gateway.chat(model="limited")
    assert answer.headers["retry-after"] == "1"
    check_nothing_of_its_own(answer)


def test_its_failure_is_a_502(gateway: Gateway, sdk: OpenAI) -> None:
    with pytest.raises(openai.InternalServerError) as raised:
        sdk.chat.completions.create(model="failing", messages=HELLO)
    assert (raised.value.status_code, raised.value.code) == (502, "upstream_error")
    check_nothing_of_its_own(gateway.chat(model="failing"))


def test_our_own_key_that_it_refuses_is_not_the_clients_fault(gateway: Gateway, sdk: OpenAI) -> None:
    """It says so with a 400 about a database that it does not have."""
    with pytest.raises(openai.InternalServerError) as raised:
        sdk.chat.completions.create(model="stranger", messages=HELLO)
    assert (raised.value.status_code, raised.value.code) == (502, "upstream_auth_failed")
    check_nothing_of_its_own(gateway.chat(model="stranger"))
    assert "upstream without-key: auth_failed" in gateway.stderr


def test_an_answer_bears_nothing_of_it(gateway: Gateway) -> None:
    check_nothing_of_its_own(gateway.chat(model="chat"))
