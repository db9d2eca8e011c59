"""Puts the parts of one worker together: the only place that names concrete ones."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from aiohttp import web

from gateway import tokens
from gateway.alerts import Outbox, Watcher, Webhook
from gateway.config import Config, Store
from gateway.journal import Journal
from gateway.lease import Books
from gateway.ledger import Bookkeeper
from gateway.ledger.touched import Touched
from gateway.pipeline import Parts
from gateway.records import Standing
from gateway.rules import alerts, keys, limits, standings
from gateway.store import Ledger, StoreAway, open_store
from gateway.tasks import Tasks
from gateway.telemetry import Telemetry
from gateway.upstream.pool import Pool
from gateway.upstream.probe import keep_probing
from gateway.upstream.router import Router

from .access import AccessLog
from .admin import Admin
from .endpoints import DataPlane
from .middleware import FrontDoor, Handler
from .openapi import route_to_document
from .ops import Ops
from .readers import LargeBodies
from .status import Status

CLOSE_STORE_WITHIN_S = 5.0
CLOSE_ALERTS_WITHIN_S = 3.0
INHERIT_WITHIN_S = 2.0
"""How long a start waits for the delivery of what dead workers have left."""


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker's live parts."""

    app: web.Application
    shortcuts: Mapping[str, Handler]
    """What of the application is so hot that it is reached without its router: by path, for POST."""
    parts: Parts
    status: Status


@asynccontextmanager
async def build(config: Config, telemetry: Telemetry, scrape: Callable[[], Awaitable[bytes]]) -> AsyncIterator[Worker]:
    """Open every part, and close them in reverse.

    Raises `StoreRefused` where a person has to mend something about the store, `OSError` for the journal's folder.
    """
    find_counter = tokens.load(config.models)  # first: it takes its time, and nothing waits yet
    touched = Touched() if alerts.count_alerted(config) else None
    ledger = await _open_ledger(config.store, touched)
    access_log = AccessLog(config.server.access_log)
    pools: dict[str, Pool] = {}
    tasks = Tasks()
    large_bodies = LargeBodies()
    try:
        for name, upstream in config.upstreams.items():
            pools[name] = Pool(name, upstream, upstream.max_connections // config.server.workers)
        router = Router(config, telemetry.show_upstream)
        books = Books(ledger, telemetry, access_log.write_record)
        parts = Parts(config, keys.index(config.keys), limits.Terms(config), books, pools, router, tasks, find_counter)
        status = Status()
        door = FrontDoor(telemetry, access_log, status, config.server)
        plane = DataPlane(parts, status, large_bodies)
        app = _application(parts, door, plane, Ops(ledger, status, scrape, config.metrics.token))
        shortcuts = {path: partial(door.handle, handler=handler) for path, handler in plane.calls.items()}
        async with _watching(parts, touched), _probing(parts):
            yield Worker(app, shortcuts, parts, status)
    finally:
        await tasks.cancel_all()
        await large_bodies.close()
        for pool in pools.values():
            await pool.close()
        if left := await ledger.close(CLOSE_STORE_WITHIN_S):
            logging.getLogger("gateway").warning("%d usage records wait in the journal for the store", left)
        await access_log.close()


@asynccontextmanager
async def _watching(parts: Parts, touched: Touched | None) -> AsyncIterator[None]:
    """Tell of quotas meanwhile; None: there is none to tell of."""
    if touched is None:
        yield
        return
    config, bound = parts.config, list(parts.keys.values())
    webhook = Webhook(config.alerts) if config.alerts.webhook is not None else None
    watcher = Watcher(
        parts.books.ledger,
        touched,
        lambda now: (owned.window for owned in standings.every_window(config, bound, now)),
        {key.id: key.team for key in bound},
        parts.books.telemetry,
        Outbox(webhook.post) if webhook else None,
        namespace=config.store.namespace,
        holder=uuid.uuid4().hex,
    )
    tasks = Tasks()
    tasks.spawn(watcher.run(), "watch-quotas")
    try:
        yield
    finally:
        await tasks.cancel_all()
        await watcher.close(CLOSE_ALERTS_WITHIN_S)
        if webhook is not None:
            await webhook.close()


@asynccontextmanager
async def _probing(parts: Parts) -> AsyncIterator[None]:
    """Look after the upstreams that want it meanwhile."""
    tasks = Tasks()
    for name, upstream in parts.config.upstreams.items():
        if upstream.probe_s:
            within_s = upstream.timeouts.head_s
            probing = keep_probing(parts.pools[name], parts.router.health[name], upstream.probe_s, within_s)
            tasks.spawn(probing, f"probe {name}")
    try:
        yield
    finally:
        await tasks.cancel_all()


async def _open_ledger(settings: Store, touched: Touched | None) -> Ledger:
    folder, origin = Path(settings.journal_dir), settings.origin
    store = await open_store(settings)
    try:
        journal = Journal.create(folder, origin)
    except BaseException:
        await store.close()
        raise
    books = Bookkeeper(store, journal, settings, partial(Journal.adopt, folder, origin), touched)
    await books.wait_until_heir(INHERIT_WITHIN_S)
    return books


def _application(parts: Parts, door: FrontDoor, plane: DataPlane, ops: Ops) -> web.Application:
    config = parts.config

    @web.middleware
    async def front_door(request: web.Request, handler: Handler) -> web.StreamResponse:
        return await door.handle(request, handler)

    app = web.Application(middlewares=[front_door], client_max_size=config.server.max_request_bytes)
    app.add_routes(plane.routes())
    app.add_routes(ops.routes())
    if config.admin.token is not None:
        app.add_routes(Admin(parts, config.admin.token).routes())
    app.add_routes([route_to_document(app)])
    return app


async def key_standings(parts: Parts) -> list[Standing]:
    """How every configured key's windows stand; empty while the store is away."""
    now = time.time()
    windows = [term.window(now) for key in parts.keys.values() for term in parts.terms.of(key)]
    try:
        return await parts.books.ledger.standings(windows, now)
    except StoreAway:
        return []
