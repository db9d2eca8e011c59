"""Changes of keys, teams, quotas and people at run time: one implementation for the admin API and the command line.

Each change reads a document, makes the next one by the rules (`quota/issued.py`), and writes it if it is still the one
that was read. It adds one entry to the audit log: author, object, before and after. Objects of the configuration file
are read-only, except that their keys can be revoked, and their quotas topped up and reset, by an overlay.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Callable, Mapping
from typing import Any

from gateway.api import auth
from gateway.config import ConfigError, Team, read_quota, read_team, shown_quotas, shown_team
from gateway.config.probable_mistakes import warnings_of_team
from gateway.config.quantities import read_per
from gateway.config.sections import NAME_PATTERN
from gateway.errors import Conflict, InvalidRequest, NotFound
from gateway.quota import window_status
from gateway.quota.issued import IssuedTeam, Overlay, TopUp, show_team, show_top_ups
from gateway.quota.scopes import MEMBER, TEAM_LABEL, TEAM_TAG, folded_scope, holder
from gateway.quota.windows import LimitTable, calendar_window
from gateway.records import Key, Window, WindowStatus
from gateway.store import DocumentKind

from .documents import AuditEvent, Documents, Page, Shown, exists, in_file, invalid, no_key, no_team
from .manage_keys import CreatedKey, KeyManager
from .manage_people import PeopleManager

__all__ = ["CreatedKey", "Page", "Registry", "Shown", "no_key", "no_team"]

MAX_ATTEMPTS = 50
"""Attempts to write a top-up while other processes change the same overlay. One of them succeeds in each round."""

MAX_PAUSE_S = 0.02
"""Longest pause before the next attempt, in seconds; each pause is random."""

MAX_LIMIT = 2**53 - 1
"""Largest value of a window: Lua in Redis is exact for whole numbers up to it."""


class QuotaManager(Documents):
    """Tops up and resets the windows of a scope (`quota/scopes.py`), such as `key:ID`, `person:NAME` or `gateway`."""

    async def reset_quotas(self, scope: str, which: Mapping[str, Any], actor: str) -> list[Shown]:
        """Reset the current windows of a scope; `which` may have `unit`, `per` and `model`, default: all.

        Returns their new state (`quota/window_status.row`)."""
        if unknown := sorted(which.keys() - {"unit", "per", "model"}):
            raise InvalidRequest("There is no such field. Expected some of unit, per, model.", param=unknown[0])
        now, scope = self._clock(), folded_scope(scope)
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
        await self._write("overlay", scope, text, overlay.encode(), doing, resets=statuses)
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
        now, per, scope = self._clock(), str(quota.per), folded_scope(scope)
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
        """The windows of a scope, its own alone. Raises `NotFound`."""
        kind, _, name = scope.partition(":")
        config = self._config()
        teams: Mapping[str, Team] = {}
        if kind == "key":
            of_file = self._file_key(name)
            owner = auth.read((await self._issued_key(name))[1].settings if of_file is None else of_file)
        else:
            owner = holder(scope)
            if (team := owner.team) is not None:
                teams = {team: config.teams.get(team) or (await self._issued_team(team))[1].settings}
        _, overlay = await self._overlay(scope)
        budgets = {name: upstream.quotas for name, upstream in config.upstreams.items()}
        terms = LimitTable(config.quotas, teams, {scope: overlay}, config.people, budgets)
        return [term.window(now) for term in terms.of_scope(scope, owner)]


class TeamManager(Documents):
    """Creates, changes, pauses and deletes teams."""

    async def list_teams(
        self, after: str = "", limit: int = 100, is_meant: Callable[[str], bool] = lambda _: True
    ) -> Page:
        """Teams of file and store by name, of those that are meant."""
        of_file = self._config().teams
        rows = [show_team(name, team) for name, team in of_file.items() if name > after and is_meant(name)]
        async for page in self._pages("team", after):
            for name, text in page:
                if name not in of_file and is_meant(name):
                    issued = IssuedTeam.decode(text)
                    rows.append(show_team(name, issued.settings, issued))
        return Page.of(sorted(rows, key=lambda row: str(row["name"])), limit, "name")

    async def show_team(self, name: str) -> Shown:
        """One team: `name`, `quotas`, `members`, `managed_by`, `created_at`, `updated_at`, `top_ups`."""
        if (of_file := self._config().teams.get(name)) is not None:
            shown = show_team(name, of_file)
        else:
            _, issued = await self._issued_team(name)
            shown = show_team(name, issued.settings, issued)
        _, overlay = await self._overlay(f"team:{name}")
        return shown | {"top_ups": show_top_ups(overlay)}

    async def create_team(self, body: Mapping[str, Any], actor: str) -> Shown:
        """Make a team: `{"name": ..., "quotas": [...]}`."""
        settings = {field: value for field, value in body.items() if field != "name"}
        name = body.get("name")
        if not isinstance(name, str) or not re.fullmatch(NAME_PATTERN, name):
            raise InvalidRequest(
                "Expected a name of at most 63 small letters, digits, '_', '.' and '-', a letter or digit first.",
                param="name",
            )
        team = self._read_team(settings)
        if name in self._config().teams:
            raise exists("team", name)
        now = self._clock()
        made = IssuedTeam(team, created_at=now, updated_at=now)
        doing = AuditEvent(actor, "create", after=shown_team(team))
        # A team of this name that was deleted may have left windows and top-ups, also of its members and labels.
        (known,) = await self._store.read("team", [name])
        text, _ = await self._overlay(f"team:{name}")
        left = [] if text is None else [(f"team:{name}", text)]
        resets = await self._own_windows(name, team)
        for prefix in [f"{kind}:{name}/" for kind in (MEMBER, TEAM_LABEL, TEAM_TAG)]:
            left += await self._overlays_below(prefix)
        for scope, text in left if known is None else ():
            await self._write("overlay", scope, text, None, doing)
        await self._write("team", name, None, made.encode(), doing, resets=resets)
        await self._warn_of_team(name, team)
        return await self.show_team(name)

    async def update_team(self, name: str, changes: Mapping[str, Any], actor: str) -> Shown:
        """Replaces the settings in `changes`, such as the quotas. Raises `InvalidRequest` for another name, because a
        team cannot be renamed."""
        text, team = await self._changeable_team(name)
        if changes.get("name", name) != name:
            raise InvalidRequest("The name of a team stays. Create another team.", param="name")
        before = shown_team(team.settings)
        body = {field: value for field, value in {**before, **changes}.items() if field != "name" and value is not None}
        settings = self._read_team(body)
        changed = IssuedTeam(settings, team.created_at, self._clock())
        await self._write(
            "team", name, text, changed.encode(), AuditEvent(actor, "update", before, shown_team(settings))
        )
        await self._warn_of_team(name, settings)
        return await self.show_team(name)

    async def _warn_of_team(self, name: str, team: Team) -> None:
        for warning in await asyncio.to_thread(warnings_of_team, self._config(), name, team):
            self.warn(f"the team {name}: {warning}")

    async def delete_team(self, name: str, actor: str) -> None:
        """Take a team away; 409 `team_in_use` while keys belong to it."""
        text, team = await self._changeable_team(name)
        members = [key.id for key in self._config().keys if key.team == name]
        members += [
            key.settings.id async for key in self._issued_keys() if key.settings.team == name and key.revoked_at is None
        ]
        if members:
            some = ", ".join(members[:5]) + (", ..." if len(members) > 5 else "")
            raise Conflict(
                f"{len(members)} keys belong to the team '{name}' ({some}). Move or revoke them first.",
                code="team_in_use",
            )
        doing = AuditEvent(actor, "delete", before=shown_team(team.settings))
        await self._write("team", name, text, None, doing, resets=await self._own_windows(name, team.settings))

    async def _own_windows(self, name: str, team: Team) -> list[WindowStatus]:
        """The state of the windows of this team, of its members and of its labels, at present."""
        keys = [
            Key("", team=name, owner=key.settings.owner, labels=tuple(key.settings.labels.items()))
            async for key in self._issued_keys(groups=[("team", name)])
        ]
        noted = {scope: Overlay.decode(text) for scope, text in await self._overlays_below(f"{TEAM_TAG}:{name}/")}
        terms, now = LimitTable((), {name: team}, noted), self._clock()
        limits = [limit for key in [Key("", team=name), *keys] for limit in terms.of(key)] + [
            limit for _, limit in terms.of_labels(now)
        ]
        return await self._store.window_statuses(list(dict.fromkeys([limit.window(now) for limit in limits])), now)

    async def _overlays_below(self, prefix: str) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        async for page in self._pages("overlay", prefix):
            found += [(scope, text) for scope, text in page if scope.startswith(prefix)]
            if not page[-1][0].startswith(prefix):
                break
        return found

    async def _changeable_team(self, name: str) -> tuple[str, IssuedTeam]:
        if name in self._config().teams:
            raise in_file("team", name)
        return await self._issued_team(name)

    def _read_team(self, body: Mapping[str, Any]) -> Team:
        try:
            return read_team(body, self._config())
        except ConfigError as error:
            raise invalid(error) from None


class AuditLog(Documents):
    """Reads the audit log of changes that operators made."""

    async def audit(self, limit: int = 100, before: str | None = None) -> Page:
        """The newest changes: `id`, `time`, `actor`, `action`, `kind`, `name`, `before`, `after`."""
        try:
            entries = await self._store.audit(limit + 1, before)
        except ValueError:
            raise InvalidRequest("Expected the id of an entry.", param="before") from None
        rows = [
            {"id": entry.position, **_owner(entry.kind, entry.name), **json.loads(entry.audit)} for entry in entries
        ]
        return Page.of(rows, limit, "id")


def _owner(kind: DocumentKind, name: str) -> dict[str, str]:
    """An overlay is logged under its key, team or person."""
    if kind != "overlay":
        return {"kind": kind, "name": name}
    of, _, owner = name.partition(":")
    return {"kind": of, "name": owner}


class Registry(KeyManager, TeamManager, QuotaManager, PeopleManager, AuditLog):
    """Every method raises `StoreUnavailable` (a change may then have been made or not), and children of
    `GatewayError` with texts for the caller, in both places: `InvalidRequest` (`param` names the field as in the file:
    `quotas[0].per`), `NotFound`, `Conflict` (409: `managed_by_file`, `already_exists`, `revoked`, `team_in_use`,
    `changed_meanwhile`).

    `actor` is the author for the audit log: `token ci from 10.0.0.7`, `gateway keys, user bob`.
    """
