"""A run of the tests that is interrupted ends the processes that it has started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.flows.gateway_process import eventually

ROOT = Path(__file__).parents[2]
TIERS = {"-n": "all", "--processes": "fast"}
"""How a tier runs several files at a time. In `all` the gateways are new interpreters, in `fast` forks."""


def descendants(pid: int) -> dict[int, str]:
    """All processes below this one, with their command lines."""
    listed = subprocess.run(
        ["ps", "-A", "-ww", "-o", "pid=,ppid=,args="], capture_output=True, text=True, check=True
    ).stdout
    rows = [line.split(None, 2) for line in listed.splitlines()]
    found: dict[int, str] = {}
    parents = {pid}
    while parents:
        below = {int(row[0]): row[2] for row in rows if int(row[1]) in parents}
        found |= below
        parents = set(below)
    return found


def with_gateway(found: dict[int, str]) -> dict[int, str] | None:
    """A fork has the command line of the process that forks (tests/flows/forked.py). Of these two run, and the one that
    has imported the gateway for them."""
    forks = [each for each in found.values() if "forked.py" in each]
    return found if len(forks) > 3 or any(" serve " in each for each in found.values()) else None


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("several", ["-n", "--processes"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_it(number: int, several: str) -> None:
    options = ["-q", "-p", "no:cacheprovider", several, "2", "--tier", TIERS[several]]
    pytest_ = [sys.executable, "-m", "pytest", *options, "tests/flows/test_routing.py"]
    with subprocess.Popen(
        pytest_, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    ) as run:
        started = eventually(lambda: with_gateway(descendants(run.pid)), timeout_s=60)
        run.send_signal(number)
        run.wait(60)
    assert started
    eventually(lambda: not any(map(alive, started)), timeout_s=30)
