"""Documents of the store: reading and writing them for changes of keys, teams and quotas."""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, Self

from gateway.chunked import in_chunks, portions
from gateway.config import Config, ConfigError, FileKey, KeySettings, Team
from gateway.errors import Conflict, InvalidRequest, NotFound
from gateway.quota.issued import IssuedKey, IssuedTeam, Overlay, format_time
from gateway.records import Window, WindowStatus
from gateway.store import DocumentKind, KeyStore, StoreChange

from .decisions import Changes, SafeChanges, Warn
from .key_index import PAGE, READ_AT_ONCE, KeyGroup, KeyIndex

log = logging.getLogger("gateway")

Shown = dict[str, Any]

IsMeant = Callable[[KeySettings], bool]
"""Whether a key is within what a request may reach."""


def every_one(_: KeySettings) -> bool:
    """The `IsMeant` of a request that reaches all keys."""
    return True


class Page(NamedTuple):
    """One page of the rows of a longer list."""

    rows: list[Shown]
    next: str | None
    """The parameter `after` (of the audit log: `before`) of the next page; None: this is the last one."""

    @classmethod
    def of(cls, rows: list[Shown], limit: int, name: str) -> Page:
        """The first `limit` of some rows, of which there is one more where more follow."""
        return cls(rows[:limit], rows[limit - 1][name] if len(rows) > limit else None)


class DocumentStore(KeyStore, Protocol):
    """A store, as far as it is needed here."""

    async def window_statuses(self, windows: Sequence[Window], now: float) -> list[WindowStatus]:
        """Returns the state of these windows, as `store.WindowReader` does."""


class AuditEvent(NamedTuple):
    """One change, for the audit log; `before` and `after` as JSON."""

    actor: str
    action: str
    before: Any = None
    after: Any = None


class Documents:
    """Reads documents, and writes them if they were not changed meanwhile.

    `config` returns the current configuration. Warnings of how safely a change is kept go to the log.
    """

    def __init__(
        self,
        store: DocumentStore,
        config: Callable[[], Config],
        clock: Callable[[], float] = time.time,
        changes: Changes | None = None,
    ) -> None:
        self._store = store
        self._changes = SafeChanges(store) if changes is None else changes
        self.warn: Warn = log.warning
        """Where warnings of this registry's changes go."""
        self._config = config
        self._clock = clock
        self._index = KeyIndex(store)

    def warning(self, warn: Warn) -> Self:
        """The same, with warnings that go there."""
        same = copy.copy(self)
        same.warn = warn
        return same

    def viewed_as(self, kind: type[Any]) -> Any:
        """The same documents, for a wing that changes them in its own ways."""
        return kind(self._store, self._config, self._clock, self._changes)

    async def teams(self) -> Mapping[str, Team]:
        """All teams by name; of equal names, the team of the file."""
        issued = {name: IssuedTeam.decode(text).settings async for rows in self._pages("team") for name, text in rows}
        return {**issued, **self._config().teams}

    def _file_key(self, name: str) -> FileKey | None:
        return next((key for key in self._config().keys if key.id == name), None)

    async def _issued_key(self, name: str) -> tuple[str, IssuedKey]:
        """A document as text and decoded. Raises `NotFound`."""
        (text,) = await self._store.read("key", [name])
        if text is None:
            raise no_key(name)
        return text, IssuedKey.decode(text)

    async def _issued_team(self, name: str) -> tuple[str, IssuedTeam]:
        """A document as text and decoded. Raises `NotFound`."""
        (text,) = await self._store.read("team", [name])
        if text is None:
            raise no_team(name)
        return text, IssuedTeam.decode(text)

    async def _overlay(self, scope: str) -> tuple[str | None, Overlay]:
        """A document as text and decoded; an empty one if there is none."""
        (text,) = await self._store.read("overlay", [scope])
        return text, Overlay() if text is None else Overlay.decode(text)

    async def _overlays(self, scopes: Sequence[str]) -> list[Overlay]:
        """The documents, decoded; empty ones where there are none."""
        texts: list[str | None] = []
        for some in portions(scopes, READ_AT_ONCE):
            texts += await self._store.read("overlay", some)
        return [Overlay() if text is None else Overlay.decode(text) for text in texts]

    async def _issued_keys(
        self, after: str = "", groups: Collection[KeyGroup] | None = None
    ) -> AsyncIterator[IssuedKey]:
        """All of them, by id; or those of these groups, and perhaps others."""
        async for rows in self._key_pages(after, groups):
            for key in await asyncio.to_thread(decoded, rows):
                yield key

    async def _key_pages(self, after: str, groups: Collection[KeyGroup] | None) -> AsyncIterator[list[tuple[str, str]]]:
        if groups is None:
            async for rows in self._pages("key", after):
                yield rows
            return
        for names in portions(await self._index.candidates(groups, after), PAGE):
            texts = await self._store.read("key", names)
            if rows := [(name, text) for name, text in zip(names, texts, strict=True) if text is not None]:
                yield rows

    async def _pages(self, kind: DocumentKind, after: str = "") -> AsyncIterator[list[tuple[str, str]]]:
        while rows := await self._store.page(kind, after, PAGE):
            yield rows
            after = rows[-1][0]

    async def _write(
        self,
        kind: DocumentKind,
        name: str,
        before: str | None,
        after: str | None,
        doing: AuditEvent,
        *,
        added: Sequence[str] = (),
        removed: Sequence[str] = (),
        resets: Sequence[WindowStatus] = (),
    ) -> None:
        """Raises `Conflict` where the document is not `before` any more."""
        audit = json.dumps({"time": format_time(self._clock()), **doing._asdict()})
        windows, used = tuple([each.window for each in resets]), tuple([each.used for each in resets])
        change = StoreChange(kind, name, before, after, audit, tuple(added), tuple(removed), windows, used)
        if await self._changes.change(change, self.warn):
            return
        if before is None and kind != "overlay":
            raise exists(kind, name)
        raise Conflict(f"Another request has just changed {kind} '{name}'. Try again.", code="changed_meanwhile")


