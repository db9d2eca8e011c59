"""The order in which waiting calls go: weighted fair queueing over flows. Pure: no clock, no I/O.

A flow is the calls of one key (or team) in one class. Each flow has a counter of the service it got: tokens divided by
its weight. The waiting flow with the lowest counter goes next, its oldest call first. This is the virtual token counter
of Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024), with weights; its counters are the start tags
of start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996), computed when a call goes and not when it comes, so
that the real use can correct them.

1. A flow that begins to wait is lifted to the virtual time, the counter that the flow served last had before it was
   charged (its start tag): idleness earns no service, and the flow goes before the next call of that one. Until every
   worker knows that it waits, what another worker serves raises it too (`NEW_FOR_POSTS`).
2. A call is charged what calls of its flow used lately when it goes, at first its prompt alone. When it has ended, the
   difference to its real use is added. (Not the reservation: an output limit of 4096 tokens is seldom used.)
3. So of two flows that both wait all the time, neither gets more than two calls' worth per weight ahead of the other
   (SFQ, theorem 1); and a flow with one call waits for at most one call of each other flow, whatever their backlogs.
4. When the queue is full, the last call of the flow with the most waiting calls per weight gives up its place (longest
   queue drop, as in Shreedhar and Varghese, "Efficient Fair Queuing Using Deficit Round Robin", 1995).

Workers on one store exchange what they served (`post`, `read`): each adds the others' service to its counters,
and lets a call of another worker go first whose flow waits there alone and has a lower counter there, by that worker's
own post. So two workers compare the same two counters, and never let each other go first. Between two exchanges a
worker takes a counter of another to have grown as fast as the virtual time did lately. So rule 3 holds over all workers
but for what they serve between two exchanges.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import inf
from typing import NamedTuple

MAX_POSTED = 200
"""Maximum number of flows in one post."""

HEEDED_S = 0.15
"""How long a call of another worker goes first after its worker posted that it waits: three times `EXCHANGE_S`."""

RATE_OVER_S = 0.2
"""Seconds over which the growth of the virtual time is measured."""

NEW_FOR_POSTS = 3
"""Posts of a worker for which a flow is new that waits there. The first one names it; when the second is made, every
other worker has read that, and has posted what it served before it did; and one more, because they are not in step."""

LOOK_BEHIND = 16
"""Calls of one flow that are looked at for one whose own limit is not in the way."""


class Identity(NamedTuple):
    """Identifies a call that may have been refused before."""

    body: str
    """Fingerprint of the body of the call."""
    is_first_try: bool
    """Whether a header of the client marks the first try."""


@dataclass(eq=False, slots=True)
class Waiting:
    """A call that waits for room."""

    flow: str
    weight: float
    cost: int
    """Tokens that it is expected to use."""
    size: int = 0
    """Bytes of memory that the call holds."""
    windows: Collection[Mapping[str, int]] = ()
    """Units that the call draws on each window, by window id; one mapping for each place where it may go."""
    priority: str = "normal"
    """Priority class of the call, for metrics."""
    is_back: bool = False
    """Whether it has waited before, so that it goes before the other calls of its flow."""
    number: int = 0
    """Position in the order in which the calls arrived; assigned by the queue."""
    begins: float = 0.0
    """Its start tag: the counter of its flow before it was charged; given by the queue."""
    identity: Callable[[], Identity] = lambda: Identity("", False)
    """Returns the identity by which a repeated call is recognized. A function, because the identity is seldom
    needed."""

    @property
    def work(self) -> float:
        """The amount that its flow is charged."""
        return max(1, self.cost) / self.weight


class Backlog(NamedTuple):
    """The waiting calls of one flow at one worker."""

    counter: float
    calls: int
    work: float


class Ahead(NamedTuple):
    """The content of another worker's post."""

    born: str
    """The queue it is of: another one has other sums."""
    served: dict[str, float]
    waiting: dict[str, Backlog]
    """The flows that wait there."""
    at: float
    """When it was read, in seconds."""
    number: int = 0
    """Sequence number of the post at its worker."""


