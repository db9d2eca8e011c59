"""Files of kept calls: a line of JSON for each call, a new file each day and above `max_bytes`, and an end for each.

Each worker has files of its own, `content-2026-11-29-WRITER-0001.jsonl`; any worker deletes any that is too old. A
thread writes, so that a disk that hangs holds up nothing else.
"""

from __future__ import annotations

import logging
import os
import queue
import re
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from .settings import FileStore

log = logging.getLogger("gateway")

NAME = re.compile(r"content-(\d{4}-\d\d-\d\d)-[0-9a-f]{8}-\d{4,}\.jsonl")
EXPIRE_EVERY_S = 3600.0
CLOSE_WITHIN_S = 2.0

Noted = Callable[[int, bool], None]
"""Takes, in the writing thread, the size of a line, and whether it was written."""


class Files:
    """The files of one writer. Not for the event loop."""

    def __init__(self, settings: FileStore, clock: Callable[[], float] = time.time) -> None:
        self._settings = settings
        self._folder = Path(settings.folder)
        self._clock = clock
        self._writer = uuid.uuid4().hex[:8]
        self._day: date | None = None
        self._number = 0
        self._file: int | None = None
        self._size = 0
        self._expired_at = 0.0

    def write(self, line: bytes) -> None:
        """Add a line. Raises OSError."""
        today = datetime.fromtimestamp(self._clock(), UTC).date()
        if self._file is None or today != self._day or self._size + len(line) > self._settings.max_bytes:
            self._begin(today)
        assert self._file is not None
        written = memoryview(line)
        try:
            while written:
                written = written[os.write(self._file, written) :]
        except OSError:
            self.close()  # the next line is not joined to a part of this one
            raise
        self._size += len(line)

    def expire(self) -> None:
        """Delete files that are too old, at most once an hour those of the oldest day: a clock that is years ahead for
        a while costs some days of them. Raises OSError."""
        now = self._clock()
        if abs(now - self._expired_at) < EXPIRE_EVERY_S:
            return
        self._expired_at = now
        oldest = (datetime.fromtimestamp(now, UTC).date() - timedelta(days=self._settings.keep_days)).isoformat()
        too_old: defaultdict[str, list[Path]] = defaultdict(list)
        for each in self._folder.iterdir() if self._folder.is_dir() else ():
            found = NAME.fullmatch(each.name)
            if found is not None and found[1] < oldest:  # as text: it may be no date
                too_old[found[1]].append(each)
        for each in too_old[min(too_old)] if too_old else ():
            each.unlink(missing_ok=True)

    def _begin(self, today: date) -> None:
        self.close()
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if today != self._day:
            self._day, self._number = today, 0
        self._number += 1
        name = f"content-{today.isoformat()}-{self._writer}-{self._number:04}.jsonl"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self._file, self._size = os.open(self._folder / name, flags, 0o600), 0

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


class FileWriter:
    """Writes lines in a thread. `noted` is called for each."""

    def __init__(self, files: Files, noted: Noted, look_every_s: float = 60.0) -> None:
        self._files = files
        self._noted = noted
        self._look_every_s = look_every_s
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._is_failing = False
        self._thread = threading.Thread(target=self._run, name="content-files", daemon=True)
        self._thread.start()

    def put(self, line: bytes) -> None:
        self._lines.put(line)

    def end(self) -> None:
        """Write what waits, and wait a moment for that. Not for the event loop."""
        self._lines.put(None)
        self._thread.join(CLOSE_WITHIN_S)

    def _run(self) -> None:
        while True:
            line: bytes | None = b""
            with suppress(queue.Empty):
                line = self._lines.get(timeout=self._look_every_s)
            if line is None:
                self._files.close()
                return
            if line:
                self._noted(len(line), self._write(line))
            try:
                self._files.expire()
            except OSError as error:
                log.error("old files of content cannot be deleted: %s", error)

    def _write(self, line: bytes) -> bool:
        """Whether the line was written. A failure is logged once, not for each call."""
        try:
            self._files.write(line)
        except OSError as error:
            if not self._is_failing:
                log.error("content cannot be written to files, and is dropped: %s", error)
            self._is_failing = True
            return False
        if self._is_failing:
            log.warning("content is written to files again")
        self._is_failing = False
        return True
