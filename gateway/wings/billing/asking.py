"""The question to a provider's billing API, as the modules of providers ask it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from .bill import BillFault, BillLine, ServiceUse

T = TypeVar("T")

Query = Sequence[tuple[str, str]]

Ask = Callable[[str, Query], Awaitable[Any]]
"""Asks for a path below the base address with this query, and returns the JSON object of the answer. Raises
`BillFault`."""


class BilledDays(NamedTuple):
    """The lines of a bill, and the first day that they cover: a provider may keep fewer days than are asked for."""

    since: datetime
    lines: list[BillLine]
    services: Sequence[ServiceUse] = ()


class NotThere(BillFault):
    """The provider answers 404: it has nothing of the kind."""


IN_A_TURN = 200
"""Rows between two turns of the event loop."""


async def in_turns(rows: Iterable[T]) -> AsyncIterator[T]:
    """The rows of an answer, as many as it may have, without holding up the event loop."""
    for number, row in enumerate(rows, 1):
        yield row
        if number % IN_A_TURN == 0:
            await asyncio.sleep(0)


async def buckets(ask: Ask, path: str, query: Query) -> AsyncIterator[Mapping[str, Any]]:
    """The buckets of all pages, as OpenAI and Anthropic divide them, each in parts. A turn of the event loop is between
    two of them, for one may have thousands of results."""
    cursor: str | None = None
    while True:
        page = await ask(path, [*query, *([("page", cursor)] if cursor else [])])
        for bucket in page.get("data") or []:
            results = bucket["results"]
            for at in range(0, len(results), IN_A_TURN):
                yield {**bucket, "results": results[at : at + IN_A_TURN]}
                await asyncio.sleep(0)
        cursor = page.get("next_page")
        if not page.get("has_more") or not cursor:
            return
