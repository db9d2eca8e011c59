"""The bill of the upstream of the browser's gateways: a vendor in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

from tests.flows.gateway_process import COMPLETIONS
from tests.wings.billing.vendors import ADMIN, DAY_S, Call, Storage, Vendor

LIMIT_USD = 400
UNEXPLAINED_USD = 7
STORED = 3_221_225_472


def _calls(today: int) -> list[Call]:
    """Three days at twice the price of the configuration, one that the gateway knows nothing of, another user."""
    dear = (Decimal(4), Decimal(2), Decimal(8))
    own = [Call(today - ago * DAY_S, COMPLETIONS, 1000, 0, 500, price=dear) for ago in (4, 5, 6)]
    lost = Call(
        today - 3 * DAY_S, COMPLETIONS, 1_000_000, 0, 0, price=(Decimal(UNEXPLAINED_USD), Decimal(1), Decimal(1))
    )
    return [*own, lost, Call(today - 2 * DAY_S, "gpt-4.1", 1_000_000, 0, 0, "key_other")]


@contextmanager
def vendor() -> Iterator[dict[str, Any]]:
    """The section `billing` of a configuration, for the upstream `main`."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="vendor", daemon=True)
    thread.start()
    today = int(time.time() // DAY_S * DAY_S)
    storage = [Storage(today - 2 * DAY_S, STORED, Decimal("0.3"), "vector_stores")]
    made = Vendor(_calls(today), limit_usd=LIMIT_USD, storage=storage)
    server = asyncio.run_coroutine_threadsafe(made.start(), loop).result()
    source = {
        "provider": "openai",
        "api_key": ADMIN,
        "base_url": f"{server.make_url('/')}v1",
        "key_ids": ["key_gateway"],
    }
    try:
        yield {"upstreams": {"main": source}}
    finally:
        asyncio.run_coroutine_threadsafe(server.close(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
