"""Keys, teams and overlays: what becomes of a document of the file at the new store. The decisions are pure.

A document that was changed at the new store itself, since it was taken or ever, stays as it is, and is reported.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from gateway.store import SecretTaken, Store, StoreChange

from .rows import SEPARATOR, StoreRow
from .tables import Tables

TRIES = 5
"""How often a document that is changed at the same time is looked at again."""


class Noted(NamedTuple):
    """The note of a document that was taken: a digest of its text, and the digests of its secrets."""

    digest: str
    secrets: tuple[str, ...]

    @classmethod
    def of(cls, text: str, secrets: Iterable[str]) -> Noted:
        return cls(hashlib.sha256(text.encode()).hexdigest(), tuple(sorted(secrets)))

    @classmethod
    def read(cls, noted: str | None) -> Noted | None:
        return None if noted is None else cls(noted.split()[0], tuple(noted.split()[1:]))

    def __str__(self) -> str:
        return " ".join((self.digest, *self.secrets))


def is_own(here: str | None, new: str | None, before: Noted | None) -> bool:
    """Whether the document at the new store is another one than was taken, so that it must stay."""
    if here is None or here == new:
        return False
    return before is None or Noted.of(here, ()).digest != before.digest


async def take(tables: Tables, store: Store, source: str, rows: Iterable[StoreRow]) -> list[str]:
    """Take all documents with their secrets; sentences about those that could not be taken."""
    secrets: dict[str, list[str]] = {}
    documents: list[StoreRow] = []
    for row in rows:
        if row.kind == "secret":
            secrets.setdefault(row.names[1], []).append(row.names[0])
        elif row.kind == "document":
            documents.append(row)
    noted = {mark: Noted.read(text) for mark, text in (await tables.documents_taken(source)).items()}
    faults = []
    for row in documents:
        own = secrets.get(row.names[1], ()) if row.names[0] == "key" else ()
        faults += await _take_one(tables, store, source, row, own, noted.get(row.mark))
    for mark in sorted(noted.keys() - {row.mark for row in documents}):
        faults += await _drop(
            tables, store, source, StoreRow("document", tuple(mark.split(SEPARATOR)[1:])), noted[mark]
        )
    return faults


async def _take_one(
    tables: Tables, store: Store, source: str, row: StoreRow, secrets: Collection[str], before: Noted | None
) -> list[str]:
    kind, name = row.names[0], row.names[1]
    now = Noted.of(row.text, secrets)
    if before == now:
        return []
    gone = tuple(sorted({*(before.secrets if before else ())} - {*secrets}))
    for _ in range(TRIES):
        (here,) = await store.read(kind, [name])
        if is_own(here, row.text, before):
            return [f"{kind} {name} was changed here, and stays as it is; its state in the file is not taken"]
        change = StoreChange(kind, name, here, row.text, "", secrets_added=now.secrets, secrets_removed=gone)
        try:
            if await store.change(change):
                await tables.note_taken(source, row.mark, str(now))
                return []
        except SecretTaken:
            return [f"{kind} {name} has a secret that leads to another key here; rename or delete that one first"]
    return [f"{kind} {name} is being changed all the time; import again"]


async def _drop(tables: Tables, store: Store, source: str, row: StoreRow, before: Noted | None) -> list[str]:
    """The source has deleted a document since it was taken."""
    kind, name = row.names[0], row.names[1]
    (here,) = await store.read(kind, [name])
    if is_own(here, None, before):
        return [f"{kind} {name} was changed here, and stays as it is; the source has deleted it"]
    gone = before.secrets if before else ()
    if here is None or await store.change(StoreChange(kind, name, here, None, "", secrets_removed=gone)):
        await tables.note_taken(source, row.mark, None)
        return []
    return [f"{kind} {name} is being changed all the time; import again"]


async def missing(store: Store, rows: Sequence[StoreRow]) -> list[StoreRow]:
    """The documents that this store does not have as the file has them."""
    found = []
    for row in rows:
        (here,) = await store.read(row.names[0], [row.names[1]])
        if here != row.text:
            found.append(row)
    return found


async def missing_secrets(store: Store, rows: Sequence[StoreRow]) -> list[StoreRow]:
    """The secrets that lead to no key here."""
    found = await store.find_keys([row.names[0] for row in rows])
    return [row for row, text in zip(rows, found, strict=True) if text is None]
