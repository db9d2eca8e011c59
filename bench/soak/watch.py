"""Samples memory and descriptors of processes once per second."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from .flat import Sample

EVERY_S = 1.0


def memory(pid: int) -> int:
    """Memory in use, in bytes."""
    shown = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return int(shown or 0) * 1024


def descriptors(pid: int) -> int:
    """Number of open descriptors; 0 if unknown, or if the process has ended."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    return 0


class Watch:
    """See the head of the file. `pids`: by the names of the report."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self.samples: dict[str, list[Sample]] = {name: [] for name in pids}
        self._pids = pids
        self._began = time.monotonic()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._is_over.set()
        self._thread.join()

    def look(self, name: str) -> Sample:
        """Takes a sample of one process now."""
        pid = self._pids[name]
        return Sample(time.monotonic() - self._began, memory(pid), descriptors(pid))

    def _run(self) -> None:
        while not self._is_over.wait(EVERY_S):
            for name, taken in self.samples.items():
                taken.append(self.look(name))
