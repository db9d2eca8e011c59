"""People are found here, and their access and sessions end. `wings/budgets/people.py` shows them and sets limits.

A person has no document of her own but for the overlay `person:NAME`: top-ups, quotas that were given to her while the
gateway ran, the role of her last sign-in, and the moment at which her sessions were ended. People are the owners of
keys, and those who are named under `people` in the file.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from gateway.config import KeySettings
from gateway.config.sections import BAD_SIGNS, MAX_PERSON, PERSON_DEFAULTS, ROLE_PREFIX, folded_name
from gateway.errors import InvalidRequest, NotFound
from gateway.quota.issued import Overlay, Pause, format_time, person_limits
from gateway.quota.scopes import person_scope

from .documents import AuditEvent, Documents, Shown
from .key_index import KeyGroup

BY_OPERATOR = "operator"
"""Why the access of a person has ended, where an operator ended it."""


class PeopleManager(Documents):
    """Finds people, and ends their access and their sessions."""

    async def find_person(self, name: str) -> tuple[dict[str, list[KeySettings]], Overlay]:
        """The keys of a person, by her name, and her overlay. Raises `NotFound`."""
        everyone = await self._everyone([("owner", name := folded_name(name))])
        text, overlay = await self._overlay(person_scope(name))
        if name not in everyone and text is None:
            raise NotFound(f"There is no person '{name}': no key has this owner.", code="person_not_found")
        return everyone, overlay

    async def access_ended_by(self, name: str) -> str | None:
        """The cause for which the access of a person has ended; None: she has it."""
        _, overlay = await self._overlay(person_scope(name))
        return None if overlay.paused is None else overlay.paused.by

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
        check_name(person)
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
        check_name(person)
        text, overlay = await self._overlay(person_scope(person))
        now = self._clock()
        ended = overlay._replace(revoked_at=now)
        await self._write("overlay", person_scope(person), text, ended.encode(), AuditEvent(actor, "end_sessions"))
        return {"object": "person", "name": person, "sessions_ended_at": format_time(now)}

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


def check_name(person: str) -> None:
    """Raises `InvalidRequest` if the name is empty, too long or not printable."""
    if not 0 < len(person) <= MAX_PERSON or BAD_SIGNS.search(person):
        raise InvalidRequest(f"Expected a name of at most {MAX_PERSON} printable characters.", param="person")
