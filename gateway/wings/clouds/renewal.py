"""Keeps the grant of the upstreams with one `auth` valid.

1. One task asks the source at a time, and every call that needs a grant waits for the same task.
2. A call waits only while there is no valid grant, and only for a limited time.
3. The background renews a grant before it expires. After a refused renewal the present one is used until it expires.
4. After a refusal the source is asked again after 1 s, doubling to 30 s; calls without a valid grant fail meanwhile.
5. Each worker renews by itself: what authorizes requests stays in the memory of the process that uses it, in no store
   and on no socket. `spread` is another one in each, so that they do not ask their source in the same second.
6. A machine's clock may be set at any time, as by NTP after a start. So a grant ends at its time by the clock or after
   what was left of it when it came, whichever is first, and all pauses are measured by the monotonic clock.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from typing import Literal
from weakref import WeakSet

from gateway.tasks import Tasks

from .grant import Grant, GrantSource, NoGrant

log = logging.getLogger("gateway")

AHEAD_S, AHEAD_SHARE = 300.0, 0.25
"""A grant is renewed so long before it expires, or this share of what is left of it. Google's metadata server hands out
the old token until about five minutes before its end: then what is left is divided again."""
SOONEST_S = 1.0
NEVER_S = 86400.0
"""The source of a grant without an end is asked again after this time."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
REFUSED_TWICE_S = 10.0
"""A grant that the upstream refuses is renewed, but not more often than this."""

Outcome = Literal["renewed", "refused", "late"]
Note = Callable[[Outcome, bool], None]
"""Receives the outcome of each renewal, and whether a valid grant is left."""


def _no_note(outcome: Outcome, is_valid: bool) -> None:
    pass


def pause_s(refusals: int) -> float:
    """Returns how long the source is not asked after this number of refusals in a row."""
    return min(FIRST_PAUSE_S * 2.0 ** min(refusals - 1, 10), LONGEST_PAUSE_S)


def renewed_after_s(left_s: float, spread: float = 0.0) -> float:
    """Returns after how long a grant is renewed that expires in `left_s`: with a `spread` of 1 twice as far ahead."""
    return max(SOONEST_S, left_s - min(AHEAD_S, left_s * AHEAD_SHARE) * (1 + spread))


class Renewal:
    """The grant of the upstreams with one `auth` in one process. `clock` is Unix time, `monotonic` never goes back."""

    def __init__(
        self, upstream: str, source: GrantSource, within_s: float, clock: Callable[[], float] = time.time,
        spread: float = 0.0, monotonic: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self.upstreams = upstream
        """Their names, for the log."""
        self.users = WeakSet[object]()
        """The pools whose requests it authorizes. One that a reload has replaced while calls were running is forgotten
        with the last of them."""
        self._spread = spread
        self._source = source
        self._within_s = within_s
        self._clock = clock
        self._monotonic = monotonic
        self._grant: Grant | None = None
        self._ends_at = math.inf
        """The time is on `monotonic`, as all below."""
        self._due_at = self._asked_at = -math.inf
        self._refusals = 0
        self._reason = ""
        self._running: asyncio.Task[None] | None = None
        self._tasks = Tasks()
        self.note: Note = _no_note

    def __repr__(self) -> str:
        return f"<Renewal {self.upstreams}: {'valid' if self.grant else 'none'}, {self._refusals} refusals>"

    @property
    def grant(self) -> Grant | None:
        """The grant, if it is valid."""
        held = self._grant
        if held is None or held.expires_at is None:
            return held
        return held if self._clock() < held.expires_at and self._monotonic() < self._ends_at else None

    @property
    def is_asking(self) -> bool:
        return self._running is not None

    @property
    def secrets(self) -> tuple[str, ...]:
        """The secrets of the last grant, also after its end."""
        return self._grant.secrets if self._grant is not None else ()

    @property
    def due_in_s(self) -> float:
        """The time until the background renews the grant."""
        return self._due_at - self._monotonic()

    async def ready(self, within_s: float) -> str | None:
        """Waits until there is a valid grant; or the reason why there is none, at once or after `within_s`."""
        if self.grant is not None:
            return None
        if self._running is None and self._refusals and self.due_in_s > 0:
            return self._reason
        await asyncio.wait([self._begin()], timeout=within_s)
        return None if self.grant is not None else self._reason or f"nothing was obtained within {within_s:g} s"

    async def renew(self) -> None:
        """Ask the source now, and note its answer."""
        await asyncio.wait([self._begin()])

    def refused(self) -> None:
        """The upstream refuses the grant: it is renewed soon, because it may have been withdrawn."""
        if self._running is None and self._monotonic() - self._asked_at >= REFUSED_TWICE_S:
            self._begin()

    async def close(self, user: object = None) -> None:
        """Close it if no other pool uses it."""
        if user is not None:
            self.users.discard(user)
        if not self.users:
            await self._tasks.cancel_all()

    def _begin(self) -> asyncio.Task[None]:
        if self._running is None:
            self._asked_at = self._monotonic()
            self._running = self._tasks.spawn(self._renew(), f"authorize {self.upstreams}")
        return self._running

    async def _renew(self) -> None:
        try:
            async with asyncio.timeout(self._within_s):
                grant = await self._source.obtain()
        except TimeoutError:
            self._failed("late", f"no answer within {self._within_s:g} s")
        except NoGrant as refused:
            self._failed("refused", str(refused))
        except Exception as error:  # unless it counted, the source would be asked again at once; it may quote a secret
            self._failed("refused", f"it failed ({type(error).__name__})")
        else:
            self._succeeded(grant)
        finally:
            self._running = None

    def _succeeded(self, grant: Grant) -> None:
        now = self._monotonic()
        left_s = None if grant.expires_at is None else grant.expires_at - self._clock()
        if left_s is not None and left_s <= 0:
            self._failed("refused", "the new one has expired already: compare the clocks")
            return
        if self._refusals:
            log.info("upstream %s: its authorization is renewed again", self.upstreams)
        self._grant, self._refusals, self._reason = grant, 0, ""
        self._ends_at = math.inf if left_s is None else now + left_s
        after_s = NEVER_S if left_s is None else renewed_after_s(left_s, self._spread)
        if grant.ask_every_s is not None:
            after_s = min(after_s, grant.ask_every_s * (1 - self._spread / 2))
        self._due_at = now + after_s
        self.note("renewed", True)

    def _failed(self, outcome: Outcome, reason: str) -> None:
        self._refusals += 1
        self._reason = f"authorization {outcome}: {reason}"
        self._due_at = self._monotonic() + pause_s(self._refusals)
        is_valid = self.grant is not None
        level = logging.WARNING if is_valid else logging.ERROR
        left = "the present one is used until it expires" if is_valid else "calls cannot go there"
        log.log(level, "upstream %s: %s; %s", self.upstreams, self._reason, left)
        self.note(outcome, is_valid)
