"""`responses` of the official SDKs through a gateway: answers, streams, and every kind of trouble as they see it."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from pydantic import BaseModel

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes import responses_api as api
from tests.fakes.scripted import CHUNKED, Behaviour, Wire, chunk, error_json, ok_json
from tests.flows.gateway_process import Gateway, key, model, secret, settings
from tests.flows.sdks import Call, ask_with

MODEL = "gpt-4.1"
ASKED = {"model": MODEL, "input": "Hello", "store": False}
SDKS = sorted(ask_with)


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    once = [{"requests": 1, "per": "month"}]
    return start_shared_gateway(
        settings(
            shared_upstream.url,
            models={MODEL: model("responses")},
            keys=[
                key("alice"),
                *[key(f"spent-{sdk.replace(' ', '-')}", quotas=once) for sdk in SDKS],
                *[key(f"busy-{sdk.replace(' ', '-')}", quotas=[{"requests": 1, "per": "second"}]) for sdk in SDKS],
            ],
        )
    )


def ask(gateway: Gateway, sdk: str, who: str = "alice", **members: Any) -> dict[str, Any]:
    who = who if who == "alice" else f"{who}-{sdk.replace(' ', '-')}"
    return ask_with[sdk](f"{gateway.url}/v1", secret(who), [Call("responses", ASKED | members)])[0]


def sent(text: bytes, *, is_cut: bool = False) -> Behaviour:
    async def behaviour(wire: Wire) -> None:
        await wire.write(CHUNKED + chunk(text) + (b"" if is_cut else b"0\r\n\r\n"))
        if is_cut:
            wire.close()

    return behaviour


@pytest.mark.parametrize("sdk", SDKS)
def test_an_answer_and_a_stream(gateway: Gateway, upstream: ScriptedUpstream, sdk: str) -> None:
    output = [api.message("Said."), api.function_call("look", "{}")]
    upstream.answer_with(ok_json(api.response(output)), sent(api.written(api.events(output, api.response(output)))))
    plain = ask(gateway, sdk)
    assert plain["data"]["output"][0]["content"][0]["text"] == "Said."
    assert plain["data"]["usage"]["input_tokens"] == 30
    assert plain["request_id"].startswith("req_")
    chunks = ask(gateway, sdk, stream=True)["chunks"]
    assert [chunks[0]["type"], chunks[-1]["type"]] == ["response.created", "response.completed"]
    assert [each["sequence_number"] for each in chunks] == list(range(len(chunks)))
    assert chunks[-1]["response"]["output"][1]["name"] == "look"


@pytest.mark.parametrize("sdk", SDKS)
def test_what_is_refused_is_an_error_with_a_name(gateway: Gateway, upstream: ScriptedUpstream, sdk: str) -> None:
    before = upstream.hits
    error = ask(gateway, sdk, max_output_tokens=3)["error"]
    assert (error["name"], error["status"], error["param"]) == ("BadRequestError", 400, "max_output_tokens")
    error = ask(gateway, sdk, previous_response_id="resp_unknown", stream=True)["error"]
    assert (error["name"], error["status"]) == ("NotFoundError", 404)
    assert (error["param"], error["code"]) == ("previous_response_id", "previous_response_not_found")
    assert upstream.hits == before


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("sdk", SDKS)
def test_a_spent_quota_is_asked_for_once(
    gateway: Gateway, upstream: ScriptedUpstream, sdk: str, is_stream: bool
) -> None:
    upstream.answer_with(always=ok_json(api.response()))
    if not is_stream:
        assert "data" in ask(gateway, sdk, "spent")
    else:
        ask(gateway, sdk, "spent")  # whichever of the two comes first
    before = upstream.hits
    counted = gateway.metric("gateway_rejections_total", reason="quota_spent")
    error = ask(gateway, sdk, "spent", stream=is_stream)["error"]
    assert (error["name"], error["code"]) == ("RateLimitError", "insufficient_quota")
    assert upstream.hits == before
    assert gateway.metric("gateway_rejections_total", reason="quota_spent") == counted + 1


@pytest.mark.parametrize("sdk", SDKS)
def test_a_rate_is_waited_for(gateway: Gateway, upstream: ScriptedUpstream, sdk: str) -> None:
    upstream.answer_with(always=ok_json(api.response()))
    assert all("data" in ask(gateway, sdk, "busy") for _ in range(2))


@pytest.mark.parametrize("sdk", SDKS)
def test_an_error_of_the_upstream_has_its_status(gateway: Gateway, upstream: ScriptedUpstream, sdk: str) -> None:
    upstream.answer_with(
        always=error_json(400, message="no such tool", code="invalid_tool", type="invalid_request_error")
    )
    for is_stream in (False, True):
        error = ask(gateway, sdk, stream=is_stream)["error"]
        assert (error["name"], error["code"]) == ("BadRequestError", "invalid_tool")


@pytest.mark.parametrize("sdk", SDKS)
def test_a_stream_that_is_cut_ends_with_a_failed_response(
    gateway: Gateway, upstream: ScriptedUpstream, sdk: str
) -> None:
    text = api.stream("A text of some length, which is cut.")
    upstream.answer_with(sent(text[:-400], is_cut=True))
    chunks = ask(gateway, sdk, stream=True)["chunks"]
    last = chunks[-1]
    assert last["type"] == "response.failed"
    assert last["response"]["id"] == "resp_1"
    assert last["response"]["error"]["code"] == "upstream_error"
    assert [each["sequence_number"] for each in chunks] == list(range(len(chunks)))


class Word(BaseModel):
    word: str


def test_helpers_of_openai_python(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    output = [api.message('{"word": "yes"}')]
    upstream.answer_with(
        ok_json(api.response(output)),
        sent(api.written(api.events(output, api.response(output)))),
        sent(api.written(api.events(output, api.response(output)))[:-200], is_cut=True),
    )
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=secret("alice")) as sdk:
        parsed = sdk.responses.parse(model=MODEL, input="Hello", text_format=Word)
        assert parsed.output_parsed == Word(word="yes")
        with sdk.responses.stream(model=MODEL, input="Hello", text_format=Word) as stream:
            kinds = [event.type for event in stream]
            assert stream.get_final_response().output_parsed == Word(word="yes")
        assert kinds[-1] == "response.completed"
        with sdk.responses.stream(model=MODEL, input="Hello") as stream:
            kinds = [event.type for event in stream]
            with pytest.raises(RuntimeError):
                stream.get_final_response()
        assert kinds[-1] == "response.failed"
