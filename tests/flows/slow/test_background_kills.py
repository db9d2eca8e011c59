"""Background responses are settled once, whichever processes are killed meanwhile."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest

from gateway.store import SILENT_S
from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.redis_servers import RedisServer
from tests.flows import background as scenario
from tests.flows.background import Background
from tests.flows.gateway_process import Gateway, eventually
from tests.flows.killing import kill_all, store

__all__ = ["store"]

MANY = 6
REPORTED = {"usage_source": "reported", "prompt_tokens": 30, "completion_tokens": 12, "ended": "done"}


@pytest.fixture
def work(upstream: ScriptedUpstream) -> Background:
    work = Background()
    upstream.answer_with(always=work)
    return work


def check(gateway: Gateway, began: list[tuple[str, str]]) -> None:
    for request_id, _ in began:
        record = scenario.settled(gateway, request_id)
        assert {name: record[name] for name in REPORTED} == REPORTED
    eventually(lambda: scenario.held(gateway)[1] == 0)
    assert scenario.held(gateway)[0] == 42 * len(began)


def end_all(work: Background) -> None:
    for made in list(work.responses):
        work.end(made)


def test_a_gateway_is_killed(
    start_gateway: StartsGateways, shared_upstream: ScriptedUpstream, work: Background, store: dict[str, str]
) -> None:
    config = scenario.config(shared_upstream.url, **store)
    config["keys"][0].pop("max_parallel")
    first = start_gateway(config)
    began = [scenario.begin(first) for _ in range(MANY)]
    reserved = scenario.held(first)[1]
    kill_all(first)
    second = start_gateway(config)
    assert scenario.held(second) == (0, reserved)
    for made in [made for _, made in began]:
        assert second.get(f"/v1/responses/{made}").json["status"] == "queued"
    end_all(work)
    check(second, began)


def test_workers_are_killed_one_after_the_other(
    start_gateway: StartsGateways, shared_upstream: ScriptedUpstream, work: Background, store: dict[str, str]
) -> None:
    config = scenario.config(shared_upstream.url, **store)
    config["keys"][0].pop("max_parallel")
    gateway = start_gateway(config)
    began = [scenario.begin(gateway) for _ in range(MANY)]
    polls = work.polls
    eventually(lambda: work.polls > polls)
    for number in range(3):
        workers = gateway.workers()
        os.kill(workers[number % len(workers)], signal.SIGKILL)
        eventually(lambda gone=workers: len(now := gateway.workers()) == 2 and set(now) != set(gone))  # type: ignore[misc]
        work.end(began[number][1])
    end_all(work)
    eventually(lambda: scenario.records(gateway, began[-1][0]), 90)
    check(gateway, began)


def test_a_gateway_is_killed_while_it_streams(
    start_gateway: StartsGateways, shared_upstream: ScriptedUpstream, work: Background, store: dict[str, str]
) -> None:
    config = scenario.config(shared_upstream.url, **store)
    config["keys"][0].pop("max_parallel")
    work.shows = 5
    first = start_gateway(config)
    with contextlib.ExitStack() as stack:
        began = []
        for _ in range(MANY):
            raw = stack.enter_context(first.connect())
            request_id = scenario.begin_stream(first, raw)
            raw.read_until(b"response.output_text.delta")
            began.append((request_id, list(work.responses)[-1]))
        reserved = scenario.held(first)[1]
        kill_all(first)
    second = start_gateway(config)
    assert scenario.held(second) == (0, reserved)
    assert second.calls() == []
    end_all(work)
    check(second, began)


def test_a_gateway_ends_while_it_streams(
    start_gateway: StartsGateways, shared_upstream: ScriptedUpstream, work: Background, store: dict[str, str]
) -> None:
    config = scenario.config(shared_upstream.url, **store)
    config["server"] |= {"drain_timeout_s": 1}
    work.shows = 5
    first = start_gateway(config)
    with first.connect() as raw:
        request_id = scenario.begin_stream(first, raw)
        raw.read_until(b"response.output_text.delta")
        first.kill(signal.SIGTERM)
        *_, last = scenario.received(raw.read_to_end())
    assert last["error"]["code"] == "stream_interrupted"
    first.wait()
    second = start_gateway(config)
    assert scenario.records(second, request_id) == []
    end_all(work)
    check(second, [(request_id, "")])


def test_the_other_gateway_goes_on(
    start_gateway: StartsGateways,
    shared_upstream: ScriptedUpstream,
    work: Background,
    tmp_path: Path,
    redis_server: RedisServer,
) -> None:
    configs = [
        scenario.config(shared_upstream.url, redis_server.url, journal_dir=str(tmp_path / str(at))) for at in range(2)
    ]
    for config in configs:
        config["keys"][0].pop("max_parallel")
    first, second = map(start_gateway, configs)
    began = [scenario.begin(first) for _ in range(MANY)]
    kill_all(first)
    end_all(work)
    eventually(lambda: scenario.records(second, began[-1][0]), 2 * SILENT_S)
    check(second, began)
