"""A gateway whose worker counts what it does."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, Literal, Self

import yaml

from tests.flows.gateway_process import WITHOUT_TOKENS, children

from . import ours
from .counter import Function
from .processes import BenchError, Program

What = Literal["functions", "memory", "gaps", ""]

PATIENCE_S = 60.0
REST_S = 0.3
"""Behind the last call: what the worker still writes of it belongs to it."""


class Counted:
    """The gateway as it is shipped, but for what its worker counts. `python` is the command that it is started with."""

    def __init__(self, folder: Path, core: int, upstream: int, what: What = "", python: str = "") -> None:
        self._folder = folder
        file = folder / "gateway.yaml"
        file.write_text(yaml.safe_dump(ours.settings(folder, upstream)))
        places = [WITHOUT_TOKENS["PYTHONPATH"], str(Path(__file__).parent / "counted"), str(ours.ROOT)]
        env = {
            "PYTHONPATH": os.pathsep.join(places), "TMPDIR": str(folder), "GATEWAY_PYTHON": python,
            "GATEWAY_COUNTED": what, "GATEWAY_COUNTED_IN": str(folder),
        }  # fmt: skip
        command = [sys.executable, "-m", "gateway", "serve", "--config", str(file)]
        self.program = Program("the gateway", command, folder, core, env=env)
        self.worker = 0

    def __enter__(self) -> Self:
        self.program.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.program.__exit__(*error)

    def wait(self) -> None:
        """Until it serves."""
        self.program.wait_until_answered()
        (self.worker,) = children(self.program.pids[0])

    @property
    def port(self) -> int:
        return self.program.port

    async def functions(self, load: Awaitable[object]) -> list[Function]:
        """The functions that its worker enters while this goes on."""
        return [Function(*row) for row in await self._during(load)]

    async def memory(self, load: Awaitable[object]) -> Counter[str]:
        """What this leaves behind in its worker."""
        return Counter(await self._during(load))

    async def gaps(self, load: Awaitable[object]) -> dict[str, list[float]]:
        """How long its event loop stood still, in milliseconds: see `counter.Gaps`."""
        received: dict[str, list[float]] = await self._during(load)
        return received

    async def _during(self, load: Awaitable[object]) -> Any:
        for name in ("begun", "told"):
            (self._folder / name).unlink(missing_ok=True)
        os.kill(self.worker, signal.SIGUSR1)
        await self._until("begun")
        await load
        await asyncio.sleep(REST_S)
        os.kill(self.worker, signal.SIGUSR2)
        return json.loads((await self._until("told")).read_text())

    async def _until(self, name: str) -> Path:
        file, deadline = self._folder / name, time.monotonic() + PATIENCE_S
        while not file.exists():
            if time.monotonic() > deadline:
                raise BenchError(f"the worker has not {name}")
            await asyncio.sleep(0.01)
        return file
