"""The tables of one store, as an export reads them and an import writes them: one class for each kind of store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from importlib import import_module
from typing import Protocol

from gateway.config import StoreSettings

from .rows import StoreRow

AT_ONCE = 200
"""Rows that are taken together, in one transaction or one script."""


class Tables(Protocol):
    """The rows of one store. Every method raises `StoreUnavailable`."""

    async def id(self) -> str:
        """The id of this store, which is made when it is first needed."""

    async def under_way(self) -> tuple[int, int]:
        """How many calls are open, and how many go on at their upstreams without a client."""

    def rows(self) -> AsyncIterator[StoreRow]:
        """All rows, kind by kind in the order of `KINDS`; of a log the oldest first."""

    async def add(self, source: str, rows: Sequence[StoreRow]) -> None:
        """Add rows of one kind of `ADDED`: what they have more, or less, than was taken of that source before."""

    async def append(self, source: str, rows: Sequence[StoreRow]) -> None:
        """Append rows of one log that are behind the last one that was taken of that source."""

    async def put_rates(self, source: str, rows: Sequence[StoreRow]) -> None:
        """Take the levels of rates. One on which this store has drawn itself rises by what the source's rose."""

    async def taken(self, source: str, marks: Sequence[str]) -> list[str | None]:
        """The text that was noted of each of these rows; None: nothing was taken."""

    async def note_taken(self, source: str, mark: str, text: str | None) -> None:
        """Note what was taken of a document; None: it is gone."""

    async def documents_taken(self, source: str) -> dict[str, str]:
        """Everything that was noted of documents, by their marks."""

    async def here(self, rows: Sequence[StoreRow]) -> list[tuple[int, ...] | None]:
        """The numbers that this store has at present in the place of rows of one kind of `ADDED`; None: no such row."""

    def logged(self, kind: str) -> AsyncIterator[str]:
        """The `logged_name` of each entry of a log."""

    async def close(self) -> None: ...


def open_tables(settings: StoreSettings) -> Tables:
    """The tables of the store that these settings name. Raises `StoreMisconfigured`."""
    module = import_module(f"{__package__}.{'sqlite' if settings.is_embedded else 'redis'}_tables")
    tables: Tables = module.open_tables(settings)
    return tables


def numbers_text(row: StoreRow) -> str:
    """The text that is noted of a row whose numbers add up."""
    return " ".join(map(str, row.numbers))
