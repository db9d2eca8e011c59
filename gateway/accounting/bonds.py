"""One worker's access to bonds: the owners of ids of objects that upstreams keep.

A bond is stored before its client sees the id. During an outage of the store the answer, which is paid for, is not
delayed: its bond is kept in this worker and written when the store is back; until then no other worker knows the id. If
the worker ends before that, the bond is lost and the id unknown.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from urllib.parse import quote

from gateway.chunked import portions
from gateway.config import Upstream
from gateway.errors import NotFound, Unavailable
from gateway.records import Bond, KeyInTeam
from gateway.store import BondStore, StoreUnavailable
from gateway.store.bonds import CONVERSATION, is_bond_id
from gateway.tasks import Tasks
from gateway.upstream.credentials import position_of

log = logging.getLogger("gateway")

WRITTEN_WITHIN_S = 1.0
"""Seconds that an answer waits for its bond to be stored."""

TRY_AGAIN_S = 1.0
MAX_UNWRITTEN = 10_000
"""Bonds that wait for the store; beyond that the oldest are lost."""

LOOKED_UP_AT_ONCE = 50
"""Ids of one request that are looked up in one turn of the event loop; it may name thousands."""

MAX_SHOWN_ID = 64
"""Characters of an unknown id that an error repeats."""

_AWAY = "The gateway cannot reach its store, so it cannot look up whose this id is. Please try again in a moment."
_ACCOUNT_GONE = (
    "'{}' is kept by a provider account that the gateway no longer uses. Send the whole conversation instead."
)
_TASK_GONE = "The task '{}' belongs to a provider account that the gateway no longer uses."

TASK = "task"
"""The parameter that names a task of a passthrough row."""

_NOT_FOUND = {
    TASK: ("Task with id '{}' not found.", "task_not_found"),
    "previous_response_id": ("Previous response with id '{}' not found.", "previous_response_not_found"),
    "conversation": ("Conversation with id '{}' not found.", None),
    "conversation_id": ("Conversation with id '{}' not found.", None),
    "item": ("Item with id '{}' not found. Send the item itself instead of its id.", None),
    "": ("Response with id '{}' not found.", None),
    "id": ("No such File object: {}", None),
    "file_id": ("No such File object: {}", None),
    "input_file_id": ("No such File object: {}", None),
    "batch": ("No batch found with id '{}'.", None),
    "message_batch": ("No message batch found with id '{}'.", None),
}
"""OpenAI's message and code for an unknown id, by the parameter that names it."""

_KINDS: Mapping[str, str] = {
    "id": "file", "file_id": "file", "input_file_id": "file", "batch": "batch",
    "message_batch": "message_batch", TASK: "task",
    "conversation": "conversation", "conversation_id": "conversation", "item": "item",
}  # fmt: skip
"""The kind of object by parameter; other parameters name responses."""

_SHOWN: Mapping[str, str] = {"batch": "", "message_batch": "", "conversation_id": "", "item": "input"}
"""The parameters that errors name, where these differ."""


def task_id(row: str, upstream: str, given: str) -> str:
    """The id of a bond with a task: APIs give their tasks numbers, which are unique neither among upstreams nor among
    the APIs of one."""
    return f"{_plain(upstream)}:{_plain(row)}:{_plain(given)}"


def _earlier_task_id(upstream: str, given: str) -> str:
    """The id of such a bond in earlier versions: without the row, which the bond names in its model."""
    return f"{_plain(upstream)}:{_plain(given)}"


def _plain(text: str) -> str:
    return quote(text, safe="").replace("~", "~7E").replace("%", "~")


def _usable(bond: Bond | None, key: KeyInTeam, shown: str, param: str, upstreams: Mapping[str, Upstream]) -> Bond:
    """A bond that was looked up for this key, if it may use it. Raises `NotFound`, which shows the id as `shown`."""
    if bond is None or bond.in_team != key or bond.kind != _KINDS.get(param, ""):
        message, code = _NOT_FOUND[param]
        raise NotFound(message.format(shown[:MAX_SHOWN_ID]), param=_SHOWN.get(param, param) or None, code=code)
    upstream = upstreams.get(bond.upstream)
    if upstream is None or position_of(upstream, bond.account) is None:
        gone = _TASK_GONE if param == TASK else _ACCOUNT_GONE
        raise NotFound(gone.format(shown[:MAX_SHOWN_ID]), param=param or None, code="account_not_configured")
    return bond


