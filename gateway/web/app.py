"""Puts the parts of one worker together: the only place that names concrete ones."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from aiohttp import web

from gateway.config import Config, Store
from gateway.journal import Journal
from gateway.lease import Books
from gateway.ledger import Bookkeeper
from gateway.pipeline import Parts
from gateway.records import Standing
from gateway.rules import keys, limits
from gateway.store import Ledger, StoreAway, open_store
from gateway.tasks import Tasks
from gateway.telemetry import Telemetry
from gateway.upstream.pool import Pool

from .access import AccessLog
from .admin import Admin
from .endpoints import DataPlane
from .middleware import FrontDoor, Handler
from .ops import Ops, Status

CLOSE_STORE_WITHIN_S = 5.0
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
    ledger = await _open_ledger(config.store)
    access_log = AccessLog(config.server.access_log)
    pools: dict[str, Pool] = {}
    tasks = Tasks()
    try:
        for name, upstream in config.upstreams.items():
            pools[name] = Pool(name, upstream, upstream.max_connections // config.server.workers)
        books = Books(ledger, telemetry, access_log.write_record)
        parts = Parts(config, keys.index(config.keys), limits.Terms(config), books, pools, tasks)
        status = Status()
        door = FrontDoor(telemetry, access_log, config.server.max_request_bytes)
        plane = DataPlane(parts, status)
        app = _application(parts, door, plane, Ops(ledger, status, scrape, config.metrics.token))
        shortcuts = {path: partial(door.handle, handler=handler) for path, handler in plane.calls.items()}
        yield Worker(app, shortcuts, parts, status)
    finally:
        await tasks.cancel_all()
        for pool in pools.values():
            await pool.close()
        if left := await ledger.close(CLOSE_STORE_WITHIN_S):
            logging.getLogger("gateway").warning("%d usage records wait in the journal for the store", left)
        await access_log.close()


async def _open_ledger(settings: Store) -> Ledger:
    folder, origin = Path(settings.journal_dir), settings.origin
    store = await open_store(settings)
    try:
        journal = Journal.create(folder, origin)
    except BaseException:
        await store.close()
        raise
    books = Bookkeeper(store, journal, settings, partial(Journal.adopt, folder, origin))
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
    return app


async def key_standings(parts: Parts) -> list[Standing]:
    """How every configured key's windows stand; empty while the store is away."""
    now = time.time()
    windows = [term.window(now) for key in parts.keys.values() for term in parts.terms.of(key)]
    try:
        return await parts.books.ledger.standings(windows, now)
    except StoreAway:
        return []
