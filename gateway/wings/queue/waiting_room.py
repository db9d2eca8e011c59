"""One worker's waiting calls: which one gets a turn to ask the ledger for room, and when.

Calls that may go to the same upstreams wait in one line. A call that finds no other waiting asks at once; if no place
has room, it waits. The line gives turns in the order of its `FairQueue`, as soon as the windows that refused the last
call may have room again: a rate at the time in the refusal, a slot when a call of this worker ends or after `POLL_S`.

A call that does not wait, or no longer, is promised the time after which it is asked to come back (`promises.py`).

A call waits until its deadline; a client that leaves frees its place at once. While calls wait, the worker sends the
others of the same store the work that it served and its waiting calls (`Exchange`), every `EXCHANGE_S`.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Collection, Sequence
from math import ceil, inf
from typing import Literal, NamedTuple, Protocol

from gateway.pipeline.services import Exchange
from gateway.quota.windows import is_of_upstream, is_own, named_window, unreserved
from gateway.records import Refused, Window, WindowStatus
from gateway.store import StoreUnavailable
from gateway.tasks import Tasks

from .fair_queue import FairQueue, Waiting, displaced_by
from .promises import EARLY_S, Place, Promise, Promises
from .settings import QueueSettings

log = logging.getLogger("gateway")

POLL_S = 0.05
"""How often a slot of parallel calls is asked for again, which calls of other workers may have freed."""

EXCHANGE_S = 0.05
"""How often workers with waiting calls exchange what they know: two workers differ by what they serve in that time."""

POSTED_S = 2.0
"""How long a post is kept, and how long a line without waiting calls, so that other workers learn what it served."""

POSTS_AS = "line3"
"""The name of posts in the form of `FairQueue.post` and, in a second line, `Promises.post`. Workers of 0.2.0 post
another form, as `line`: they and newer ones do not know of each other's waiting calls."""

TURNS = 8
"""Most calls of one line that ask the ledger at the same time: it answers many as fast as one. After a refusal one call
asks, and each that finds room and leaves some lets two more ask."""

KNOWN_S = 1.0
"""How long a window that had room for a call is taken to have some. So at most one call in that time that draws on an
unknown window asks before calls that wait."""

MIN_WAIT_S = 0.001

SMOOTHING = 0.2
"""Weight of the last call in the moving average of what calls use."""

MAX_FLOWS = 20_000
"""Flows whose use is remembered."""

Outcome = Literal["admitted", "refused", "expired", "displaced", "full", "client_gone", "failed"]
"""How a wait ends: with room; by a limit of the caller's own; at its deadline; for a call of another flow, or for want
of a place, where the queue is full; the client left; the store is unavailable."""


class QueueObserver(Protocol):
    """Counts waits. Implemented by `Waits`."""

    def wait_began(self, upstreams: Collection[str]) -> None:
        """A call waits for one of these upstreams."""

    def wait_ended(self, upstreams: Collection[str], priority: str, outcome: str, seconds: float) -> None:
        """It does so no longer."""


class _Known(NamedTuple):
    """The last refusal by a window, and its time."""

    refused: Refused
    at: float

    def room_at(self, amount: int) -> float:
        """When it has room for `amount` units."""
        wait_s = POLL_S if self._is_parallel else self._wait_us(amount) / 1e6
        return self.at + max(MIN_WAIT_S, wait_s)

    def waiting_for(self, amount: int, cost: int, ahead: int, now: float) -> Refused:
        """The refusal of a call for `amount` units that uses `cost` tokens; `ahead` calls like it go before."""
        wait_us = self.refused.retry_after_us or 0
        if not self._is_parallel:
            each = max(1, cost) if self.refused.window_status.window.unit == "tokens" else amount
            wait_us = max(self._wait_us(amount) - round((now - self.at) * 1e6), self._refill_us(each) * (1 + ahead))
        return self.refused._replace(asked=amount, retry_after_us=wait_us)

    @property
    def _is_parallel(self) -> bool:
        return self.refused.window_status.window.unit == "parallel"

    def _wait_us(self, amount: int) -> int:
        more_us = self._refill_us(abs(amount - self.refused.asked))
        return (self.refused.retry_after_us or 0) + (more_us if amount > self.refused.asked else -more_us)

    def _refill_us(self, amount: int) -> int:
        window = self.refused.window_status.window
        return min(amount, window.limit) * window.period_us // window.limit