class Bonds:
    """Finds, writes and deletes bonds; those not yet written wait in memory while the store is unavailable. It must be
    closed."""

    def __init__(self, store: BondStore, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock
        self._unwritten: OrderedDict[str, Bond] = OrderedDict()
        self._changed = asyncio.Condition()
        self._is_away = False
        self._tasks = Tasks()
        self._writing: asyncio.Task[None] | None = None

    async def find(self, key: KeyInTeam, bond_id: str) -> Bond | None:
        """The bond of this id, if it is one of this key in this team. Raises `StoreUnavailable`."""
        bond = await self._look_up(bond_id)
        return bond if bond is not None and bond.in_team == key else None

    async def require(self, key: KeyInTeam, bond_id: str, param: str, upstreams: Mapping[str, Upstream]) -> Bond:
        """The bond of an id that this key has sent in this parameter (empty: in the path).

        Raises `NotFound` if it is unknown or of another key or team, and the error does not show which; or if the
        upstream's account is no longer configured. Raises `Unavailable`.
        """
        bond = await self._any(bond_id)
        shown = bond_id.rpartition(":")[2] if param == TASK else bond_id
        return _usable(bond, key, shown, param, upstreams)

    async def require_task(
        self, key: KeyInTeam, rows: Sequence[str], upstream: str, given: str, upstreams: Mapping[str, Upstream]
    ) -> Bond:
        """The bond of a task, given its id at the upstream. The first of `rows` is in its bond's id, and an earlier
        version's bond has the name of one of them in its model. Raises as `require` does."""
        bond = await self._any(task_id(rows[0], upstream, given))
        if bond is None:
            earlier = await self._any(_earlier_task_id(upstream, given))
            bond = earlier if earlier is not None and earlier.model.partition("/")[0] in rows else None
        return _usable(bond, key, given, TASK, upstreams)

    async def keep_task(self, bond: Bond, row: str, given: Iterable[str]) -> None:
        """Has further ids at the upstream belong to the key of a task, which keeps its own. Returns as `keep` does."""
        for each in {task_id(row, bond.upstream, one) for one in given} - {bond.id}:
            await self.keep(bond._replace(id=each, note=""))

    async def require_all(
        self, key: KeyInTeam, ids: Sequence[str], param: str, upstreams: Mapping[str, Upstream]
    ) -> list[Bond]:
        """The bonds of these ids, as `require` finds each."""
        found: list[Bond] = []
        for some in portions(ids, LOOKED_UP_AT_ONCE):
            found += await asyncio.gather(*[self.require(key, each, param, upstreams) for each in some])
        return found

    async def of_another(self, key: KeyInTeam, ids: Sequence[str]) -> list[str]:
        """Those of the ids that belong to another key, or to this one in another team. Raises `Unavailable`."""
        found: list[str] = []
        for some in portions([*dict.fromkeys(ids)], LOOKED_UP_AT_ONCE):
            bonds = await asyncio.gather(*map(self._any, some))
            found += [each for each, bond in zip(some, bonds, strict=True) if bond is not None and bond.in_team != key]
        return found

    async def _look_up(self, bond_id: str) -> Bond | None:
        """The bond of this id, whosever it is. Raises `StoreUnavailable`."""
        if not is_bond_id(bond_id):
            return None
        waiting = self._unwritten.get(bond_id)
        if waiting is not None and waiting.kind != CONVERSATION:
            return waiting
        stored = await self._store.find_bond(bond_id, self._clock())
        more = self._unwritten.get(bond_id)
        return (stored and more and stored._replace(tokens=stored.tokens + more.tokens)) or stored or more

    async def _any(self, bond_id: str) -> Bond | None:
        """Returns the bond of this id, of any key, as `_look_up` does. Raises `Unavailable`."""
        try:
            return await self._look_up(bond_id)
        except StoreUnavailable:
            raise Unavailable(_AWAY, code=StoreUnavailable.code) from None

    async def every(self, key: KeyInTeam, kind: str) -> list[Bond]:
        """Every bond of this kind that this key has in this team, the newest first. Raises `Unavailable`."""
        try:
            of_key = await self._store.bonds_of(key.key, kind, self._clock())
        except StoreUnavailable:
            raise Unavailable(_AWAY, code=StoreUnavailable.code) from None
        stored = [bond for bond in of_key if bond.in_team == key]
        known = {bond.id for bond in stored}
        waiting = [each for each in self._unwritten.values() if (each.in_team, each.kind) == (key, kind)]
        return [*reversed([bond for bond in waiting if bond.id not in known]), *stored]

    async def keep(self, bond: Bond) -> None:
        """Write a bond. Returns when it is in the store, or will be when the store is back."""
        if not is_bond_id(bond.id):
            return
        if bond.kind == CONVERSATION and (waiting := self._unwritten.get(bond.id)) is not None:
            bond = bond._replace(tokens=waiting.tokens + bond.tokens)
        self._unwritten[bond.id] = bond
        if len(self._unwritten) > MAX_UNWRITTEN:
            self._unwritten.popitem(last=False)
        if self._writing is None or self._writing.done():
            self._writing = self._tasks.spawn(self._write(), "write-bonds")
        if self._is_away:
            return
        try:
            async with asyncio.timeout(WRITTEN_WITHIN_S), self._changed:
                await self._changed.wait_for(lambda: self._is_away or self._unwritten.get(bond.id) is not bond)
        except TimeoutError:
            pass

    async def forget(self, bond: Bond) -> None:
        """Delete a bond. Raises `StoreUnavailable`."""
        self._unwritten.pop(bond.id, None)
        await self._store.remove_bond(bond)

    async def close(self) -> None:
        """End; bonds that are not written by now are lost."""
        await self._tasks.cancel_all()
        if self._unwritten:
            log.warning("%d stored responses were not bound to their keys: their ids are unknown", len(self._unwritten))

    async def _write(self) -> None:
        while self._unwritten:
            bond = next(iter(self._unwritten.values()))
            try:
                await self._store.add_bond(bond, self._clock())
            except StoreUnavailable as away:
                if not self._is_away:
                    log.warning("bonds of stored responses wait for the store: %s", away)
                await self._note(is_away=True)
                await asyncio.sleep(TRY_AGAIN_S)
                continue
            except Exception:
                log.exception("the store cannot take the bond of %s", bond.id)
            later = self._unwritten.pop(bond.id, bond)
            if later is not bond:  # of a conversation with the tokens that are now stored
                is_sum = bond.kind == CONVERSATION
                self._unwritten[bond.id] = later._replace(tokens=later.tokens - bond.tokens) if is_sum else later
            await self._note(is_away=False)

    async def _note(self, *, is_away: bool) -> None:
        async with self._changed:
            self._is_away = is_away
            self._changed.notify_all()