@dataclass(slots=True)
class FairQueue:
    """The calls of one worker that wait for the same upstreams."""

    born: str = ""
    """Distinguishes this queue from an earlier one of the same worker."""
    virtual_time: float = 0.0
    counters: dict[str, float] = field(default_factory=dict)
    count: int = 0
    size: int = 0
    """Bytes of these calls, and of those that have a turn."""
    _flows: dict[str, deque[Waiting]] = field(default_factory=dict)
    _asking: Counter[str] = field(default_factory=Counter)
    """Flows of the calls that have a turn."""
    _asked: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """The charges of these calls so far."""
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _drawing: Counter[str] = field(default_factory=Counter)
    """How many waiting calls draw on each window, anywhere."""
    _work: dict[str, float] = field(default_factory=dict)
    """Waiting work of each flow."""
    _served: dict[str, float] = field(default_factory=dict)
    """The work that this worker served of each flow, ever."""
    _last_began: dict[str, None] = field(default_factory=dict)
    """Flows in the order in which their service last changed."""
    _peers: dict[str, Ahead] = field(default_factory=dict)
    _posts: int = 0
    _new: dict[str, int] = field(default_factory=dict)
    """Flows of which not every worker knows yet that they wait here, and how many posts there were before."""
    _rate: float = 0.0
    """How fast the virtual time grew lately, by the second."""
    _marked: tuple[float, float] = (0.0, 0.0)
    """A moment, and the virtual time at it."""

    # ------------------------------------------------------------------------------------------------------- waiting

    def add(self, call: Waiting) -> None:
        """A call begins to wait."""
        if call.flow not in self._flows and call.flow not in self._asking:
            self.lift(call.flow)
            self._new[call.flow] = self._posts
        call.number = 0 if call.is_back else next(self._numbers)
        self._put(call)

    def _put(self, call: Waiting) -> None:
        calls = self._flows.setdefault(call.flow, deque())
        place = len(calls)
        while place and calls[place - 1].number > call.number:
            place -= 1
        calls.insert(place, call)
        self._work[call.flow] = self._work.get(call.flow, 0.0) + call.work
        self.count += 1
        self.size += call.size
        self._drawing.update({name for place in call.windows for name in place})

    def remove(self, call: Waiting) -> None:
        """A call waits no longer."""
        calls = self._flows[call.flow]
        calls.remove(call)
        if calls:
            self._work[call.flow] -= call.work
        else:
            del self._flows[call.flow], self._work[call.flow]
        self.count -= 1
        self.size -= call.size
        for name in {name for place in call.windows for name in place}:
            self._drawing[name] -= 1
            if not self._drawing[name]:
                del self._drawing[name]

    def begin_turn(self, call: Waiting) -> None:
        """A waiting call asks for room now; it is charged, as if it found some."""
        self.remove(call)
        self.size += call.size
        self._asking[call.flow] += 1
        call.begins = self.counters[call.flow]
        self._asked[call.flow] += call.work
        self._add(call, call.cost)

    def end_turn(self, call: Waiting, *, has_room: bool, waits_on: bool = False) -> None:
        """It has found room, or not; then it keeps its place, if it `waits_on`."""
        self._asked[call.flow] -= call.work
        self.size -= call.size
        if has_room:
            self.virtual_time = max(self.virtual_time, call.begins)
        else:
            self._add(call, -call.cost)
        if waits_on:
            self._put(call)
        self._asking[call.flow] -= 1
        if not self._asking[call.flow]:
            del self._asking[call.flow], self._asked[call.flow]

    def lift(self, flow: str) -> float:
        """A flow begins to wait, or asks while no call waits. Returns its counter."""
        self._advance()
        lifted = self.counters[flow] = max(self.counters.get(flow, 0.0), self.virtual_time)
        return lifted

    def pick(self, is_blocked: Callable[[Waiting], bool], now: float) -> Waiting | None:
        """The call whose turn it is: None where none may go, or one of another worker goes first. It still waits."""
        best: Waiting | None = None
        lowest = self.goes_first(now)
        for flow, calls in self._flows.items():
            counter = self.counters[flow]
            if counter > lowest or (best is not None and counter == lowest):
                continue
            call = next((call for call in islice(calls, LOOK_BEHIND) if not is_blocked(call)), None)
            if call is not None:
                best, lowest = call, counter
        return best

    def goes_first(self, now: float) -> float:
        """The lowest counter of the flows that wait at other workers alone; inf where none does."""
        return min(
            [
                backlog.counter + self._rate * (now - peer.at)
                for peer in self._peers.values()
                if now - peer.at < HEEDED_S
                for flow, backlog in peer.waiting.items()
                if flow not in self._flows
            ],
            default=inf,
        )

    @property
    def calls_by_flow(self) -> Mapping[str, Collection[Waiting]]:
        """The waiting calls of each flow, in their order."""
        return self._flows

    @property
    def places(self) -> int:
        """How many calls wait or have a turn."""
        return self.count + self._asking.total()

    def ahead_of(self, call: Waiting, promised: Mapping[str, tuple[int, float]] | None = None) -> int:
        """About how many calls of all workers go before a new one: those that wait, and those that have a promise,
        whose number and work for each flow is `promised`."""
        backlogs = {flow: self._backlog(flow) for flow in self._flows}
        elsewhere = [item for peer in self._peers.values() for item in peer.waiting.items()]
        for flow, (calls, work) in (promised or {}).items():
            counter = max(self.counters.get(flow, 0.0), self.virtual_time)
            elsewhere.append((flow, Backlog(counter, calls, max(0.001, work))))
        for flow, (counter, calls, work) in elsewhere:
            here = backlogs.get(flow, Backlog(counter, 0, 0.0))
            backlogs[flow] = Backlog(here.counter, here.calls + calls, here.work + work)
        mine = max(self.counters.get(call.flow, 0.0), self.virtual_time)
        if (own := backlogs.get(call.flow)) is not None:
            mine += own.work
        total = 0.0
        for flow, (counter, calls, work) in backlogs.items():
            total += calls if flow == call.flow else calls * min(1.0, max(0.0, (mine - counter) / work))
        return round(total)

    def share_of(self, window: str) -> float:
        """The part of the waiting calls that may draw on a window."""
        return self._drawing[window] / self.count if self.count else 1.0

    def _backlog(self, flow: str) -> Backlog:
        work = max(0.001, round(self._work[flow], 3))
        return Backlog(round(self.counters[flow], 3), len(self._flows[flow]), work)

    def position(self, call: Waiting) -> int:
        """How many calls of this worker have gone when a waiting call has, in the order as it is now: 1 is the next.

        A call begins when its flow has been charged for those before it, and the earlier beginning goes first.
        """
        flows = list(self._flows)
        mine, own = self.counters[call.flow], flows.index(call.flow)
        before = 0
        for other in self._flows[call.flow]:
            if other is call:
                break
            mine += other.work
            before += 1
        for place, flow in enumerate(flows):
            begins = self.counters[flow]
            for other in self._flows[flow] if flow != call.flow else ():
                if begins > mine or (begins == mine and place > own):
                    break
                before += 1
                begins += other.work
        return before + 1

    # ------------------------------------------------------------------------------------------------------- service

    def charge(self, call: Waiting, tokens: float) -> None:
        """Add to what the flow of this call was served; negative: take back."""
        self._add(call, tokens)
        self._advance()

    def _add(self, call: Waiting, tokens: float) -> None:
        amount = tokens / call.weight
        self.counters[call.flow] = max(0.0, self.counters.get(call.flow, self.virtual_time) + amount)
        self._served[call.flow] = self._served.get(call.flow, 0.0) + amount
        self._last_began.pop(call.flow, None)
        self._last_began[call.flow] = None

    def _advance(self) -> None:
        """Raise the virtual time to the lowest start tag of a waiting flow's last call, as far as that is known: other
        workers serve flows too."""
        waiting = [self.counters[flow] - self._asked[flow] - calls[0].work for flow, calls in self._flows.items()]
        waiting += [
            backlog.counter
            for peer in self._peers.values()
            for flow, backlog in peer.waiting.items()
            if flow not in self._flows
        ]
        if waiting:
            self.virtual_time = max(self.virtual_time, min(waiting))

    # ------------------------------------------------------------------------------------------------- other workers

    def post(self, is_blocked: Callable[[Waiting], bool]) -> str:
        """The post for other workers: the work served here, and the waiting calls. `is_blocked`: by its own limits."""
        waiting: dict[str, Backlog] = {}
        for flow in sorted(self._flows, key=self.counters.__getitem__)[:MAX_POSTED]:
            if any(not is_blocked(call) for call in islice(self._flows[flow], LOOK_BEHIND)):
                waiting[flow] = self._backlog(flow)
        recent = islice(reversed(self._last_began), MAX_POSTED)
        served = {flow: round(self._served[flow], 3) for flow in {*recent, *waiting} if flow in self._served}
        self._posts += 1
        values = [self.born, self._posts, round(self.virtual_time, 3), served, waiting]
        return json.dumps(values, separators=(",", ":"))

    def read(self, posts: Mapping[str, str], now: float) -> None:
        """Take in the posts of other workers at this time in seconds."""
        for name in self._peers.keys() - posts.keys():
            del self._peers[name]
        newest = 0.0
        for name, text in posts.items():
            born, number, virtual_time, served, waiting = _read_post(text)
            before = self._peers.get(name)
            if before is None or before.born != born:
                before = Ahead(born, served, {}, now)
                self._catch_up(virtual_time)
                for flow, backlog in waiting.items():
                    self.counters[flow] = max(self.counters.get(flow, 0.0), backlog.counter)
            if number == before.number:
                continue  # the same post as before
            for flow, total in served.items():
                if (more := total - before.served.get(flow, 0.0)) != 0.0:
                    self.counters[flow] = max(0.0, self.counters.get(flow, self.virtual_time) + more)
            for flow in waiting:
                if flow not in before.waiting and flow not in self._flows:
                    self.counters[flow] = max(self.counters.get(flow, 0.0), self.virtual_time)
            self._peers[name] = Ahead(born, before.served | served, waiting, now, number)
            newest = max(newest, virtual_time)
        self._lift_new(newest)
        self._advance()
        then, virtual_then = self._marked
        if now - then >= RATE_OVER_S:
            self._rate = (self.virtual_time - virtual_then) / (now - then)
            self._marked = (now, self.virtual_time)

    def _lift_new(self, virtual_time: float) -> None:
        """Lift flows of which not every worker knows yet to the virtual time of others, which served without them."""
        for flow, first in list(self._new.items()):
            if self._posts - first > NEW_FOR_POSTS or (flow not in self._flows and flow not in self._asking):
                del self._new[flow]
            else:
                self.counters[flow] = max(self.counters[flow], virtual_time)

    def _catch_up(self, virtual_time: float) -> None:
        """Move all counters to those of a queue that is older than this one."""
        if (distance := virtual_time - self.virtual_time) > 0:
            self.virtual_time = virtual_time
            self._marked = (self._marked[0], self._marked[1] + distance)
            self.counters = {flow: counter + distance for flow, counter in self.counters.items()}

    def flows(self) -> Iterator[tuple[str, int]]:
        """The waiting flows, with the number of their calls."""
        for flow, calls in self._flows.items():
            yield flow, len(calls)


