"""One key's running calls and a quota of several keys: how much of it they hold, and what others are answered."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import Wire, ok_json
from tests.flows.client import Answer
from tests.flows.gateway_process import Gateway, key, settings

USED = {"prompt_tokens": 10, "completion_tokens": 5}
OUTPUT = 200
QUOTA = 1000
"""Room for four calls, each with its output limit and its prompt."""

SHARED = ("team", "gateway", "upstream", "label", "person")


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream, store_url: str) -> Gateway:
    quota = {"tokens": QUOTA, "per": "day"}
    url = shared_upstream.url
    upstreams: dict[str, Any] = {name: {"base_url": url, "api_key": "sk-up"} for name in SHARED}
    upstreams["upstream"]["quotas"] = [quota]
    models = {name: {"routes": [{"upstream": name}], "max_output_tokens": OUTPUT} for name in SHARED}
    of: dict[str, dict[str, Any]] = {
        "team": {"team": "red"},
        "label": {"labels": {"project": "web"}},
        "person": {"owner": "ann@example.org"},
    }
    keys = [
        key(f"{name}-{who}", **of.get(name, {}), **more)
        for name in SHARED
        for who, more in (("bounded", {"max_parallel": 2}), ("greedy", {}), ("other", {}))
    ]
    quotas = [{**quota, "label": "project"}, {**quota, "model": "gateway"}]
    config = settings(
        url, store={"url": store_url}, upstreams=upstreams, models=models, keys=keys, quotas=quotas,
        teams={"red": {"quotas": [quota]}}, people={"defaults": {"quotas": [quota]}},
    )  # fmt: skip
    return start_shared_gateway(config)


@contextmanager
def held(upstream: ScriptedUpstream, call: Callable[[], Answer], number: int) -> Iterator[list[Answer]]:
    """Calls that are under way; their answers come at the end."""
    inside, leave, answers = threading.Semaphore(0), threading.Event(), list[Answer]()
    good = ok_json({"model": "up", "usage": USED})

    async def hold(wire: Wire) -> None:
        inside.release()
        await asyncio.to_thread(leave.wait)
        await good(wire)

    upstream.answer_with(*[hold] * number, always=good)
    callers = [threading.Thread(target=lambda: answers.append(call())) for _ in range(number)]
    for caller in callers:
        caller.start()
    try:
        for _ in callers:
            inside.acquire()
        yield answers
    finally:
        leave.set()
        for caller in callers:
            caller.join()
        upstream.answer_with()


@pytest.mark.parametrize("scope", SHARED)
def test_a_key_holds_what_its_calls_have_reserved_and_no_longer_than_they_run(
    gateway: Gateway, upstream: ScriptedUpstream, scope: str
) -> None:
    def ask(who: str) -> Answer:
        return gateway.chat(model=scope, key=f"{scope}-{who}")

    with held(upstream, lambda: ask("bounded"), 2) as answers:
        assert ask("bounded").status == 429  # its own max_parallel
        places = {"key": f"{scope}-bounded", "unit": "parallel"}
        assert gateway.metric("gateway_quota_used", **places) == gateway.metric("gateway_quota_limit", **places) == 2
        assert ask("other").status == 200
    assert [each.status for each in answers] == [200, 200]
    with held(upstream, lambda: ask("greedy"), 4) as answers:
        refused = ask("other")
        assert refused.status == 429
        assert refused.error["code"] in ("rate_limit_exceeded", "upstream_rate_limited")
        assert (refused.headers["retry-after"], refused.headers.get("x-should-retry")) == ("1", None)
        assert refused.headers["x-gateway-limit"].startswith(f"{scope}:" if scope != "gateway" else "gateway;")
    assert [each.status for each in answers] == [200] * 4
    upstream.answer_with(always=ok_json({"model": "up", "usage": USED}))
    assert ask("other").status == 200  # at once
