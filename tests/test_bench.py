"""What the bench says is what was measured: its parts that need neither nginx nor wrk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.config import build
from tests.bench import calls, load, ours
from tests.bench.processes import BenchError, Program
from tests.bench.streams import Upstream, streams
from tests.bench.table import Group, as_json, render
from tests.flows.house import eventually

SUMS = {
    "requests": 1000,
    "p50_us": 1500,
    "p99_us": 9000,
    "status": 0,
    "connect": 0,
    "read": 0,
    "write": 0,
    "timeout": 0,
}


def test_wrk_is_read() -> None:
    told = f"Running 4s test @ http://127.0.0.1:1/\n  1000 requests in 4.00s\n\n{json.dumps(SUMS)}\n"
    assert load.parse(told) == load.Load(requests=1000, p50_ms=1.5, p99_ms=9.0)


@pytest.mark.parametrize("kind", ["status", "connect", "read", "write", "timeout"])
def test_one_failed_call_spoils_a_round(kind: str) -> None:
    with pytest.raises(BenchError, match=f"some failed: .*{kind}"):
        load.parse(json.dumps({**SUMS, kind: 1}))


@pytest.mark.parametrize("told", ["", "unable to connect", json.dumps({**SUMS, "requests": 0})])
def test_nothing_measured_is_no_measurement(told: str) -> None:
    with pytest.raises(BenchError):
        load.parse(told)


def test_table() -> None:
    group = Group("Calls")
    for nginx, gateway in ((10, 50), (20, 120), (10, 70)):
        group.add("nginx", {"CPU, us": nginx})
        group.add("gateway", {"CPU, us": gateway})
    assert render([group]).splitlines() == [
        "            nginx   gateway   ratio   lowest - highest",
        "Calls",
        "  CPU, us    10.0      70.0    6.00        5.00 - 7.00",
    ]
    (figure,) = json.loads(as_json("here", [group]))["figures"]
    assert (figure["nginx"], figure["gateway"], figure["ratio"]) == ([10, 20, 10], [50, 120, 70], 6)


def test_a_round_that_only_one_has_run_is_an_error() -> None:
    group = Group("Calls")
    group.add("nginx", {"CPU, us": 1})
    with pytest.raises(ValueError, match="shorter"):
        render([group])


def test_calls_are_as_the_table_says() -> None:
    assert len(calls.request()) == len(calls.request(is_streamed=True)) == 1024
    assert len(calls.answer()) == 549
    assert 200 < len(b"".join(calls.event())) + 20 < 220


def test_gateway_is_measured_as_it_is_shipped(tmp_path: Path) -> None:
    """Nothing is switched off: what the bench sets is what any gateway needs, and three quotas."""
    config = build(ours.settings(tmp_path, upstream=1))
    assert config.server == type(config.server)(port=0)
    assert config.metrics == type(config.metrics)()
    assert (config.server.workers, config.server.access_log) == (1, "json")
    assert [(quota.requests is None, quota.per) for quota in config.keys[0].quotas] == [
        (False, "minute"), (True, "day"), (False, "day"),
    ]  # fmt: skip


# ----------------------------------------------------------------------------------------------------------- streams


async def test_streams_are_counted_and_timed() -> None:
    upstream = Upstream()
    async with await upstream.start():
        async with streams(upstream.port, upstream, 5, 0.001) as clients:
            assert all(client.begun.done() for client in clients)
        assert upstream.written == len(upstream.arrived) >= 5
        assert all(0 <= age < 60e9 for age in upstream.arrived)


@pytest.mark.parametrize("cut", [b"data: [DONE]\n\n", b'"finish_reason":"stop"'])
async def test_a_stream_that_is_not_whole_spoils_a_round(cut: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    ending = calls.ending().replace(cut, b"")
    monkeypatch.setattr("tests.bench.streams._LAST", b"%x\r\n%s\r\n0\r\n\r\n" % (len(ending), ending))
    upstream = Upstream()
    async with await upstream.start():
        with pytest.raises(BenchError, match="did not end whole"):
            async with streams(upstream.port, upstream, 2, 0.001):
                pass


# --------------------------------------------------------------------------------------------------------- processes

needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the bench reads /proc")


@needs_proc
def test_a_program_is_pinned_measured_and_ended(tmp_path: Path) -> None:
    core = min(os.sched_getaffinity(0))
    busy = "import time\nwhile time.process_time() < 0.05: pass\nprint('done', flush=True)\ntime.sleep(60)"
    with Program("busy", [sys.executable, "-c", busy], tmp_path, core) as program:
        assert os.sched_getaffinity(program.pids[0]) == {core}
        eventually(lambda: "done" in (tmp_path / "stdout").read_text())
        assert program.cpu_s() >= 0.04
        assert 1 < program.rss_mb() < 1000
    with pytest.raises(BenchError, match="a process of busy has died"):
        program.cpu_s()


def test_what_is_missing_is_said_in_one_line(tmp_path: Path) -> None:
    env = {**os.environ, "PATH": str(tmp_path)}
    command = [sys.executable, "-m", "tests.bench"]
    told = subprocess.run(command, env=env, cwd=ours.ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert (told.returncode, told.stdout, told.stderr.count("\n")) == (2, "", 1)
    assert "wrk" in told.stderr
