"""One attempt to post an alert, and its result.

Uses aiohttp's client, which verifies certificates; no call waits for it. The address may
contain a secret, so neither it nor an error's text, which may quote it, is ever shown.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, NamedTuple

import aiohttp
from yarl import URL

from gateway import __version__
from gateway.upstream.connection import Head
from gateway.upstream.provider_errors import retry_after_s

from .settings import AlertSettings

ATTEMPT_WITHIN_S = 10.0
"""Seconds from the DNS look-up to the head of the answer."""


class PostResult(NamedTuple):
    """The result of an attempt."""

    status: int | None
    """None: there was no answer."""
    detail: str
    """Description of the result in plain words, for the log."""
    retry_after_s: float | None = None

    @property
    def is_taken(self) -> bool:
        return self.status is not None and 200 <= self.status < 300


class Webhook:
    """The address to post to. Its connections are made when there is something to post."""

    def __init__(self, settings: AlertSettings, within_s: float = ATTEMPT_WITHIN_S) -> None:
        assert settings.webhook is not None
        self._address = settings.webhook
        self._way = settings.way
        self._within_s = within_s
        self._session: aiohttp.ClientSession | None = None

    def __repr__(self) -> str:
        return f"<Webhook {'not used yet' if self._session is None else 'used'}>"

    async def post(self, body: bytes) -> PostResult:
        """Post this JSON once. Never raises."""
        try:
            async with asyncio.timeout(self._within_s):
                return await self._post(body)
        except TimeoutError:
            return PostResult(None, f"no answer within {self._within_s:g} s")
        except Exception as error:
            return PostResult(None, _describe(error))

    async def _post(self, body: bytes) -> PostResult:
        if self._session is None:
            headers = {"Content-Type": "application/json", "User-Agent": f"completions-gateway/{__version__}"}
            self._session = aiohttp.ClientSession(
                headers=headers, timeout=aiohttp.ClientTimeout(), cookie_jar=aiohttp.DummyCookieJar()
            )
        address = URL(self._address.get_secret_value(), encoded=True)  # not normalised: it may be signed
        async with self._session.post(address, data=body, allow_redirects=False, **self._by_proxy(address)) as response:
            status = response.status
            head = Head(status, tuple([(name.lower(), value) for name, value in response.headers.items()]))
            return PostResult(status, f"it answers {status}", retry_after_s(head, time.time()))

    def _by_proxy(self, address: URL) -> dict[str, Any]:
        """The proxy arguments for aiohttp. A proxy with CONNECT gets its credentials in a separate request."""
        if self._way is None:
            return {}
        how: dict[str, Any] = {"proxy": f"http://{self._way}"}
        if (basic := self._way.basic) is not None:
            place = "proxy_headers" if address.scheme == "https" else "headers"
            how[place] = {"Proxy-Authorization": f"Basic {basic.get_secret_value()}"}
        return how

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()


def _describe(error: Exception) -> str:
    match error:
        case aiohttp.ClientConnectorCertificateError() | aiohttp.ClientSSLError():
            return "its certificate cannot be trusted, or TLS failed otherwise"
        case aiohttp.ClientProxyConnectionError():
            return "its proxy cannot be reached"
        case aiohttp.ClientHttpProxyError():
            return f"its proxy answers {error.status}"
        case aiohttp.ClientConnectorDNSError():
            return "its name cannot be found"
        case aiohttp.ClientConnectorError():
            return "it cannot be reached"
    return f"the connection failed ({type(error).__name__})"
