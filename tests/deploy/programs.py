"""Programs that Python does not bring along, and servers among them that a test runs.

A program is looked for where `.ci/servers` puts it, and then in the system. One that is not installed fails the test
that needs it, with a sentence that says what to do; no test is left out for it.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

from tests.fakes.redis_servers import PORTS, ROOT

KEPT = ROOT / ".venv" / "servers"
PATH = f"{KEPT / 'programs' / 'bin'}:{KEPT}:{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"

PATIENCE_S = 150.0
"""How long anything here may take on a slow machine; nothing waits that long when all is well."""
STOP_S = 20.0

_PACKAGES = {
    "systemd-analyze": "Debian and Ubuntu: apt-get install systemd",
    "minisign": "Debian and Ubuntu: apt-get install minisign",
}


class MissingProgram(Exception):
    """It is not installed; the sentence says what to do."""


def found(program: str) -> str:
    """Where this program is. Raises `MissingProgram`."""
    if path := shutil.which(program, path=PATH):
        return path
    how = _PACKAGES.get(program, "run `make servers`, which says why not where it could not get it")
    raise MissingProgram(f"{program} is not installed, and this test needs the real one. {how}.")


def run(program: str, *arguments: str | Path, **more: Mapping[str, str] | Path) -> subprocess.CompletedProcess[str]:
    """A program that ends by itself: its exit code, and all that it said."""
    return subprocess.run(  # type: ignore[call-overload, no-any-return]
        [found(program), *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=PATIENCE_S, check=False, **more,
    )  # fmt: skip


class Running:
    """A program that runs until its block is left. What it says is in `log`."""

    def __init__(
        self, folder: Path, command: Sequence[str], *, env: Mapping[str, str] = {}, inherited: Sequence[int] = ()
    ) -> None:
        self._log = folder / "log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [found(command[0]), *command[1:]], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder,
                env={**os.environ, **env}, pass_fds=inherited, start_new_session=True,
            )  # fmt: skip

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)  # its session: only what it has started itself
            except (ProcessLookupError, PermissionError):
                pass
            self._process.wait()

    def came_up(self, answers: Callable[[], bool]) -> bool:
        """Wait until it answers; False where it has ended because its port was taken."""
        end = time.monotonic() + PATIENCE_S
        while self._process.poll() is None:
            with contextlib.suppress(OSError):
                if answers():
                    return True
            assert time.monotonic() < end, f"it does not answer: {self.log}"
            time.sleep(0.02)
        assert "already in use" in self.log, f"it has ended: {self.log}"
        return False


@contextlib.contextmanager
def on_some_port(start: Callable[[int], Running], answers: Callable[[int], bool]) -> Iterator[tuple[int, Running]]:
    """A server that was started on a port that was free, and answers."""
    for port in random.sample(PORTS, 20):
        with start(port) as running:
            if running.came_up(lambda port=port: answers(port)):  # type: ignore[misc]
                yield port, running
                return
    raise AssertionError("no port was free")
