"""Through a whole gateway, a call that heeds the time in its refusal is served."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import ok_json
from tests.flows.client import Answer
from tests.flows.gateway_process import eventually, key, model, settings


def test_a_client_that_heeds_the_refusal_is_served(start_gateway: StartsGateways, upstream: ScriptedUpstream) -> None:
    """Through a gateway with two workers, new connections each time."""
    upstream.answer_with(always=ok_json({"usage": {"prompt_tokens": 10, "completion_tokens": 5}}))
    gateway = start_gateway(
        settings(
            upstream.url,
            keys=[key("batch", priority="batch"), key("hurried", max_wait_s=0)],
            models={"m": model("completions")},
            upstreams={"main": {"limits": {"requests": "3/s"}}},
            queue={"max_wait_s": 60},
            server={"workers": 2},
        )
    )
    is_over = threading.Event()

    def waits() -> None:
        while not is_over.is_set():
            gateway.post("/v1/completions", {"model": "m", "prompt": "x"}, key="batch")

    def ask() -> Answer:
        return gateway.post("/v1/completions", {"model": "m", "prompt": "y"}, key="hurried")

    with ThreadPoolExecutor(40) as crowd:
        try:
            for _ in range(40):
                crowd.submit(waits)
            eventually(lambda: gateway.admin("upstreams").json["data"][0]["waiting"] > 10)
            served = []
            for _ in range(6):
                refused = next(got for _ in range(20) if (got := ask()).status == 429)
                time.sleep(int(refused.headers["retry-after-ms"]) / 1000)
                served.append(ask().status)
            assert served == [200] * 6
        finally:
            is_over.set()
