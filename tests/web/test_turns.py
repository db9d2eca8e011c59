"""No request of the dashboard holds the event loop for long, however much there is to show, nor does what a worker does
beside its calls."""

from __future__ import annotations

import asyncio
import http.client
from functools import partial
from pathlib import Path
from typing import cast
from urllib.parse import urljoin

import pytest
from prometheus_client import CollectorRegistry

from gateway.accounting.changed_windows import ChangedWindows
from gateway.alerts import Outbox, Watcher
from gateway.alerts.watcher import SWEPT_AT_ONCE
from gateway.alerts.webhook import PostResult
from gateway.config import build
from gateway.keys.cache import KeyCache
from gateway.observe.metrics import Telemetry
from gateway.store import Ledger
from gateway.store.opening import open_store
from gateway.web.background import _present, _windows
from tests.amounts import amount
from tests.browser.stores import days, filled, large
from tests.browser.viewers import ALWAYS, MEMBER_VIEWS, VIEWS, Subjects, Views, paths
from tests.fakes.scripted import until
from tests.fakes.turns import MOST_CALLS, counted
from tests.flows.gateway_process import key, secret
from tests.flows.planted import plant, record
from tests.store.changes import draw, settlement
from tests.store.worker import Worker

from .conftest import ADMIN_TOKEN, Inside

NOWHERE = "http://127.0.0.1:9/v1"
KEYS = amount(1000, 400)
QUOTAS = [{"requests": 60, "per": "minute"}, {"tokens": 1000, "per": "day"}]
ISSUED = [key(f"key-{place:04}", team=f"team-{place % 20}", quotas=QUOTAS) for place in range(KEYS)]
OF = Subjects(key="key-0007", team="team-7", model="model-3", upstream="upstream-1")
TEAMS = {f"team-{place}": {"quotas": QUOTAS} for place in range(20)}


def fetch(port: int, path: str, token: str = ADMIN_TOKEN) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", urljoin("/admin/api/", path), headers={"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        body = answer.read()
        assert answer.status == 200, body
        return body
    finally:
        connection.close()


def asked_in(views: Views) -> set[str]:
    """Every request of these views, and those of any view where they are an operator's."""
    polls = [poll for view in views.values() for poll in paths(view, OF)]
    return {poll.path for poll in [*polls, *(ALWAYS if views is VIEWS else ())]}


@pytest.mark.shortened
@pytest.mark.parametrize("kind", ["embedded", "redis"])
async def test_no_request_of_the_page_holds_the_loop(
    inside: Inside, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with filled(kind, tmp_path, large(KEYS, days(3))) as url:
        await asyncio.to_thread(plant, url, [record(days(1)[0], "key-0007") for _ in range(1000)])
        client = await inside(
            NOWHERE, keys=ISSUED, teams=TEAMS, store={"url": url, "journal_dir": str(tmp_path / "journal")}
        )
        more = {"calls?limit=1000", "calls?limit=1000&key=key-0007"}
        asked = [(ADMIN_TOKEN, path) for path in sorted(more | asked_in(VIEWS))]
        asked += [(secret(OF.key), path) for path in sorted(asked_in(MEMBER_VIEWS))]
        for token, path in asked:
            with counted(monkeypatch) as turns:
                await asyncio.to_thread(fetch, client.port, path, token)
            assert turns.most <= MOST_CALLS, f"{path}: {turns.by}"
        await client.close()


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

    now = 1_795_226_400.0
    watcher = Watcher(
        cast(Ledger, store), touched, partial(_windows, book), partial(_present, book), book.team_of,
        Telemetry([each["id"] for each in ISSUED], KEYS, CollectorRegistry()), Outbox(post),
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
