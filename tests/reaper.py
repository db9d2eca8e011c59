"""Ends the processes that a killed run of the tests leaves behind: `python tests/reaper.py PID RUN`.

1. A run has an id in its environment, which each process below it inherits, whatever its session or parent.
2. When the run's first process, PID, has ended, processes with that id have `GRACE_S` to end by themselves, as after an
   interrupted run; the others are killed.

It needs Linux (proc(5), environ). A process that was started with an environment of its own is not found.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

VARIABLE = "GATEWAY_TEST_RUN"
GRACE_S = 10.0
LOOK_S = 0.5


def begin() -> None:
    """Start it for this process."""
    if not Path("/proc/self/environ").exists():
        return
    os.environ[VARIABLE] = secrets.token_hex(8)
    command = [sys.executable, "-S", "-E", __file__, str(os.getpid()), os.environ[VARIABLE]]
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command, start_new_session=True, **streams)
    process.returncode = 0  # it outlives this process, which does not wait for it


def processes_of(run: str) -> list[int]:
    """Ids of the processes of this run, without this one."""
    wanted, found = f"{VARIABLE}={run}".encode(), []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return [pid for pid in found if pid != os.getpid()]


def main(parent: int, run: str) -> None:
    """Wait for the end of `parent`, then for that of its run."""
    while os.getppid() == parent:
        time.sleep(LOOK_S)
    ended = time.monotonic()
    while (left := processes_of(run)) and (passed_s := time.monotonic() - ended) < 2 * GRACE_S:
        for pid in left if passed_s > GRACE_S else ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(LOOK_S)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
