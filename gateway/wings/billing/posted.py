"""The newest bills, which one worker reads and posts for all workers and gateways on the store.

A post is lost with a server that loses it, and then made again by the next reading: the provider keeps the bill.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Iterable
from typing import Protocol

from . import bill as bills
from .bill import Bill

HOLDER = "bill"
LOOK_S = 1.0
"""A worker that only reads leaves an empty post for so long."""


class Posts(Protocol):
    """The part of the ledger that this uses."""

    async def exchange(self, place: str, holder: str, text: str, for_s: float) -> dict[str, str]: ...


def _place(upstream: str) -> str:
    return f"billing:{upstream}"


async def post(ledger: Posts, upstream: str, bill: Bill | None, failed: str | None, for_s: float) -> None:
    """Post a bill, and why the last reading failed, if it did. Raises `StoreUnavailable`."""
    text = json.dumps([bills.written(bill) if bill else None, failed], separators=(",", ":"))
    await ledger.exchange(_place(upstream), HOLDER, text, for_s)


async def newest(ledger: Posts, upstreams: Iterable[str]) -> dict[str, tuple[Bill | None, str | None]]:
    """The bill of each upstream, and why its last reading failed. Raises `StoreUnavailable`."""
    found = {}
    for upstream in upstreams:
        others = await ledger.exchange(_place(upstream), f"reader-{uuid.uuid4().hex}", "", LOOK_S)
        found[upstream] = await asyncio.to_thread(_read, others.get(HOLDER))
    return found


def _read(text: str | None) -> tuple[Bill | None, str | None]:
    try:
        written, failed = json.loads(text or "[null, null]")
        return (bills.read(written) if written else None), failed
    except (ValueError, TypeError):  # of another version
        return None, None
