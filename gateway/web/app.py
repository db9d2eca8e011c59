"""Puts the parts of one worker together: the only place that names concrete ones."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from aiohttp import web

from gateway.accounting import LedgerClient
from gateway.accounting.bonds import Bonds
from gateway.accounting.call_log import Accounting
from gateway.accounting.changed_windows import ChangedWindows
from gateway.accounting.delivered_reports import DeliveredReports
from gateway.config import Config
from gateway.files import naming
from gateway.journal import Journal
from gateway.keys.cache import KeyCache
from gateway.keys.decisions import Decisions
from gateway.keys.registry import Registry
from gateway.observe.live_numbers import summed
from gateway.observe.metrics import Telemetry
from gateway.observe.tracing import open_tracer
from gateway.pipeline import CurrentServices, Services
from gateway.pipeline.services import open_queue
from gateway.quota.window_status import shared_windows
from gateway.records import Key, WindowStatus
from gateway.relay.deferred import DeferredPoller
from gateway.store import Store, StoreUnavailable
from gateway.store.opening import open_store
from gateway.tasks import Tasks
from gateway.upstream.status import UpstreamReport

from . import cors
from .access_log import AccessLog, RefusalLog
from .admin.common import AdminAccess
from .admin.keys import AuditEndpoints, KeyEndpoints, QuotaEndpoints, TeamEndpoints
from .admin.reports import RefusalEndpoints, ReportEndpoints
from .admin.whole_gateway import Ask, GatewayEndpoints, LiveEndpoints, ModelEndpoints
from .background import Background
from .callers import callers_of_wings
from .capacity import Capacity
from .dashboard import Dashboard
from .endpoints import DataPlane
from .hot_reload import HotReload, assemble, prepare
from .http_guard.token_auth import TokenAuth
from .large_bodies import LargeBodies
from .middleware import CONTEXT, NO_ROUTE, ErrorMiddleware, Handler
from .openapi.document import route_to_document
from .ops import Landing, Ops
from .static_page import StaticPage
from .status import Status
from .wings import FindsHandler, WebParts, admin_operations, permissions, routes_of_wings, wing_apis

CLOSE_STORE_WITHIN_S = 5.0
INHERIT_WITHIN_S = 2.0
"""How long a start waits for the delivery of what dead workers have left."""

REFERENCE = Path(__file__).parent / "reference"
"""The page of the API reference, which the browser renders from `/openapi.json` of the same listener."""


@dataclass(frozen=True, slots=True)
class Worker:
    """Holds the live parts of one worker."""

    app: web.Application
    admin_app: web.Application | None
    """The admin API, if it has a listener of its own; None: it is part of `app`."""
    shortcuts: Mapping[str, Handler]
    """The handlers of frequent calls, which are reached without the router: by path, for POST."""
    live: CurrentServices
    status: Status
    changeover: HotReload

    @property
    def parts(self) -> Services:
        return self.live.parts

    def report_upstreams(self) -> list[UpstreamReport]:
        """Their state in this worker."""
        return report_upstreams(self.live)


@asynccontextmanager
async def build(
    config: Config,
    telemetry: Telemetry,
    scrape: Callable[[], Awaitable[bytes]],
    ask: Ask | None = None,
) -> AsyncIterator[Worker]:
    """Open every part, and close them in reverse. `ask` asks the supervisor; None: there is none.

    Raises `StoreMisconfigured` where a person has to mend something about the store, `OSError` for the journal.
    """
    ready = prepare(config, {})  # first: it takes its time, and nothing waits yet
    changed_windows = ChangedWindows(is_watched=False)
    store, ledger = await _open_ledger(config, changed_windows, telemetry)
    access_log = AccessLog(config.server.access_log)
    tasks = Tasks()  # of calls: a drain waits for them
    endless = Tasks()
    large_bodies, long_answers = LargeBodies(), LargeBodies()  # no body keeps an answer waiting, which is paid for
    with naming(Path(config.store.journal_dir)):
        decisions = Decisions.of_gateway(store, config.store, telemetry.change_restored)
    key_cache = KeyCache(store, config, restore=decisions.restore if decisions else None)
    tracer = open_tracer(config.tracing)
    waiting = open_queue(config, ledger.exchange, telemetry)
    accounting = Accounting(ledger, telemetry, access_log.write_record, tracer)
    bonds = Bonds(store, store.clock.now)
    live = CurrentServices(
        assemble(
            ready, key_cache, accounting, waiting, bonds, tasks, DeliveredReports(store, ledger), store.clock,
            long_answers.make, {},
        )
    )  # fmt: skip
    registry = Registry(store, lambda: live.parts.config, store.clock.now, decisions)
    background = Background(changed_windows, registry)
    callers = callers_of_wings(registry)
    try:
        status = Status()
        capacity = Capacity(config.server, config.uploads)
        refusals = RefusalLog(store, store.clock)
        apis = wing_apis()
        words = [each.words for each in apis]
        door = ErrorMiddleware(live, telemetry, access_log, status, refusals.add, capacity, words)
        plane = DataPlane(status, capacity, large_bodies, callers)
        deferred = DeferredPoller(store, lambda: live.parts, capacity.memory, store.clock.now)
        ops = Ops(ledger, status, scrape, TokenAuth(telemetry))
        ask = ask or _alone(live, telemetry)
        access = AdminAccess(registry, TokenAuth(telemetry), callers, admin_operations(), permissions())
        made_of = WebParts(plane, status, capacity, access, store, ask, large_bodies, deferred.task_ended)
        of_admin = [*_admin_routes(access, ask, store), *routes_of_wings(made_of, "admin")]
        behind = [*ops.inside(), *of_admin, *Dashboard().routes()]
        most = config.server.max_request_bytes
        has_own_listener = config.admin.listen is not None
        app = _application(most, door, [each.finder(made_of) for each in apis], [
            *plane.routes(), *routes_of_wings(made_of, "calls"), *ops.outside(), *([] if has_own_listener else behind),
            *Landing(has_dashboard=not has_own_listener).routes(),
        ])  # fmt: skip
        admin_app = (
            _application(most, door, None, [*ops.outside(), *behind, *Landing(has_dashboard=True).routes()])
            if has_own_listener
            else None
        )
        shortcuts = {path: partial(door.handle, handler=handler) for path, handler in plane.calls.items()}
        await key_cache.begin()
        background.follow(live.parts)
        endless.keep(refusals.run, "refusal-log")
        endless.keep(deferred.run, "deferred-calls")
        yield Worker(app, admin_app, shortcuts, live, status, HotReload(live, capacity, access_log, background, tasks))
        await endless.cancel_all()
        await refusals.write()
    finally:
        await endless.cancel_all()
        await background.close()
        await waiting.close()
        await tasks.cancel_all()
        await bonds.close()
        await key_cache.close()
        await large_bodies.close()
        await long_answers.close()
        for each in callers:
            await each.close()
        for amendment in live.parts.amendments:
            await amendment.close()
        for pool in live.parts.pools.values():
            await pool.close()
        if left := await ledger.close(CLOSE_STORE_WITHIN_S):
            logging.getLogger("gateway").warning("%d usage records wait in the journal for the store", left)
        await access_log.close()
        await tracer.close()


async def _open_ledger(
    config: Config, changed_windows: ChangedWindows, telemetry: Telemetry
) -> tuple[Store, LedgerClient]:
    """The store, and the ledger on it, which closes it."""
    settings = config.store
    folder, origin = Path(settings.journal_dir), settings.origin
    is_alone = settings.is_embedded and config.server.workers == 1  # its folder has one gateway (folder.py)
    store = await open_store(settings, is_alone=is_alone)
    try:
        with naming(folder):
            journal = Journal.create(folder, origin)
    except BaseException:
        await store.close()
        raise
    adopt = partial(Journal.adopt, folder, origin)
    ledger = LedgerClient(
        store, journal, settings, adopt, changed_windows=changed_windows, is_alone=is_alone, metrics=telemetry,
        clock_us=lambda: int(store.clock.now() * 1e6),
    )  # fmt: skip
    telemetry.follow(ledger.last_end)
    await ledger.wait_until_heir(INHERIT_WITHIN_S)
    return store, ledger


def _admin_routes(access: AdminAccess, ask: Ask, store: Store) -> Iterator[web.RouteDef]:
    """The admin API of the trunk: usage, quotas, keys, teams, the audit log, and the state of the whole gateway."""
    for endpoints in (
        ReportEndpoints(access), LiveEndpoints(access, ask), KeyEndpoints(access), TeamEndpoints(access),
        QuotaEndpoints(access), AuditEndpoints(access), RefusalEndpoints(access, store),
        GatewayEndpoints(access, ask), ModelEndpoints(access),
    ):  # fmt: skip
        yield from endpoints.routes()


async def _answer_preflight(request: web.Request) -> web.StreamResponse:
    """It is no call: a page has one for each of its calls, which have a line of their own."""
    request[CONTEXT].is_quiet = True
    return await cors.answer_preflight(request)


async def _refuse_path(request: web.Request) -> web.StreamResponse:
    raise web.HTTPNotFound


def _application(
    max_request_bytes: int, door: ErrorMiddleware, added: Sequence[FindsHandler] | None, routes: Iterable[web.RouteDef]
) -> web.Application:
    """`added` are asked about what no route takes; None: it is refused, without an answer to preflights."""

    @web.middleware
    async def front_door(request: web.Request, handler: Handler) -> web.StreamResponse:
        if added is not None and request.match_info.http_exception is not None:
            if cors.is_preflight(door.config, request):
                handler = _answer_preflight
            else:
                found = (find(door.config, request) for find in added)
                handler = next((each for each in found if each is not None), handler)
        return await door.handle(request, handler)

    app = web.Application(middlewares=[front_door], client_max_size=max_request_bytes)
    no_route: Handler = partial(door.handle, handler=_refuse_path)
    app[NO_ROUTE] = no_route
    app.add_routes(routes)
    app.add_routes(StaticPage("/docs", REFERENCE).routes())
    app.add_routes([route_to_document(app)])
    return app


def report_upstreams(live: CurrentServices) -> list[UpstreamReport]:
    """The state of the upstreams in this worker."""
    parts = live.parts
    waiting = parts.waiting.waiting()
    return [
        health.report(parts.pools[name].size)._replace(waiting=waiting.get(name, 0))
        for name, health in parts.router.health.items()
    ]


def _alone(live: CurrentServices, telemetry: Telemetry) -> Ask:
    """A supervisor's answers where there is none."""

    async def answer(what: str, /, **_: Any) -> Any:
        if what == "live":
            return summed([telemetry.registry], live.parts.config.upstreams)
        return [report_upstreams(live)] if what == "everyone" else None

    return answer


MAX_SHARED_WINDOWS = 1000
"""Windows that metrics show at most besides those of keys."""


async def labelled_keys(parts: Services) -> tuple[list[Key], list[WindowStatus]]:
    """The keys with a label of their own in metrics, and the state of their windows and of shared ones; none while the
    store is unavailable."""
    now, key_cache = parts.clock.now(), parts.key_cache
    try:
        keys = await key_cache.named(await asyncio.to_thread(parts.accounting.telemetry.key_labels.every))
        shared = [owned.window for owned in shared_windows(key_cache.terms, now)]
        windows = [term.window(now) for key in keys for term in key_cache.terms.of(key)]
        own = [window for window in windows if window.scope.startswith("key:")]
        others = {window.id: window for window in [*shared, *windows] if not window.scope.startswith("key:")}
        shown = [*own, *list(others.values())[:MAX_SHARED_WINDOWS]]
        return keys, await parts.accounting.ledger.window_statuses(shown, now)
    except StoreUnavailable:
        return [], []
