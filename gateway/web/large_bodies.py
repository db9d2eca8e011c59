"""The worker's side of the processes that read large bodies and make long answers
(`gateway/process/large_body_process.py`): each is started for the first one; that of the longest ends when it is idle.

A process takes one at a time, and others wait, of each key one, and of all keys whose last one took long one together;
short ones do not. A request that waits or takes too long is refused with a status that asks for a retry.
"""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from gateway.api import large_body
from gateway.config import Limits
from gateway.errors import InvalidRequest, Unavailable
from gateway.formats import bridges
from gateway.formats.events import Unfit
from gateway.formats.format import LONG_ANSWER, Restricts, restrict_body
from gateway.records import Endpoint, Params, Rewriting
from gateway.tasks import Tasks

READER = "gateway.process.large_body_process"
READ_WITHIN_S, READ_FOR_S = 30.0, 15.0
"""Seconds for one body with its wait for others, and without: a slow one of each other key leaves time for it."""

SLOW_S = 0.25
"""A key whose last body took longer goes behind others. A megabyte of an agent's texts takes a quarter of this."""

LONG_IDLE_S = 300.0
"""Seconds for which the process of long bodies, which are rare, waits for the next."""

PIECE_BYTES = 131_072
"""Bytes of a returned body that are read at once."""

_HANDED_DOWN = frozenset({"PATH", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "PYTHONHOME"})

T = TypeVar("T")

Pieces = Sequence[bytes | bytearray | memoryview]
Holds = Callable[[int], None]
"""Holds room for bytes. Raises `GatewayError` if there is none."""


class LargeBodies:
    """Has large bodies read, so that long ones keep no others waiting. To be closed."""

    def __init__(self) -> None:
        self._short, self._long = ReadingProcess(), ReadingProcess(LONG_IDLE_S)

    async def read(
        self, key: str, endpoint: Endpoint, pieces: Pieces, drops: Iterable[str] = (),
        reads: Mapping[str, Any] | None = None,
    ) -> Params:  # fmt: skip
        """Reads like `table.read`; `drops` and `reads` are those of `large_body.brief`. Raises `Unavailable` if the
        body cannot be read now.

        A cancelled reading continues to its end, so that the next request finds a clean process; one that waits for its
        turn ends, because it holds a body that is not counted any more.
        """
        job = {"job": "read", "endpoint": endpoint, "drops": list(drops), "reads": reads}
        answer, _ = await self._answer(key, job, pieces)
        return large_body.from_brief(answer, pieces)

    async def rewrite(
        self, key: str, endpoint: Endpoint, asked: Params, found: Iterable[Rewriting], hold: Holds
    ) -> Params:
        """The parameters with the results of these rewritings, an `InvalidRequest` in place of one that is refused.
        Raises `Unavailable`, and the errors of `hold`."""
        large = asked.document.large
        assert large is not None
        made: dict[Rewriting, Any] = {}
        for each in found:
            job = {"job": "rewrite", "endpoint": endpoint, "rewriting": each}
            try:
                known, pieces = await self._answer(key, job, large.pieces)
                hold(sum(map(len, pieces)))  # here, because a client that leaves does not end the reading
                made[each] = bridges.taken(each, known, pieces)
            except InvalidRequest as refused:
                made[each] = refused
        return asked._replace(document=asked.document._replace(large=large._replace(rewritten=made)))

    async def restrict(self, key: str, restrict: Restricts, pieces: Pieces, of_key: Limits, of_model: Limits) -> None:
        """Raises `InvalidRequest` for a request inside a body beyond these limits, and `Unavailable`."""
        await self._call(key, restrict_body, pieces, restrict, of_key, of_model)

    async def make(self, key: str, make: Callable[..., T], body: bytes, *arguments: Any) -> T:
        """Makes an answer, as `MakesAnswers` describes it."""
        if len(body) <= LONG_ANSWER:
            return make(body, *arguments)
        whole = memoryview(body)
        pieces = [whole[at : at + PIECE_BYTES] for at in range(0, len(whole), PIECE_BYTES)]
        return await self._call(key, make, pieces, *arguments)

    async def _call(self, key: str, function: Callable[..., T], pieces: Pieces, *arguments: Any) -> T:
        """Calls a function of a module in the other process, with the body in these pieces and these arguments. Raises
        `Unfit` and `InvalidRequest` where it does, and `Unavailable`."""
        head = pickle.dumps((function, arguments))
        answer, made = await self._answer(key, {"job": "make", "head": len(head)}, (head, *pieces))
        if "unfit" in answer:
            raise Unfit(answer["unfit"])
        result: T = pickle.loads(b"".join(made))  # noqa: S301 - of the process that this one has started
        return result

    async def _answer(self, key: str, job: Mapping[str, Any], pieces: Pieces) -> tuple[dict[str, Any], Pieces]:
        reader = self._long if large_body.is_long(pieces) else self._short
        answer, body = await reader.answer(key, job, pieces)
        if answer is None:
            raise Unavailable("The gateway cannot read so long a body right now.", code="reader_busy")
        if "refused" in answer:
            message, param, code = answer["refused"]
            raise InvalidRequest(message, param=param, code=code)
        if "failed" in answer:
            raise RuntimeError(f"the reader of large bodies failed with {answer['failed']}")
        return answer, body

    async def close(self) -> None:
        await asyncio.gather(self._short.close(), self._long.close())


