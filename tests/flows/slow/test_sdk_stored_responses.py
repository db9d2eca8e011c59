"""Stored and background responses with openai-python, through a gateway in front of the simulated upstream, whose
ledger has to agree with the records."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import openai
import pytest

from tests.conftest import StartsGateways, StartsProcesses
from tests.flows.house import Gateway, eventually, key, model, secret, settings

MODEL = "gpt-4o-mini"


@pytest.fixture
def simulator(process: StartsProcesses) -> str:
    return process("simulate", "--port", "0").wait_for(r"serves (http://127\.0\.0\.1:\d+/v1)\n")[1]


@pytest.fixture
def house(gateway: StartsGateways, simulator: str) -> Gateway:
    keys = [key("alice", quotas=[{"tokens": 10**6, "per": "day"}]), key("bob")]
    return gateway(settings(simulator, models={MODEL: model("responses")}, keys=keys, server={"workers": 2}))


def sdk(house: Gateway, who: str = "alice") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{house.url}/v1", api_key=secret(who), max_retries=0)


def ledger(simulator: str) -> list[dict[str, Any]]:
    with urllib.request.urlopen(f"{simulator.removesuffix('/v1')}/simulator/ledger") as answer:
        calls: list[dict[str, Any]] = json.load(answer)["calls"]
        return calls


def test_a_conversation_by_ids(house: Gateway, simulator: str) -> None:
    responses = sdk(house).responses
    first = responses.create(model=MODEL, input="Tell me a story.")
    with responses.stream(model=MODEL, input="Go on.", previous_response_id=first.id) as stream:
        second = stream.until_done().get_final_response()
    third = responses.create(model=MODEL, input="The end?", previous_response_id=second.id)
    assert responses.retrieve(second.id).output_text == second.output_text
    assert len(responses.input_items.list(third.id).data) == 5
    other = sdk(house, "bob").responses
    for ask in (other.retrieve, other.delete, other.cancel, other.input_items.list):
        with pytest.raises(openai.NotFoundError):
            ask(second.id)
    with pytest.raises(openai.NotFoundError) as error:
        other.create(model=MODEL, input="And me?", previous_response_id=second.id)
    assert error.value.code == "previous_response_not_found"
    responses.delete(second.id)
    with pytest.raises(openai.NotFoundError):
        responses.retrieve(second.id)
    told = [(call["prompt_tokens"], call["completion_tokens"]) for call in ledger(simulator)]
    assert [(row["prompt_tokens"], row["completion_tokens"]) for row in house.calls("alice")] == told


def test_in_the_background(house: Gateway, simulator: str) -> None:
    responses = sdk(house).responses
    slow = {"simulate": {"delay_s": 1}}
    made = responses.create(model=MODEL, input="Tell me a story.", background=True, extra_body=slow)
    assert made.status == "queued"
    cancelled = responses.create(model=MODEL, input="Hi", background=True, extra_body={"simulate": {"delay_s": 60}})
    assert responses.cancel(cancelled.id).status == "cancelled"
    done = eventually(lambda: (now := responses.retrieve(made.id)).status == "completed" and now)
    rows = eventually(lambda: len(found := house.calls("alice")) == 2 and found)
    by_end = {row["ended"]: row for row in rows}
    assert by_end["done"]["completion_tokens"] == done.usage.output_tokens
    assert by_end["done"]["usage_source"] == "reported"
    assert by_end["client_gone"]["usage_source"] == "estimated"
    (call,) = [call for call in ledger(simulator) if call["ended"] == "done"]
    assert call["prompt_tokens"] == by_end["done"]["prompt_tokens"]
