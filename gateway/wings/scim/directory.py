"""Keeps users and groups in the store, and ends the access of people who are deactivated or deleted.

1. The access of a person ends before the document of her user is changed, and is given back after that: if either step
   fails, the provider repeats the request, and until then no deactivated user is let in.
2. Access that something else has ended (an operator, a time without a sign-in) is not given back here.
3. A change is made from the document that was read; if that was changed meanwhile, it is made again.
4. A search reads some documents at a time and keeps those of one page. Threads read and write them, one by one: to read
   one of a megabyte takes some milliseconds, in which nothing else runs.
5. Roles and teams of those whose groups change follow before the document is changed, for the same reason.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple

from gateway.chunked import portions
from gateway.config import Config
from gateway.config.sections import folded_name
from gateway.keys.manage_people import BY_OPERATOR
from gateway.keys.registry import Registry
from gateway.store import KeyStore, StoreChange

from .faults import ScimFault
from .filters import Term, matches
from .followed import Followed
from .resources import NAMING, Kind, Resource, checked, first_id, with_state

log = logging.getLogger("gateway")

DOCUMENTS = "scim"
"""The kind of its documents: `User:ID` and `Group:ID`."""

CAUSE = "scim"
"""Why access has ended, where a provider ended it."""

PAGE = 50
"""Documents that are read from the store at once: 50 MB at most, one search after the other."""

MAX_ANSWER_BYTES = 4_194_304
"""A page ends behind the row with which it is longer; the provider asks for the rest (RFC 7644, 3.4.2.4)."""

ATTEMPTS = 10


class ResourcePage(NamedTuple):
    """A page of what fulfils the conditions, and how many do."""

    rows: list[Resource]
    total: int


class _Membership(NamedTuple):
    """The name of a group and the ids of its members, which are read once for all of them."""

    name: str = ""
    members: frozenset[str] = frozenset()


class Directory:
    """The users and groups of the identity provider. Every method raises `StoreUnavailable` and `ScimFault`."""

    def __init__(
        self,
        store: KeyStore,
        registry: Registry,
        actor: str,
        person: str,
        clock: Callable[[], float],
        config: Config | None = None,
        hold: Callable[[int, bool], None] = lambda size, may_refuse: None,
        turn: asyncio.Lock | None = None,
    ) -> None:
        """`person` is the attribute that names a person; `actor` is the author in the audit log. By `config` roles
        and teams follow groups; None: they do not. `hold` counts bytes
        that are held, negative ones that are no longer; it raises where there is no room, if it may refuse them. `turn`
        is held by a search."""
        self._store = store
        self._registry = registry
        self._actor = actor
        self._person = person
        self._clock = clock
        self._hold = hold
        self._turn = turn or asyncio.Lock()
        self._config = config
        self._follows = config is not None and Followed.is_wanted(config)

    async def find(self, kind: Kind, resource_id: str) -> Resource:
        return (await self._read(kind, resource_id))[1]

    async def page(self, kind: Kind, terms: Sequence[Term] = (), start: int = 1, count: int = 100) -> ResourcePage:
        """Those of all that fulfil the conditions, by their ids, from the place `start` on, which is 1 or more."""
        if len(terms) == 1 and terms[0].path.name.lower() == NAMING[kind].lower() and isinstance(terms[0].value, str):
            (text,) = await self._store.read(DOCUMENTS, [place := f"{kind}:{first_id(kind, terms[0].value)}"])
            if text is not None and (some := await asyncio.to_thread(_matching, [(place, text)], terms)):
                return ResourcePage([each for each, _ in some][start - 1 : start - 1 + count], 1)
        rows, total, size = list[Resource](), 0, 0
        async with aclosing(self._portions(kind)) as portions:
            async for ours in portions:
                for found, length in await asyncio.to_thread(_matching, ours, terms):
                    total += 1
                    if start <= total < start + count and size < MAX_ANSWER_BYTES:
                        self._hold(length, True)
                        size += length
                        rows.append(found)
        return ResourcePage(rows, total)

    async def groups_of(self, users: Collection[str]) -> Mapping[str, Sequence[Mapping[str, str]]]:
        """The groups of the users with these ids, as they are shown, by the id of the user."""
        found: defaultdict[str, list[Mapping[str, str]]] = defaultdict(list)
        if wanted := {*users}:
            async with aclosing(self._portions("Group")) as portions:
                async for ours in portions:
                    await asyncio.to_thread(_note_memberships, found, ours, wanted)
        return found

    async def _portions(self, kind: Kind) -> AsyncGenerator[list[tuple[str, str]]]:
        after = f"{kind}:"
        async with self._turn:
            while rows := await self._store.page(DOCUMENTS, after, PAGE):
                size = sum([len(text) for _, text in rows])
                self._hold(size, False)
                try:
                    ours = [row for row in rows if row[0].startswith(f"{kind}:")]
                    yield ours
                finally:
                    self._hold(-size, False)
                if len(ours) < len(rows):
                    break
                after = rows[-1][0]

    async def create(self, kind: Kind, body: Mapping[str, Any]) -> Resource:
        values, now = await asyncio.to_thread(checked, kind, body), self._clock()
        name = str(values[NAMING[kind]])
        (named,) = [await self._store.read(DOCUMENTS, [f"{kind}:{first_id(kind, name)}"])]
        made = Resource(kind, first_id(kind, name) if named == [None] else str(uuid.uuid4()), values, now, now)
        await self._check_unused(made, None)
        await self._end_access(None, made)
        await self._follow(None, made)
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
            values = await asyncio.to_thread(lambda given: with_state(checked(kind, how(given)), given), before.values)
            after = before._replace(values=values, updated_at=self._clock())
            await self._check_unused(after, before)
            await self._end_access(before, after)
            await self._follow(before, after)
            if after.values == before.values or await self._write(after, text, await asyncio.to_thread(after.encode)):
                await self._give_access(after)
                return after
        raise ScimFault(409, "Other requests change it all the time. Try again.")

    async def delete(self, kind: Kind, resource_id: str) -> None:
        for _ in range(ATTEMPTS):
            text, before = await self._read(kind, resource_id)
            await self._end_access(before, None)
            await self._follow(before, None)
            if await self._write(before, text, None):
                return
        raise ScimFault(409, "Other requests change it all the time. Try again.")

    async def _read(self, kind: Kind, resource_id: str) -> tuple[str, Resource]:
        place = f"{kind}:{resource_id}"
        (text,) = await self._store.read(DOCUMENTS, [place])
        if text is None:
            raise ScimFault(404, f"There is no {kind} '{resource_id[:100]}'.")
        return text, await asyncio.to_thread(Resource.decode, place, text)

    async def _write(self, resource: Resource, before: str | None, after: str | None) -> bool:
        return await self._store.change(StoreChange(DOCUMENTS, f"{resource.kind}:{resource.id}", before, after, ""))

    async def _check_unused(self, made: Resource, before: Resource | None) -> None:
        """Raises `ScimFault` if another user has this name, or is the same person: whose end would be the access of
        which?"""
        names = _names_of(made, self._person)
        if made.kind != "User" or (before is not None and _names_of(before, self._person) == names):
            return
        async with aclosing(self._portions("User")) as portions:
            async for ours in portions:
                for user, taken in await asyncio.to_thread(_names, ours, self._person):
                    for one, other, attribute in zip(names, taken, ("userName", self._person), strict=True):
                        if one is not None and one == other and (user != made.id or before is None):
                            raise ScimFault(409, f"There is a User with this {attribute} already.", "uniqueness")

    async def _end_access(self, before: Resource | None, after: Resource | None) -> None:
        """End the access of who was, and is not any more, or is deactivated."""
        for each in (before, after):
            person = each.person(self._person) if each is not None and each.kind == "User" else None
            stays = after is not None and after.is_active and _folded(after.person(self._person)) == _folded(person)
            if person is not None and not stays:
                # An end for want of a sign-in or a group would be undone by the next one.
                await self._registry.set_access(person, CAUSE, self._actor, spared=(BY_OPERATOR,))

    async def names_of_groups(self, person: str) -> frozenset[str]:
        """The names of the groups of the active user who is this person. No other users are read where hers has the id
        of its name, and is in a group."""
        wanted = folded_name(person)
        (text,) = await self._store.read(DOCUMENTS, [place := f"User:{first_id('User', person)}"])
        named = set[str]() if text is None else await asyncio.to_thread(_ids_of, [(place, text)], self._person, wanted)
        if groups := await self._names_of_groups(named):
            return groups
        users = set[str]()
        async with aclosing(self._portions("User")) as portions:
            async for ours in portions:
                users |= await asyncio.to_thread(_ids_of, ours, self._person, wanted)
        return frozenset() if users == named else await self._names_of_groups(users)

    async def _names_of_groups(self, users: Collection[str]) -> frozenset[str]:
        groups = await self.groups_of(users)
        return frozenset([each["display"] for user in users for each in groups.get(user, ())])

    async def _follow(self, before: Resource | None, after: Resource | None) -> None:
        """Give a role and a team to those whose groups are others after this change."""
        changed = after or before
        if changed is None or self._config is None or not self._follows:
            return
        users, memberships = [] if after is None else [after], [_Membership()] * 2
        if changed.kind == "Group":
            memberships, ids = await asyncio.to_thread(_affected, before, after)
            users = await self._users(ids)
        groups = await self.groups_of([each.id for each in users])
        followed: Followed = self._registry.viewed_as(Followed)
        for user in users:
            if user.is_active and (person := user.person(self._person)) is not None:
                stay = {each["display"] for each in groups.get(user.id, ()) if each["value"] != changed.id}
                was, will = [stay | ({name} if user.id in members else set()) for name, members in memberships]
                await followed.follow(self._config, person, was, will, self._actor)

    async def _users(self, ids: Sequence[str]) -> list[Resource]:
        """The users with these ids, without those that there are not."""
        found = list[Resource]()
        for some in portions(ids, PAGE):
            places = [f"User:{each}" for each in some]
            texts = await self._store.read(DOCUMENTS, places)
            rows = [(place, text) for place, text in zip(places, texts, strict=True) if text is not None]
            found += await asyncio.to_thread(lambda rows: [Resource.decode(*row) for row in rows], rows)
        return found

    async def _give_access(self, resource: Resource) -> None:
        person = resource.person(self._person) if resource.kind == "User" and resource.is_active else None
        if person is None or await self._registry.access_ended_by(person) != CAUSE:
            return
        wanted = folded_name(person)
        async with aclosing(self._portions("User")) as portions:
            async for ours in portions:
                # Gateways before 0.3 kept two users of one person where their names differ in case.
                if left := await asyncio.to_thread(_ids_of, ours, self._person, wanted, is_active=False):
                    log.warning(
                        "the access of %s stays ended: user %s, who is the same person, is deactivated in SCIM",
                        person, min(left),
                    )  # fmt: skip
                    return
        await self._registry.set_access(person, None, self._actor, found=(CAUSE,))


def _matching(rows: Sequence[tuple[str, str]], terms: Sequence[Term]) -> list[tuple[Resource, int]]:
    """The resources of these documents that fulfil the conditions, each with the length of its document."""
    found = [(Resource.decode(*row), len(row[1])) for row in rows]
    return [each for each in found if matches({"id": each[0].id, **each[0].values}, terms)]


def _note_memberships(
    found: Mapping[str, list[Mapping[str, str]]], rows: Sequence[tuple[str, str]], wanted: Collection[str]
) -> None:
    """Add to what was found those of these groups in which the users are, as they are shown."""
    for row in rows:
        group = Resource.decode(*row)
        for user in group.members.intersection(wanted):
            found[user].append({"value": group.id, "display": group.name})


def _ids_of(rows: Sequence[tuple[str, str]], attribute: str, person: str, *, is_active: bool = True) -> set[str]:
    """The ids of the active users of these documents who are this person, or of the others."""
    users = [Resource.decode(*row) for row in rows]
    return {each.id for each in users if each.is_active == is_active and _folded(each.person(attribute)) == person}


def _affected(before: Resource | None, after: Resource | None) -> tuple[list[_Membership], list[str]]:
    """A group before and after a change, and the ids of those for whom it is another one then."""
    was, will = [_Membership() if each is None else _Membership(each.name, each.members) for each in (before, after)]
    is_renamed = before is not None and after is not None and was.name != will.name
    return [was, will], sorted(was.members | will.members if is_renamed else was.members ^ will.members)


def _names(rows: Sequence[tuple[str, str]], person: str) -> list[tuple[str, tuple[str | None, str | None]]]:
    return [(user.id, _names_of(user, person)) for user in [Resource.decode(*row) for row in rows]]


def _names_of(user: Resource, person: str) -> tuple[str | None, str | None]:
    """The name and the person, which no other user may have."""
    return folded_name(user.name), _folded(user.person(person))


def _folded(person: str | None) -> str | None:
    return None if person is None else folded_name(person)