def _read_post(text: str) -> tuple[str, int, float, dict[str, float], dict[str, Backlog]]:
    born, number, virtual_time, served, waiting = json.loads(text)
    return born, number, virtual_time, served, {flow: Backlog(*backlog) for flow, backlog in waiting.items()}


def displaced_by(queues: Collection[FairQueue], call: Waiting, calls: int, size: int) -> Sequence[Waiting]:
    """The calls of these queues that give up their places to a new one with which there would be `calls`, or `size`
    bytes, too many; none: it finds no place. A flow holds as much as it has per weight of that which is short, in all
    queues: neither many small calls nor those for other upstreams keep a new flow out."""
    waiting: dict[str, list[Waiting]] = defaultdict(list)
    for queue in sorted(queues, key=lambda each: each.count):
        for flow, some in queue.calls_by_flow.items():
            waiting[flow] += some
    weights = {flow: some[0].weight for flow, some in waiting.items()}
    places = {flow: len(some) for flow, some in waiting.items()}
    sizes = {flow: sum([each.size for each in some]) for flow, some in waiting.items()}
    given_up: list[Waiting] = []
    while calls > 0 or size > 0:
        held, own = (places, 1) if calls > 0 else (sizes, call.size)
        shares = {flow: amount / weights[flow] for flow, amount in held.items()}
        most = max(shares, key=shares.__getitem__, default=call.flow)
        if most == call.flow or shares[most] <= shares.get(call.flow, 0.0) + own / call.weight:
            return ()
        given_up.append(last := waiting[most].pop())
        places[most] -= 1
        sizes[most] -= last.size
        calls, size = calls - 1, size - last.size
    return given_up
