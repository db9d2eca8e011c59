"""The rider of answers that upstreams keep and of work that goes on after its call, and whose work is polled next."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Protocol

from gateway.accounting.bonds import TASK, task_id
from gateway.accounting.deferral import decode_deferral
from gateway.api.capabilities import Adaptation
from gateway.chunked import portions
from gateway.errors import Unavailable
from gateway.formats.format import PlainFacts, Scan
from gateway.formats.table import FORMATS
from gateway.pipeline.active_call import ActiveCall
from gateway.pipeline.stack import WingRider
from gateway.quota import ledger_entry
from gateway.records import Bond, Call, Usage
from gateway.relay import Attempt
from gateway.relay.attempt import Rider
from gateway.relay.deferred import WingTurns, defer, note_deferral
from gateway.store import Deferred
from gateway.store.bonds import CONVERSATION, item_bonds
from gateway.upstream.credentials import account_of
from gateway.upstream.health import AttemptHandle

POLLS_AT_ONCE = 32
"""Polls that begin in one look."""

POLLS_UNDER_WAY = 128
"""Polls at once of one worker. An upstream gets half of what other upstreams leave, and a key at it half of what other
keys leave of that."""

DECODED_AT_ONCE = 100
"""Deferred leases that are decoded in one turn of the event loop, which takes about 3 ms."""


class KeptAnswer(Rider):
    """Binds the id of an answer that the upstream keeps to the caller, before the client sees it. The reservation of an
    answer that is still being made is left to `relay/deferred.py`."""

    def __init__(self, active: ActiveCall, handle: AttemptHandle) -> None:
        self._active = active
        self._handle = handle
        self._has_begun = False

    def request(self, draft: Attempt) -> Attempt:
        params, bond = draft.call.params, draft.call.bond
        if bond is not None and bond.kind == CONVERSATION and not self._active.tried:
            more = bond._replace(tokens=params.prompt_tokens - bond.tokens)  # it may stay there if the client leaves
            draft.tasks.spawn(self._active.services.bonds.keep(more), "grow-conversation")
        self._is_kept = params.is_kept and self._active.way is not Adaptation.TRANSLATED
        self._is_deferred = params.is_deferred
        if not (self._is_kept or self._is_deferred):
            return draft
        account = account_of(draft.upstream, self._handle.key) if self._is_deferred else ""
        self._attempt = draft = draft._replace(account=account, riders=(*draft.riders, self))
        return draft

    def event(self, scan: Scan) -> asyncio.Task[None] | None:
        find = self._attempt.format.kept_id
        if self._has_begun or not self._is_kept or find is None or (kept_id := find(scan)) is None:
            return None
        self._has_begun = True
        binding = self._attempt.tasks.spawn(self.bind(kept_id, None), "bind-answer")
        if self._is_deferred:
            note_deferral(self._attempt, kept_id)
        return binding

    def left(self, pending_id: str) -> bool:
        defer(self._attempt, pending_id)
        return True

    async def streamed(self, scan: Scan, usage: Usage) -> None:
        find, items = self._attempt.format.kept_id, self._attempt.format.kept_items(scan)
        if not self._is_kept or find is None or (kept_id := find(scan)) is None:
            return
        binding = self._attempt.tasks.spawn(self.bind(kept_id, usage, items), "bind-answer")
        if items:
            await asyncio.shield(binding)

    async def answered(self, facts: PlainFacts, usage: Usage) -> bool:
        if facts.kept_id is None:
            return False
        is_pending = facts.is_pending and self._is_deferred
        if self._is_kept:
            await self.bind(facts.kept_id, None if is_pending else usage, facts.items)
        if is_pending:
            defer(self._attempt, facts.kept_id)
        return is_pending

    async def bind(self, kept_id: str, usage: Usage | None, items: Sequence[str] = ()) -> None:
        """Stores the bond of the answer, and those of its items. Its tokens are what a continuation repeats: the
        prompt at least, where the usage is not known."""
        call, route, bonds = self._attempt.call, self._attempt.route, self._active.services.bonds
        account = account_of(self._attempt.upstream, self._handle.key)
        usage = usage or Usage(call.params.prompt_tokens)
        model, batch = route.model or call.params.model, FORMATS[call.endpoint].batch
        key, kind, note, tokens = call.key, "" if batch is None else batch.kind, "", usage.total_tokens
        if call.passed is not None:
            kept_id, kind, note = task_id(call.passed.owner, route.upstream, kept_id), TASK, call.id
        bond = Bond(kept_id, key.id, key.team, route.upstream, account, model, tokens, call.started, kind, note)
        await asyncio.gather(*map(bonds.keep, (bond, *item_bonds(bond, items, usage.completion_tokens))))
        if tokens and call.bond is not None and call.bond.kind == CONVERSATION:
            await bonds.keep(call.bond._replace(tokens=tokens - call.params.prompt_tokens))


KEPT_ANSWER = WingRider(
    KeptAnswer,
    lambda _, call: bool(call.passed or FORMATS[call.endpoint].kept_id or FORMATS[call.endpoint].batch),
)


Whose = tuple[str, str]
"""The upstream at which deferred work goes on, and the key."""


class RoomOfKeys(Protocol):
    """The room of a worker for bytes is one (`web/capacity.py`)."""

    def hold(self, size: int, key: str) -> bool: ...

    def hold_unchecked(self, size: int, key: str) -> None: ...

    def release(self, size: int, key: str) -> None: ...


class FairTurns:
    """Polls each key's work at each upstream in turn, so that neither one key with thousands of background responses
    nor an upstream that answers no poll keeps the work of others from being settled. This is a `PollTurns`."""

    def __init__(self, room: RoomOfKeys) -> None:
        self._room = room
        self._due: dict[str, float] = {}
        """When each lease is polled next, on the clock of `time.monotonic`."""
        self._whose: dict[str, Whose] = {}
        self._beyond = ""
        """The call whose answer is held although there is no room."""

    async def due(self, found: Sequence[Deferred], busy: Collection[str]) -> list[Deferred]:
        """Returns those of the deferred leases whose polls begin now. New ones are due at once, behind those that have
        been due for longer."""
        leases, now = {each.lease: each for each in found}, time.monotonic()
        for some in portions([each for each in found if each.lease not in self._whose], DECODED_AT_ONCE):
            self._whose |= {each.lease: _whose(each) for each in some}
            await asyncio.sleep(0)
        under_way = [self._whose[lease] for lease in busy if lease in self._whose]
        self._due = {lease: self._due.get(lease, now) for lease in leases}
        self._whose = {lease: self._whose[lease] for lease in self._whose.keys() & {*leases, *busy}}
        due = [lease for lease, at in self._due.items() if at <= now and lease not in busy]
        due.sort(key=self._due.__getitem__)
        turns = next_turns([self._whose[lease] for lease in due], under_way, POLLS_AT_ONCE)
        return [leases[due[place]] for place in turns]

    def pause(self, lease: str, pause_s: float) -> None:
        """Have a lease polled again after this time."""
        self._due[lease] = time.monotonic() + pause_s

    @contextmanager
    def holding(self, call: Call) -> Iterator[Callable[[int], None]]:
        """Gives what is asked for room for an answer as it comes, and raises `Unavailable` where there is none. One at
        a time is held all the same, because work is not settled before its answer is read."""
        held = 0

        def hold(size: int) -> None:
            nonlocal held
            if not self._room.hold(size, call.key.id):
                if self._beyond not in ("", call.id):
                    raise Unavailable("There is no room for the answer of a poll.", code="buffers_full")
                self._beyond = call.id
                self._room.hold_unchecked(size, call.key.id)
            held += size

        try:
            yield hold
        finally:
            self._room.release(held, call.key.id)
            if self._beyond == call.id:
                self._beyond = ""


def _whose(deferred: Deferred) -> Whose:
    """Whose work this is, as far as its stored facts can be read."""
    with suppress(ValueError, TypeError, RecursionError):
        return str(decode_deferral(deferred.note).upstream), str(ledger_entry.decode(deferred.entry).record.key)
    return "", ""


def next_turns(waiting: Sequence[Whose], under_way: Sequence[Whose], most: int) -> list[int]:
    """The places in `waiting` whose turn it is, at most this many: those of who has the fewest polls under way first,
    and the earlier ones first."""
    ranks, of_each = list[tuple[int, int]](), Counter(under_way)
    for place, whose in enumerate(waiting):
        ranks.append((of_each[whose], place))
        of_each[whose] += 1
    of_each, at_each = Counter(under_way), Counter([upstream for upstream, _ in under_way])
    chosen: list[int] = []
    for _, place in sorted(ranks):
        upstream, _ = whose = waiting[place]
        of_upstream = (POLLS_UNDER_WAY - at_each.total() + at_each[upstream]) // 2
        of_key = (of_upstream - at_each[upstream] + of_each[whose] + 1) // 2
        if of_each[whose] < of_key:
            chosen.append(place)
            of_each[whose] += 1
            at_each[upstream] += 1
        if len(chosen) == most:
            break
    return chosen


TURNS = WingTurns(FairTurns)
