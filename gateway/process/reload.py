"""Another configuration while the gateway runs: read, checked and compared by the parent, then handed to all workers.

It is looked for on SIGHUP, when the admin API asks, and, unless `server.reload_on_change` is false, when the content
of the file, or of a file that it refers to, has changed and then stayed as it is for a moment: half of a file is no
configuration. All of it counts or nothing: one with a fault, or with a change that needs a restart, changes nothing.
That is logged once, and the reload is tried again now and then, because its cause may be outside these files.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

from gateway.config import ConfigError, ConfigFault
from gateway.config.diff import SettingChange, changes
from gateway.config.source import Contents, Reading, Source

LOOK_EVERY_S = 1.0
TRY_AGAIN_EVERY = 10
"""Looks until a configuration that was refused is tried again."""

MOST_LOGGED = 100
"""Largest number of changes in the log, one line each."""

log = logging.getLogger("gateway")

HandOver = Callable[[Mapping[str, Any]], Awaitable[None]]
"""Gives plain values to all workers, and returns when they serve by them."""


class ReloadResult(NamedTuple):
    generation: int
    """Number of the configuration in use after the reload."""
    changed: Sequence[str] = ()
    """The differences from before, one line each."""
    code: str | None = None
    """Why it was refused; None: it was not."""
    faults: Sequence[str] = ()


class ReloadPreview(NamedTuple):
    """The effect that a reload would have now."""

    generation: int
    """Number of the configuration in use."""
    changes: Sequence[tuple[str, str, bool]] = ()
    """Path, difference and whether it needs a restart, of each setting that differs from what is in use."""
    code: str | None = None
    """Why a reload would be refused; None: it would not."""
    faults: Sequence[str] = ()
    applies_by_itself: bool = True
    """Whether a changed file is applied without being asked (`server.reload_on_change`)."""


class Reloader:
    """The configuration in use, and its successors. `source` is None where it came out of no file."""

    def __init__(
        self,
        reading: Reading,
        source: Source | None,
        hand_over: HandOver,
        extend: Callable[[Reading], Reading] = lambda reading: reading,
    ) -> None:
        self._plain = reading
        """The configuration as it was read, without the additions of `extend`."""
        self._extend = extend
        self.now = extend(reading)
        """The configuration of workers that start."""
        self.generation = 1
        """Number of the configuration that all workers use."""
        self.results: Counter[str] = Counter({"applied": 0, "refused": 0})
        """Numbers of reloads by their result."""
        self._source = source
        self._hand_over = hand_over
        self._lock = asyncio.Lock()
        self._last_look: Contents = {}
        self._last_result: ReloadResult | None = None
        """The last refused reload; None: none since one was applied."""
        self._looks = 0
        """Number of looks at the source since that reload was refused."""

    def __repr__(self) -> str:
        return f"<Reloader of {self._source}: generation {self.generation}, {dict(self.results)}>"

    async def reload(self, why: str) -> ReloadResult:
        """Read the file and apply it. `why` is the cause for the log."""
        async with self._lock:
            outcome = await self._reload()
            self._note(outcome, why)
            return outcome

    async def preview(self) -> ReloadPreview:
        """Read the file and compare it with what is in use; changes nothing, and the file counts as not seen."""
        async with self._lock:
            by_itself = self.now.config.server.reload_on_change
            seen = None if self._source is None else self._source.seen
            try:
                _, _, found = await self._read()
            except ConfigError as error:
                faults = [each.located() for each in error.faults]
                return ReloadPreview(self.generation, (), "invalid_configuration", faults, by_itself)
            finally:
                if self._source is not None and seen is not None:
                    self._source.seen = seen
            changed = [(change.path, change.what, change.needs_restart) for change in found]
            stuck = _say_restart([change for change in found if change.needs_restart])
            return ReloadPreview(self.generation, changed, "restart_required" if stuck else None, stuck, by_itself)

    async def extend_again(self, *, is_start: bool = False) -> None:
        """Apply changes in the result of `extend`. `is_start`: no worker has begun with another configuration."""
        async with self._lock:
            reading = await asyncio.to_thread(self._extend, self._plain)
            if reading.config == self.now.config:
                return
            self.now = reading
            if not is_start:
                await self._hand_over(reading.values)
                self.generation += 1

    async def watch(self) -> None:
        """Reload whenever the content has changed, until cancelled. To be kept (`Tasks.keep`)."""
        while self._source is not None:
            await asyncio.sleep(LOOK_EVERY_S)
            async with self._lock:
                await self._look(self._source)

    async def _look(self, source: Source) -> None:
        found = await asyncio.to_thread(source.look)
        is_settled, self._last_look = found == self._last_look, found
        if found != source.seen:
            if is_settled and self.now.config.server.reload_on_change:
                self._note(await self._reload(), "its content has changed")
        elif self._last_result is not None:
            self._looks += 1
            if self._looks % TRY_AGAIN_EVERY == 0 and (outcome := await self._reload()) != self._last_result:
                self._note(outcome, "it is tried again")

    async def _read(self) -> tuple[Reading, Reading, list[SettingChange]]:
        """The file, the same with what `extend` adds, and its difference from what is in use. Raises `ConfigError`."""
        if self._source is None:
            reason = "this gateway was started without a file, so there is nothing to reload"
            raise ConfigError([ConfigFault("", reason)])
        plain = await asyncio.to_thread(self._source.read)
        reading = await asyncio.to_thread(self._extend, plain)
        before = self.now
        found = await asyncio.to_thread(changes, before.config, reading.config, before.referenced, reading.referenced)
        return plain, reading, found

    async def _reload(self) -> ReloadResult:
        try:
            plain, reading, found = await self._read()
        except ConfigError as error:
            return ReloadResult(
                self.generation, code="invalid_configuration", faults=[each.located() for each in error.faults]
            )
        if stuck := [change for change in found if change.needs_restart]:
            return ReloadResult(self.generation, code="restart_required", faults=_say_restart(stuck))
        self._plain, self.now = plain, reading  # workers that start from now on get this one
        if found:
            await self._hand_over(reading.values)
            self.generation += 1
        return ReloadResult(self.generation, [str(change) for change in found])

    def _note(self, outcome: ReloadResult, why: str) -> None:
        if outcome.code is not None:
            self._last_result, self._looks = outcome, 0
            self.results["refused"] += 1
            log.error("the configuration is not reloaded (%s), and nothing is changed:", why)
            for fault in outcome.faults:
                log.error("  %s", fault)
            return
        self._last_result = None
        self.results["applied"] += 1
        if not outcome.changed:
            log.warning("the configuration is read again (%s): nothing has changed", why)
            return
        log.warning("the configuration is reloaded (%s), and is now number %d:", why, outcome.generation)
        for line in outcome.changed[:MOST_LOGGED]:
            log.warning("  %s", line)
        if (more := len(outcome.changed) - MOST_LOGGED) > 0:
            log.warning("  and %d more changes", more)


def _say_restart(stuck: Sequence[SettingChange]) -> list[str]:
    return [f"{change.path}: has changed, which needs a restart of the gateway" for change in stuck]