def decoded(rows: Iterable[tuple[str, str]]) -> list[IssuedKey]:
    """The keys of these documents. For a thread: it takes its time."""
    return [IssuedKey.decode(text) for _, text in in_chunks(rows, READ_AT_ONCE)]


async def labels_of(
    store: KeyStore, of_file: Iterable[FileKey], names: Iterable[str], is_meant: IsMeant = every_one
) -> dict[str, Mapping[str, str]]:
    """The labels of those of these keys that are meant, as they are now, with the owner under an empty name; those of
    no known key are left out. Raises `StoreUnavailable`."""
    known: dict[str, KeySettings] = {key.id: key for key in of_file}
    others = [name for name in names if name not in known]
    for some in portions(others, PAGE):
        texts = [(name, text) for name, text in zip(some, await store.read("key", some), strict=True) if text]
        for key in await asyncio.to_thread(decoded, texts):
            known[key.settings.id] = key.settings
    return {name: {**key.labels, "": key.owner or ""} for name, key in known.items() if is_meant(key)}


def no_key(name: str) -> NotFound:
    return NotFound(f"There is no key '{name}'.", code="key_not_found")


def no_team(name: str) -> NotFound:
    return NotFound(f"There is no team '{name}'.", code="team_not_found")


def exists(kind: str, name: str) -> Conflict:
    """A name that is taken."""
    return Conflict(
        f"There is a {kind} '{name}' already. Choose another name; that of a key that was used is never used again.",
        code="already_exists",
    )


def in_file(kind: str, name: str) -> Conflict:
    """The refusal of a change that can be made in the file only."""
    return Conflict(
        f"The {kind} '{name}' is defined in the configuration file. Change it there and reload.", code="managed_by_file"
    )


def invalid(error: ConfigError) -> InvalidRequest:
    """Every fault in one message; the first one's path is the `param`."""
    faults = "; ".join(str(fault) for fault in error.faults)
    return InvalidRequest(f"Invalid settings: {faults}.", param=error.faults[0].path or None)
