"""Taking a file into a store, and comparing both afterwards."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from gateway.records import Bond
from gateway.store import Store
from gateway.store.refusals import REFUSALS_KEPT_S

from . import documents
from .file import ExportHead, read_rows
from .rows import ADDED, KINDS, LOGS, StoreRow, Total, logged_name
from .tables import AT_ONCE, Tables, numbers_text

SPARED_S = 3600.0
"""Refusals that are so near to their end are not missed: gateways delete them meanwhile."""

EXAMPLES = 3
"""Differences of one kind that are named."""


class Compared(NamedTuple):
    """One kind of rows, in the file and at the new store."""

    kind: str
    file: Total
    here: Total
    """The same here: of rows whose numbers add up, those that were taken."""
    faults: tuple[str, ...] = ()
    """Which rows differ: the first few."""

    @property
    def is_equal(self) -> bool:
        return self.file == self.here and not self.faults


async def take(tables: Tables, store: Store, head: ExportHead, path: Path) -> list[str]:
    """Take all that the file has; sentences about the rows that could not be taken. It can be repeated."""
    faults = await documents.take(tables, store, head.source, read_rows(path))
    now = time.time()
    for kind, rows in batches(read_rows(path)):
        if kind in ADDED:
            await tables.add(head.source, rows)
        elif kind in LOGS:
            await tables.append(head.source, rows)
        elif kind == "rate":
            await tables.put_rates(head.source, rows)
        elif kind == "bond":
            for row in rows:
                if row.numbers[0] >= now:
                    await store.add_bond(Bond(*json.loads(row.text)[: len(Bond._fields)]), now)
    return faults


def batches(rows: Iterable[StoreRow]) -> Iterator[tuple[str, list[StoreRow]]]:
    """Some rows of one kind at a time."""
    for kind, some in groupby(rows, key=lambda row: row.kind):
        batch: list[StoreRow] = []
        for row in some:
            batch.append(row)
            if len(batch) == AT_ONCE:
                yield kind, batch
                batch = []
        if batch:
            yield kind, batch


async def compare(tables: Tables, store: Store, head: ExportHead, path: Path, file: dict[str, Total]) -> list[Compared]:
    """Each kind that has rows, as it is in the file and here. Reads both whole."""
    here, faults = dict.fromkeys(KINDS, Total()), {kind: list[str]() for kind in KINDS}
    logged = {kind: Counter([text async for text in tables.logged(kind)]) for kind in LOGS}
    for kind, rows in batches(read_rows(path)):
        if kind in ADDED:
            differing = await _differing(tables, head.source, rows)
        elif kind == "document":
            differing = await documents.missing(store, rows)
        elif kind == "secret":
            differing = await documents.missing_secrets(store, rows)
        elif kind in LOGS:
            differing = _wrongly_logged(kind, rows, logged[kind])
        elif kind == "bond":
            differing = [row for row in rows if not await _has_bond(store, row)]
        else:
            differing = []  # rates leak by themselves
        faults[kind] += [" ".join(filter(None, row.names)) for row in differing]
        for row in rows:
            if row not in differing:
                here[kind] = here[kind].with_row(row.numbers if kind in ADDED else ())
    return [Compared(kind, file[kind], here[kind], tuple(faults[kind][:EXAMPLES])) for kind in KINDS if file[kind].rows]


async def _differing(tables: Tables, source: str, rows: list[StoreRow]) -> list[StoreRow]:
    """Rows that were not taken as they are, or of which this store has less than it has taken."""
    taken = await tables.taken(source, [row.mark for row in rows])
    here = await tables.here(rows)
    return [
        row
        for row, noted, own in zip(rows, taken, here, strict=True)
        if noted != numbers_text(row) or not _has(row, own)
    ]


def _has(row: StoreRow, own: tuple[int, ...] | None) -> bool:
    if row.kind == "window":
        return own is not None  # a quota may have been reset here
    return all(number >= needed for number, needed in zip(own or [0] * len(row.numbers), row.numbers, strict=True))


def _wrongly_logged(kind: str, rows: list[StoreRow], logged: Counter[str]) -> list[StoreRow]:
    """Entries that this store does not have, and records that it has twice. Takes those that it has from `logged`."""
    found = []
    oldest = time.time() - REFUSALS_KEPT_S + SPARED_S
    for row in rows:
        name = logged_name(row)
        is_old = kind == "refusal" and json.loads(row.text)[1] < oldest
        if not (logged[name] == 1 or is_old or (logged[name] > 1 and kind != "record")):
            found.append(row)
        logged[name] -= 1
    return found


async def _has_bond(store: Store, row: StoreRow) -> bool:
    now = time.time()
    return row.numbers[0] < now or await store.find_bond(row.names[0], now) is not None
