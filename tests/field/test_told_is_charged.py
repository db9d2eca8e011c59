"""The usage that a client is shown is what the record says and what is charged: one number, in every format, on every
way to its upstream, plain and streamed, however the upstream reports it.

The upstream's own words are passed on unchanged where the client speaks its format. Where those words are not what they
mean, `Shape.says` has them, and the meaning is recorded and charged. Where the answer is translated, the client gets
the meaning.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from gateway.formats.table import FORMATS
from gateway.wings.translate.bridges import WAYS as TRANSLATED
from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.forms import TYPE, form
from tests.fakes.realtime import RealtimeUpstream
from tests.flows.client import Answer
from tests.flows.gateway_process import SIMULATOR, Gateway, Process, key, model, settings
from tests.wings.realtime.test_realtime import records, session, until

from . import usage_answers as said
from . import usage_shapes as shapes
from .usage_answers import SDKs
from .usage_shapes import Counts, Shape
from .usage_ways import ALL_WAYS, MESSAGES, OVER, PASSED, QUOTAS, Quotas, configured, model_of

Reads = Callable[..., Counts | None]


WITHOUT_USAGE = {
    "count_tokens": "a count of tokens is free",
    "input_tokens": "a count of tokens is free",
    "count_content_tokens": "a count of tokens is free",
    "batches": "charged by its lines: test_a_batch_is_charged_what_its_lines_show",
    "message_batches": "charged by its lines: test_a_batch_is_charged_what_its_lines_show",
    "realtime": "a socket: test_realtime_shows_what_is_charged",
}
"""Formats whose answers to a call have no usage, and where their usage is held."""


CASES = [
    pytest.param(name, shape, how, id=f"{model_of(name)}-{how}-{shape.name}")
    for name, way in ALL_WAYS.items()
    for shape in way.upstream.shapes
    for how in ("plain", "stream", "stream of a plain answer")
    if (how == "stream" and shape.stream is not None and way.upstream.stream is not None)
    or (how == "plain" and shape.plain is not None and way.upstream.plain is not None)
    or (how == "stream of a plain answer" and shape.plain is not None and not way.is_passed and way.requests == 1)
]


def test_every_format_and_every_way_is_held() -> None:
    assert PASSED.keys() & FORMATS.keys() | WITHOUT_USAGE.keys() == FORMATS.keys()
    assert OVER.keys() == {(client, way.target) for client, way in TRANSLATED.items()}
    for name, way in PASSED.items():
        assert way.client in FORMATS
        has_stream = next(each.scan for each in FORMATS.values() if each.name == way.client) is not None
        assert (way.upstream.stream is not None) == has_stream, name


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    return start_shared_gateway(configured(shared_upstream.url, [key("alice", quotas=QUOTAS)]))


@pytest.fixture(scope="module")
def readers() -> Mapping[str, Reads]:
    sdks = SDKs()
    tokens = said.of_members(("prompt_tokens", "completion_tokens"))
    return {
        "chat": sdks.of_chat, "completions": sdks.of_completions, "messages": sdks.of_messages,
        "responses": sdks.of_responses, "gemini": said.of_gemini, "metadata": said.of_metadata, "tokens": tokens,
        "rerank": said.of_rerank, "media": said.of_members(("input_tokens", "output_tokens")),
        "compact": said.of_compact,
    }  # fmt: skip


@pytest.fixture(scope="module")
def quotas(gateway: Gateway) -> Quotas:
    return Quotas(gateway)


def recorded(record: Mapping[str, Any]) -> Counts:
    units = record["units"]
    written = units.get("cache_write", 0) + units.get("cache_write_1h", 0)
    prompt, output, cached = [record[f"{name}_tokens"] for name in ("prompt", "completion", "cached")]
    return Counts(prompt, output, cached, written, record["reasoning_tokens"])


@pytest.mark.parametrize(("name", "shape", "how"), CASES)
def test_shown_is_recorded_is_charged(
    gateway: Gateway, upstream: ScriptedUpstream, quotas: Quotas, readers: Mapping[str, Reads], name: str,
    shape: Shape, how: str,
) -> None:  # fmt: skip
    way = ALL_WAYS[name]
    is_stream = how != "plain"
    if how == "stream":
        assert way.upstream.stream is not None
        assert shape.stream is not None
        behaviour = way.upstream.stream(shape.stream)
    else:
        assert way.upstream.plain is not None
        assert shape.plain is not None
        behaviour = way.upstream.plain(shape.plain)
    upstream.answer_with(*[behaviour] * way.requests)
    answer = way.ask(gateway, model_of(name), is_stream=is_stream)
    record = gateway.call(answer.id)
    charged = quotas.charged()
    assert answer.status == 200, answer
    kept = recorded(record)
    assert record["ended"] == "done"
    # Charged is what is recorded.
    assert charged.tokens == kept.prompt + kept.output
    assert record["cost_usd"] is not None
    assert charged.nusd == round(record["cost_usd"] * 1e9)
    # Recorded is what the report means.
    if shape.counts is not None:
        means = shape.counts.times(way.requests)
        if not shape.knows_reasoning:
            means = means._replace(reasoning=kept.reasoning)
        assert [*kept] == [*means]
        assert record["usage_source"] == "reported" or not shape.is_final
        parts = {row: count * way.requests for row, count in shape.parts.items()}
        nusd = shapes.cost_nusd(means, parts) if shape.nusd is None else shape.nusd * way.requests
        assert round(record["cost_usd"] * 1e9) == nusd
    elif shape.total is not None:
        assert kept.prompt + kept.output == shape.total * way.requests
    else:
        assert record["usage_source"] == "estimated"
    # Shown is what is recorded, or the upstream's own words.
    if way.is_passed:
        words = shape.says if shape.says is not None else shape.counts
        if words is not None:
            shown = readers[way.reader](answer.body, is_stream=is_stream)
            assert [*(shown or Counts(0, 0))] == [*words]
        return
    shown = readers[way.reader](answer.body, is_stream=is_stream)
    assert shown is not None or not way.always_shown
    assert shown is None or [*shown] == [*kept]
    assert shown is not None or shape.counts is None


# ------------------------------------------------------------------------------------------------- batches and sockets


@pytest.fixture(scope="module")
def simulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    process = Process(tmp_path_factory.mktemp("simulator"), SIMULATOR, "--port", "0")
    try:
        yield process.wait_for(r"serves (http://127\.0\.0\.1:\d+/v1)\n")[1]
    finally:
        process.end()


BATCHED = {"chat": "gpt-4o-mini", "messages": "claude-sonnet-5"}
"""Models of the simulator."""
BATCH_PRICE = {"input": 2, "output": 8, "variants": {"batch": {"input": 1, "output": 4}}}


@pytest.fixture(scope="module")
def batching(start_shared_gateway: StartsGateways, simulator: str) -> Gateway:
    able = {"main": {"base_url": simulator, "capabilities": {"messages": True}}}
    models = {BATCHED[name]: model(name, price=BATCH_PRICE) for name in ("chat", "messages")}
    config = settings(simulator, upstreams=able, models=models, keys=[key("alice", quotas=QUOTAS)])
    return start_shared_gateway({**config, "files": {"upstream": "main"}})


def openai_batch(gateway: Gateway) -> tuple[Answer, Callable[[], list[Any]]]:
    """A batch, and how its results are read once it is over."""
    body = {"model": BATCHED["chat"], "messages": MESSAGES, "max_tokens": 40}
    lines = [{"custom_id": str(at), "method": "POST", "url": "/v1/chat/completions", "body": body} for at in range(3)]
    written = b"".join([json.dumps(line).encode() + b"\n" for line in lines])
    uploaded = gateway.send("POST", "/v1/files", form(("purpose", "batch"), ("file", written)), headers=TYPE).json
    asked = {"input_file_id": uploaded["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    made = gateway.post("/v1/batches", asked)

    def results() -> list[Any]:
        seen = gateway.get(f"/v1/batches/{made.json['id']}").json
        body = gateway.get(f"/v1/files/{seen['output_file_id']}/content").body
        return [json.loads(line)["response"]["body"]["usage"] for line in body.splitlines()]

    return made, results


def anthropic_batch(gateway: Gateway) -> tuple[Answer, Callable[[], list[Any]]]:
    params = {"model": BATCHED["messages"], "messages": MESSAGES, "max_tokens": 40}
    made = gateway.post(
        "/v1/messages/batches", {"requests": [{"custom_id": str(at), "params": params} for at in range(3)]}
    )

    def results() -> list[Any]:
        body = gateway.get(f"/v1/messages/batches/{made.json['id']}/results").body
        return [json.loads(line)["result"]["message"]["usage"] for line in body.splitlines()]

    return made, results


@pytest.mark.parametrize("begin", [openai_batch, anthropic_batch])
def test_a_batch_is_charged_what_its_lines_show(
    batching: Gateway, begin: Callable[[Gateway], tuple[Answer, Callable[[], list[Any]]]]
) -> None:
    quotas = Quotas(batching)
    quotas.charged()
    made, results = begin(batching)
    assert made.status == 200, made
    record = batching.call(made.id)
    charged = quotas.charged()
    shown = results()
    assert len(shown) == 3
    prompt = sum([usage.get("prompt_tokens", usage.get("input_tokens")) for usage in shown])
    output = sum([usage.get("completion_tokens", usage.get("output_tokens")) for usage in shown])
    assert (record["prompt_tokens"], record["completion_tokens"], record["usage_source"]) == (
        prompt,
        output,
        "reported",
    )
    assert [*charged] == [prompt + output, prompt * 1000 + output * 4000]
    assert round(record["cost_usd"] * 1e9) == charged.nusd


@pytest.fixture(scope="module")
def speaking() -> Iterator[RealtimeUpstream]:
    with RealtimeUpstream() as made:
        yield made


@pytest.fixture(scope="module")
def listening(start_shared_gateway: StartsGateways, speaking: RealtimeUpstream) -> Gateway:
    models = {"gpt-realtime": model("realtime", price=shapes.PRICE)}
    upstreams = {"main": {"capabilities": {"realtime": True}}}
    keys = [key("alice", quotas=QUOTAS)]
    return start_shared_gateway(settings(speaking.url, upstreams=upstreams, models=models, keys=keys))


@pytest.mark.parametrize("shape", shapes.REALTIME, ids=lambda shape: shape.name)
async def test_realtime_shows_what_is_charged(listening: Gateway, speaking: RealtimeUpstream, shape: Shape) -> None:
    assert shape.plain is not None
    speaking.reset()
    speaking.usage = shape.plain["usage"]
    known = {row["id"] for row in listening.calls(limit=1000)}
    quotas = Quotas(listening)
    quotas.charged()
    async with session(listening) as socket:
        await socket.send_json({"type": "response.create"})
        shown = (await until(socket, "response.done"))["response"]["usage"]
    assert shown == shape.plain["usage"]
    _, record = await asyncio.to_thread(records, listening, "alice", known, 2)
    charged = await asyncio.to_thread(quotas.charged)
    kept = recorded(record)
    assert [*charged] == [kept.prompt + kept.output, round(record["cost_usd"] * 1e9)]
    if shape.counts is None:
        assert record["usage_source"] == "estimated"
    else:
        assert (kept, record["usage_source"]) == (shape.counts, "reported")
        assert charged.nusd == shapes.cost_nusd(shape.counts, shape.parts)
