"""Hot reload in one worker: slow parts are prepared first, then one reference is replaced.

Running calls keep the parts they began with. Unchanged parts are the same objects in both configurations: an upstream
with unchanged settings keeps its connections and its health state. The pool of a changed or removed upstream keeps no
idle connection from then on, and its last connection closes with its last call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gateway.accounting.bonds import Bonds
from gateway.accounting.call_log import Accounting
from gateway.api import auth, tokenizer
from gateway.api.prompt_tokens import FindsCounter
from gateway.config import Config, build
from gateway.keys.cache import KeyCache
from gateway.pipeline import CurrentServices, Services
from gateway.pipeline.plan import Plans
from gateway.pipeline.services import Amendment, NoQueue, amendments_of
from gateway.pipeline.stack import Stacks
from gateway.records import Key
from gateway.relay.attempt import MakesAnswers
from gateway.store import Clock, ReportReader
from gateway.tasks import Tasks
from gateway.upstream.health import Health
from gateway.upstream.pool import Pool, pool_of
from gateway.upstream.provider_errors import of_wings
from gateway.upstream.router import Router

from .access_log import AccessLog
from .background import Background
from .capacity import Capacity


class Prepared(NamedTuple):
    """The parts of a configuration that take time to make."""

    config: Config
    keys: Mapping[bytes, Key]
    pools: Mapping[str, Pool]
    find_counter: FindsCounter


def prepare(config: Config, present: Mapping[str, Pool]) -> Prepared:
    """Make a configuration ready; touches nothing that is in use, and may run in a thread.

    `present` are the pools in use, those that can serve on are taken over. Tokenisers are loaded here at the start,
    which holds up the whole process, thread or not, and never again. Raises OSError where a `ca_file` cannot be used.
    """
    pools: dict[str, Pool] = {}
    for name, upstream in config.upstreams.items():
        share = upstream.max_connections // config.server.workers
        old = present.get(name)
        pools[name] = old if old is not None and old.is_for(upstream, share) else pool_of(name, upstream, share)
    of_wings()  # imports modules, which takes too long for the first answer
    find_counter = tokenizer.load(config.models, config.aliases)
    return Prepared(config, auth.index(config.keys), pools, find_counter)


def assemble(
    ready: Prepared, key_cache: KeyCache, accounting: Accounting, waiting: NoQueue, bonds: Bonds, tasks: Tasks,
    reports: ReportReader, clock: Clock, make: MakesAnswers, kept: Mapping[str, Health],
    present: Sequence[Amendment] = (),
) -> Services:  # fmt: skip
    """The parts of a configuration. `kept` is known of upstreams already, `present` are the amendments in use."""
    router = Router(ready.config, accounting.telemetry.show_upstream, kept=kept)
    router.limits.budgets = key_cache.budgets
    plans = Plans(ready.config, ready.find_counter, Stacks(ready.config, router.limits))
    return Services(
        ready.config, key_cache, accounting, ready.pools, router, waiting, bonds, tasks, plans, reports, clock, make,
        ready.find_counter, amendments_of(ready.config, present),
    )  # fmt: skip


class HotReload:
    """Puts another configuration in the place of the present one."""

    def __init__(
        self, live: CurrentServices, capacity: Capacity, access_log: AccessLog, background: Background, tasks: Tasks
    ) -> None:
        self._live = live
        self._capacity = capacity
        self._access_log = access_log
        self._background = background
        self._tasks = tasks
        self._lock = asyncio.Lock()

    async def change_to(self, values: Mapping[str, Any]) -> Config:
        """Build another configuration of these plain values, and serve by it from then on.

        One comes after the other. Raises `ConfigError` or OSError where it cannot be used, and nothing is changed then.
        """
        async with self._lock:
            config = await asyncio.to_thread(build, values)
            self._adopt(await asyncio.to_thread(prepare, config, self._live.parts.pools))
            return config

    def _adopt(self, ready: Prepared) -> None:
        """Serve with this from now on: what was prepared in view of the present parts."""
        old = self._live.parts
        kept = {name: old.router.health[name] for name, pool in ready.pools.items() if old.pools.get(name) is pool}
        old.key_cache.configure(ready.config, ready.keys)
        self._live.parts = new = assemble(
            ready, old.key_cache, old.accounting, old.waiting, old.bonds, old.tasks, old.reports, old.clock, old.make,
            kept, old.amendments,
        )  # fmt: skip
        new.waiting.configure(ready.config)
        config = ready.config
        self._capacity.resize(config.server, config.uploads)
        self._access_log.style = config.server.access_log
        telemetry = new.accounting.telemetry
        telemetry.key_labels.configure((key.id for key in config.keys), config.metrics.max_keys)
        telemetry.model_labels.configure(config.labelled_models, config.metrics.max_models)
        self._background.follow(new)
        for each in old.amendments:
            if each not in new.amendments:
                self._tasks.spawn(each.close(), "close-amendment")
        for name, pool in old.pools.items():
            if new.pools.get(name) is not pool:
                old.router.health[name].retire()
                self._tasks.spawn(pool.close(), f"close-pool {name}")
