"""Background work of a worker by the current configuration: health checks of upstreams, and what wings do.

A reload restarts only what it changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

from gateway.accounting.changed_windows import ChangedWindows
from gateway.config import Section
from gateway.keys.registry import Registry
from gateway.pipeline import Services
from gateway.tasks import Tasks
from gateway.upstream.health_check import run_health_checks
from gateway.upstream.pool import Pool
from gateway.wings import parts as parts_of_wings


class _Probing(NamedTuple):
    """A running probe. Pools are kept where their upstream's settings are the same, and so are probes."""

    pool: Pool
    task: asyncio.Task[None]


class Closing(Protocol):
    """Work that goes on until it is closed."""

    async def close(self) -> None: ...


class WingWork(NamedTuple):
    """Work of a wing in every worker. It begins anew where a reload changes its section; None: anything."""

    name: str
    section: type[Section] | None
    begin: Callable[[Services, ChangedWindows, Registry], Closing]


class _Working(NamedTuple):
    """Work that was begun with these settings."""

    settings: Section
    work: Closing


class Background:
    """Runs the background work of one worker, and has to be closed. `changed_windows` collects the windows that calls
    change."""

    def __init__(self, changed_windows: ChangedWindows, registry: Registry) -> None:
        self._changed_windows = changed_windows
        self._registry = registry
        self._wanted: Services | None = None
        self._probes: dict[str, _Probing] = {}
        self._of_wings = parts_of_wings(WingWork, "background")
        self._working: dict[str, _Working] = {}
        """The work of wings, by its name."""
        self._lock = asyncio.Lock()
        """One work of a name at a time: what the last one releases at its end has to be free for the next."""
        self._tasks = Tasks()

    def follow(self, parts: Services) -> None:
        """Apply this configuration. Does not wait for tasks that have to end first."""
        self._wanted = parts
        self._probe(parts)
        self._tasks.spawn(self._change_work(parts), "change-work-of-wings")

    async def close(self) -> None:
        self._wanted = None
        for probing in self._probes.values():
            probing.task.cancel()
        async with self._lock:
            for name in list(self._working):
                await self._end(name)
        await self._tasks.cancel_all()

    def _probe(self, parts: Services) -> None:
        for name, (pool, task) in list(self._probes.items()):
            if parts.pools.get(name) is not pool:
                task.cancel()
                del self._probes[name]
        for name, upstream in parts.config.upstreams.items():
            if upstream.probe_s and name not in self._probes:
                pool = parts.pools[name]
                health, head_s = parts.router.health[name], upstream.timeouts.head_s
                probing = partial(run_health_checks, pool, health, upstream.probe_s, head_s)
                self._probes[name] = _Probing(pool, self._tasks.keep(probing, f"probe {name}"))

    async def _change_work(self, parts: Services) -> None:
        async with self._lock:
            for each in self._of_wings:
                if parts is not self._wanted:
                    return  # a newer configuration waits for its turn, or it is all over
                settings = parts.config if each.section is None else parts.config.section(each.section)
                working = self._working.get(each.name)
                if working is None or working.settings != settings:
                    await self._end(each.name)
                    self._working[each.name] = _Working(
                        settings, each.begin(parts, self._changed_windows, self._registry)
                    )

    async def _end(self, name: str) -> None:
        if (ending := self._working.pop(name, None)) is not None:
            await ending.work.close()
