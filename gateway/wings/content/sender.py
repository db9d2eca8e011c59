"""Sends kept calls to a store that takes OTLP over HTTP. Those that it does not take are dropped; no call waits."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from io import BytesIO

import aiohttp
from yarl import URL

from gateway import __version__
from gateway.config.proxies import client_arguments
from gateway.tasks import Tasks

from .settings import OtlpStore

log = logging.getLogger("gateway")

POST_WITHIN_S = 10.0
PAUSES_S = (1.0, 5.0)
"""The pauses before further attempts, of which there is one for each."""
BATCH_BYTES = 1_048_576
"""Calls that wait are sent together up to this size; a larger one alone."""
MAY_REPEAT = frozenset({429, 502, 503, 504})
"""OTLP 1.9, "Retryable response codes"; other errors are the request's."""

Noted = Callable[[Sequence[int], bool], None]
"""Takes the sizes of calls, and whether the store took them."""


class OtlpSender:
    """Sends one batch at a time. To be closed."""

    def __init__(
        self, settings: OtlpStore, noted: Noted, pauses_s: Sequence[float] = PAUSES_S, within_s: float = POST_WITHIN_S
    ) -> None:
        self._settings = settings
        self._noted = noted
        self._pauses_s = pauses_s
        self._within_s = within_s
        self._waiting: deque[bytes] = deque()
        self._has_some = asyncio.Event()
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._is_failing = False
        self._session: aiohttp.ClientSession | None = None
        self._tasks = Tasks()
        self._tasks.keep(self._run, "send-content")

    def put(self, request: bytes) -> None:
        self._waiting.append(request)
        self._is_idle.clear()
        self._has_some.set()

    async def close(self, within_s: float) -> None:
        """Send what waits, for at most `within_s`."""
        try:
            async with asyncio.timeout(within_s):
                await self._is_idle.wait()
        except TimeoutError:
            pass
        await self._tasks.cancel_all()
        self._noted([len(each) for each in self._waiting], False)
        if self._session is not None:
            await self._session.close()

    async def _run(self) -> None:
        while True:
            if not self._waiting:
                self._has_some.clear()
                self._is_idle.set()
            await self._has_some.wait()
            sizes, body = self._batch()
            is_taken = False
            try:
                is_taken = await self._send(body)
            finally:
                self._noted(sizes, is_taken)

    def _batch(self) -> tuple[list[int], bytes]:
        taken = [self._waiting.popleft()]
        size = len(taken[0])
        while self._waiting and size + len(self._waiting[0]) <= BATCH_BYTES:
            taken.append(self._waiting.popleft())
            size += len(taken[-1])
        return [len(each) for each in taken], b"".join(taken)

    async def _send(self, body: bytes) -> bool:
        """Whether the store took it. A failure is logged once, not for each call."""
        for pause_s in (*self._pauses_s, None):
            fault = await self._post(body)
            if fault is None or pause_s is None or fault.startswith("!"):
                break
            await asyncio.sleep(pause_s)
        if self._is_failing != (fault is not None):
            self._is_failing = fault is not None
            if fault is None:
                log.warning("the store of content at %s takes it again", self._settings.shown)
            else:
                log.error("content is dropped: the store at %s %s", self._settings.shown, fault.removeprefix("!"))
        return fault is None

    async def _post(self, body: bytes) -> str | None:
        """The fault of one attempt, with ! before it where another one would have the same; None: it was taken."""
        if self._session is None:
            headers = {name: value.get_secret_value() for name, value in self._settings.headers.items()}
            headers |= {"Content-Type": "application/x-protobuf", "User-Agent": f"completions-gateway/{__version__}"}
            self._session = aiohttp.ClientSession(
                headers=headers, timeout=aiohttp.ClientTimeout(), cookie_jar=aiohttp.DummyCookieJar()
            )
        address = URL(self._settings.address, encoded=True)
        how = client_arguments(self._settings.way, address.scheme, {})
        try:
            async with asyncio.timeout(self._within_s):
                async with self._session.post(address, data=BytesIO(body), allow_redirects=False, **how) as response:
                    status = response.status
        except TimeoutError:
            return f"does not answer within {self._within_s:g} s"
        except Exception as error:  # its text may quote the address
            return f"cannot be reached ({type(error).__name__})"
        if 200 <= status < 300:
            return None
        return f"answers {status}" if status in MAY_REPEAT else f"!answers {status}"