class _Over(NamedTuple):
    """The end of a wait, other than by a turn."""

    outcome: Outcome
    refusals: Sequence[Refused]


Attempt = Callable[[], Awaitable[Sequence[Refused]]]
"""Asks the ledger for room in every place: why not, or nothing where there was some."""


class WaitingRoom:
    """The lines of one worker. It outlives a reload of the configuration."""

    def __init__(self, settings: QueueSettings, exchange: Exchange, observer: QueueObserver | None = None) -> None:
        self.settings = settings
        self.observer = observer
        self.exchange = exchange
        self.tasks = Tasks()
        self.name = uuid.uuid4().hex[:12]
        self._lines: dict[tuple[str, ...], Line] = {}
        self._use: dict[str, float] = {}
        """Tokens that calls of each flow used lately."""

    def __repr__(self) -> str:
        return f"<WaitingRoom: {', '.join(map(repr, self._lines.values())) or 'empty'}>"

    def longest_wait_s(self, *of_call: float | None) -> float:
        """How long a call may wait: the shortest of these limits, those of its key and model, else the default."""
        return min([wait_s for wait_s in of_call if wait_s is not None], default=self.settings.max_wait_s)

    def configure(self, settings: QueueSettings) -> None:
        """Go by other settings; what waits goes on with its deadline."""
        self.settings = settings

    def ticket(self, upstreams: Collection[str], call: Waiting, patience_s: float) -> Ticket:
        """A call's place in the line for these upstreams, for `patience_s` at most."""
        return Ticket(self, tuple(sorted(upstreams)), call, patience_s)

    def expected(self, call: Waiting) -> int:
        """How many tokens a new call will use: as calls of its flow lately, and its prompt at least."""
        return max(call.cost, round(self._use.get(call.flow, 0.0)))

    def note_use(self, flow: str, tokens: int) -> None:
        """A call of this flow has used `tokens`."""
        known = self._use.pop(flow, tokens)
        self._use[flow] = known + (tokens - known) * SMOOTHING
        if len(self._use) > MAX_FLOWS:
            del self._use[next(iter(self._use))]

    def line(self, upstreams: tuple[str, ...]) -> Line | None:
        """The line for these upstreams, if calls wait or waited there lately."""
        return self._lines.get(upstreams)

    def has_line(self, upstreams: Collection[str]) -> bool:
        """Whether calls wait for these upstreams, or waited lately."""
        return tuple(sorted(upstreams)) in self._lines

    def open_line(self, upstreams: tuple[str, ...]) -> Line:
        """The line for these upstreams."""
        line = self._lines.get(upstreams)
        if line is None:
            line = self._lines[upstreams] = Line(upstreams, self)
            self.tasks.keep(line.keep_in_touch, "waiting-line")
        return line

    def close_line(self, upstreams: tuple[str, ...]) -> None:
        """Removes the line of these upstreams, where no call waits."""
        del self._lines[upstreams]

    def waiting(self) -> dict[str, int]:
        """How many calls wait for each upstream; one that may go to several counts at each."""
        found: dict[str, int] = {}
        for line in self._lines.values():
            for upstream in line.upstreams:
                found[upstream] = found.get(upstream, 0) + line.queue.count
        return found

    def make_place(self, call: Waiting) -> bool:
        """Whether a new call may wait: where the room is full, others give up their places to it, in whatever lines."""
        queues = [line.queue for line in self._lines.values()]
        calls = 1 + sum([queue.places for queue in queues]) - self.settings.max_calls
        size = call.size + sum([queue.size for queue in queues]) - self.settings.max_bytes
        if calls <= 0 and size <= 0:
            return True
        displaced = displaced_by(queues, call, calls, size)
        for other in displaced:
            for line in self._lines.values():
                line.displace(other)
        return bool(displaced)

    async def close(self) -> None:
        """End the exchange with other workers."""
        await self.tasks.cancel_all()


