"""Workers that die, really: nothing that was written before is lost, whenever it was."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gateway.journal import Journal
from tests.journal.killed_writer import ORIGIN, look_at

ROOT = Path(__file__).parents[3]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "tests.journal.killed_writer", *arguments]


@pytest.mark.parametrize("seed", range(4))
def test_a_kill_under_load_loses_nothing_that_was_written(tmp_path: Path, seed: int) -> None:
    lives_s = random.Random(seed).uniform(0.0, 0.15)
    with subprocess.Popen(command("load", str(tmp_path)), cwd=ROOT, stdout=subprocess.PIPE) as victim:
        try:
            assert victim.stdout is not None
            first = victim.stdout.readline()
            time.sleep(lives_s)
            assert Journal.adopt(tmp_path, ORIGIN) is None, "its lock was free while it lived"
        finally:
            victim.kill()
        said = [first, *victim.stdout]
    if not said[-1].endswith(b"\n"):
        del said[-1]
    asyncio.run(adopt(tmp_path, int(said[-1])))


async def adopt(folder: Path, written: int) -> None:
    adopted = Journal.adopt(folder, ORIGIN)
    assert adopted is not None
    assert adopted.last >= written
    assert adopted.damaged == 0
    look_at(adopted, 0)
    await adopted.remove()


def test_a_kill_at_any_point_leaves_what_the_next_can_use(tmp_path: Path) -> None:
    done = subprocess.run(
        command("points", str(tmp_path)), cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 50
