"""Posts to one hook, and reads its answer within its time and length.

The address may contain a secret, so neither it nor an error's text, which may quote it, is ever shown.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import AbstractAsyncContextManager

import aiohttp
from yarl import URL

from gateway import __version__
from gateway.config.proxies import client_arguments
from gateway.standard_webhooks import signature, signing_key

from .settings import HookReceiver

log = logging.getLogger("gateway")

FAULTS = {
    "timeout": "no answer in time",
    "connection": "it cannot be reached, or the connection failed",
    "status": "it answers another status than 200 or 204",
    "too_long": "its answer is too long",
    "invalid": "its answer is not valid",
    "circuit_open": "it has failed several times in a row, and is not asked for a moment",
}
"""Why there is no answer, by the word of the metric and the record."""


class HookFault(Exception):
    """There is no valid answer; `name` is one of `FAULTS`."""

    def __init__(self, name: str, detail: str = "") -> None:
        super().__init__(detail or FAULTS[name])
        self.name = name
        self.is_unreachable = False
        """Whether there was no connection, so that no request can be the cause."""


class HookClient:
    """The connections to one hook. They are made when there is something to post."""

    def __init__(self, name: str, receiver: HookReceiver, within_s: float) -> None:
        self._name = name
        self._address = receiver.url
        self._way = receiver.way
        self._key = signing_key(receiver.secret)
        self._within_s = within_s
        self._session: aiohttp.ClientSession | None = None
        self._under_way = 0
        self._is_closing = False
        self._is_failing = False

    def __repr__(self) -> str:
        return f"<HookClient {self._name}>"

    async def post(self, body: bytes, most_bytes: int, room: AbstractAsyncContextManager[None]) -> bytes:
        """Post this JSON once, when there is room. Returns the answer; raises `HookFault`."""
        self._under_way += 1
        try:
            async with asyncio.timeout(self._within_s), room:
                try:
                    return await self._post(body, most_bytes)
                except aiohttp.ServerDisconnectedError:  # an idle connection that the hook has closed meanwhile
                    return await self._post(body, most_bytes)
        except HookFault:
            raise
        except TimeoutError:
            raise HookFault("timeout") from None
        except Exception as error:  # whatever the other side sends: its text may quote the address
            fault = HookFault("connection")
            fault.is_unreachable = isinstance(error, aiohttp.ClientConnectorError)
            raise fault from None
        finally:
            self._under_way -= 1
            await self._end_when_idle()

    async def _post(self, body: bytes, most_bytes: int) -> bytes:
        if self._session is None:
            headers = {
                "Content-Type": "application/json", "User-Agent": f"completions-gateway/{__version__}",
                "Accept-Encoding": "identity",
            }  # fmt: skip
            self._session = aiohttp.ClientSession(
                headers=headers, timeout=aiohttp.ClientTimeout(), cookie_jar=aiohttp.DummyCookieJar(),
                connector=aiohttp.TCPConnector(limit=0), auto_decompress=False,
            )  # fmt: skip
        address = URL(self._address.get_secret_value(), encoded=True)  # not normalised: it may be signed
        headers = signature(self._key, body, int(time.time()))
        how = client_arguments(self._way, address.scheme, headers)
        async with self._session.post(address, data=body, allow_redirects=False, **how) as response:
            if response.status not in (200, 204):
                response.close()
                raise HookFault("status", f"it answers {response.status}")
            answer = bytearray()
            async for piece in response.content.iter_any():
                answer += piece
                if len(answer) > most_bytes:
                    response.close()
                    raise HookFault("too_long", f"its answer has more than {most_bytes} bytes")
            return bytes(answer)

    async def close(self) -> None:
        """Close the connections once nothing is under way."""
        self._is_closing = True
        await self._end_when_idle()

    async def _end_when_idle(self) -> None:
        if self._is_closing and not self._under_way and self._session is not None:
            session, self._session = self._session, None
            await session.close()

    def note(self, fault: HookFault | None) -> None:
        """Log once that it begins to fail, and that it answers again."""
        if self._is_failing == (fault is None):
            self._is_failing = fault is not None
            what = "answers again" if fault is None else f"fails: {fault}"
            log.warning("hook %s %s", self._name, what)
