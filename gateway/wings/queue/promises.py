"""Places of calls that do not wait on a connection: the times after which they were asked to come back. Pure.

A refused call is given a time from which a rate has room for it. A promise reserves the piece of the rate's refill that
ends then: no two promises have the same piece, and no other call may draw what a promise needs. A call with the same
body has its promise; a promise that is due is for every call of its flow. It ends when a call has drawn its room, or
when none has come in time (`KEPT_S`).

Workers on one store exchange their promises (`post`, `read`): each leaves the room of all; calls may come back to any.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from gateway.records import Window

from .fair_queue import Waiting

KEPT_S = 0.5
"""How long a promise is kept after its time in whole seconds, as `Retry-After` has it: the way of the refusal and of
the next request."""

EARLY_S = 0.1
"""How much too early a call may come, which then waits for the time, also if it may not wait: clocks of clients differ,
and a worker takes a promise of another one to be due as much later as the post with it is old."""

LONGEST_S = 120.0
"""The longest wait that is promised, because workers exchange promises as long as there are some. openai-python heeds
no longer one (`MAX_RETRY_AFTER_DELAY` in `_constants.py`)."""

LARGEST_S = 20.0
"""The most that a rate may refill for one promise, in seconds: for so long calls that wait may have to leave room for
a large one that is not there."""

MAX_OF_FLOW = 32
MAX_OF_LINE = 128
"""Promises of one worker to one flow, and to all; further calls get a time that is not kept. Where there are too many
in all, the flow with the most loses its last one to a flow with less."""

NEGLIGIBLE = 1e-6
"""Seconds or units below which differences are errors of rounding."""

Place = Mapping[str, int]
"""The amounts that a call draws on the windows of a route, by their ids."""


class _Room(NamedTuple):
    """Units that a rate had left at a time in seconds, negative where it lacked some; and how it refills."""

    left: float
    at: float
    per_s: float
    limit: int

    def at_time(self, when: float, now: float) -> float:
        """Units at a time that is not before now, if none is drawn from now on. The limit does not bound what refills
        later: promises draw that as it comes."""
        left = min(self.limit, self.left + (now - self.at) * self.per_s)
        return left + max(0.0, when - now) * self.per_s


@dataclass(slots=True, eq=False)
class Promise:
    """A time in seconds from which there is room for a call of this flow, and until when it is kept."""

    id: str
    flow: str
    body: str
    """Fingerprint of the call that was refused."""
    work: float
    """The amount that the flow will be charged."""
    place: Place
    due: float
    until: float
    is_taken: bool = False
    """A call has come, and asks for the room."""

    def fits(self, places: Collection[Place]) -> bool:
        """Whether a call that may go to these places draws no more than is promised."""
        return any(all(place.get(name, math.inf) <= most for name, most in self.place.items()) for place in places)


@dataclass(slots=True)
class Promises:
    """The promises of one line."""

    born: str = ""
    """Distinguishes these promises from those of other workers."""
    _own: list[Promise] = field(default_factory=list)
    _of_others: dict[str, list[Promise]] = field(default_factory=dict)
    """Those of other workers that are open, by worker."""
    _ended: dict[str, float] = field(default_factory=dict)
    """Promises of other workers that ended here, and until when those may still have them."""
    _each: list[Promise] = field(default_factory=list)
    """All, in the order of their times."""
    _rooms: dict[str, _Room] = field(default_factory=dict)
    """The last known room of each rate."""
    _given: int = 0

    def __len__(self) -> int:
        return len(self._each)

    @property
    def is_open(self) -> bool:
        """Whether other workers have to know of a promise, or of its end."""
        return bool(self._own or self._ended)

    def note(self, window: Window, left: float, now: float) -> None:
        """A window had `left` units at this time, negative where it lacks some."""
        if window.period_us:
            self._rooms[window.id] = _Room(left, now, window.limit * 1e6 / window.period_us, window.limit)

    def by_flow(self) -> dict[str, tuple[int, float]]:
        """How many promises each flow has, and their work."""
        found: dict[str, tuple[int, float]] = {}
        for each in self._each:
            calls, work = found.get(each.flow, (0, 0.0))
            found[each.flow] = calls + 1, work + each.work
        return found

    def give(self, call: Waiting, place: Place, earliest: float, now: float) -> float:
        """Promise room for a call at this place, at the first time from `earliest` that no other promise needs. Returns
        the time, also if it cannot be kept."""
        amounts = {name: amount for name, amount in place.items() if name in self._rooms}
        due = max(now, earliest)
        for _ in range(len(self._each) + 1):
            later = max([self._free_from(name, amount, due, now) for name, amount in amounts.items()], default=due)
            if later <= due + NEGLIGIBLE:
                break
            due = later
        refill_s = max([amount / self._rooms[name].per_s for name, amount in amounts.items()], default=0.0)
        if due - now <= LONGEST_S and refill_s <= LARGEST_S and self._make_place(call.flow):
            self._given += 1
            number, body = f"{self.born}.{self._given}", call.identity().body
            until = now + math.ceil(due - now) + KEPT_S
            self._own.append(Promise(number, call.flow, body, call.work, amounts, due, until))
            self._sort()
        return due

    def _make_place(self, flow: str) -> bool:
        """Whether a flow may have one more promise: another one gives up its last where there are too many."""
        counts = Counter([each.flow for each in self._own])
        if counts[flow] >= MAX_OF_FLOW:
            return False
        if len(self._own) < MAX_OF_LINE:
            return True
        most, count = counts.most_common(1)[0]
        if count <= counts[flow] + 1:
            return False
        self._own.remove(max([each for each in self._own if each.flow == most], key=lambda each: each.due))
        return True

    def _free_from(self, name: str, amount: int, earliest: float, now: float) -> float:
        """The first time from `earliest` at which a piece of a rate's refill ends that is not booked, and has this
        amount."""
        room = self._rooms[name]
        booked = [(each.due, each.place[name]) for each in self._each if name in each.place]
        lacks = amount + sum([drawn for due, drawn in booked if due <= now]) - room.at_time(now, now)
        free, length = max(earliest, now + lacks / room.per_s), amount / room.per_s
        for due, drawn in booked:
            if due > free - length + NEGLIGIBLE and due - drawn / room.per_s < free - NEGLIGIBLE and due > now:
                free = due + length
        return free

    def leave_room(self, place: Place, now: float, but: Promise | None = None) -> bool:
        """Whether a call may draw this now, and all promises but one can still be kept."""
        return all(
            self._leaves_room(self._rooms[name], name, amount, now, but)
            for name, amount in place.items()
            if name in self._rooms
        )

    def _leaves_room(self, room: _Room, name: str, amount: int, now: float, but: Promise | None) -> bool:
        drawn = float(amount)
        for each in self._each:
            if each is not but and (promised := each.place.get(name)):
                drawn += promised
                if drawn > room.at_time(each.due, now) + NEGLIGIBLE:
                    return False
        return True

    def of_call(self, call: Waiting, now: float) -> Promise | None:
        """The promise that a call comes for: its own, due or not, else one of its flow that is due. The first try of
        a request has none that is not due."""
        each_of_flow = [each for each in self._each if each.flow == call.flow and not each.is_taken]
        if not each_of_flow:
            return None
        found, (body, is_first_try) = None, call.identity()
        for each in each_of_flow:
            is_due = each.due <= now + EARLY_S
            if (is_due or (each.body == body and not is_first_try)) and each.fits(call.windows):
                if each.body == body:
                    return each
                found = found or each
        return found

    def end(self, promise: Promise) -> None:
        """A call has drawn the room of this promise, or the promise is not kept any longer."""
        if promise not in self._each:
            return
        if promise in self._own:
            self._own.remove(promise)
        else:
            self._ended[promise.id] = promise.until + KEPT_S
        self._sort()

    def forget(self, now: float) -> None:
        """End the promises for which no call came in time."""
        if any(each.until < now and not each.is_taken for each in self._each):
            self._own = [each for each in self._own if each.until >= now or each.is_taken]
            self._sort()
            self._each = [each for each in self._each if each.until >= now or each.is_taken]
        if self._ended:
            self._ended = {name: until for name, until in self._ended.items() if until >= now}

    def _sort(self) -> None:
        of_others = [each for those in self._of_others.values() for each in those if each.id not in self._ended]
        self._each = sorted(self._own + of_others, key=lambda each: each.due)

    # ------------------------------------------------------------------------------------------------- other workers

    def post(self, now: float) -> str:
        """The post for other workers: the promises that were made here, and those of others that ended here."""
        made = [
            [
                each.id, each.flow, each.body, round(each.work, 3), dict(each.place), round(each.due - now, 6),
                round(each.until - now, 6),
            ]
            for each in self._own
        ]  # fmt: skip
        return json.dumps([list(self._ended), made], separators=(",", ":"))

    def read(self, posts: Mapping[str, str], now: float) -> None:
        """Take in the posts of other workers at this time in seconds."""
        if not posts and not self._of_others:
            return
        known = {each.id: each for those in self._of_others.values() for each in those}
        read: dict[str, list[Promise]] = {}
        ended: set[str] = set()
        for name, text in posts.items():
            of_others, made = json.loads(text)
            ended.update(of_others)
            read[name] = [
                known.get(number) or Promise(number, flow, body, work, place, now + due, now + until)
                for number, flow, body, work, place, due, until in made
            ]
        self._of_others = read
        if ended:
            self._own = [each for each in self._own if each.id not in ended]
        self._sort()
