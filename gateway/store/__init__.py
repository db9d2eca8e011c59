"""What outlives a request: quotas, leases, usage. The promises, and the door to whoever keeps them.

Call id = lease id = record id. A lease is drawn before the first upstream byte and settled once, at the end; settling
applies the refund or charge, the usage record and the daily sums together, so that quotas and reports cannot disagree.
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from gateway.config import Store
from gateway.records import Draw, Granted, Refused, Settlement, Standing, Window


class StoreAway(Exception):
    """The store did not answer in time, or refused to. Nothing is known to have been drawn."""


class Ledger(Protocol):
    """Who may spend what, and what was spent. Shared by every worker of a namespace; one instance per worker.

    Guarantees: a draw takes all of its windows or none; what is admitted never exceeds a window's limit, however many
    draw at once; a settlement counts once, whatever is repeated; a lease whose worker died is charged at its estimate
    and recorded as lost.
    """

    @property
    def pending(self) -> int:
        """Settlements that have not reached the store yet."""

    @property
    def errors(self) -> int:
        """Requests to the store that failed, since the start of this worker."""

    def draw(self, draw: Draw) -> Future[Granted | Refused]:
        """Draw on every window of a call, or on none. The future raises `StoreAway`.

        Cancelling the future takes the draw back: what was or will be granted is settled, and only the request counts.
        """

    def settle(self, settlement: Settlement) -> Future[None]:
        """Replace a draw by the truth. Handed over at once; the future is done when the store has it.

        Tried until it succeeds; cancelling the future does not take it back.
        """

    async def ping(self) -> None:
        """Whether draws would be answered now. Raises `StoreAway`."""

    async def standings(self, windows: Sequence[Window], now: float) -> list[Standing]:
        """How these windows stand at the Unix time `now` (seconds). Raises `StoreAway`."""

    async def usage(
        self, group_by: Sequence[str], since: str | None = None, until: str | None = None, limit: int | None = None
    ) -> list[dict[str, Any]]:
        """Daily sums, grouped by some of `USAGE_GROUPS`; days as 2026-11-20, both included. Raises `StoreAway`."""

    async def calls(self, limit: int, key: str | None = None) -> list[Mapping[str, Any]]:
        """The newest usage records, newest first. Raises `StoreAway`."""

    async def close(self, timeout_s: float) -> int:
        """Deliver what is pending, for at most this long, and let go. Returns how many settlements were left."""


USAGE_GROUPS = ("key", "team", "model", "upstream", "endpoint", "day", "month")
"""What a usage report may be grouped by."""

USAGE_COLUMNS = (
    "requests", "errors", "prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens",
    "estimated_tokens", "total_tokens", "cost_usd",
)  # fmt: skip
"""What each row of a usage report holds beside its groups."""


def check_groups(groups: Iterable[str]) -> list[str]:
    """The names that no report can be grouped by."""
    return [group for group in groups if group not in USAGE_GROUPS]


def open_store(settings: Store) -> Ledger:
    """Open the store that the settings name. Raises `StoreAway` where it cannot be opened."""
    from .embedded import EmbeddedLedger  # a store brings its own libraries; only the one in use is loaded

    return EmbeddedLedger(settings)
