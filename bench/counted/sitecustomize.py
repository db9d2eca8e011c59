"""Python runs this at the start of a gateway whose worker is counted (`PYTHONPATH`); see bench/counting.py.

From USR1 to USR2 the worker counts what `GATEWAY_COUNTED` says, and writes it into the folder `GATEWAY_COUNTED_IN`.
Workers are interpreters of their own, started with the command in `GATEWAY_PYTHON`, if given.
"""

import json
import os
import signal
import sys
from pathlib import Path

from bench.counter import Functions, Gaps, Memory

folder = Path(os.environ["GATEWAY_COUNTED_IN"])
sys.executable = os.environ["GATEWAY_PYTHON"] or sys.executable
if hasattr(os, "pidfd_open"):
    del os.pidfd_open  # without it workers are not forked
counts: dict[str, type[Functions | Memory | Gaps]] = {"functions": Functions, "memory": Memory, "gaps": Gaps}

if sys.argv[0] == "-c":  # a worker; who supervises them is `-m`
    from gateway.journal import disk
    from gateway.store.sqlite import store

    disk.SLOW_S = store.SLOW_S = 600  # a busy machine is slow at times, and then threads write

if sys.argv[0] == "-c" and (what := os.environ["GATEWAY_COUNTED"]):
    counter = counts[what]()

    def begin(*_: object) -> None:
        """USR1."""
        counter.begin()
        (folder / "begun").touch()

    def end(*_: object) -> None:
        """USR2."""
        (folder / "told.new").write_text(json.dumps(counter.end()))
        (folder / "told.new").replace(folder / "told")

    signal.signal(signal.SIGUSR1, begin)
    signal.signal(signal.SIGUSR2, end)
