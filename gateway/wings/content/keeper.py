"""The bytes of kept calls that a worker holds, and the way of each call that has ended to the stores."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from functools import partial

from gateway.observe.metrics import Telemetry
from gateway.tasks import Tasks
from gateway.web.capacity import Room

from .digest import KeptCall
from .digester import Digester
from .files import Files, FileWriter
from .metrics import count
from .policy import is_never
from .sender import OtlpSender
from .settings import ContentSettings

log = logging.getLogger("gateway")

CLOSE_WITHIN_S = 3.0


class Keeper:
    """The kept calls of one worker, over all configurations."""

    def __init__(self) -> None:
        self._stores: ContentStores | None = None
        self._room = Room()
        """Bytes of calls under way, and of those that wait to be read, by key."""

    @property
    def stores(self) -> ContentStores | None:
        """None: nothing is kept now."""
        return self._stores

    @stores.setter
    def stores(self, stores: ContentStores | None) -> None:
        self._stores = stores
        if stores is None:
            self._room.resize(0, 0)
        else:
            self._room.resize(stores.settings.room, min(stores.settings.room, 2 * stores.settings.max_call_bytes))

    @property
    def held(self) -> int:
        return self._room.held

    def hold(self, size: int, key: str) -> bool:
        """Take room for `size` bytes of a call of this key; False: there is none, or the key has its half."""
        return self._room.hold(size, key)

    def release(self, size: int, key: str) -> None:
        self._room.release(size, key)

    def put(self, call: KeptCall, key: str) -> None:
        """A call has ended, whose bytes were held."""
        if self.stores is None or is_never(self.stores.settings, key):
            self.release(call.size, key)
            return
        self.stores.put(call, key)

    def dropped(self) -> None:
        """A call had no room."""
        if self.stores is not None:
            self.stores.dropped()


class ContentStores:
    """The stores of one configuration, and the calls that wait for them. To be closed; later calls are dropped."""

    def __init__(
        self, settings: ContentSettings, keeper: Keeper, telemetry: Telemetry, digester: Digester | None = None
    ) -> None:
        self.settings = settings
        self._keeper = keeper
        self._telemetry = telemetry
        self._digester = digester or Digester(settings)
        self._waiting: deque[tuple[KeptCall, str]] = deque()
        """They are calls, each with its key."""
        self._has_some = asyncio.Event()
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._is_slow = False
        self._is_closed = False
        self._tasks = Tasks()
        loop = asyncio.get_running_loop()

        def written(size: int, is_written: bool) -> None:
            try:
                loop.call_soon_threadsafe(self._noted, "files", [size], is_written)
            except RuntimeError:  # the worker has ended
                pass

        self._sender = None if settings.otlp is None else OtlpSender(settings.otlp, partial(self._noted, "otlp"))
        self._writer = None if settings.files is None else FileWriter(Files(settings.files), written)
        names = [*(["otlp"] if self._sender else []), *(["files"] if self._writer else [])]
        self._held = dict.fromkeys(names, 0)
        """Bytes that wait for each store. One that hangs leaves the others their room."""
        self._tasks.keep(self._run, "digest-content")

    def put(self, call: KeptCall, key: str) -> None:
        if self._is_closed:
            self._keeper.release(call.size, key)
            self.dropped()
            return
        self._waiting.append((call, key))
        self._is_idle.clear()
        self._has_some.set()

    def dropped(self) -> None:
        """A call does not come to any store."""
        for store in self._held:
            count(self._telemetry, store, "dropped")

    async def close(self) -> None:
        """Hand over what waits, for a short time."""
        try:
            async with asyncio.timeout(CLOSE_WITHIN_S):
                await self._is_idle.wait()
        except TimeoutError:
            pass
        self._is_closed = True
        await self._tasks.cancel_all()
        await self._digester.close()
        for call, key in self._waiting:
            self._keeper.release(call.size, key)
            self.dropped()
        if self._sender is not None:
            await self._sender.close(CLOSE_WITHIN_S)
        if self._writer is not None:
            await asyncio.to_thread(self._writer.end)

    async def _run(self) -> None:
        while True:
            if not self._waiting:
                self._has_some.clear()
                self._is_idle.set()
            await self._has_some.wait()
            call, key = self._waiting.popleft()
            try:
                await self._hand_over(call)
            except BaseException:
                self.dropped()
                raise
            finally:
                self._keeper.release(call.size, key)

    async def _hand_over(self, call: KeptCall) -> None:
        digest = await self._digester.digest(call)
        if digest is None:
            if not self._is_slow:
                log.error(
                    "the content of call %s is dropped: it could not be read in time, or at all; is a pattern of "
                    "content.redact slow? Logged once; gateway_content_calls_total counts all",
                    call.facts["call"],
                )
            self._is_slow = True
            self.dropped()
            return
        for store, to, data in (("otlp", self._sender, digest.request), ("files", self._writer, digest.line)):
            if to is None:
                continue
            if self._held[store] + len(data) <= self.settings.room:
                self._held[store] += len(data)
                to.put(data)
            else:
                count(self._telemetry, store, "dropped")

    def _noted(self, store: str, sizes: Sequence[int], is_stored: bool) -> None:
        """A store took calls of these sizes, or did not."""
        self._held[store] -= sum(sizes)
        count(self._telemetry, store, "stored" if is_stored else "failed", len(sizes))
