"""One attempt to post an alert, and its result.

Uses aiohttp's client, which verifies certificates; no call waits for it. The address may
contain a secret, so neither it nor an error's text, which may quote it, is ever shown.
"""

from __future__ import annotations

import asyncio
import time
from typing import NamedTuple

import aiohttp
from yarl import URL

from gateway import __version__
from gateway.config.proxies import client_arguments
from gateway.standard_webhooks import signature, signing_key
from gateway.upstream.connection import Head
from gateway.upstream.provider_errors import retry_after_s

from .settings import AlertReceiver

ATTEMPT_WITHIN_S = 10.0
"""Seconds from the DNS look-up to the head of the answer."""


class PostResult(NamedTuple):
    """The result of an attempt."""

    status: int | None
    """None: there was no answer."""
    detail: str
    """Description of the result in plain words, for the log."""
    retry_after_s: float | None = None
    is_final: bool = False
    """Another attempt would have the same result, whatever the status is."""

    @property
    def is_taken(self) -> bool:
        return self.status is not None and 200 <= self.status < 300


class Webhook:
    """The address to post to. Its connections are made when there is something to post."""

    def __init__(self, receiver: AlertReceiver, within_s: float = ATTEMPT_WITHIN_S) -> None:
        assert receiver.address is not None
        self._address = receiver.address
        self._way = receiver.way
        self._key = signing_key(receiver.secret)
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
        headers = signature(self._key, body, int(time.time()))
        how = client_arguments(self._way, address.scheme, headers)
        async with self._session.post(address, data=body, allow_redirects=False, **how) as response:
            status = response.status
            head = Head(status, tuple([(name.lower(), value) for name, value in response.headers.items()]))
            return PostResult(status, f"it answers {status}", retry_after_s(head, time.time()))

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
