"""The last sign-in of a person, which the store keeps in her overlay, and the end of her access for want of one."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from gateway.errors import Conflict, Forbidden
from gateway.keys.documents import AuditEvent
from gateway.keys.registry import Registry
from gateway.quota.issued import Overlay
from gateway.quota.scopes import folded_scope, person_scope

from .policy import INACTIVE, NO_GROUP, NOTED_EVERY_S, Due, Seen, due, is_exempt
from .settings import LeaverSettings

MEMBER = "leavers"
"""Its member of a person's overlay: a `Seen`."""

GIVEN_BACK = {"sign-in": (INACTIVE, NO_GROUP), "token": (INACTIVE,)}
"""Causes of an end that a sign-in or a call with a token of the identity provider gives back."""

WATCHER = "gateway, leavers"
"""The author of what the watcher does, in the audit log."""


def seen_of(overlay: Overlay) -> Seen:
    """When the person of this overlay was here."""
    return Seen(*overlay.more.get(MEMBER, (None,))[: len(Seen._fields)])


def _with_seen(overlay: Overlay, seen: Seen) -> Overlay:
    return overlay._replace(more={**overlay.more, MEMBER: [*seen]})


class Access(Registry):
    """Notes sign-ins, and ends the access of people who are not seen any more. Every method raises `StoreUnavailable`
    and `Conflict`."""

    async def note_sign_in(self, name: str, by: str) -> None:
        """A person is here. It gives back an access that ended because she was not; one that ended for want of a group,
        only at a sign-in, which shows groups. Raises `Forbidden` for one that ended otherwise."""
        text, overlay = await self._overlay(person_scope(name))
        if overlay.paused is not None and overlay.paused.by not in GIVEN_BACK[by]:
            raise Forbidden("Your access here has ended. Ask an operator of the gateway.", code="access_ended")
        now, seen = self._clock(), seen_of(overlay)
        if overlay.paused is None and seen.warned_at is None and seen.at is not None and now - seen.at < NOTED_EVERY_S:
            return
        changed: dict[str, Any] = {"signed_in": True}
        if overlay.paused is not None:
            changed["access_ended_by"] = None
        doing = AuditEvent(f"person {name}, {by}", "give_access" if overlay.paused else "sign_in", after=changed)
        here = _with_seen(overlay._replace(paused=None), Seen(now))
        await self._write("overlay", person_scope(name), text, here.encode(), doing)

    async def fold_names(self) -> None:
        """Copy what gateways before 0.3 wrote under names of people as they are written to the names by which people
        are compared. Of two that are one person, the one whose access has ended counts."""
        found = {scope: text async for rows in self._pages("overlay") for scope, text in rows}
        for scope, text in sorted(found.items(), key=lambda item: Overlay.decode(item[1]).paused is None):
            if (folded := folded_scope(scope)) not in found:
                found[folded] = text
                with suppress(Conflict):  # another gateway does the same
                    doing = AuditEvent("gateway, upgrade", "fold_name", scope, folded)
                    await self._write("overlay", folded, None, text, doing)

    async def leave_groups(self, name: str) -> bool:
        """Her provider names her, and no group that may be here; whether that ends her access now."""
        return await self.set_access(name, NO_GROUP, f"person {name}, sign-in", found=(None, INACTIVE))

    async def look(self, settings: LeaverSettings) -> list[tuple[str, Due]]:
        """Warn of and end the access of all who were not seen for too long: the people, and what was due."""
        now, found = self._clock(), []
        names = [name for name in await self._everyone() if not is_exempt(name, settings)]
        for name in names:
            with suppress(Conflict):  # she has just signed in, or has another change: the next look finds her again
                if (what := await self._look_at(name, settings, now)) is not None:
                    found.append((name, what))
        return found

    async def _look_at(self, name: str, settings: LeaverSettings, now: float) -> Due | None:
        """Do what is due for one person, and return it."""
        text, overlay = await self._overlay(person_scope(name))
        seen = seen_of(overlay)
        what = due(seen, settings, now) if overlay.paused is None else None
        if what == "end":
            await self.set_access(name, INACTIVE, WATCHER, found=(None,))
        elif what is not None:
            noted = Seen(now) if what == "begin" else seen._replace(warned_at=now)
            doing = AuditEvent(WATCHER, "warn_of_end" if what == "warn" else "watch_sign_ins")
            await self._write("overlay", person_scope(name), text, _with_seen(overlay, noted).encode(), doing)
        return what