class ReadingProcess:
    """One process, and the order in which it takes bodies. It ends after `idle_s` seconds without one; 0: never."""

    def __init__(self, idle_s: float = 0) -> None:
        self._idle_s = idle_s
        self._process: asyncio.subprocess.Process | None = None
        self._lock, self._slow_lock = asyncio.Lock(), asyncio.Lock()
        self._of_key = WeakValueDictionary[str, asyncio.Lock]()
        self._slow = set[str]()  # keys whose last body took long
        self._now: asyncio.Task[Any] | None = None
        """The reading whose turn it is."""
        self._tasks = Tasks()

    async def answer(self, key: str, job: Mapping[str, Any], pieces: Pieces) -> tuple[dict[str, Any] | None, Pieces]:
        """The answer of the process; None: there was none in time."""
        asked = self._tasks.spawn(self._ask(key, job, pieces), "read-large-body")
        try:
            return await asyncio.shield(asked)
        except asyncio.CancelledError:
            if asked is not self._now:
                asked.cancel()
            raise

    async def close(self) -> None:
        await self._tasks.cancel_all()
        await self._end()

    async def _ask(self, key: str, job: Mapping[str, Any], pieces: Pieces) -> tuple[dict[str, Any] | None, Pieces]:
        own, clock = self._of_key.setdefault(key, asyncio.Lock()), asyncio.get_running_loop().time
        try:
            async with (
                asyncio.timeout(READ_WITHIN_S), own,
                self._slow_lock if key in self._slow else nullcontext(), self._lock, asyncio.timeout(READ_FOR_S),
            ):  # fmt: skip
                self._now, begun = asyncio.current_task(), clock()
                try:
                    for _ in range(2):  # it may have ended since the last one
                        try:
                            return await self._exchange(job, pieces)
                        except (OSError, EOFError):
                            await self._end()
                        except BaseException:
                            await self._end()  # its next output would belong to the cancelled request
                            raise
                finally:
                    (self._slow.add if clock() - begun > SLOW_S else self._slow.discard)(key)
        except TimeoutError:
            pass
        return None, ()

    async def _exchange(self, job: Mapping[str, Any], pieces: Pieces) -> tuple[dict[str, Any], Pieces]:
        process = self._process
        if process is None or process.returncode is not None:
            process = self._process = await start_python(READER, 4 * large_body.MAX_BRIEF_BYTES)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(large_body.line({**job, "length": sum(map(len, pieces)), "idle_s": self._idle_s}))
        for piece in pieces:
            process.stdin.write(piece)
            await process.stdin.drain()
        answer: dict[str, Any] = json.loads(await process.stdout.readuntil(b"\n"))
        left, body = answer.get("length", 0), []
        while left:
            size = min(left, PIECE_BYTES)
            body.append(await process.stdout.readexactly(size))
            left -= size
        return answer, body

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:
            process.kill()
        await process.wait()


async def start_python(module: str, limit: int = 65_536) -> asyncio.subprocess.Process:
    """A process that runs `main` of this module, with pipes. `limit` is the longest line that it may write. It gets the
    variables that Python needs to start, and none that may be an operator's secret."""
    places = [place for place in sys.path if place]
    code = f"import sys; sys.path[:] = {places!r}; from {module} import main; main()"
    pipe = asyncio.subprocess.PIPE
    env = {name: value for name, value in os.environ.items() if name in _HANDED_DOWN}
    return await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-c", code, stdin=pipe, stdout=pipe, limit=limit, env=env
    )
