"""The protocol for objects that are created and changed at run time: keys, teams, and overlays of the file's objects.

A store keeps documents as opaque text, by kind and name. It has an index from secrets to keys, and the audit log, which
is also the list of changes that workers follow to expire their cached keys.

`quota/issued.py` defines the content of documents; `keys/registry.py` changes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from gateway.records import Window

DocumentKind = str
"""`key`, `team`, `overlay`, or the name of a wing. `overlay`: what was decided of a key or team beyond its settings (a
key of the file revoked, quotas topped up). It is called as windows' scopes are: `key:ID`, `team:NAME`, `gateway`."""

AUDIT_KEPT = 100_000
"""Newest entries of the audit log that are kept, at least."""

CHANGES_AT_ONCE = 500
"""A worker that has missed more changes gets an incomplete list."""


READ_AT_ONCE = 500
"""Documents of one portion, so that neither a server nor the event loop is blocked by many."""


class StoreChange(NamedTuple):
    """A change of one document: all of it is applied, or nothing."""

    kind: DocumentKind
    name: str
    before: str | None
    """The document as it was read; None: there must be none."""
    after: str | None
    """The new document; None: it is removed. The same as `before` where only windows are reset."""
    audit: str
    """The entry for the audit log, as text; empty: none is written."""
    secrets_added: tuple[str, ...] = ()
    """SHA-256 in hex of secrets that lead to this key from now on (`kind` is `key`)."""
    secrets_removed: tuple[str, ...] = ()
    """SHA-256 in hex of secrets that no longer lead to this key."""
    resets: tuple[Window, ...] = ()
    """Windows of which nothing is used from now on; reservations of running calls stay. Windows of parallel calls are
    not changed. A running call that gives back a part of a rate at its end does so, down to nothing used."""
    cleared: tuple[int, ...] = ()
    """How much was used of each of these windows before the change was made first."""
    is_again: bool = False
    """Whether it is made again, behind calls that came after it: then no more than `cleared` is taken from a window of
    a day, week or month."""
    journal: str = ""
    """The decision journal of the gateway that made this change (keys/decisions.py); empty: none."""
    number: int = 0
    """Number of the change in that journal; a store that can forget keeps the last one of each journal."""


class StoredAudit(NamedTuple):
    position: str
    """Its position in the log; unique and opaque."""
    kind: DocumentKind
    name: str
    """Name of the document that was changed."""
    audit: str


class ChangeFeed(NamedTuple):
    """The changes since a position."""

    position: str
    """The position to pass as `since` with the next request."""
    changed: Sequence[tuple[DocumentKind, str]] = ()
    """Kinds and names of the documents."""
    is_complete: bool = True
    """False: too many changes since, or the store has lost data; every cached object has to be read again."""


class SecretTaken(Exception):
    """A secret that was to be added leads to another key already."""


class KeyStore(Protocol):
    """The store of keys, teams and overlays. Every method raises `StoreUnavailable` if the store does not answer: a
    change may then have been applied or not.

    Guarantees: of two changes of one document that were made from the same `before`, one is applied; a secret belongs
    to one key; a change, its secrets, its resets and its entry in the audit log are applied together.
    """

    async def find_keys(self, digests: Sequence[str]) -> list[str | None]:
        """The documents of the keys with these secrets (SHA-256 in hex); None for an unknown secret."""

    async def read(self, kind: DocumentKind, names: Sequence[str]) -> list[str | None]:
        """The documents of these names; None where there is none."""

    async def page(self, kind: DocumentKind, after: str = "", limit: int = 1000) -> list[tuple[str, str]]:
        """Names and documents of a kind behind the name `after`, in the order of the names' bytes (UTF-8): `limit`, or
        all that are left."""

    async def change(self, change: StoreChange) -> bool:
        """Apply a change; False where the document is not `before` (any more): nothing was applied then.

        Raises `SecretTaken`: nothing was applied either. A secret that leads to this key already may be added again;
        one that does not lead to it is not removed.
        """

    async def is_used(self, key: str) -> bool:
        """Whether anything was counted or kept under this id of a key: usage, a record, a refusal, a bond, or a call
        that is under way. Reads much: for making or deleting a key."""

    async def is_replicated(self) -> bool | None:
        """Whether a replica of the store has the last change of this instance; waits for that for a moment. None: there
        is no replica, or the store does not report it."""

    async def last_change(self, journal: str) -> int:
        """The number of the last change of this decision journal that the store has; 0: it has none."""

    async def changes_since(self, since: str | None) -> ChangeFeed:
        """The changes since `since`; None: nothing is cached yet, and only the position is needed.

        Cheap without changes: every worker reads it once a second. An unknown position means that the store has lost
        data: the list is incomplete.
        """

    async def audit(self, limit: int, before: str | None = None) -> list[StoredAudit]:
        """The newest entries of the audit log, newest first; `before`: those older than that position.

        Raises `ValueError` for what is no position.
        """
