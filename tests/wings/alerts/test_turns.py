"""No look of the watcher at the quotas holds the event loop for long."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import cast

import pytest
from prometheus_client import CollectorRegistry
from pydantic import SecretStr

from gateway.accounting.changed_windows import ChangedWindows
from gateway.config import build
from gateway.keys.cache import KeyCache
from gateway.observe.metrics import Telemetry
from gateway.store import Ledger
from gateway.store.opening import open_store
from gateway.wings.alerts.background import _owners, _present, _windows
from gateway.wings.alerts.channels import Channel
from gateway.wings.alerts.outbox import Outbox
from gateway.wings.alerts.settings import WEBHOOK, AlertReceiver
from gateway.wings.alerts.watcher import SWEPT_AT_ONCE, Watcher
from gateway.wings.alerts.webhook import PostResult
from tests.fakes.scripted import until
from tests.fakes.turns import MOST_CALLS, counted
from tests.store.changes import draw, settlement
from tests.store.worker import Worker
from tests.web.test_turns import ISSUED, KEYS, NOWHERE, TEAMS


@pytest.mark.shortened
@pytest.mark.parametrize("has_own_quotas", [True, False])
async def test_no_look_at_the_quotas_holds_the_loop(
    has_own_quotas: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not when every key has just called and every quota is at its end; nor where keys have no quotas of their own."""
    config = build({
        "upstreams": {"up": {"base_url": NOWHERE}},
        "models": {"m": {"routes": [{"upstream": "up"}], "max_output_tokens": 100}},
        "keys": ISSUED if has_own_quotas else [{**each, "quotas": []} for each in ISSUED], "teams": TEAMS,
        "store": {"url": f"embedded:{tmp_path}"},
    })  # fmt: skip
    store = await open_store(config.store)
    book, touched, received = KeyCache(store, config), ChangedWindows(), []

    async def post(body: bytes) -> PostResult:
        received.append(body)
        return PostResult(200, "it answers 200")

    channel = Channel(AlertReceiver(webhook=SecretStr("http://hooks.example.com")), Outbox(post), (80, 100), {})
    now = 1_795_226_400.0
    watcher = Watcher(
        cast(Ledger, store), touched, partial(_windows, book), partial(_present, book), partial(_owners, book),
        Telemetry([each["id"] for each in ISSUED], KEYS, CollectorRegistry()), {WEBHOOK: channel},
        namespace="acme", holder="holder", clock=lambda: now,
    )  # fmt: skip
    worker = Worker(store)
    spent = []
    for each in book.known_keys():
        wish = draw(*[term.one(now) for term in book.terms.of(each)])
        touched.note([worker.closing(settlement(wish, 1, key=each.id, model=model)) for model in "abc"], [])
        spent += [claim.window for claim in wish.claims if claim.window.starts]
    touched.put_back([], {window.id for window in spent})
    book.configure(config)  # what was worked out is forgotten
    with counted(monkeypatch) as turns:
        await asyncio.sleep(0)  # the turn that has begun is not counted
        for _ in range(KEYS // SWEPT_AT_ONCE + 1):
            await watcher.look()
        await until(lambda: len(received) == 2 * len({window.id for window in spent}))
    assert turns.most <= MOST_CALLS, turns.by
    await watcher.close(3)
    await store.close()
