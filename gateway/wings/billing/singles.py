"""The single calls that are asked for: those of days and models whose difference nothing certain explains, the largest
first, a bounded number of them at a time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from gateway.config import Upstream

from .account import PROVIDERS, RETRIES_S, read_generations
from .bill import Bill
from .generations import GenerationNotes, NotedCall, ReadCall, calls_in
from .posted import LOOK_S, Posts
from .recorded import ComparedBill
from .settings import BillSource

MOST_AT_ONCE = 60
"""The calls of one bill that one reading asks for."""
TRIES = 3
"""Readings for which a call that is not there yet is asked for."""
CERTAIN = frozenset({"other_users", "generation", "late", "rounding"})
"""Causes that are none of single calls."""


class Singles:
    """Asks for single calls. `tried` has how often a call was not there."""

    def __init__(self, posts: Posts) -> None:
        self._posts = posts
        self._tried: defaultdict[str, int] = defaultdict(int)

    async def read(
        self, each: ComparedBill, source: BillSource, upstream: Upstream, waits: Sequence[float] = RETRIES_S
    ) -> tuple[Bill | None, str | None]:
        """The bill with further single calls; None: there are none. Beside it why not all of them were read. Raises
        `StoreUnavailable`."""
        rows = differing(each)
        if not rows or not hasattr(PROVIDERS[source.provider], "generation"):
            return None, None
        known = {call.noted.id for call in each.bill.calls}
        noted: dict[str, NotedCall] = {}
        for day in sorted({day for day, _ in rows}):
            others = await self._posts.exchange(place_of(each.upstream, day), "reader", "", LOOK_S)
            noted |= {call.id: call for text in others.values() for call in calls_in(text) if call.id not in known}
        wanted = chosen(rows, noted.values(), each.names, self._tried)
        found, failed = await read_generations(source, upstream, [call.id for call in wanted], waits=waits)
        for name, generation in found.items():
            if generation is None:
                self._tried[name] += 1
        read = [ReadCall(noted[name], generation) for name, generation in found.items() if generation is not None]
        return (each.bill._replace(calls=(*each.bill.calls, *read)) if read else None), failed


def place_of(upstream: str, day: str) -> str:
    """The place of the posts with noted calls."""
    return f"generations:{upstream}:{day}"


async def post_noted(posts: Posts, notes: GenerationNotes, holder: str, today: str, for_s: float) -> None:
    """Post what this worker has noted since the last time. Raises `StoreUnavailable`."""
    for upstream, day, text in list(notes.changed(today)):
        try:
            await posts.exchange(place_of(upstream, day), holder, text, for_s)
        except BaseException:
            notes.again(upstream, day)
            raise


def differing(each: ComparedBill) -> dict[tuple[str, str], int]:
    """The days and models whose difference may be one of single calls, with its size in billionths of a US dollar."""
    sizes = {
        (row.day, row.model): sum([abs(amount) for cause, amount in row.causes.items() if cause not in CERTAIN])
        for row in each.rows
    }
    return {name: size for name, size in sizes.items() if size}


def chosen(
    rows: Mapping[tuple[str, str], int], noted: Iterable[NotedCall], names: Mapping[str, str], tried: Mapping[str, int]
) -> list[NotedCall]:
    """The calls to ask for, in the order of the differences and of their size. `names`: the models of rows."""
    wanted = [
        call
        for call in noted
        if (call.day, names.get(call.model, call.model)) in rows and tried.get(call.id, 0) < TRIES
    ]  # fmt: skip
    wanted.sort(key=lambda call: (rows[call.day, names.get(call.model, call.model)], call.size), reverse=True)
    return wanted[:MOST_AT_ONCE]


def still_of(bill: Bill, before: Bill | None) -> Bill:
    """The bill with the single calls that were read before, as far as it has their days."""
    if before is None:
        return bill
    return bill._replace(calls=tuple([call for call in before.calls if call.noted.day >= bill.since]))
