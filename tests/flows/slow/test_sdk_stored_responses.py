"""Stored and background responses with openai-python, through a gateway in front of the simulated upstream, whose
ledger has to agree with the records."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import openai
import pytest

from tests.conftest import StartsGateways, StartsProcesses
from tests.flows.gateway_process import SIMULATOR, Gateway, eventually, key, model, secret, settings

MODEL = "gpt-4o-mini"


@pytest.fixture
def simulator(process: StartsProcesses) -> str:
    return process(SIMULATOR, "--port", "0").wait_for(r"serves (http://127\.0\.0\.1:\d+/v1)\n")[1]


@pytest.fixture
def gateway(start_gateway: StartsGateways, simulator: str) -> Gateway:
    keys = [key("alice", quotas=[{"tokens": 10**6, "per": "day"}]), key("bob")]
    return start_gateway(settings(simulator, models={MODEL: model("responses")}, keys=keys, server={"workers": 2}))


def sdk(gateway: Gateway, who: str = "alice") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=secret(who), max_retries=0)


def ledger(simulator: str) -> list[dict[str, Any]]:
    with urllib.request.urlopen(f"{simulator.removesuffix('/v1')}/simulator/ledger") as answer:
        calls: list[dict[str, Any]] = json.load(answer)["calls"]
        return calls


def test_a_conversation_by_ids(gateway: Gateway, simulator: str) -> None:
    responses = sdk(gateway).responses
    first = responses.create(model=MODEL, input="Tell me a story.")
    with responses.stream(model=MODEL, input="Go on.", previous_response_id=first.id) as stream:
        second = stream.until_done().get_final_response()
    third = responses.create(model=MODEL, input="The end?", previous_response_id=second.id)
    assert responses.retrieve(second.id).output_text == second.output_text
    assert len(responses.input_items.list(third.id).data) == 5
    other = sdk(gateway, "bob").responses
    for ask in (other.retrieve, other.delete, other.cancel, other.input_items.list):
        with pytest.raises(openai.NotFoundError):
            ask(second.id)
    with pytest.raises(openai.NotFoundError) as error:
        other.create(model=MODEL, input="And me?", previous_response_id=second.id)
    assert error.value.code == "previous_response_not_found"
    responses.delete(second.id)
    with pytest.raises(openai.NotFoundError):
        responses.retrieve(second.id)
    received = [(call["prompt_tokens"], call["completion_tokens"]) for call in ledger(simulator)]
    assert [(row["prompt_tokens"], row["completion_tokens"]) for row in gateway.calls("alice")] == received


def test_in_the_background(gateway: Gateway, simulator: str) -> None:
    responses = sdk(gateway).responses
    slow = {"simulate": {"delay_s": 1}}
    made = responses.create(model=MODEL, input="Tell me a story.", background=True, extra_body=slow)
    assert made.status == "queued"
    cancelled = responses.create(model=MODEL, input="Hi", background=True, extra_body={"simulate": {"delay_s": 60}})
    assert responses.cancel(cancelled.id).status == "cancelled"
    done = eventually(lambda: (now := responses.retrieve(made.id)).status == "completed" and now)
    rows = eventually(lambda: len(found := gateway.calls("alice")) == 2 and found)
    by_end = {row["ended"]: row for row in rows}
    assert by_end["done"]["completion_tokens"] == done.usage.output_tokens
    assert by_end["done"]["usage_source"] == "reported"
    assert by_end["client_gone"]["usage_source"] == "estimated"
    (call,) = [call for call in ledger(simulator) if call["ended"] == "done"]
    assert call["prompt_tokens"] == by_end["done"]["prompt_tokens"]


def test_a_background_stream_is_resumed(gateway: Gateway, simulator: str) -> None:
    responses = sdk(gateway).responses
    cut = {"simulate": {"tokens_per_s": 100, "cut_after_events": 5}}
    stream = responses.create(model=MODEL, input="Tell me.", background=True, stream=True, extra_body=cut)
    seen: list[Any] = []
    with pytest.raises(openai.APIError):
        seen.extend(stream)
    stream.close()
    made = seen[0].response.id
    assert [event.sequence_number for event in seen] == [0, 1, 2, 3, 4]
    seen += list(responses.retrieve(made, stream=True, starting_after=4))
    assert [event.sequence_number for event in seen] == list(range(len(seen)))
    assert seen[-1].type == "response.completed"
    (row,) = eventually(lambda: gateway.calls("alice"))
    (call,) = ledger(simulator)
    assert (row["prompt_tokens"], row["completion_tokens"]) == (call["prompt_tokens"], call["completion_tokens"])
    assert (row["usage_source"], row["stream"]) == ("reported", True)


def test_a_conversation(gateway: Gateway, simulator: str) -> None:
    client = sdk(gateway)
    made = client.conversations.create(items=[{"type": "message", "role": "user", "content": "I am Ada."}])
    first = client.responses.create(model=MODEL, input="Tell me a story.", conversation=made.id)
    with client.responses.stream(model=MODEL, input="Go on.", conversation=made.id) as stream:
        second = stream.until_done().get_final_response()
    assert second.usage is not None
    assert first.usage is not None
    assert second.usage.input_tokens > first.usage.total_tokens
    items = list(client.conversations.items.list(made.id, order="asc", limit=2))
    assert [item.role for item in items if item.type == "message"] == ["user", *["user", "assistant"] * 2]
    other = sdk(gateway, "bob")
    for ask in (other.conversations.retrieve, other.conversations.delete, other.conversations.items.list):
        with pytest.raises(openai.NotFoundError):
            ask(made.id)
    client.conversations.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model=MODEL, input="And now?", conversation=made.id)
    received = [(call["prompt_tokens"], call["completion_tokens"]) for call in ledger(simulator)]
    assert [(row["prompt_tokens"], row["completion_tokens"]) for row in gateway.calls("alice")] == received
