"""A call enters no more functions, and asks no more of C, of the kernel and of Redis, than it may.

Alone, because what runs by the clock (metrics every 50 ms) adds more functions to a call that takes longer.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from bench import ceilings, counts, redis_script, tally

needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the bench reads /proc")


@needs_proc
async def test_a_call_goes_through_no_more_places_than_it_did(tmp_path: Path) -> None:
    found = await counts.breadths(counts.Bench(tmp_path))
    assert found.keys() == ceilings.BREADTH.keys()
    over = [name for name, most in ceilings.BREADTH.items() if any(map(int.__gt__, found[name], most))]
    assert not over, f"{found}, and at most {dict(ceilings.BREADTH)}: merge a function that has no idea of its own"


@needs_proc
async def test_a_call_enters_no_more_functions_than_it_did(tmp_path: Path) -> None:
    found = await counts.functions(counts.Bench(tmp_path))
    assert found.keys() == ceilings.STEPS.keys()
    over = {
        name: f"{ceilings.of(rows)}, and at most {limit}"
        for (name, rows), limit in zip(found.items(), ceilings.STEPS.values(), strict=True)
        if any(is_now > most * ceilings.MARGIN for is_now, most in zip(ceilings.of(rows), limit, strict=True))
    }
    assert not over, (
        f"a call has become dearer: {over}. `python -m bench.counts --only functions --functions` shows what is "
        "entered. Either make it cheaper, or say in the change why it has to be and write what `--ceilings` prints "
        "into bench/ceilings.py."
    )


@pytest.mark.skipif(shutil.which("strace") is None, reason="system calls are counted by strace")
async def test_a_call_asks_no_more_of_the_kernel_than_it_did(tmp_path: Path) -> None:
    found = await counts.system_calls_held(counts.Bench(tmp_path))
    assert found.keys() == ceilings.SYSTEM_CALLS.keys()
    over = {
        name: f"{is_now:.1f} system calls, and at most {most}"
        for (name, is_now), most in zip(found.items(), ceilings.SYSTEM_CALLS.values(), strict=True)
        if is_now > most * ceilings.MARGIN
    }
    assert not over, f"a call has become dearer: {over}. `python -m bench.counts --only system-calls` shows which."


async def test_a_draw_on_redis_enters_no_more_functions_than_it_did(tmp_path: Path) -> None:
    entered = tally.by_function(await redis_script.functions(tmp_path), redis_script.CALLS)
    found, most = ceilings.of(entered), ceilings.STEPS_ON_REDIS
    assert all(is_now <= ceilings.MARGIN * limit for is_now, limit in zip(found, most, strict=True)), (
        f"{found}, and at most {most}: `python -m bench.counts --only redis --functions` shows what is entered"
    )


async def test_a_call_asks_no_more_of_redis_than_it_did(tmp_path: Path) -> None:
    found = await redis_script.commands(tmp_path)
    assert found.keys() == ceilings.REDIS.keys()
    over = {
        name: f"{count.served}, and at most {limit}"
        for (name, count), limit in zip(found.items(), ceilings.REDIS.values(), strict=True)
        if any(is_now > most * ceilings.MARGIN for is_now, most in zip(count.served, limit, strict=True))
    }
    assert not over, (
        f"a call has become dearer for Redis: {over}. `python -m bench.counts --only redis` shows its commands. "
        "Either make it cheaper, or say in the change why it has to be and write what `--ceilings` prints into "
        "bench/ceilings.py."
    )
