"""The worker's side of the process that gives kept calls the form in which they are exported (`process.py`).

It is started for the first call, and takes one at a time. A call that takes too long ends it, and the next one starts
another."""

from __future__ import annotations

import asyncio
import json
from typing import NamedTuple

from gateway.web.large_bodies import start_python

from .digest import KeptCall
from .process import head_of
from .settings import ContentSettings

WITHIN_S = 10.0
"""Seconds for one call, with the start of the process: the longest takes a tenth of this, unless a pattern hangs."""


class Digest(NamedTuple):
    line: bytes
    request: bytes


class Digester:
    """Asks the process. It is used by one task alone, and has to be closed."""

    def __init__(self, settings: ContentSettings, within_s: float = WITHIN_S) -> None:
        redact = settings.redact
        asked = {"paths": redact.paths, "patterns": redact.patterns, "has_otlp": settings.otlp is not None}
        self._asked = json.dumps(asked).encode() + b"\n"
        self.within_s = within_s
        self._process: asyncio.subprocess.Process | None = None

    async def digest(self, call: KeptCall) -> Digest | None:
        """The exported forms of the call; None: it took too long, or the process failed."""
        try:
            async with asyncio.timeout(self.within_s):
                return await self._exchange(call)
        except (TimeoutError, OSError, EOFError):
            await self.close()
            return None
        except BaseException:
            await self.close()  # its next output would belong to the cancelled call
            raise

    async def _exchange(self, call: KeptCall) -> Digest | None:
        process = self._process
        if process is None or process.returncode is not None:
            process = self._process = await start_python(f"{__package__}.process")
            assert process.stdin is not None
            process.stdin.write(self._asked)
        assert process.stdin is not None
        assert process.stdout is not None
        for written in (head_of(call), call.request.data, *[each.data for each in call.answers]):
            process.stdin.write(written)
            await process.stdin.drain()
        sizes = json.loads(await process.stdout.readuntil(b"\n"))
        return Digest(*[await process.stdout.readexactly(size) for size in sizes]) if sizes else None

    async def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            if process.returncode is None:
                process.kill()
            await process.wait()
