"""Usage of Realtime responses as OpenAI and its clones report it: each token has one price."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, NamedTuple

import aiohttp
import pytest

from tests.conftest import StartsGateways
from tests.fakes.realtime import RealtimeUpstream
from tests.flows.gateway_process import Gateway, eventually, key, secret, settings

from .reports import check

MODEL = "gpt-realtime"
PRICE = {"input": 4, "cached_input": 0.4, "output": 16, "audio_in": 32, "audio_out": 64, "image_in": 5}
ASK = {"type": "response.create"}
DOCUMENTED = "openai-python, `realtime_response_usage.py`: cached tokens are part of the input, by modality"


class Row(NamedTuple):
    """A report, and what has to be recorded."""

    name: str
    source: str
    """Where people reported it: repositories and numbers."""
    rule: str
    """Who says what is right."""
    usage: dict[str, Any] | None
    expected: dict[str, Any]


def usage_of(text: int, sound: int, said: int, spoken: int, **more: Any) -> dict[str, Any]:
    """Tokens of the input and of the output; `more` are further details of the input."""
    given, made = text + sound, said + spoken
    return {
        "total_tokens": given + made, "input_tokens": given, "output_tokens": made,
        "input_token_details": {"text_tokens": text, "audio_tokens": sound, **more},
        "output_token_details": {"text_tokens": said, "audio_tokens": spoken},
    }  # fmt: skip


def costs(text: int = 0, cached: int = 0, sound: int = 0, said: int = 0, spoken: int = 0, picture: int = 0) -> float:
    return (text * 4 + cached * 0.4 + sound * 32 + said * 16 + spoken * 64 + picture * 5) / 1e6


ROWS = [
    Row(
        "cached sound", "langwatch/langwatch#7048, livekit/agents#2621", DOCUMENTED,
        usage_of(100, 600, 20, 80, cached_tokens=500, cached_tokens_details={"text_tokens": 100, "audio_tokens": 400}),
        {"prompt_tokens": 700, "completion_tokens": 100, "cached_tokens": 500,
         "cost_usd": costs(0, 500, 200, 20, 80)},
    ),
    Row(
        "cached text in the first response", "openai/openai-dotnet#1045", DOCUMENTED,
        usage_of(1349, 110, 97, 299, cached_tokens=1408,
                 cached_tokens_details={"text_tokens": 1344, "audio_tokens": 64}),
        {"prompt_tokens": 1459, "completion_tokens": 396, "cached_tokens": 1408,
         "cost_usd": costs(5, 1408, 46, 97, 299)},
    ),
    Row(
        "cached tokens without details", "openai/openai-python#2355",
        "what is cached is cached text first: no token is counted twice",
        usage_of(192, 47, 10, 0, cached_tokens=192),
        {"prompt_tokens": 239, "completion_tokens": 10, "cached_tokens": 192, "cost_usd": costs(0, 192, 47, 10)},
    ),
    Row(
        "more cached than there is text, without details", "2witstudios/PageSpace#2391",
        "cached tokens are a part of the input: no token is counted twice",
        usage_of(100, 300, 10, 0, cached_tokens=250),
        {"prompt_tokens": 400, "completion_tokens": 10, "cached_tokens": 250, "cost_usd": costs(0, 250, 150, 10)},
    ),
    Row(
        "nothing cached", "m1guelpf/swift-realtime-openai#35", DOCUMENTED,
        usage_of(292, 229, 20, 0, cached_tokens=0, cached_tokens_details={"text_tokens": 0, "audio_tokens": 0}),
        {"prompt_tokens": 521, "completion_tokens": 20, "cached_tokens": 0, "units": {"audio_in": 229},
         "cost_usd": costs(292, 0, 229, 20)},
    ),
    Row(
        "counts without details", "openai/openai-agents-python#3812",
        "openai-python: the details are optional", {"total_tokens": 60, "input_tokens": 50, "output_tokens": 10},
        {"prompt_tokens": 50, "completion_tokens": 10, "units": {}, "cost_usd": costs(50, 0, 0, 10)},
    ),
]  # fmt: skip


@pytest.fixture(scope="module")
def upstream() -> Iterator[RealtimeUpstream]:
    with RealtimeUpstream() as made:
        yield made


def key_of(row: Row) -> str:
    """Each report has a key of its own, by which its record is found."""
    return f"row-{ROWS.index(row)}"


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, upstream: RealtimeUpstream) -> Gateway:
    real = {"endpoints": ["realtime"], "routes": [{"upstream": "main"}], "max_output_tokens": 500, "price": PRICE}
    able = {"main": {"capabilities": {"realtime": True}}}
    keys = [key(key_of(row)) for row in ROWS]
    return start_shared_gateway(settings(upstream.url, models={MODEL: real}, upstreams=able, keys=keys))


async def respond(gateway: Gateway, who: str) -> None:
    """One response to its end."""
    headers = {"Authorization": f"Bearer {secret(who)}"}
    async with (
        aiohttp.ClientSession() as http,
        http.ws_connect(f"{gateway.url}/v1/realtime?model={MODEL}", headers=headers) as socket,
    ):
        await socket.send_json(ASK)
        while (await socket.receive_json(timeout=10))["type"] != "response.done":
            pass


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.name}: {row.source}")
async def test_each_token_of_a_response_has_one_price(gateway: Gateway, upstream: RealtimeUpstream, row: Row) -> None:
    upstream.reset()
    upstream.usage = row.usage
    await respond(gateway, key_of(row))
    made = await asyncio.to_thread(
        eventually, lambda: [call for call in gateway.calls(key_of(row)) if call["id"].endswith("-1")]
    )
    check(made[0], row.expected | {"usage_source": "reported"})
