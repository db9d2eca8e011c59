"""Keeps users and groups in the store, and ends the access of people who are deactivated or deleted.

1. The access of a person ends before the document of her user is changed, and is given back after that: if either step
   fails, the provider repeats the request, and until then no deactivated user is let in.
2. Access that something else has ended (an operator, a time without a sign-in) is not given back here.
3. A change is made from the document that was read; if that was changed meanwhile, it is made again.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gateway.keys.registry import Registry
from gateway.store import KeyStore, StoreChange

from .faults import ScimFault
from .filters import Term, matches
from .resources import NAMING, Kind, Resource, checked, first_id

DOCUMENTS = "scim"
"""The kind of its documents: `User:ID` and `Group:ID`."""

CAUSE = "scim"
"""Why access has ended, where a provider ended it."""

PAGE = 500
ATTEMPTS = 10


class Directory:
    """The users and groups of the identity provider. Every method raises `StoreUnavailable` and `ScimFault`."""

    def __init__(
        self, store: KeyStore, registry: Registry, actor: str, person: str, clock: Callable[[], float]
    ) -> None:
        """`person` is the attribute that names a person; `actor` is the author in the audit log."""
        self._store = store
        self._registry = registry
        self._actor = actor
        self._person = person
        self._clock = clock

    async def find(self, kind: Kind, resource_id: str) -> Resource:
        return (await self._read(kind, resource_id))[1]

    async def every(self, kind: Kind, terms: Sequence[Term] = ()) -> list[Resource]:
        """All that fulfil the conditions, by their ids."""
        if len(terms) == 1 and terms[0].path.name.lower() == NAMING[kind].lower() and isinstance(terms[0].value, str):
            (text,) = await self._store.read(DOCUMENTS, [place := f"{kind}:{first_id(kind, terms[0].value)}"])
            if text is not None and matches((found := Resource.decode(place, text)).values, terms):
                return [found]
        found_all, after = [], f"{kind}:"
        while rows := await self._store.page(DOCUMENTS, after, PAGE):
            ours = [Resource.decode(*row) for row in rows if row[0].startswith(f"{kind}:")]
            found_all += [each for each in ours if matches({"id": each.id, **each.values}, terms)]
            if len(ours) < len(rows):
                break
            after = rows[-1][0]
        return found_all

    async def create(self, kind: Kind, body: Mapping[str, Any]) -> Resource:
        values, now = checked(kind, body), self._clock()
        name = str(values[NAMING[kind]])
        (named,) = [await self._store.read(DOCUMENTS, [f"{kind}:{first_id(kind, name)}"])]
        await self._check_unused(kind, values, None)
        made = Resource(kind, first_id(kind, name) if named == [None] else str(uuid.uuid4()), values, now, now)
        await self._end_access(None, made)
        if not await self._write(made, None, made.encode()):
            raise ScimFault(409, f"There is a {kind} with this {NAMING[kind]} already.", "uniqueness")
        await self._give_access(made)
        return made

    async def change(
        self, kind: Kind, resource_id: str, how: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    ) -> Resource:
        """Change the values of a resource."""
        for _ in range(ATTEMPTS):
            text, before = await self._read(kind, resource_id)
            after = before._replace(values=checked(kind, how(before.values)), updated_at=self._clock())
            if after.name.casefold() != before.name.casefold():
                await self._check_unused(kind, after.values, resource_id)
            await self._end_access(before, after)
            if after.values == before.values or await self._write(after, text, after.encode()):
                await self._give_access(after)
                return after
        raise ScimFault(409, "Other requests change it all the time. Try again.")

    async def delete(self, kind: Kind, resource_id: str) -> None:
        for _ in range(ATTEMPTS):
            text, before = await self._read(kind, resource_id)
            await self._end_access(before, None)
            if await self._write(before, text, None):
                return
        raise ScimFault(409, "Other requests change it all the time. Try again.")

    async def _read(self, kind: Kind, resource_id: str) -> tuple[str, Resource]:
        place = f"{kind}:{resource_id}"
        (text,) = await self._store.read(DOCUMENTS, [place])
        if text is None:
            raise ScimFault(404, f"There is no {kind} '{resource_id[:100]}'.")
        return text, Resource.decode(place, text)

    async def _write(self, resource: Resource, before: str | None, after: str | None) -> bool:
        return await self._store.change(StoreChange(DOCUMENTS, f"{resource.kind}:{resource.id}", before, after, ""))

    async def _check_unused(self, kind: Kind, values: Mapping[str, Any], own: str | None) -> None:
        if kind == "User" and any(
            each.id != own and each.name.casefold() == str(values["userName"]).casefold()
            for each in await self.every(kind)
        ):
            raise ScimFault(409, "There is a User with this userName already.", "uniqueness")

    async def _end_access(self, before: Resource | None, after: Resource | None) -> None:
        """End the access of who was, and is not any more, or is deactivated."""
        for each in (before, after):
            person = each.person(self._person) if each is not None and each.kind == "User" else None
            stays = after is not None and after.is_active and after.person(self._person) == person
            if person is not None and not stays:
                await self._registry.set_access(person, CAUSE, self._actor, found=(None,))

    async def _give_access(self, resource: Resource) -> None:
        person = resource.person(self._person) if resource.kind == "User" and resource.is_active else None
        if person is not None:
            await self._registry.set_access(person, None, self._actor, found=(CAUSE,))
