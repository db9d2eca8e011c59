"""A process that writes a journal and is killed with SIGKILL.

killed_writer.py load FOLDER      writes without end; prints after each write the last number written
killed_writer.py points FOLDER    runs a short scenario again and again, killed at each of its disk operations in turn
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from gateway.journal import Journal, JournalEntry, directory, segments
from gateway.journal import journal as under_test

ORIGIN = "redis://store:6379 gateway"
TEXT = '["call",[]]\t' + "x" * 300


def entry(number: int) -> JournalEntry:
    """The entries for a number: a call that ends at once; every fifth one stays open."""
    if number % 2 or number % 10 == 0:
        return JournalEntry(number, "open", f"call-{number}", TEXT)
    return JournalEntry(
        number, "void" if number % 8 == 0 else "close", f"call-{number - 1}", "" if number % 8 == 0 else TEXT
    )


async def load(folder: Path) -> None:
    segments.SEGMENT_BYTES = 100_000
    journal = Journal.create(folder, ORIGIN)
    while True:
        for _ in range(50):
            journal.append(*entry(journal.last + 1)[1:])
        await journal.written()
        os.write(1, b"%d\n" % journal.last)
        await asyncio.sleep(0)


# --------------------------------------------------------------------------------------------------------- every point

DISK_CALLS = [
    (os, "mkdir"), (os, "open"), (os, "write"), (os, "pwrite"), (os, "rename"), (os, "unlink"), (os, "rmdir"),
    (os, "fsync"), (os, "fdatasync"), (os, "posix_fallocate"), (os, "close"), (fcntl, "flock"),
]  # fmt: skip


def kill_at(point: int) -> None:
    """Kills this process before a disk operation; half of a write is done."""
    calls = 0

    def before(call: Callable[..., Any], *args: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == point:
            if call.__name__ in ("write", "pwrite"):
                call(args[0], args[1][: len(args[1]) // 2], *args[2:])
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)
        return call(*args, **more)

    for module, name in DISK_CALLS:
        setattr(module, name, partial(before, getattr(module, name)))


async def live(folder: Path, say: Callable[[str, object], None]) -> None:
    """Begins a journal, begins a second segment, deletes the first, and ends."""
    journal = Journal.create(folder, ORIGIN)
    say("created", journal.name)
    for turn in range(8):
        for _ in range(4):
            journal.append(*entry(journal.last + 1)[1:])
        await journal.written()
        say("written", journal.last)
        if turn == 5:
            journal.delivered(16)
            say("delivered", 16)
            await journal._tidy()
            assert next(journal.undelivered(0)).number > 1, "nothing was deleted"
    say("removing", True)
    await journal.remove()


async def check(folder: Path, received: dict[str, Any]) -> None:
    """Every number that the process printed is in the journal, and the journal can be continued."""
    if (journal := Journal.adopt(folder, ORIGIN)) is None:
        assert "removing" in received or "created" not in received, "the journal is gone"
    else:
        assert journal.name == received.get("created", journal.name)
        assert journal.damaged == 0
        assert received.get("written", 0) <= journal.last
        look_at(journal, received.get("delivered", 0))
        for left in journal.open_entries():
            journal.append("close", left.lease, left.text)
        last = journal.last
        await journal.close()
        again = Journal.adopt(folder, ORIGIN)
        assert again is not None
        assert (again.last, again.open_entries()) == (last, [])
        await again.remove()
    sweep(folder)


def sweep(folder: Path) -> None:
    """A minute later no file is left."""
    if not folder.exists():
        return
    for path in folder.iterdir():
        os.utime(path, (0, 0))
    assert Journal.adopt(folder, ORIGIN) is None
    assert not list(folder.iterdir()), "something was left that nobody sweeps away"


def look_at(journal: Journal, delivered: int) -> None:
    """Whether a journal has every entry up to the last one, except delivered ones."""
    entries = [entry(number) for number in range(1, journal.last + 1)]
    ends = [each for each in entries if each.kind != "open"]
    assert list(journal.undelivered(delivered)) == [each for each in ends if each.number > delivered]
    assert all(each in ends for each in journal.undelivered(0))
    ended = {each.lease for each in ends}
    is_open = [each for each in entries if each.kind == "open" and each.lease not in ended]
    assert journal.open_entries() == is_open


def points(folder: Path) -> None:
    segments.SEGMENT_BYTES = 2000
    under_test.KEPT_S = 0
    under_test.LOOK_EVERY_S = 60
    directory.STALE_S = 60
    point, is_killed = 0, True
    while is_killed:
        point += 1
        place = folder / str(point)
        reading, writing = os.pipe()
        if (child := os.fork()) == 0:
            say = partial(_say, os.write, writing)
            kill_at(point)
            asyncio.run(live(place, say))
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as said:
            received = dict(json.loads(line) for line in said)
        _, status = os.waitpid(child, 0)
        is_killed = os.WIFSIGNALED(status)
        assert is_killed or status == 0
        try:
            asyncio.run(check(place, received))
        except AssertionError as error:
            raise AssertionError(f"killed at point {point}, after {received}") from error
    print(point - 1)


def _say(write: Callable[[int, bytes], int], descriptor: int, what: str, value: object) -> None:
    write(descriptor, json.dumps([what, value]).encode() + b"\n")


if __name__ == "__main__":
    if sys.argv[1] == "load":
        asyncio.run(load(Path(sys.argv[2])))
    else:
        points(Path(sys.argv[2]))
