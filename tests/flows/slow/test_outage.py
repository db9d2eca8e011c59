"""What a client lives through while the store does not answer: a quick and honest 503, and nothing lost."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import CHUNKED, Wire, chunk, event, ok_json
from tests.flows.gateway_process import Gateway, eventually, key, settings

BACK_WITHIN_S = 6.0
"""It is promised within 2 s; the rest is for a slow machine."""
SICK_FOR_S = 10.0
"""How long the store is away (seconds), while the end of no call is acknowledged: no client may wait for that."""


@contextmanager
def locked(gateway: Gateway) -> Iterator[None]:
    """Another process holds the write lock of the store's file."""
    folder = Path(gateway.config["store"]["url"].removeprefix("embedded:"))
    db = sqlite3.connect(folder / "gateway.sqlite", isolation_level=None)
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        db.execute("ROLLBACK")
        db.close()


def test_a_store_outage_is_reported_at_once_and_the_gateway_recovers(
    start_gateway: StartsGateways, upstream: ScriptedUpstream
) -> None:
    upstream.answer_with(always=ok_json())
    gateway = start_gateway(settings(upstream.url, keys=[key("alice", quotas=[{"requests": 100, "per": "day"}])]))
    assert gateway.complete().status == 200
    with locked(gateway):
        eventually(lambda: gateway.complete().status == 503)  # a lone worker decides in memory until a write fails
        took_s = []
        for _ in range(5):
            began = time.monotonic()
            refused = gateway.complete()
            took_s.append(time.monotonic() - began)
            assert refused.refusal == (503, "server_error", None, "store_unavailable")
            assert int(refused.headers["retry-after"]) >= 1
        assert median(took_s) < 1  # a slow machine may take longer for one of them
        assert gateway.metric("gateway_rejections_total", reason="store_unavailable") == 6
        eventually(lambda: gateway.metric("gateway_store_errors_total") > 0)
        assert gateway.get("/healthz", key=None).status == 200
    eventually(lambda: gateway.complete().status == 200, BACK_WITHIN_S)
    assert upstream.hits == gateway.get("/v1/key").json["quotas"][0]["used"] == len(gateway.calls())


def test_store_that_is_away_is_not_ready(start_gateway: StartsGateways, upstream: ScriptedUpstream) -> None:
    gateway = start_gateway(settings(upstream.url))
    with locked(gateway):
        assert gateway.complete().status == 503
        assert gateway.get("/readyz", key=None).refusal == (503, "server_error", None, "store_unavailable")
    eventually(lambda: gateway.get("/readyz", key=None).status == 200, BACK_WITHIN_S)


def test_call_that_ends_while_the_store_is_away_is_settled_later(
    start_gateway: StartsGateways, upstream: ScriptedUpstream
) -> None:
    async def wait_for_lock(wire: Wire) -> None:
        await wire.write(CHUNKED + chunk(event({"choices": [{"index": 0, "text": "a"}]})))
        while not is_locked:
            await wire.write(chunk(b": still here\n\n"))
            await asyncio.sleep(0.02)
        last = {"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]}
        usage = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 1}}
        await wire.write(chunk(event(last) + event(usage) + event("[DONE]")) + b"0\r\n\r\n")

    is_locked: list[bool] = []
    upstream.answer_with(wait_for_lock)
    gateway = start_gateway(settings(upstream.url, keys=[key("alice", quotas=[{"tokens": 1000, "per": "day"}])]))
    with gateway.stream() as client:
        head = client.read_head()
        with locked(gateway):
            is_locked.append(True)
            began = time.monotonic()
            assert client.read_chunks().endswith(b"data: [DONE]\n\n")
            assert time.monotonic() - began < SICK_FOR_S  # a sick store holds no answer
            eventually(lambda: gateway.get("/readyz", key=None).status == 503)
            assert gateway.calls() == []
        assert gateway.call(head.id)["prompt_tokens"] == 5
    window = gateway.get("/v1/key").json["quotas"][0]
    assert (window["used"], window["reserved"]) == (6, 0)
    eventually(lambda: gateway.metric("gateway_journal_pending_records") == 0)
