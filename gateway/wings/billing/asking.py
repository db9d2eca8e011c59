"""The question to a provider's billing API, as the modules of providers ask it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from .bill import BillFault, BillLine, ServiceUse

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


async def buckets(ask: Ask, path: str, query: Query) -> AsyncIterator[Mapping[str, Any]]:
    """The buckets of all pages, as OpenAI and Anthropic divide them. A turn of the event loop is between two of them,
    for one may have hundreds of results."""
    cursor: str | None = None
    while True:
        page = await ask(path, [*query, *([("page", cursor)] if cursor else [])])
        for bucket in page.get("data") or []:
            yield bucket
            await asyncio.sleep(0)
        cursor = page.get("next_page")
        if not page.get("has_more") or not cursor:
            return
