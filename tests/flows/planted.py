"""Usage of other days, put into a store as a worker would have put it there."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from gateway.config import StoreSettings
from gateway.quota.ledger_entry import encode
from gateway.records import Record, Settlement, Usage
from gateway.store import Batch, Settle
from gateway.store.opening import open_store

AT_ONCE = 100


def record(day: str, key: str, **more: Any) -> Record:
    """A call of 10 + 5 tokens on this day with an unknown cost."""
    noon = datetime.fromisoformat(f"{day}T12:00:00").replace(tzinfo=UTC).timestamp()
    plain: dict[str, Any] = {
        "id": f"req_{uuid.uuid4().hex}", "time": noon, "key": key, "team": None, "endpoint": "completions",
        "model": "m", "label_model": "m", "routed_model": "m", "returned_model": "m", "upstream": "main",
        "status": 200, "stream": False, "usage": Usage(10, 5, source="reported"), "ended": "done", "first_byte_s": 0.1,
        "duration_s": 0.2, "attempts": 1,
    }  # fmt: skip
    return Record(**(plain | more))


def plant(url: str, records: Sequence[Record], **settings: Any) -> None:
    """Put these calls into the store at this address. No gateway needs to run, and those that run do not mind."""

    async def deliver() -> None:
        store = await open_store(StoreSettings(url=url, **settings))
        try:
            worker = uuid.uuid4().hex
            for number in range(0, len(records), AT_ONCE):
                some = [Settlement(each, ()) for each in records[number : number + AT_ONCE]]
                items = [Settle(number + place, *each, encode(*each)) for place, each in enumerate(some, 1)]
                seq = number // AT_ONCE
                await store.apply(Batch(worker, seq + 1, seq, items))
            await store.retire(worker)
        finally:
            await store.close()

    asyncio.run(deliver())
