"""Forked workers, those of new interpreters, and what happens to workers that are never used."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import ok_json
from tests.flows.gateway_process import WITHOUT_TOKENS, Gateway, eventually, settings

needs_forks = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs pidfd_open, so Linux")

WITHOUT_FORKS = "import os\nif hasattr(os, 'pidfd_open'):\n    del os.pidfd_open\n"


START = """
import asyncio, os, signal, socket
from gateway.config import build
from gateway.process import channel, worker_start

def forked(workers):
    models = {"m": {"routes": [{"upstream": "u"}], "max_output_tokens": 9}}
    upstreams = {"u": {"base_url": "http://127.0.0.1:9/v1"}}
    return worker_start.forked(build({"server": {"workers": workers}, "upstreams": upstreams, "models": models}))
"""


def is_interpreter(worker: int) -> bool:
    """Whether a worker was started as an interpreter of its own, by its command line."""
    shown = subprocess.run(["ps", "-ww", "-o", "args=", "-p", str(worker)], capture_output=True, text=True, check=True)
    return "gateway.process.worker" in shown.stdout


def descriptors(worker: int) -> list[str]:
    """What its descriptors are open on (proc(5), fd)."""
    return [str(each.readlink()) for each in Path(f"/proc/{worker}/fd").iterdir() if each.is_symlink()]


def run(code: str) -> str:
    """What this prints in a process of its own, with `worker_start` and `os` imported."""
    done = subprocess.run([sys.executable, "-c", START + code], capture_output=True, text=True, timeout=60, check=False)
    assert not done.returncode, done.stderr
    return done.stdout + done.stderr


@needs_forks
def test_first_workers_are_forked_and_a_successor_is_an_interpreter(
    start_gateway: StartsGateways, upstream: ScriptedUpstream
) -> None:
    upstream.answer_with(always=ok_json())
    gateway = start_gateway(settings(upstream.url, server={"workers": 2}))
    first, other = gateway.workers()
    assert not is_interpreter(first)
    assert not is_interpreter(other)
    os.kill(first, signal.SIGKILL)
    (successor,) = eventually(lambda: set(gateway.workers()) - {first, other})
    eventually(lambda: is_interpreter(successor))
    eventually(lambda: gateway.complete().status == 200)


def test_without_pidfd_open_workers_are_interpreters(tmp_path: Path, upstream: ScriptedUpstream) -> None:
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_FORKS)
    upstream.answer_with(always=ok_json())
    path = os.pathsep.join([str(tmp_path), WITHOUT_TOKENS["PYTHONPATH"]])
    gateway = Gateway(tmp_path / "started", settings(upstream.url, server={"workers": 2}), env={"PYTHONPATH": path})
    try:
        assert all(is_interpreter(worker) for worker in gateway.workers())
        assert gateway.complete().status == 200
        gateway.stop()
    finally:
        gateway.end()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no /proc/self/comm")
def test_workers_have_a_name_of_their_own(start_gateway: StartsGateways, upstream: ScriptedUpstream) -> None:
    gateway = start_gateway(settings(upstream.url))
    (worker,) = gateway.workers()
    assert Path(f"/proc/{worker}/comm").read_text() == "gateway-worker\n"
    assert Path(f"/proc/{gateway.process.pid}/comm").read_text() != "gateway-worker\n"


@needs_forks
def test_a_worker_inherits_no_descriptor_but_its_own(start_gateway: StartsGateways, upstream: ScriptedUpstream) -> None:
    """Neither a lock on a folder, which would outlive the supervisor with it, nor the line of another worker."""
    gateway = start_gateway(settings(upstream.url, server={"workers": 2}))
    one, other = (set(descriptors(worker)) for worker in gateway.workers())
    assert not [name for name in one | other if name.endswith("gateway.lock")]
    assert len([name for name in one & other if name.startswith("socket:")]) == 1  # the listener


@needs_forks
def test_workers_that_were_never_used_end_with_the_block() -> None:
    code = """
with forked(2) as workers:
    pids = [each.process.pid for each in workers]
    for pid in pids:
        os.kill(pid, 0)
for pid in pids:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        print("gone")
"""
    assert run(code) == "gone\ngone\n"


@needs_forks
def test_the_end_of_a_line_ends_its_worker_and_no_other() -> None:
    code = """
with forked(3) as workers:
    for process, line in list(workers)[:2]:
        line.close()
        print(asyncio.run(process.wait()), asyncio.run(process.wait()))
    os.kill(workers[2].process.pid, 0)
    workers[2].process.send_signal(signal.SIGKILL)
    print(asyncio.run(workers[2].process.wait()))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        channel.hand_down(workers[2].line, [listener])
    try:
        workers[2].process.send_signal(signal.SIGKILL)
    except ProcessLookupError:
        print("ended")
"""
    assert run(code) == "1 1\n1 1\n-9\nended\n"


@needs_forks
def test_a_process_with_threads_forks_no_worker() -> None:
    code = """
import threading
end = threading.Event()
threading.Thread(target=end.wait).start()
with forked(2) as workers:
    print(len(workers))
end.set()
"""
    assert run(code) == "0\n"


@needs_forks
def test_a_bug_in_a_forked_worker_is_shown_and_ends_only_the_worker() -> None:
    code = """
from gateway.process import worker
def fail(line):
    raise RuntimeError("a bug")
worker.serve_on = fail
with forked(1) as workers:
    print(asyncio.run(workers[0].process.wait()))
"""
    received = run(code)
    assert received.startswith("1\n")
    assert "RuntimeError: a bug" in received