class Ticket:
    """One call's way through the waiting room."""

    def __init__(self, room: WaitingRoom, line: tuple[str, ...], call: Waiting, patience_s: float) -> None:
        self._room = room
        self._line = line
        self._call = call
        self._patience_s = patience_s
        self.has_waited = False
        """Whether the call was in the queue in the last `admit`."""
        self._is_charged = False
        call.cost = room.expected(call)

    async def admit(self, attempt: Attempt) -> Sequence[Refused]:
        """Wait for room. Returns nothing, or why there was none, with the time after which to come back.

        Cancelled: the client is gone, and its place free. Raises what `attempt` raises.
        """
        self.has_waited = False
        line = self._room.line(self._line)
        promise = None if line is None else line.promise_of(self._call)
        patience_s = self._patience_s
        if line is None or line.may_ask_at_once(self._call, promise) or line.knows_too_little_for(self._call):
            refusals = await attempt()
            if not _is_full(refusals):
                if line is not None and not refusals:
                    self._is_charged = True
                    line.queue.charge(self._call, self._call.cost)
                    if promise is not None:
                        line.end_promise(promise)
                return refusals
            may_wait = min(map(_wait_s, refusals)) <= patience_s
            if may_wait:
                line = self._room.open_line(self._line)
            if line is None:
                return refusals
            line.note(self._call, refusals, waits_on=may_wait)
            if not may_wait and (promise is None or not line.is_due(promise, patience_s)):
                return line.promised(self._call, refusals)
        if promise is not None and line.is_due(promise, patience_s):
            began = line.time()
            refusals = await self._come_back(line, promise, attempt)
            if not _is_full(refusals):
                return refusals
            patience_s -= line.time() - began
        if patience_s <= 0:
            return line.promised(self._call)
        self.has_waited = True
        refusals = await self._wait(line, attempt, patience_s)
        self._is_charged = not refusals
        return refusals

    async def _come_back(self, line: Line, promise: Promise, attempt: Attempt) -> Sequence[Refused]:
        """Ask for the room of a promise when it is due, and again where another worker has drawn it just now, until the
        promise ends."""
        now, promise.is_taken, is_over = line.time(), True, False
        wait_s = max(0.0, promise.due - now)
        try:
            while True:
                if wait_s:
                    self.has_waited = True
                    await asyncio.sleep(wait_s)
                refusals = await attempt()
                is_over = not _is_full(refusals)
                if is_over:
                    if not refusals:
                        self._is_charged = True
                        line.charge_promised(self._call)
                    return refusals
                line.note(self._call, refusals, waits_on=True)
                wait_s = max(MIN_WAIT_S, min(map(_wait_s, refusals)))
                if line.time() + wait_s > promise.until:
                    is_over = True
                    return refusals
        finally:
            promise.is_taken = False
            if is_over:
                line.end_promise(promise)

    async def _wait(self, line: Line, attempt: Attempt, patience_s: float) -> Sequence[Refused]:
        observer = self._room.observer
        if observer is None:
            return (await line.wait(self._call, attempt, patience_s)).refusals
        began, outcome = time.monotonic(), "failed"
        observer.wait_began(line.upstreams)
        try:
            outcome, refusals = await line.wait(self._call, attempt, patience_s)
            return refusals
        except asyncio.CancelledError:
            outcome = "client_gone"
            raise
        finally:
            observer.wait_ended(line.upstreams, self._call.priority, outcome, time.monotonic() - began)

    def granted(self, statuses: Collection[WindowStatus]) -> None:
        """The call has found room; these are the windows of its place, with the call in them."""
        if (line := self._room.line(self._line)) is not None:
            line.note_grant(self._call, statuses)

    def position(self) -> int | None:
        """The call's position among those that wait in this worker, from 1; None: it does not wait."""
        line = self._room.line(self._line)
        return None if line is None else line.position(self._call)

    def taken_back(self, windows: Collection[str]) -> None:
        """The call was not served, and gives back what it held of these windows."""
        if (line := self._room.line(self._line)) is not None:
            if self._is_charged:
                line.queue.charge(self._call, -self._call.cost)
            line.freed(windows)

    def ended(self, tokens: int, windows: Collection[str]) -> None:
        """The call has used `tokens`, and gives back what it held of these windows."""
        self._room.note_use(self._call.flow, tokens)
        if (line := self._room.line(self._line)) is not None:
            if self._is_charged:
                line.queue.charge(self._call, tokens - self._call.cost)
            line.freed(windows)


