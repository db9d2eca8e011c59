"""Makes changes of keys, teams and quotas durable beyond the store: changes that it acknowledged and lost are repeated.

A store that can forget (Redis: a replica that lagged, a power cut, no append-only file) would undo a revocation that an
operator has seen succeed. So:

1. Each change that the store acknowledged is written to the decision journal before the operator's answer.
2. The store keeps the number of the last change of each journal, written in one script with the change.
3. Once a second the two are compared. A lower number means that changes were lost: they are made again, revocations
   and deletions first, merged into the documents that the store has now (`restoration.py`), and logged again in the
   audit log.

Changes whose outcome was not known to the operator are not made again.

A command makes its changes on the store itself. It uses the journal of the gateway on its machine, where it may write
that; otherwise its author reads that no gateway makes the change again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Literal, Protocol

from gateway.config import StoreSettings
from gateway.store import KeyStore, Store, StoreChange, StoreUnavailable

from .decision_file import Decision, DecisionFile
from .restoration import again, audit_alone, ends_a_key, is_deletion

log = logging.getLogger("gateway")

TRIED = 5
"""How often a change is merged again because the document was changed meanwhile."""

NOTHING = StoreChange("overlay", "", None, None, "")
"""Changes no document: it only takes the number of a change to the store."""

Restored = Literal["restored", "failed"]

Warn = Callable[[str], None]
"""Is given what the author of a change has to know of how safely it is kept."""


class Changes(Protocol):
    """Applies changes to keys, teams and overlays in the store."""

    async def change(self, change: StoreChange, warn: Warn) -> bool:
        """Applies a change as `KeyStore.change` does; `warn` is called if the change is not kept safely."""


class SafeChanges:
    """Changes of a store that loses none that it has acknowledged."""

    def __init__(self, store: KeyStore) -> None:
        self._store = store

    async def change(self, change: StoreChange, warn: Warn) -> bool:
        return await self._store.change(change)


class ChangesWithoutJournal:
    """Changes of a command that has no decision journal, and why."""

    def __init__(self, store: KeyStore, why: str) -> None:
        self._store = store
        self._why = why

    async def change(self, change: StoreChange, warn: Warn) -> bool:
        if applied := await self._store.change(change):
            warn(
                f"the change of {change.kind} {change.name} is in no decision journal: {self._why}. If the store loses"
                f" it{', which has it on no replica yet' if await self._store.is_replicated() is False else ''}, no"
                " gateway makes it again. Make changes through a running gateway (--url), or on its machine as its user"
            )
        return applied


class Decisions:
    """The changes of one gateway. `note` counts those that were made again, or could not be."""

    def __init__(self, store: KeyStore, file: DecisionFile, note: Callable[[Restored, int], None]) -> None:
        self._store = store
        self._file = file
        self._note = note
        self._has_failed = False

    @classmethod
    def of_gateway(
        cls, store: Store, settings: StoreSettings, note: Callable[[Restored, int], None]
    ) -> Decisions | None:
        """The decisions of a gateway; None for a store that cannot lose acknowledged changes. Raises `OSError` for the
        journal's folder."""
        if not store.may_forget:
            return None
        file = DecisionFile.of(Path(settings.journal_dir), settings.origin)
        file.create()
        return cls(store, file, note)

    async def change(self, change: StoreChange, warn: Warn) -> bool:
        """Applies a change as `Changes.change` does; an applied change is written to the decision journal as well.
        Raises `StoreUnavailable` if the journal cannot be used."""
        try:
            async with self._file.locked():
                return await self._change(change, warn)
        except OSError as error:
            raise StoreUnavailable(f"the decision journal cannot be used: {error}") from None

    async def _change(self, change: StoreChange, warn: Warn) -> bool:
        number = self._file.last + 1
        try:
            applied = await self._store.change(self._numbered(change, number))
        except BaseException:
            self._file.append(Decision(number, None))  # the number may have been taken
            raise
        if applied:
            try:
                await asyncio.to_thread(self._file.append, Decision(number, change))
            except OSError as error:
                warn(
                    f"the change of {change.kind} {change.name} is made, but is not in the decision journal: if the"
                    f" store loses it, no gateway makes it again: {error}"
                )
            if await self._store.is_replicated() is False:
                warn(
                    f"the change of {change.kind} {change.name} is on no replica of the store yet: if the store fails"
                    " over now and loses it, it is made again from the decision journal"
                )
        return applied

    async def restore(self) -> None:
        """Make again what the store has lost, unless another worker does. Raises `StoreUnavailable`."""
        try:
            self._file.refresh()
            if await self._known() >= self._file.last:
                return
            async with self._file.locked(within_s=0):
                if (known := await self._known()) < self._file.last:
                    await self._restore([each for each in self._file.decisions if each.number > known], known)
            self._has_failed = False
        except OSError as error:
            if not self._has_failed:
                log.error("the decision journal cannot be used: lost changes are not made again: %s", error)
            self._has_failed = True

    async def _known(self) -> int:
        return await self._store.last_change(self._file.journal) if self._file.last else 0

    async def _restore(self, lost: list[Decision], known: int) -> None:
        made = [(number, change) for number, change in lost if change is not None]
        ends = {number for number, change in made if ends_a_key(change)}
        deleted = {change.name: number for number, change in made if is_deletion(change)}
        log.error(
            "the store came back older or empty: %d changes that operators made at this gateway are lost, %d of them"
            " revocations or deletions of keys. They are made again now",
            len(made), len(ends),
        )  # fmt: skip
        if (dropped := self._file.last - known - len(lost)) > 0:
            log.error(
                "%d older changes are not in the decision journal any more and cannot be made again: the runbook"
                " describes what to do (The store has lost changes)",
                dropped,
            )
            self._note("failed", dropped)
        for number, ending in made:
            if number in ends:
                await self._make_again(ending, again)
        for number, change in lost:
            is_made = False
            if change is not None and number not in ends:
                is_of_deleted = change.kind == "key" and number < deleted.get(change.name, 0)
                how = audit_alone if is_of_deleted else again
                is_made = await self._make_again(self._numbered(change, number), how)
            if not is_made:
                await self._store.change(self._numbered(NOTHING, number))

    def _numbered(self, change: StoreChange, number: int) -> StoreChange:
        return change._replace(journal=self._file.journal, number=number)

    async def _make_again(self, change: StoreChange, how: Callable[[StoreChange, str | None], StoreChange]) -> bool:
        """Whether the store has the change, or one that goes beyond it."""
        is_made, reason = False, "others change it all the time"
        for _ in range(TRIED):
            (present,) = await self._store.read(change.kind, [change.name])
            try:
                anew = how(change, present)
                # Made already, by a worker that did not live to the end of it.
                is_made = not change.journal and present is not None and anew.after == present
                is_made = is_made or await self._store.change(anew)
            except StoreUnavailable:
                raise
            except Exception as error:  # a document of another version; a secret that leads to another key
                reason = str(error) or type(error).__name__
                break
            if is_made:
                break
        if not is_made:
            log.error("the lost change of %s %s cannot be made again: %s", change.kind, change.name, reason)
        self._note("restored" if is_made else "failed", 1)
        return is_made


def changes_of_command(store: Store, settings: StoreSettings) -> Changes:
    """Where a command on the store itself makes its changes: with the journal of the gateway on this machine, if it is
    needed and this process may write it."""
    if not store.may_forget:
        return SafeChanges(store)
    file = DecisionFile.of(Path(settings.journal_dir), settings.origin)
    if (obstacle := file.obstacle) is not None:
        return ChangesWithoutJournal(store, obstacle)
    return Decisions(store, file, lambda outcome, number: None)
