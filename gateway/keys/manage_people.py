"""People: their sessions are ended.

A person has no document of her own but for the moment at which her sessions were ended: the overlay `person:NAME`.
"""

from __future__ import annotations

from gateway.config.sections import BAD_SIGNS, MAX_PERSON
from gateway.errors import InvalidRequest
from gateway.quota.issued import format_time

from .documents import AuditEvent, Documents, Shown


class PeopleManager(Documents):
    """Ends sessions of people."""

    async def end_sessions(self, person: str, actor: str) -> Shown:
        """End every session that this person has now, at every worker of every gateway. Whether she has one is not
        known: sessions are in browsers only."""
        if not 0 < len(person) <= MAX_PERSON or BAD_SIGNS.search(person):
            raise InvalidRequest(f"Expected a name of at most {MAX_PERSON} printable characters.", param="person")
        text, overlay = await self._overlay(_scope(person))
        now = self._clock()
        ended = overlay._replace(revoked_at=now)
        await self._write("overlay", _scope(person), text, ended.encode(), AuditEvent(actor, "end_sessions"))
        return {"object": "person", "name": person, "sessions_ended_at": format_time(now)}

    async def are_sessions_ended(self, person: str, begun: float) -> bool:
        """Whether a session of this person that began at this Unix time was ended."""
        _, overlay = await self._overlay(_scope(person))
        return overlay.revoked_at is not None and begun <= overlay.revoked_at


def _scope(person: str) -> str:
    return f"person:{person}"