class Line:
    """The calls of one worker that wait for the same upstreams."""

    def __init__(self, upstreams: tuple[str, ...], room: WaitingRoom) -> None:
        born = uuid.uuid4().hex[:8]
        self.queue = FairQueue(born)
        self.upstreams = upstreams
        self._room = room
        self._loop = asyncio.get_running_loop()
        self._turns: dict[Waiting, asyncio.Future[_Over | None]] = {}
        """The waiting calls. A result of None is a turn."""
        self._asking = 0
        """Calls that have a turn."""
        self._may_ask = 1
        self._blocked: dict[str, float] = {}
        """Windows that refused a call, and until when none of them is asked for."""
        self._of_some: set[str] = set()
        """Those of them that are one model's, or full but for what is reserved for interactive calls."""
        self._known: dict[str, _Known] = {}
        """The last refusal of each window."""
        self._asked_at: dict[str, float] = {}
        """When a call asked for each window."""
        self._timer: asyncio.TimerHandle | None = None
        self._change = asyncio.Event()
        self._promises = Promises(born)
        self._is_alone = False
        """Whether a post of others could not be read, which is logged once."""

    def __repr__(self) -> str:
        return (
            f"<Line {self.upstreams}: {self.queue.count} waiting, {self._asking} asking, {len(self._blocked)} blocked>"
        )

    def time(self) -> float:
        """Seconds, by the clock of the line."""
        return self._loop.time()

    def may_ask_at_once(self, call: Waiting, promise: Promise | None) -> bool:
        """Whether no waiting call goes before a new one, and it takes no room that is promised, but to itself."""
        if self.queue.count or self._asking or not self._leaves_promised_room(call, promise):
            return False
        return self.queue.lift(call.flow) <= self.queue.goes_first(self._loop.time())

    def knows_too_little_for(self, call: Waiting) -> bool:
        """Whether a new call asks although others wait, because one of its windows is seldom asked for: it might be
        full for longer than the call may wait."""
        since = self._loop.time() - KNOWN_S
        return any(
            name not in self._blocked and self._asked_at.get(name, -inf) < since and not is_own(name)
            for place in call.windows
            for name in place
        )

    def position(self, call: Waiting) -> int | None:
        """The position of a call, from 1; None: it does not wait, or asks for room just now."""
        return self.queue.position(call) if call in self._turns else None

    async def wait(self, call: Waiting, attempt: Attempt, patience_s: float) -> _Over:
        """Wait for a turn, and ask then, as often as it takes."""
        deadline = self._loop.time() + patience_s
        if self._room_at(call) > deadline:
            return _Over("expired", self.promised(call))
        if not self._room.make_place(call):
            return _Over("full", self.promised(call))
        self.queue.add(call)
        self._change.set()
        while True:
            turn: asyncio.Future[_Over | None] = self._loop.create_future()
            self._turns[call] = turn
            timer = self._loop.call_at(deadline, self._expire, call, turn)
            self.give_turns()
            try:
                given = await turn
            except asyncio.CancelledError:
                if call in self._turns:
                    self._leave(call)
                elif not turn.cancelled() and turn.result() is None:
                    self._end_turn(call, has_room=False)
                raise
            finally:
                timer.cancel()
            if given is not None:
                return given
            try:
                refusals = await attempt()
            except BaseException:
                self._end_turn(call, has_room=False)
                raise
            if not _is_full(refusals):
                self._end_turn(call, has_room=not refusals)
                return _Over("refused" if refusals else "admitted", refusals)
            waits_on = self._loop.time() + min(map(_wait_s, refusals)) <= deadline
            self.note(call, refusals, waits_on=waits_on)
            self._end_turn(call, has_room=False, waits_on=waits_on)
            if not waits_on:
                return _Over("expired", self.promised(call, refusals))

    def displace(self, call: Waiting) -> None:
        """A call gives up its place, if it waits here."""
        if (turn := self._turns.get(call)) is not None:
            self._leave(call)
            if not turn.done():
                turn.set_result(_Over("displaced", self.promised(call)))

    def note(self, call: Waiting, refusals: Sequence[Refused], *, waits_on: bool) -> None:
        """These windows have no room for this call. If it `waits_on`, no call asks for them before they may have."""
        self._note_asked(call)
        for refused in refusals:
            window = refused.window_status.window
            if window.period_us and refused.retry_after_us is not None and not _own_of(window, call):
                left = refused.asked - refused.retry_after_us * window.limit / window.period_us
                self._promises.note(window, left, self._loop.time())
            if waits_on or window.unit != "tokens":  # for fewer tokens there may be room now
                self._block(call, refused)

    def _block(self, call: Waiting, refused: Refused) -> None:
        """Let no call ask for this window before it has room; or none that may not take what is reserved, if this one
        may not; or none for which it is lowered alone."""
        window = refused.window_status.window
        name = unreserved(window.id)
        is_reserving = any(name in place for place in call.windows)
        name = _own_of(window, call) or (name if is_reserving else window.id)
        known = self._known[name] = _Known(refused, self._loop.time())
        self._blocked[name] = known.room_at(refused.asked)
        if is_reserving or window.model is not None or is_own(name):
            self._of_some.add(name)

    def note_grant(self, call: Waiting, statuses: Collection[WindowStatus]) -> None:
        """The call has filled those of these windows that have no unit left.

        So no call asks in vain, and no call is granted room that has just become free while an earlier one, which asked
        with it, was refused.
        """
        self._note_asked(call)
        for status in statuses:
            if not _own_of(status.window, call):
                self._promises.note(status.window, status.remaining, self._loop.time())
            if not status.remaining:
                window = status.window
                self._block(call, Refused(status, 1, window.period_us // window.limit))

    def _note_asked(self, call: Waiting) -> None:
        names = [name for place in call.windows for name in place if not is_own(name)]
        self._asked_at |= dict.fromkeys(names, self._loop.time())

    def freed(self, windows: Collection[str]) -> None:
        """These windows may have room again."""
        for name in [each for each in self._blocked if each in windows or named_window(each) in windows]:
            del self._blocked[name]
        self.give_turns()

    def give_turns(self) -> None:
        """Let calls ask whose turn it is, and look again when more may."""
        now = self._loop.time()
        for name in [name for name, until in self._blocked.items() if until <= now]:
            del self._blocked[name]
        self._promises.forget(now)
        may_ask = 1 if self._promises else self._may_ask  # the next asks when the draw of the one before is known
        while self._asking < may_ask and (call := self.queue.pick(self._is_blocked, now)) is not None:
            if self._turns[call].done():  # cancelled just now: its client is gone
                self._leave(call)
                continue
            self.queue.begin_turn(call)
            self._asking += 1
            self._turns.pop(call).set_result(None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.queue.count and self._blocked:
            self._timer = self._loop.call_at(min(self._blocked.values()), self.give_turns)

    async def keep_in_touch(self) -> None:
        """Exchange with other workers as long as calls wait, and a little longer; then close the line."""
        idle_since: float | None = None
        place = f"{POSTS_AS}:{'+'.join(self.upstreams)}"
        while True:
            self._change.clear()
            now = self._loop.time()
            if self.queue.count or self._asking or self._promises.is_open:
                idle_since = None
            elif idle_since is None:
                idle_since = now
            elif now - idle_since > POSTED_S:
                self._room.close_line(self.upstreams)
                return
            try:
                text = f"{self.queue.post(self._is_blocked_for_some)}\n{self._promises.post(now)}"
                posts = await self._room.exchange(place, self._room.name, text, POSTED_S)
                parts = [(name, *post.split("\n")) for name, post in posts.items()]
                self.queue.read({name: of_queue for name, of_queue, _ in parts}, self._loop.time())
                self._promises.read({name: promises for name, _, promises in parts}, self._loop.time())
            except StoreUnavailable:
                pass  # the draws of the waiting calls raise the same error
            except Exception:  # a post of another version: the turns of the own calls go on
                if not self._is_alone:
                    log.exception("the posts of other workers about waiting calls cannot be read")
                self._is_alone = True
            self.give_turns()
            await asyncio.sleep(EXCHANGE_S / 4)
            try:
                async with asyncio.timeout(EXCHANGE_S * 3 / 4):
                    await self._change.wait()
            except TimeoutError:
                pass

    def _leave(self, call: Waiting) -> None:
        del self._turns[call]
        self.queue.remove(call)

    def _end_turn(self, call: Waiting, *, has_room: bool, waits_on: bool = False) -> None:
        self._asking -= 1
        self._may_ask = min(TURNS, self._may_ask + 2) if has_room and not self._is_blocked(call) else 1
        self.queue.end_turn(call, has_room=has_room, waits_on=waits_on)
        if not waits_on:
            self.give_turns()

    def _expire(self, call: Waiting, turn: asyncio.Future[_Over | None]) -> None:
        if not turn.done():
            self._leave(call)
            turn.set_result(_Over("expired", self.promised(call)))

    def _room_at(self, call: Waiting) -> float:
        """When a place may have room for a call, as far as windows are known to be full."""
        return min(
            max([self._known[name].room_at(place[name]) for name in self._blocked.keys() & place.keys()], default=0.0)
            for place in call.windows
        )

    def _refusals(self, call: Waiting) -> Sequence[Refused]:
        """Why a call found no room: for each place that of its full windows which has room last. Calls before it
        lengthen the wait."""
        now, ahead, known = self._loop.time(), self.queue.ahead_of(call, self._promises.by_flow()), self._known
        found = []
        for place in call.windows:
            names = (self._blocked.keys() & place.keys()) or (known.keys() & place.keys())
            waiting_for = [
                known[name].waiting_for(place[name], call.cost, round(ahead * self.queue.share_of(name)), now)
                for name in names
            ]
            found += sorted(waiting_for, key=_wait_s)[-1:]
        return found or [each.refused for each in known.values()]

    def promise_of(self, call: Waiting) -> Promise | None:
        """The promise that a call comes for, or has come for too early."""
        return self._promises.of_call(call, self._loop.time()) if self._promises else None

    def is_due(self, promise: Promise, patience_s: float) -> bool:
        """Whether a promise is due before a call's patience ends."""
        return promise.due <= self._loop.time() + max(EARLY_S, patience_s)

    def charge_promised(self, call: Waiting) -> None:
        """A call was served that went before those that wait, as it was promised."""
        self.queue.lift(call.flow)
        self.queue.charge(call, call.cost)

    def end_promise(self, promise: Promise) -> None:
        """Its room has been drawn, or is kept no longer."""
        self._promises.end(promise)
        self.give_turns()

    def promised(self, call: Waiting, refusals: Sequence[Refused] = ()) -> Sequence[Refused]:
        """Why a call found no room, with the time from which room is kept for it, if that can be known: it is a rate
        that is full, everywhere. `refusals` of just now replace those that are known, if no call goes before."""
        found, now = refusals, self._loop.time()
        if not refusals or self.queue.ahead_of(call, self._promises.by_flow()):
            found = self._refusals(call)
        waits = [
            (each.retry_after_us or 0, place)
            for each in found
            for place in call.windows
            if each.window_status.window.period_us and each.window_status.window.id in place
        ]
        if len(waits) < len(found) or not waits:
            return found
        if (promise := self.promise_of(call)) is not None:
            due = promise.due
        else:
            wait_us, place = min(waits, key=lambda each: each[0])
            due = self._promises.give(call, place, now + wait_us / 1e6, now)
        after_us = max(1000, ceil((due - now) * 1e6))
        return [each._replace(retry_after_us=after_us) for each in found]

    def _leaves_promised_room(self, call: Waiting, but: Promise | None) -> bool:
        now = self._loop.time()
        return not self._promises or any(self._promises.leave_room(place, now, but) for place in call.windows)

    def _is_blocked(self, call: Waiting) -> bool:
        return bool(self._blocked or self._promises) and not any(map(self._may_have_room, call.windows))

    def _may_have_room(self, place: Place) -> bool:
        return self._blocked.keys().isdisjoint(place) and self._promises.leave_room(place, self._loop.time())

    def _is_blocked_for_some(self, call: Waiting) -> bool:
        blocked = self._of_some & self._blocked.keys()
        return bool(blocked) and all(not blocked.isdisjoint(place) for place in call.windows)


def _own_of(window: Window, call: Waiting) -> str:
    """The name of a window for such calls alone; empty: its limit is that of all calls."""
    names = [name for place in call.windows for name in place if is_own(name) and named_window(name) == window.id]
    return names[0] if names else ""


def _is_full(refusals: Sequence[Refused]) -> bool:
    """Whether upstreams have no room, and not the caller's own limits."""
    return bool(refusals) and all(is_of_upstream(refused.window_status.window) for refused in refusals)


def _wait_s(refused: Refused) -> float:
    return POLL_S if refused.window_status.window.unit == "parallel" else (refused.retry_after_us or 0) / 1e6
