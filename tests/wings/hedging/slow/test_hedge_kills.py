"""A worker is killed while two routes of a call are being tried: both attempts are charged."""

from __future__ import annotations

import os
import signal
import threading

from tests.conftest import StartsGateways
from tests.fakes.scripted import Scripted, Wire
from tests.flows.gateway_process import eventually, key, settings

LIMIT = 50


async def test_both_attempts_of_a_killed_worker_are_charged(
    start_shared_gateway: StartsGateways, store_url: str
) -> None:
    inside = threading.Semaphore(0)

    async def hold(wire: Wire) -> None:
        inside.release()
        await wire.until_gone()

    with Scripted(always=hold) as upstream:
        one = {"base_url": upstream.url, "api_key": "sk-up"}
        routes = [{"upstream": "main"}, {"upstream": "other"}]
        models = {"hedged": {"routes": routes, "max_output_tokens": LIMIT, "hedge_after": "50ms"}}
        quotas = [{"tokens": 10**6, "per": "day"}]
        gateway = start_shared_gateway(
            settings(
                upstream.url, upstreams={"main": one, "other": one}, models=models, keys=[key("alice", quotas=quotas)],
                store={"url": store_url}, server={"workers": 1},
            )
        )  # fmt: skip
        messages = [{"role": "user", "content": "Hello"}]
        with gateway.stream(path="/v1/chat/completions", model="hedged", messages=messages):
            assert inside.acquire(timeout=30)
            assert inside.acquire(timeout=30)
            (worker,) = gateway.workers()
            os.kill(worker, signal.SIGKILL)
            record = eventually(
                lambda: next((call for call in gateway.calls("alice") if call["ended"] == "lost"), None)
            )
        assert record["completion_tokens"] == 2 * LIMIT
        assert record["prompt_tokens"] > 0
        assert record["prompt_tokens"] % 2 == 0
        (quota,) = gateway.get("/v1/key").json["quotas"]
        assert quota["used"] == record["prompt_tokens"] + record["completion_tokens"]
        assert quota["reserved"] == 0
