"""openai-python's own Realtime client, synchronous and asynchronous, through a gateway."""

from __future__ import annotations

import openai
import pytest

from tests.conftest import StartsGateways
from tests.fakes.realtime import RealtimeUpstream
from tests.flows.house import secret
from tests.flows.test_realtime import MODEL, configuration


@pytest.mark.filterwarnings("ignore:connect:DeprecationWarning")  # the SDK's use of websockets
def test_a_synchronous_client_and_its_refusal(gateway: StartsGateways) -> None:
    with RealtimeUpstream() as upstream:
        house = gateway(configuration(upstream))
        client = openai.OpenAI(base_url=f"{house.url}/v1", api_key=secret("alice"))
        with client.realtime.connect(model=MODEL) as connection:
            assert connection.recv().type == "session.created"
            connection.session.update(session={"type": "realtime", "output_modalities": ["text"]})
            connection.response.create()
            told = []
            for event in connection:
                told.append(event.type)
                if event.type == "response.done":
                    assert event.response.usage is not None
                    assert event.response.usage.output_tokens == 30
                    break
        assert told == ["session.updated", "response.created", *["response.output_text.delta"] * 2, "response.done"]
        wrong = openai.OpenAI(base_url=f"{house.url}/v1", api_key="sk-wrong")
        with pytest.raises(Exception, match="401"), wrong.realtime.connect(model=MODEL):
            pass


async def test_an_asynchronous_client(gateway: StartsGateways) -> None:
    with RealtimeUpstream() as upstream:
        house = gateway(configuration(upstream))
        async with (
            openai.AsyncOpenAI(base_url=f"{house.url}/v1", api_key=secret("alice")) as client,
            client.realtime.connect(model=MODEL) as connection,
        ):
            await connection.response.create()
            async for event in connection:
                if event.type == "response.done":
                    break
