"""The way to a provider's billing API: one session, a time limit, and faults with a remedy.

Uses aiohttp's client, which verifies certificates; no call waits for it. Neither the key nor an answer's text is shown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from math import nan
from types import ModuleType
from typing import Any, Self
from urllib.parse import urlsplit

import aiohttp

from gateway import __version__, untrusted_json
from gateway.config import Upstream
from gateway.config.proxies import client_arguments
from gateway.config.sections import BAD_SIGNS

from . import anthropic, litellm, newapi, oneapi, openai, openrouter
from .asking import Ask, NotThere, Query
from .bill import Account, Bill, BillFault, BillLine, ServiceUse, summed, summed_services
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
MOST_OBJECTS, MOST_OBJECTS_OF_A_PAGE = 1_000_000, 300_000
"""Objects in all answers of a reading, and in one: more would not leave calls their memory."""
MOST_ROWS = 50_000
"""Days and models of a bill: it is posted for the other workers."""
LARGEST = 10**18
"""The largest number that is believed: billionths of a US dollar, tokens or bytes."""
MOST_TEXT = 256
"""Characters of a name that are kept."""
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
        with _believable(source):
            since, lines, services = await provider.lines(asking.ask, since, until)
        try:
            with _believable(source):
                account = _checked_account(await provider.account(asking.ask))
        except BillFault:
            account = Account()  # a key may read the bill alone
    with _believable(source):
        return await asyncio.to_thread(_bill, now, since.date().isoformat(), lines, account, services, source)


def _bill(
    now: float, first: str, lines: Iterable[BillLine], account: Account, services: Iterable[ServiceUse],
    source: BillSource,
) -> Bill:  # fmt: skip
    """The sums of what a provider states from this day on. Raises `BillFault`, and errors of a form."""
    within = [_checked(line) for line in lines if line.day >= first]
    rows = summed(within, source.key_ids, source.projects)
    if len(rows) > MOST_ROWS:
        raise BillFault(f"the bill has {len(rows):,} days and models, and {MOST_ROWS:,} are read at most")
    uses = [
        use._replace(project=_text(use.project), number=_number(use.number)) for use in services if use.day >= first
    ]
    return Bill(now, first, rows, account, services=summed_services(uses, source.projects))


@contextmanager
def _believable(source: BillSource, what: str = "an answer") -> Iterator[None]:
    """Turns whatever a provider's answer causes into a `BillFault`, without the key, which it may quote."""
    try:
        yield
    except NotThere:
        raise
    except BillFault as fault:
        raise BillFault(str(fault).replace(source.api_key.get_secret_value(), "***")) from None
    except _OF_A_FORM as error:
        raise BillFault(f"{what} has another form than expected ({type(error).__name__})") from None


_OF_A_FORM = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, OSError, RecursionError)


def _checked(line: BillLine) -> BillLine:
    """The line with numbers that can be added up, and names that can be shown. Raises an error of a form."""
    date.fromisoformat(line.day)
    fresh, cached, output, other = map(_number, line.tokens)
    nusd = line.nusd
    if max(map(abs, nusd)) > LARGEST:
        raise OverflowError
    return BillLine(
        _text(line.day), _text(line.model), _text(line.key), _text(line.project), _text(line.tier),
        _number(line.requests), (fresh, cached, output, other), nusd, _number(line.rounding_nusd),
    )  # fmt: skip


def _number(value: Any) -> int:
    if not isinstance(value, int | float):
        raise TypeError
    if not abs(value) <= LARGEST:  # also what is no number
        raise OverflowError
    return round(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return BAD_SIGNS.sub("?", value[:MOST_TEXT])


def _checked_account(account: Account) -> Account:
    """The account without amounts that are none."""
    return Account(*[None if usd is None or not abs(usd) <= LARGEST else usd for usd in account])


def _checked_generation(cost: GenerationCost) -> GenerationCost:
    upstream_nusd = cost.upstream_nusd
    return GenerationCost(
        _number(cost.nusd), _number(cost.prompt_tokens), _number(cost.cached_tokens), _number(cost.completion_tokens),
        _text(cost.provider), cost.is_cancelled, None if upstream_nusd is None else _number(upstream_nusd),
    )  # fmt: skip


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
                with _believable(source, "/generation"):
                    found[name] = _checked_generation(await read(asking.ask, name))
            except NotThere:
                found[name] = None
            except BillFault as fault:
                return found, str(fault)
    return found, None


class _Asking:
    """One reading of a bill."""

    def __init__(self, source: BillSource, upstream: Upstream, waits: Sequence[float]) -> None:
        self._provider = PROVIDERS[source.provider]
        self._source = source
        self._upstream = upstream
        self._waits = waits
        self._asked = self._objects = 0
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
        objects = body.count(b"{")
        self._objects += objects
        if objects > MOST_OBJECTS_OF_A_PAGE or self._objects > MOST_OBJECTS:
            raise BillFault(
                f"{path} answers more than {MOST_OBJECTS_OF_A_PAGE:,} objects, or with its other pages too many"
            )
        try:
            return await asyncio.to_thread(
                untrusted_json.parse_object, body, nan
            )  # which no check of a number lets pass
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
