"""The way to a provider's billing API: one session, a time limit, and faults with a remedy.

Uses aiohttp's client, which verifies certificates; no call waits for it. Neither the key nor an answer's text is shown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from types import ModuleType
from typing import Any, Self
from urllib.parse import urlsplit

import aiohttp

from gateway import __version__, untrusted_json
from gateway.config import Upstream
from gateway.config.proxies import client_arguments

from . import anthropic, litellm, newapi, oneapi, openai, openrouter
from .asking import Ask, NotThere, Query
from .bill import Account, Bill, BillFault, check_form, summed, summed_services
from .generations import GenerationCost
from .settings import BillSource, Provider

PROVIDERS: Mapping[Provider, ModuleType] = {
    "openai": openai, "anthropic": anthropic, "openrouter": openrouter, "newapi": newapi, "oneapi": oneapi,
    "litellm": litellm,
}  # fmt: skip
"""Each has `BASE_URL`, `KEY_HEADER`, `HEADERS`, `WANTED`, `lines` and `account`. It may have `USER_HEADER` or
`USER_QUERY`, under which `user` is sent; and `generation` with `GENERATION_HEADER`, for single calls."""

ANSWER_WITHIN_S = 30.0
MAX_BYTES = 32 * 1024 * 1024
"""The longest page that is read."""
MAX_PAGES = 500
RETRIES_S = (1.0, 5.0)
"""Waits before a question is repeated that got 429 or 5xx."""
GENERATIONS_EVERY_S = 0.2
"""The pause between two questions for single calls."""


async def read_bill(
    source: BillSource, upstream: Upstream, now: float, days: int, waits: Sequence[float] = RETRIES_S
) -> Bill:
    """The bill of the last days. Raises `BillFault`."""
    provider = PROVIDERS[source.provider]
    today = datetime.fromtimestamp(now, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    since, until = today - timedelta(days=days - 1), today + timedelta(days=1)
    async with _Asking(source, upstream, waits) as asking:
        try:
            since, lines, services = await provider.lines(asking.ask, since, until)
            try:
                account = await provider.account(asking.ask)
            except BillFault:
                account = Account()  # a key may read the bill alone
            check_form(lines, services, account)
        except BillFault:
            raise
        except Exception as error:  # whatever the form of an answer leads to
            raise BillFault(f"an answer has another form than expected ({type(error).__name__})") from None
    first = since.date().isoformat()
    within = [line for line in lines if line.day >= first]
    rows = await asyncio.to_thread(summed, within, source.key_ids, source.projects)
    within_services = [use for use in services if use.day >= first]
    return Bill(now, first, rows, account, services=summed_services(within_services, source.projects))


async def read_generations(
    source: BillSource, upstream: Upstream, names: Iterable[str], every_s: float = GENERATIONS_EVERY_S,
    waits: Sequence[float] = RETRIES_S,
) -> tuple[dict[str, GenerationCost | None], str | None]:  # fmt: skip
    """Single calls by their ids, one after another; None: it is not there, or not yet. Beside it why the rest was not
    read, if some was not."""
    found: dict[str, GenerationCost | None] = {}
    provider = PROVIDERS[source.provider]
    read: Callable[[Ask, str], Awaitable[GenerationCost]] | None = getattr(provider, "generation", None)
    if read is None:
        return found, None
    async with _Asking(source, upstream, waits) as asking:
        for name in names:
            if found:
                await asyncio.sleep(every_s)
            try:
                found[name] = await read(asking.ask, name)
            except NotThere:
                found[name] = None
            except BillFault as fault:
                return found, str(fault)
            except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
                return found, f"/generation has another form than expected ({type(error).__name__})"
    return found, None


class _Asking:
    """One reading of a bill."""

    def __init__(self, source: BillSource, upstream: Upstream, waits: Sequence[float]) -> None:
        self._provider = PROVIDERS[source.provider]
        self._source = source
        self._upstream = upstream
        self._waits = waits
        self._asked = 0
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        timeout = aiohttp.ClientTimeout(total=ANSWER_WITHIN_S)
        self._session = aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._session is not None
        await self._session.close()

    async def ask(self, path: str, query: Sequence[tuple[str, str]]) -> Any:
        """The answer to one question, repeated while the provider is busy. Raises `BillFault`."""
        for wait in self._waits:
            status, body = await self._get(path, query)
            if status != 429 and status < 500:
                break
            await asyncio.sleep(wait)
        else:
            status, body = await self._get(path, query)
        if status == 404:
            raise NotThere(f"{path} answers 404; is base_url right?")
        if status in (401, 403):
            raise BillFault(f"{path} answers {status}: expected {self._provider.WANTED}")
        if status != 200:
            raise BillFault(f"{path} answers {status}")
        try:
            return await asyncio.to_thread(untrusted_json.parse_object, body)
        except ValueError:
            raise BillFault(f"{path} answers no JSON object; is base_url right?") from None

    async def _get(self, path: str, query: Sequence[tuple[str, str]]) -> tuple[int, bytes]:
        assert self._session is not None
        self._asked += 1
        if self._asked > MAX_PAGES:
            raise BillFault(f"the bill has more than {MAX_PAGES} pages")
        address = (self._source.base_url or self._provider.BASE_URL) + path
        how = client_arguments(self._upstream.way, urlsplit(address).scheme, self._headers())
        try:
            async with self._session.get(
                address, params=[*query, *self._user()], allow_redirects=False, **how
            ) as answer:
                body = await answer.content.read(MAX_BYTES + 1)
                while len(body) <= MAX_BYTES and (more := await answer.content.read(MAX_BYTES + 1 - len(body))):
                    body += more
                if len(body) > MAX_BYTES:
                    raise BillFault(f"{path} answers more than {MAX_BYTES:,} bytes")
                return answer.status, body
        except TimeoutError:
            raise BillFault(f"{path}: no answer within {ANSWER_WITHIN_S:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise BillFault(f"{path}: the connection failed ({type(error).__name__})") from None

    def _user(self) -> Query:
        name = getattr(self._provider, "USER_QUERY", None)
        return [(name, self._source.user)] if name and self._source.user else []

    def _headers(self) -> dict[str, str]:
        secret = self._source.api_key.get_secret_value()
        is_bearer = self._provider.KEY_HEADER == "authorization"
        header = getattr(self._provider, "USER_HEADER", None)
        user = {header: self._source.user} if header and self._source.user else {}
        return {
            "User-Agent": f"completions-gateway/{__version__}",
            self._provider.KEY_HEADER: f"Bearer {secret}" if is_bearer else secret,
            **self._provider.HEADERS,
            **user,
        }
