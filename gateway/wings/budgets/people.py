"""The limits of people are set, and their windows shown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gateway.chunked import portions
from gateway.config import ConfigError, KeySettings, Team, read_person, shown_person
from gateway.config.sections import folded_name
from gateway.keys.documents import AuditEvent, Page, Shown, in_file, invalid
from gateway.keys.manage_people import check_name
from gateway.keys.registry import Registry
from gateway.quota import window_status
from gateway.quota.issued import Overlay, person_limits, show_top_ups
from gateway.quota.scopes import member_scope, person_scope
from gateway.quota.windows import LimitTable
from gateway.records import Key, Window

WINDOWS_AT_ONCE = 50


def limits_of(registry: Registry) -> PeopleLimits:
    """The same documents, with the limits of people."""
    limits: PeopleLimits = registry.viewed_as(PeopleLimits).warning(registry.warn)
    return limits


class PeopleLimits(Registry):
    """Shows people and sets their limits. It raises as `Registry`."""

    async def list_people(self, after: str = "", limit: int = 100) -> Page:
        """The people behind this name, as `show_person`."""
        behind, everyone = folded_name(after), dict[str, list[KeySettings]]()
        while len(everyone) <= limit:
            of_file = await self._everyone([])
            owners = await self._index.owners(behind, limit + 1)
            names = sorted({*owners, *[name for name in of_file if name > behind]})[: limit + 1]
            if not names:
                break
            found = await self._everyone([("owner", name) for name in names])
            everyone |= {name: found[name] for name in names if name in found}
            behind = names[-1]
        names = [*everyone][: limit + 1]
        overlays = await self._overlays([person_scope(name) for name in names])
        shown = await self._shown(zip(names, overlays, strict=True), everyone)
        return Page.of(shown, limit, "name")

    async def show_person(self, name: str) -> Shown:
        """One person, by any spelling of her name. `access_ended_by` is the cause, or null; `managed_by` is `file` or
        `store` where the limits are her own, else null; `windows` has those in her teams, too."""
        everyone, overlay = await self.find_person(name)
        (shown,) = await self._shown([(folded_name(name), overlay)], everyone)
        return shown

    async def update_person(self, name: str, changes: Mapping[str, Any], actor: str) -> Shown:
        """Give a person quotas of her own; null: those of her role or of everyone again."""
        check_name(name)
        if folded_name(name) in (people := self._config().people):
            raise in_file("person", name)
        quotas = None
        if changes.get("quotas") is not None:
            try:
                quotas = read_person({"quotas": changes["quotas"]}, self._config()).quotas
            except ConfigError as error:
                raise invalid(error) from None
        text, overlay = await self._overlay(person_scope(name))
        given = overlay._replace(quotas=quotas)
        before, after = [shown_person(person_limits(people, name, each)) for each in (overlay, given)]
        doing = AuditEvent(actor, "update", before, after)
        await self._write("overlay", person_scope(name), text, given.encode(), doing)
        return await self.show_person(name)

    async def _shown(
        self, people: Iterable[tuple[str, Overlay]], everyone: Mapping[str, Sequence[KeySettings]]
    ) -> list[Shown]:
        people, teams, now = list(people), await self.teams(), self._clock()
        windows = {
            name: await self._windows_of(name, overlay, everyone.get(name, ()), teams, now) for name, overlay in people
        }
        rows: dict[str, Shown] = {}
        for some in portions([each for of_one in windows.values() for each in of_one], WINDOWS_AT_ONCE):
            statuses = await self._store.window_statuses(some, now)
            rows |= {status.window.id: window_status.row(status, now) for status in statuses}
        shown = []
        for name, overlay in people:
            is_named, is_given = name in self._config().people, overlay.quotas is not None
            shown.append(
                {
                    "object": "person",
                    "name": next((key.owner for key in everyone.get(name, ())), name),
                    "role": overlay.role,
                    "access_ended_by": overlay.paused and overlay.paused.by,
                    "keys": [key.id for key in everyone.get(name, ())],
                    **shown_person(person_limits(self._config().people, name, overlay)),
                    "managed_by": "file" if is_named else "store" if is_given else None,
                    "windows": [rows[window.id] for window in windows[name]],
                    "top_ups": show_top_ups(overlay),
                }
            )
        return shown

    async def _windows_of(
        self, name: str, overlay: Overlay, keys: Sequence[KeySettings], teams: Mapping[str, Team], now: float
    ) -> list[Window]:
        """Her windows over all keys, and those in each of the teams of her keys."""
        in_teams = list(dict.fromkeys([key.team for key in keys if key.team is not None]))
        scopes = [member_scope(team, name) for team in in_teams]
        overlays = dict(zip(scopes, await self._overlays(scopes), strict=True)) | {person_scope(name): overlay}
        terms = LimitTable((), teams, overlays, self._config().people)
        holders = [Key("", team=team, owner=name) for team in (None, *in_teams)]
        windows = [each.window(now) for holder in holders for each in terms.of(holder) if each.scope in overlays]
        return list({window.id: window for window in windows}.values())
