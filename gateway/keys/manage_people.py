"""People: their limits are set, their windows shown, and their sessions ended.

A person has no document of her own but for the overlay `person:NAME`: top-ups, quotas that were given to her while the
gateway ran, the role of her last sign-in, and the moment at which her sessions were ended. People are the owners of
keys, and those who are named under `people` in the file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from gateway.chunked import portions
from gateway.config import ConfigError, KeySettings, Team, read_person, shown_person
from gateway.config.sections import BAD_SIGNS, MAX_PERSON, PERSON_DEFAULTS, ROLE_PREFIX, folded_name
from gateway.errors import InvalidRequest, NotFound
from gateway.quota import window_status
from gateway.quota.issued import Overlay, Pause, format_time, show_top_ups
from gateway.quota.people import person_limits
from gateway.quota.scopes import member_scope, person_scope
from gateway.quota.windows import LimitTable
from gateway.records import Key, Window

from .documents import AuditEvent, Documents, Page, Shown, in_file, invalid
from .key_index import KeyGroup

WINDOWS_AT_ONCE = 50

BY_OPERATOR = "operator"
"""Why the access of a person has ended, where an operator ended it."""


class PeopleManager(Documents):
    """Shows people and sets their limits, and ends their sessions."""

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
        everyone = await self._everyone([("owner", name := folded_name(name))])
        text, overlay = await self._overlay(person_scope(name))
        if name not in everyone and text is None:
            raise NotFound(f"There is no person '{name}': no key has this owner.", code="person_not_found")
        (shown,) = await self._shown([(name, overlay)], everyone)
        return shown

    async def update_person(self, name: str, changes: Mapping[str, Any], actor: str) -> Shown:
        """Give a person quotas of her own; null: those of her role or of everyone again."""
        _check_name(name)
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

    async def note_role(self, name: str, role: str) -> None:
        """Keep the role of a person who signs in, where a role has limits."""
        if not any(each.startswith(ROLE_PREFIX) for each in self._config().people):
            return
        text, overlay = await self._overlay(person_scope(name))
        if overlay.role != role:
            doing = AuditEvent(f"person {name}, sign-in", "update", {"role": overlay.role}, {"role": role})
            await self._write("overlay", person_scope(name), text, overlay._replace(role=role).encode(), doing)

    async def set_access(
        self,
        person: str,
        ended_by: str | None,
        actor: str,
        found: Collection[str | None] | None = None,
        spared: Collection[str] = (),
    ) -> bool:
        """End the access of a person, with all her keys, tokens and sessions, or give it back (None). `ended_by` is the
        cause. `found`: only where the cause so far is one of these; `spared`: where it is none of these. Returns
        whether something was changed."""
        _check_name(person)
        text, overlay = await self._overlay(person_scope(person))
        was = None if overlay.paused is None else overlay.paused.by
        if was == ended_by or was in spared or (found is not None and was not in found):
            return False
        pause = None if ended_by is None else Pause(self._clock(), ended_by)
        doing = AuditEvent(actor, "end_access" if pause else "give_access", {"ended_by": was}, {"ended_by": ended_by})
        await self._write("overlay", person_scope(person), text, overlay._replace(paused=pause).encode(), doing)
        return True

    async def end_sessions(self, person: str, actor: str) -> Shown:
        """End every session that this person has now, at every worker of every gateway. Whether she has one is not
        known: sessions are in browsers only."""
        _check_name(person)
        text, overlay = await self._overlay(person_scope(person))
        now = self._clock()
        ended = overlay._replace(revoked_at=now)
        await self._write("overlay", person_scope(person), text, ended.encode(), AuditEvent(actor, "end_sessions"))
        return {"object": "person", "name": person, "sessions_ended_at": format_time(now)}

    async def are_sessions_ended(self, person: str, begun: float) -> bool:
        """Whether a session of this person that began at this Unix time was ended."""
        _, overlay = await self._overlay(person_scope(person))
        return overlay.paused is not None or (overlay.revoked_at is not None and begun <= overlay.revoked_at)

    async def _everyone(self, owners: Sequence[KeyGroup] | None = None) -> dict[str, list[KeySettings]]:
        """The keys of these owners, or of all, and of those whom the file names, that are not revoked, by the name."""
        groups = [name for name in self._config().people if name == PERSON_DEFAULTS or name.startswith(ROLE_PREFIX)]
        found: dict[str, list[KeySettings]] = {name: [] for name in self._config().people if name not in groups}
        of_file = {key.id for key in self._config().keys}
        keys: list[KeySettings] = [*self._config().keys]
        keys += [
            key.settings
            async for key in self._issued_keys(groups=owners)
            if key.revoked_at is None and key.settings.id not in of_file
        ]
        for key in keys:
            if key.owner is not None:
                found.setdefault(folded_name(key.owner), []).append(key)
        return found

    async def is_bound_elsewhere(self, name: str, team: str | None) -> bool:
        """Whether limits bind all keys of this person, and she has keys, but none in this team."""
        name = folded_name(name)
        everyone = await self._everyone([("owner", name)])
        _, overlay = await self._overlay(person_scope(name))
        limits = person_limits(self._config().people, name, overlay)
        teams = {key.team for key in everyone.get(name, ())}
        return bool(limits.quotas or limits.max_parallel) and bool(teams) and team not in teams

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


def _check_name(person: str) -> None:
    """Raises `InvalidRequest` if the name is empty, too long or not printable."""
    if not 0 < len(person) <= MAX_PERSON or BAD_SIGNS.search(person):
        raise InvalidRequest(f"Expected a name of at most {MAX_PERSON} printable characters.", param="person")
