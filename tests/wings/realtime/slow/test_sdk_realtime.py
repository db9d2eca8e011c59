"""openai-python's own Realtime client, synchronous and asynchronous, through a gateway."""

from __future__ import annotations

import openai
import pytest

from tests.conftest import StartsGateways, StartsProcesses
from tests.fakes.realtime import RealtimeUpstream
from tests.flows.client import request
from tests.flows.gateway_process import SIMULATOR, eventually, secret, settings
from tests.wings.realtime.test_realtime import KEYS, MODEL, configuration


@pytest.mark.filterwarnings("ignore:connect:DeprecationWarning")  # the SDK's use of websockets
def test_a_synchronous_client_and_its_refusal(start_gateway: StartsGateways) -> None:
    with RealtimeUpstream() as upstream:
        gateway = start_gateway(configuration(upstream))
        client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=secret("alice"))
        with client.realtime.connect(model=MODEL) as connection:
            assert connection.recv().type == "session.created"
            connection.session.update(session={"type": "realtime", "output_modalities": ["text"]})
            connection.response.create()
            received = []
            for event in connection:
                received.append(event.type)
                if event.type == "response.done":
                    assert event.response.usage is not None
                    assert event.response.usage.output_tokens == 30
                    break
        assert received == ["session.updated", "response.created", *["response.output_text.delta"] * 2, "response.done"]
        wrong = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="sk-wrong")
        with pytest.raises(Exception, match="401"), wrong.realtime.connect(model=MODEL):
            pass


async def test_an_asynchronous_client(start_gateway: StartsGateways) -> None:
    with RealtimeUpstream() as upstream:
        gateway = start_gateway(configuration(upstream))
        async with (
            openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=secret("alice")) as client,
            client.realtime.connect(model=MODEL) as connection,
        ):
            await connection.response.create()
            async for event in connection:
                if event.type == "response.done":
                    break


async def test_the_records_agree_with_the_simulators(start_gateway: StartsGateways, process: StartsProcesses) -> None:
    found = process(SIMULATOR, "--port", "0").wait_for(r"http://127\.0\.0\.1:(\d+)")
    models = {MODEL: {"endpoints": ["realtime"], "routes": [{"upstream": "main"}], "max_output_tokens": 200}}
    up = {"main": {"capabilities": {"realtime": True}}}
    config = settings(f"http://127.0.0.1:{found[1]}/v1", keys=KEYS, upstreams=up)
    gateway = start_gateway(config | {"models": models})
    async with (
        openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=secret("alice")) as client,
        client.realtime.connect(model=MODEL) as connection,
    ):
        for text in ("Tell me a story.", "And now another one."):
            said = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
            await connection.conversation.item.create(item=said)
            await connection.response.create()
            async for event in connection:
                if event.type == "response.done":
                    break
    ledger = request(int(found[1]), "GET", "/simulator/ledger", None, {}).json["calls"]
    rows = eventually(lambda: (rows := gateway.calls("alice"))[2:] and rows)
    ours = sorted((row["prompt_tokens"], row["completion_tokens"]) for row in rows if row["completion_tokens"])
    assert ours == sorted((call["prompt_tokens"], call["completion_tokens"]) for call in ledger)
    assert len(ours) == 2
