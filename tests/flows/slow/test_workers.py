"""Several workers, killed workers, and the shutdown of a gateway: effects on clients and on the records."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import CHUNKED, Wire, chunk, event, ok_json, silent, stalled_stream
from tests.flows.client import Raw, events
from tests.flows.gateway_process import Gateway, children, eventually, key, secret, settings

TWO = {"workers": 2}
DAY_10 = [{"requests": 10, "per": "day"}]
TOKENS = [{"tokens": 100_000, "per": "day"}]


def piece(text: str, finish: str | None = None) -> dict[str, Any]:
    return {"model": "up", "choices": [{"text": text, "index": 0, "finish_reason": finish}]}


class Held:
    """A stream that says one event, and the rest when the test lets it."""

    def __init__(self) -> None:
        self.let_go = threading.Event()

    async def __call__(self, wire: Wire) -> None:
        await wire.write(CHUNKED + chunk(event(piece("one"))))
        await asyncio.to_thread(self.let_go.wait, 30)
        usage = {"prompt_tokens": 3, "completion_tokens": 2}
        await wire.write(chunk(event(piece("two", "stop"))) + chunk(event({"choices": [], "usage": usage})))
        await wire.write(chunk(event("[DONE]")) + b"0\r\n\r\n")


def begun(gateway: Gateway, **more: Any) -> Raw:
    """A stream whose first event has come."""
    client = gateway.stream(**more)
    assert client.read_head().status == 200
    assert b"one" in client.read_chunk()
    return client


def is_refused(port: int) -> bool:
    """Whether the port no longer accepts connections."""
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) != 0


def counters(gateway: Gateway) -> Mapping[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (name, frozenset(labels.items())): value
        for name, labels, value in gateway.metrics()
        if name.endswith(("_total", "_count", "_bucket", "_sum")) and "estimate_error" not in name
    }


# ----------------------------------------------------------------------------------------------------------- together


def test_two_workers_share_one_limit(start_gateway: StartsGateways, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(always=ok_json())
    gateway = start_gateway(settings(upstream.url, server=TWO, keys=[key("alice", quotas=DAY_10)]))
    assert "with 2 workers" in gateway.stdout
    assert len(gateway.workers()) == 2
    statuses = [gateway.complete().status for _ in range(20)]  # each on a connection of its own
    assert statuses == [200] * 10 + [429] * 10
    for _ in range(5):  # each worker reports the sum of both
        assert gateway.metric("gateway_requests_total", key="alice", status="200") == 10
        assert gateway.metric("gateway_build_info") == 1
        assert len(gateway.calls()) == 10


def test_command_line_overrides_the_file(start_gateway: StartsGateways, upstream: ScriptedUpstream) -> None:
    gateway = start_gateway(
        settings(upstream.url, server={"workers": 7}), "--workers", "2", "--port", "0", "--host", "127.0.0.1"
    )
    assert len(gateway.workers()) == 2


# --------------------------------------------------------------------------------------------------------------- deaths


def test_killed_worker_is_replaced_and_its_call_is_recorded_as_lost(
    start_gateway: StartsGateways, upstream: ScriptedUpstream
) -> None:
    upstream.answer_with(stalled_stream([piece("one")]), ok_json())
    gateway = start_gateway(settings(upstream.url, keys=[key("alice", quotas=TOKENS, max_parallel=1)]))
    (worker,) = gateway.workers()
    with begun(gateway, prompt="x" * 40, max_tokens=100) as client:
        os.kill(worker, signal.SIGKILL)
        assert client.read_to_end() == b""  # no last chunk: the client detects the cut
    eventually(lambda: gateway.workers() not in ([], [worker]))
    answer = gateway.complete()  # its parallel slot is free again
    assert answer.status == 200
    lost = gateway.calls()[1]
    assert (lost["ended"], lost["usage_source"], lost["key"], lost["status"]) == ("lost", "estimated", "alice", 0)
    assert (lost["prompt_tokens"], lost["completion_tokens"]) == (10, 100)
    windows = {quota["unit"]: quota for quota in gateway.get("/v1/key").json["quotas"]}
    assert (windows["tokens"]["used"], windows["tokens"]["reserved"]) == (110 + 2, 0)
    assert f"worker 0 (pid {worker}) ended with signal SIGKILL; starting another" in gateway.stderr


def test_deaths_of_workers_cost_no_count_and_no_service(
    start_gateway: StartsGateways, upstream: ScriptedUpstream
) -> None:
    held = Held()
    gateway = start_gateway(settings(upstream.url, server=TWO))
    upstream.answer_with(*[ok_json()] * 20, held, always=ok_json())
    assert [gateway.complete().status for _ in range(20)] == [200] * 20
    client = begun(gateway, key="bob")
    seen = counters(gateway)
    for victim in gateway.workers():
        os.kill(victim, signal.SIGKILL)
        eventually(lambda gone=victim: gone not in gateway.workers())
        assert gateway.complete().status == 200  # the other one serves on
        now = counters(gateway)
        assert not {name: (value, now.get(name)) for name, value in seen.items() if now.get(name, -1) < value}
        seen = now
        eventually(lambda: len(gateway.workers()) == 2)
    assert gateway.metric("gateway_requests_total", key="alice", status="200") == 22
    assert client.read_to_end() == b""  # one of the two carried it
    client.close()
    held.let_go.set()
    lost = eventually(lambda: gateway.calls("bob"))
    assert [call["ended"] for call in lost] == ["lost"]
    # Gauges of the dead go with them.
    eventually(lambda: gateway.metric("gateway_in_flight_requests") == 0)


def test_five_deaths_within_a_minute_end_the_gateway(start_gateway: StartsGateways, upstream: ScriptedUpstream) -> None:
    gateway = start_gateway(settings(upstream.url))
    seen: set[int] = set()
    while gateway.process.poll() is None and len(seen) < 5:
        fresh = [worker for worker in gateway.workers() if worker not in seen]
        for worker in fresh:
            seen.add(worker)
            os.kill(worker, signal.SIGKILL)
        time.sleep(0.01)
    gateway.expected_code = 1
    assert gateway.wait() == 1
    assert len(seen) == 5
    assert "5 workers ended unexpectedly within 60 s; giving up" in gateway.stderr
    assert is_refused(gateway.port)


def test_workers_end_by_themselves_when_the_supervisor_is_killed(
    start_gateway: StartsGateways, upstream: ScriptedUpstream
) -> None:
    held = Held()
    upstream.answer_with(held)
    gateway = start_gateway(settings(upstream.url, server=TWO))
    workers = gateway.workers()
    gateway.expected_code = -signal.SIGKILL
    with begun(gateway) as client:
        gateway.kill(signal.SIGKILL)
        gateway.wait()
        eventually(lambda: is_refused(gateway.port))  # another gateway may take the port
        held.let_go.set()
        assert events(client.read_chunks())[-1] == "[DONE]"  # what was running ends well
    eventually(lambda: not any(is_alive(worker) for worker in workers))
    assert "Traceback" not in gateway.stderr
    again = start_gateway({**gateway.config, "server": {**gateway.config["server"], "port": gateway.port}})
    assert [call["ended"] for call in again.calls()] == ["done"]


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_worker_that_cannot_open_the_store_says_so(
    start_gateway: StartsGateways, upstream: ScriptedUpstream, tmp_path: Any
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "gateway.sqlite").write_bytes(b"this is no database, and it is long enough to be looked at" * 100)
    gateway = start_gateway(settings(upstream.url, store={"url": f"embedded:{folder}"}), is_awaited=False)
    gateway.expected_code = 1
    assert gateway.wait() == 1
    assert str(folder) in gateway.stderr
    assert "it is no database" in gateway.stderr


# ---------------------------------------------------------------------------------------------------------------- ends


@pytest.mark.parametrize("workers", [1, 2])
def test_term_drains(start_gateway: StartsGateways, upstream: ScriptedUpstream, workers: int) -> None:
    held = Held()
    upstream.answer_with(held, always=ok_json())
    gateway = start_gateway(settings(upstream.url, server={"workers": workers, "drain_delay_s": 3}))
    client = begun(gateway)
    gateway.kill(signal.SIGTERM)
    # The readiness probe fails, so that a balancer sends no more calls; calls that still arrive are served.
    not_ready = eventually(lambda: (found := gateway.get("/readyz", key=None)).status == 503 and found)
    assert not_ready.error["code"] == "shutting_down"
    assert not_ready.headers["retry-after"]
    assert gateway.get("/healthz", key=None).status == 200
    served = gateway.complete()
    assert (served.status, served.headers["connection"]) == (200, "close")  # its next call is for another gateway
    eventually(lambda: is_refused(gateway.port))  # while the stream goes on: a proxy takes the next gateway
    held.let_go.set()
    assert events(client.read_chunks())[-1] == "[DONE]"
    client.close()
    assert gateway.wait() == 0
    assert is_refused(gateway.port)
    again = start_gateway({**gateway.config, "server": {"port": 0, "drain_delay_s": 0}})
    assert [call["ended"] for call in again.calls("alice")] == ["done", "done"]
    assert again.calls("alice")[1]["usage_source"] == "reported"


def test_int_does_not_wait_for_balancers(start_gateway: StartsGateways, upstream: ScriptedUpstream) -> None:
    gateway = start_gateway(settings(upstream.url, server={"drain_delay_s": 600}))
    began = time.monotonic()
    gateway.stop(signal.SIGINT)
    assert time.monotonic() - began < 15


def test_drain_ends_with_its_time(start_gateway: StartsGateways, upstream: ScriptedUpstream) -> None:
    """Calls that do not end are cut off, charged and recorded, and their clients hear why; the gateway ends."""
    upstream.answer_with(stalled_stream([piece("one")]), silent)
    gateway = start_gateway(settings(upstream.url, server={"drain_timeout_s": 0.6}))
    with begun(gateway, prompt="x" * 40) as client, gateway.connect() as other:
        other.post("/v1/completions", b'{"model": "gpt-3.5-turbo-instruct", "prompt": "x"}', secret("bob"))
        eventually(lambda: upstream.hits == 2)
        gateway.kill(signal.SIGTERM)
        (last,) = events(client.read_chunks())
        assert last["error"]["code"] == "shutting_down"
        received = other.read_answer()
        assert (received.status, received.error["code"]) == (503, "shutting_down")
        assert client.read_to_end() == other.read_to_end() == b""
    assert gateway.wait() == 0
    assert "2 calls are cut off" in gateway.stderr
    again = start_gateway(gateway.config)
    for who, prompt_tokens in (("alice", 10), ("bob", 1)):
        (record,) = again.calls(who)
        assert (record["ended"], record["status"], record["usage_source"]) == ("error", 503, "estimated")
        assert record["prompt_tokens"] == prompt_tokens


@pytest.mark.parametrize("seconds", [0, 30])
def test_idle_connections_do_not_hold_up_the_end(
    start_gateway: StartsGateways, upstream: ScriptedUpstream, seconds: int
) -> None:
    gateway = start_gateway(settings(upstream.url, server={"drain_timeout_s": seconds}))
    with gateway.connect() as idle, gateway.connect() as used:
        used.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert used.read_answer().status == 200
        began = time.monotonic()
        gateway.stop()
        assert time.monotonic() - began < 10
        assert idle.read_to_end() == used.read_to_end() == b""


def test_second_signal_ends_it_at_once(start_gateway: StartsGateways, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(silent)
    gateway = start_gateway(settings(upstream.url, server={"drain_timeout_s": 600, "drain_delay_s": 600}))
    with gateway.stream():
        eventually(lambda: upstream.hits == 1)
        gateway.kill(signal.SIGTERM)
        eventually(lambda: gateway.get("/readyz", key=None).status == 503)
        gateway.expected_code = 1
        gateway.kill(signal.SIGINT)
        gateway.wait()
    assert children(gateway.process.pid) == []
    assert gateway.stderr.endswith("gateway: asked to stop a second time: what was under way has been cut off\n")
    assert "Traceback" not in gateway.stderr


def test_scrapes_that_are_given_up_do_not_stop_the_end(
    start_gateway: StartsGateways, upstream: ScriptedUpstream
) -> None:
    gateway = start_gateway(settings(upstream.url))
    for _ in range(50):
        with gateway.connect() as client:
            client.send(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    gateway.stop()


def test_end_between_a_death_and_its_replacement(start_gateway: StartsGateways, upstream: ScriptedUpstream) -> None:
    gateway = start_gateway(settings(upstream.url))
    (worker,) = gateway.workers()
    os.kill(worker, signal.SIGKILL)
    eventually(lambda: "starting another" in gateway.stderr)
    gateway.stop()


def test_end_waits_for_the_usage_of_an_answer_whose_client_left(
    start_gateway: StartsGateways, upstream: ScriptedUpstream
) -> None:
    let_go = threading.Event()

    async def late(wire: Wire) -> None:
        await asyncio.to_thread(let_go.wait, 30)
        await ok_json({"model": "up", "usage": {"prompt_tokens": 3, "completion_tokens": 4}})(wire)

    upstream.answer_with(late, always=ok_json())
    gateway = start_gateway(settings(upstream.url))
    with gateway.connect() as client:
        client.post("/v1/completions", b'{"model": "gpt-3.5-turbo-instruct", "prompt": "x"}', secret("alice"))
        eventually(lambda: upstream.hits == 1)
    gateway.kill(signal.SIGTERM)
    eventually(lambda: is_refused(gateway.port))  # while the stream goes on: a proxy takes the next gateway
    let_go.set()
    assert gateway.wait() == 0
    (record,) = start_gateway(gateway.config).calls("alice")
    assert (record["ended"], record["usage_source"], record["completion_tokens"]) == ("client_gone", "reported", 4)


def test_files_of_the_folder_it_is_started_in_are_not_taken_for_its_own(
    tmp_path: Path, upstream: ScriptedUpstream
) -> None:
    for name in ("gateway", "yaml", "aiohttp"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('not ours')")
    config = settings(upstream.url, store={"url": f"embedded:{tmp_path / 'data'}"})
    (tmp_path / "own.yaml").write_text(json.dumps(config))
    # As the installed command does, the first process does not look into the folder either.
    command = [sys.executable, "-P", "-m", "gateway", "serve", "--config", "own.yaml"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert line.startswith("gateway "), line
        assert process.wait(60) == 0
