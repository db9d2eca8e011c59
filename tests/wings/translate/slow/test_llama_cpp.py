"""llama.cpp's server behind a gateway: its formats as they are, and Responses and Messages translated to its chat.

The model writes the same for the same prompt, so that a translated answer is the one that llama.cpp's own endpoint
gives to the same body, but for what the tables of tests/wings/translate/llama_differences.py explain.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import StartsGateways
from tests.fakes.llama_model import CONTEXT
from tests.fakes.llama_server import LlamaServer
from tests.flows.client import Answer
from tests.flows.gateway_process import Gateway, key, settings
from tests.wings.translate import differences, llama_record
from tests.wings.translate.llama_differences import DIFFERS, STREAMS_DIFFER
from tests.wings.translate.llama_record import without_chance, without_timings
from tests.wings.translate.translated import data_of

CASES = llama_record.cases()
STREAMS = [name for name, request in CASES.items() if request.get("stream")]
PLAIN = [name for name in CASES if name not in STREAMS]
CITY = llama_record.WEATHER
ASKED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "messages": [llama_record.SAID], "max_tokens": 200,
        "response_format": {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}},
    },
    "/v1/messages": {
        "messages": [llama_record.SAID], "max_tokens": 200,
        "output_config": {"format": {"type": "json_schema", "schema": CITY}},
    },
    "/v1/responses": {
        "input": [llama_record.SAID], "max_output_tokens": 200,
        "text": {"format": {"type": "json_schema", "name": "city", "schema": CITY}},
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaServer]:
    with LlamaServer(tmp_path_factory.mktemp("llama")) as server:
        yield server


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, llama: LlamaServer) -> Gateway:
    """The model as llama.cpp's own formats have it, and `translated`, for which it has chat alone."""
    able = {"own": {"messages": True}, "chat": {"messages": "via_chat", "responses": "via_chat"}}
    upstreams = {
        name: {"base_url": llama.url, "api_key": None, "capabilities": each} for name, each in able.items()
    }  # fmt: skip
    every = {"endpoints": ["chat", "messages", "responses"], "max_output_tokens": 200}
    models = {
        llama_record.MODEL: {**every, "routes": [{"upstream": "own"}]},
        "translated": {**every, "routes": [{"upstream": "chat", "model": llama_record.MODEL}]},
    }
    quotas = [{"tokens": 10**6, "per": "day"}]
    return start_shared_gateway(
        settings(llama.url, upstreams=upstreams, models=models, keys=[key("alice", quotas=quotas)])
    )


def ask(gateway: Gateway, name: str, model: str) -> Answer:
    answer = gateway.post(f"/v1/{name.partition('/')[0]}", CASES[name] | {"model": model})
    assert answer.status == 200, answer
    return answer


def theirs(llama: LlamaServer, name: str) -> Any:
    return without_timings(llama.post(llama_record.PATHS[name.partition("/")[0]], CASES[name]))


def used(name: str, received: Any) -> tuple[int, int]:
    """The tokens that llama.cpp's own endpoint reports."""
    if name not in STREAMS:
        return received["usage"]["input_tokens"], received["usage"]["output_tokens"]
    if name.startswith("responses"):
        return used("", received[-1]["response"])
    (start,) = [event["message"]["usage"] for event in received if event["type"] == "message_start"]
    (end,) = [event["usage"] for event in received if event["type"] == "message_delta"]
    return start["input_tokens"], end["output_tokens"]


def check_record(gateway: Gateway, answer: Answer, tokens: tuple[int, int]) -> None:
    record = gateway.call(answer.id)
    assert (record["prompt_tokens"], record["completion_tokens"]) == tokens
    assert (record["usage_source"], record["status"], record["ended"]) == ("reported", 200, "done")


@pytest.mark.parametrize("name", PLAIN)
def test_a_translated_answer_is_its_own(gateway: Gateway, llama: LlamaServer, name: str) -> None:
    answer, received = ask(gateway, name, "translated"), theirs(llama, name)
    way = name.partition("/")[0]
    ours = without_chance(answer.json)
    places = [f"{way} shown {path}" for path in differences.places(ours, without_chance(received))]
    assert not differences.unexplained(DIFFERS, places)
    check_record(gateway, answer, used(name, received))


@pytest.mark.parametrize("name", STREAMS)
def test_a_translated_stream_is_its_own(gateway: Gateway, llama: LlamaServer, name: str) -> None:
    answer, received = ask(gateway, name, "translated"), theirs(llama, name)
    ours = without_chance(data_of(answer.body))
    places = differences.stream_places(name.partition("/")[0], ours, without_chance(received))
    assert not differences.unexplained(STREAMS_DIFFER, places)
    check_record(gateway, answer, used(name, received))


@pytest.mark.parametrize("name", CASES)
def test_its_own_formats_pass(gateway: Gateway, llama: LlamaServer, name: str) -> None:
    answer, received = ask(gateway, name, llama_record.MODEL), theirs(llama, name)
    shown = without_timings(data_of(answer.body) if name in STREAMS else answer.json)
    assert without_chance(shown) == without_chance(received)
    check_record(gateway, answer, used(name, received))


@pytest.mark.parametrize("path", ASKED)
def test_a_schema_holds_in_every_format(gateway: Gateway, path: str) -> None:
    """llama.cpp's own Messages and Responses have no schemas: through chat they have."""
    answer = gateway.post(path, ASKED[path] | {"model": "translated"} | llama_record.QUICK)
    assert answer.status == 200, answer
    text = {
        "/v1/chat/completions": lambda: answer.json["choices"][0]["message"]["content"],
        "/v1/messages": lambda: answer.json["content"][0]["text"],
        "/v1/responses": lambda: answer.json["output"][0]["content"][0]["text"],
    }[path]()
    city = json.loads(text)
    assert city.keys() == {"city", "unit"}
    assert city["unit"] in ("celsius", "fahrenheit")


@pytest.mark.parametrize(
    ("path", "name"), [("/v1/messages/count_tokens", "messages/plain-turns"),
                       ("/v1/responses/input_tokens", "responses/plain-turns")],
)  # fmt: skip
def test_counted_tokens_are_those_of_the_call(gateway: Gateway, path: str, name: str) -> None:
    asked = {member: value for member, value in CASES[name].items() if not member.startswith("max_")}
    counted = gateway.post(path, asked)
    assert counted.status == 200, counted
    assert counted.json["input_tokens"] == ask(gateway, name, llama_record.MODEL).json["usage"]["input_tokens"]


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("model", [llama_record.MODEL, "translated"])
@pytest.mark.parametrize("path", ASKED)
def test_a_prompt_that_is_too_long_is_refused_and_free(
    gateway: Gateway, path: str, model: str, is_stream: bool
) -> None:
    long = [{"role": "user", "content": "x" * CONTEXT}]
    prompt = {"input": long} if path == "/v1/responses" else {"messages": long, "max_tokens": 20}
    answer = gateway.post(path, {"model": model, "stream": is_stream, **prompt})
    assert answer.status == 400
    assert "exceeds the available context size" in answer.json["error"]["message"]
    record = gateway.call(answer.id)
    assert (record["status"], record["prompt_tokens"], record["completion_tokens"]) == (400, 0, 0)
