"""Quotas: counted anew, topped up."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import Any

from gateway.api import auth
from gateway.config import ConfigError, Team, read_quota, shown_quotas
from gateway.config.quantities import read_per
from gateway.errors import Conflict, InvalidRequest, NotFound
from gateway.quota import window_status
from gateway.quota.issued import TopUp
from gateway.quota.windows import LimitTable, calendar_window
from gateway.records import Key, Window

from .documents import AuditEvent, Documents, Shown, invalid

MAX_ATTEMPTS = 50
"""To write a top-up while others change the same overlay. One of them succeeds in each round."""

MAX_PAUSE_S = 0.02
"""Before the next attempt, at random."""

MAX_LIMIT = 2**53 - 1
"""Largest value of a window: Lua in Redis is exact for whole numbers up to it."""


class QuotaManager(Documents):
    """Tops up and resets the windows of a key (`key:ID`), of a team (`team:NAME`), or of the whole `gateway`."""

    async def reset_quotas(self, scope: str, which: Mapping[str, Any], actor: str) -> list[Shown]:
        """Reset the current windows of `key:ID`, `team:NAME` or `gateway`; `which` may have `unit`, `per` and `model`,
        default: all. Returns their new state (`quota/window_status.row`)."""
        if unknown := sorted(which.keys() - {"unit", "per", "model"}):
            raise InvalidRequest("There is no such field. Expected some of unit, per, model.", param=unknown[0])
        now = self._clock()
        wanted = {name: str(value) for name, value in which.items() if value is not None}
        if "per" in wanted:
            wanted["per"] = str(read_per(wanted["per"]))
        windows = [
            window
            for window in await self._windows(scope, now)
            if window.unit != "parallel"
            and wanted.items() <= {"unit": window.unit, "per": window.per, "model": window.model}.items()
        ]
        if not windows:
            raise NotFound(f"There is no such quota of {scope}.", code="quota_not_found")
        text, overlay = await self._overlay(scope)
        statuses = await self._store.window_statuses(windows, now)
        doing = AuditEvent(actor, "reset", [window_status.row(status, now) for status in statuses])
        await self._write("overlay", scope, text, overlay.encode(), doing, resets=windows)
        return await self._stand(scope)

    async def top_up(self, scope: str, grant: Mapping[str, Any], actor: str) -> list[Shown]:
        """Add an amount to a window of the current day, week or month: `{"tokens": 100000, "per": "day"}`, with `model`
        if the quota has one. It ends with the window. Returns the new state of the windows."""
        try:
            quota = read_quota(grant)
        except ConfigError as error:
            raise invalid(error) from None
        if quota.per_s is not None:
            raise InvalidRequest(
                "Only a quota of a day, week or month can be topped up; one of a shorter time fills by itself. Reset "
                "it instead, or raise it.",
                param="per",
            )
        now, per = self._clock(), str(quota.per)
        windows = await self._windows(scope, now)
        topped = [each for each in windows if (each.unit, each.per, each.model) == (quota.unit, per, quota.model)]
        if not topped:
            raise NotFound(
                f"{scope} has no quota of {quota.unit} per {per}{f' for {quota.model}' if quota.model else ''}.",
                code="quota_not_found",
            )
        if topped[0].limit + quota.limit > MAX_LIMIT:
            raise InvalidRequest(
                f"With this the limit would be more than can be counted ({MAX_LIMIT}).", param=quota.unit
            )
        more = TopUp(quota.unit, per, quota.model, calendar_window(per, now)[0], quota.limit)
        doing = AuditEvent(actor, "top_up", after=shown_quotas((quota,))[0])
        for attempt in range(1, MAX_ATTEMPTS + 1):
            text, overlay = await self._overlay(scope)
            try:
                await self._write("overlay", scope, text, overlay.topped_up(more).encode(), doing)
                break
            except Conflict:
                # The other change was added to the overlay, and so can this one be: the order does not matter.
                if attempt == MAX_ATTEMPTS:
                    raise
                await asyncio.sleep(random.random() * MAX_PAUSE_S)  # noqa: S311 - no secret
        return await self._stand(scope)

    async def _stand(self, scope: str) -> list[Shown]:
        now = self._clock()
        statuses = await self._store.window_statuses(await self._windows(scope, now), now)
        return [window_status.row(status, now) for status in statuses]

    async def _windows(self, scope: str, now: float) -> list[Window]:
        """The windows of `key:ID`, `team:NAME` or `gateway`, its own alone. Raises `NotFound`."""
        kind, _, name = scope.partition(":")
        config = self._config()
        teams: Mapping[str, Team] = {}
        if kind == "key":
            of_file = self._file_key(name)
            holder = auth.read((await self._issued_key(name))[1].settings if of_file is None else of_file)
        elif kind == "team":
            team = config.teams.get(name) or (await self._issued_team(name))[1].settings
            holder, teams = Key("", team=name), {name: team}
        else:
            holder = Key("")
        _, overlay = await self._overlay(scope)
        terms = LimitTable(config.quotas, teams, {scope: overlay})
        return [term.window(now) for term in terms.of(holder) if term.scope == scope]
