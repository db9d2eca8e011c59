"""Callers that keep a rate busy, on a virtual clock: what they use of the limit, and what they use beyond it."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from gateway.api.json_document import parse
from gateway.config import Model, Route, build
from gateway.quota import windows
from gateway.quota.recent_output import RecentOutput
from gateway.records import Call, Claim, Granted, Key, Params, Refused, WindowState
from gateway.store import Reserve
from gateway.upstream.limits import UpstreamLimitTable
from tests.store.changes import SECOND, Clock, draw
from tests.store.worker import Worker

LIMIT = 60_000
PER_US = 60 * SECOND
PER_S = LIMIT / 60
UP = Route(upstream="up")
KEY = Key("k")


class Load(NamedTuple):
    """Callers that call again when they are served, and after the time of a refusal."""

    callers: int
    prompt: int
    limit: int
    """The output limit of a call."""
    output: int
    """What it generates on average."""
    lasts_s: float
    spread: float = 0.5
    """Of the logarithm of the output."""


LOADS: Mapping[str, Load] = {
    "chats": Load(24, 40, 4096 - 40, 270, 4),
    "agents": Load(48, 100, 16_384 - 100, 400, 20),  # 24 of them use 36,000 tokens a minute, unlimited
}


Claims = Callable[[Call], tuple[Claim, ...]]


def of_key() -> Claims:
    limit = windows.Limit("key:k", "tokens", "minute", None, LIMIT, PER_US)
    return lambda call: windows.claims(call, windows.CallLimits.of([limit], call.started))


def of_upstream() -> Claims:
    limits = {"tokens": f"{LIMIT}/min"}
    settings = {
        "upstreams": {"up": {"base_url": "http://up/v1", "limits": limits}},
        "models": {"*": {"routes": [{"upstream": "up"}]}},
    }
    table = UpstreamLimitTable(build(settings).upstreams)
    return lambda call: table.claims(call, UP)


DOORS: Mapping[str, Callable[[], Claims]] = {"key": of_key, "upstream": of_upstream}
"""What a call draws on."""


class Ledger(Protocol):
    """A store, or its rules. A caller has one call at a time."""

    async def draw(self, caller: int, claims: tuple[Claim, ...]) -> Granted | Refused: ...

    async def settle(self, caller: int, used: int) -> None: ...


class Rules:
    """The rules alone, in memory. Every window is charged all that a call has used."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._states: dict[str, WindowState] = {}
        self._drawn: dict[int, tuple[int, tuple[Claim, ...]]] = {}

    async def draw(self, caller: int, claims: tuple[Claim, ...]) -> Granted | Refused:
        now_us = self._clock.now_us
        drawing = [(claim, self._leaked(claim)) for claim in claims]
        if (refused := windows.refusal(drawing, now_us)) is not None:
            return refused
        self._states.update({claim.window.id: windows.draw(claim, state) for claim, state in drawing})
        self._drawn[caller] = now_us, claims
        return Granted(())

    async def settle(self, caller: int, used: int) -> None:
        drawn_us, claims = self._drawn.pop(caller)
        for claim in claims:
            age_us = self._clock.now_us - drawn_us
            self._states[claim.window.id] = windows.settle(claim, self._leaked(claim), used, age_us)

    def _leaked(self, claim: Claim) -> WindowState:
        now_us = self._clock.now_us
        return windows.leak(claim.window, self._states.get(claim.window.id, WindowState(0, 0, now_us)), now_us)


class InStore:
    """A real store, with one batch for each draw and end."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._drawn: dict[int, Reserve] = {}

    async def draw(self, caller: int, claims: tuple[Claim, ...]) -> Granted | Refused:
        self._drawn[caller] = wish = draw(*claims)
        return await self._worker.draw(wish)

    async def settle(self, caller: int, used: int) -> None:
        await self._worker.settle(self._drawn.pop(caller), used)


@dataclass
class Outcome:
    """What has become of the calls. Times in microseconds."""

    began: list[tuple[int, int]] = field(default_factory=list)
    """When each call was admitted, and what it used, in order."""
    beyond: list[int] = field(default_factory=list)
    """For each of them, what the calls that ran then used beyond their draws."""
    refused: int = 0

    def used(self, after_us: int, until_us: int) -> int:
        """What calls used that began then."""
        return sum([used for at_us, used in self.began if after_us < at_us <= until_us])

    def excess(self, within_us: int) -> float:
        """How much more than the rule permits was used by the calls of any time so long, at most."""
        permitted = LIMIT + PER_S * within_us / SECOND + PER_S * windows.GIVE_BACK_US / SECOND
        worst, total, first = -math.inf, 0, 0
        for place, (at_us, used) in enumerate(self.began):
            total += used
            while self.began[first][0] <= at_us - within_us:
                total -= self.began[first][1]
                first += 1
            worst = max(worst, total - permitted - self.beyond[place])
        return worst


async def run(
    load: Load, claims_of: Claims, ledger: Ledger, clock: Clock, seconds: int, chance: random.Random,
    recent: RecentOutput | None = None,
) -> Outcome:  # fmt: skip
    """The load for so long. A refused caller comes back after the time of its refusal."""
    recent = RecentOutput() if recent is None else recent
    params = Params(parse(b'{"model": "m"}'), "m", prompt_tokens=load.prompt, output_limit=load.limit)
    model = Model.model_validate({"routes": [{"upstream": "up"}]})
    call = Call("c", clock.now, KEY, "chat", params, model, label_model="m", arrived=0.0)
    began_us = clock.now_us
    outcome, beyond = Outcome(), dict[int, int]()
    due: list[tuple[int, int, int]] = [
        (began_us + chance.randrange(SECOND), who, 0) for who in range(load.callers)
    ]  # a time, a caller, and what its call that ends then has used
    heapq.heapify(due)
    while due[0][0] < began_us + seconds * SECOND:
        at_us, who, used = heapq.heappop(due)
        clock.now_us = at_us
        if used:
            await ledger.settle(who, used)
            recent.note(KEY, "m", used - load.prompt)
            del beyond[who]
        claims = claims_of(call._replace(expected_output=recent.expected(KEY, "m", load.limit)))
        verdict = await ledger.draw(who, claims)
        if isinstance(verdict, Refused):
            outcome.refused += 1
            heapq.heappush(due, (at_us + (verdict.retry_after_us or SECOND), who, 0))
            continue
        mean = math.log(load.output) - load.spread**2 / 2
        used = load.prompt + min(load.limit, round(chance.lognormvariate(mean, load.spread)))
        beyond[who] = max(0, used - claims[0].amount)
        outcome.began.append((at_us, used))
        outcome.beyond.append(sum(beyond.values()))
        lasts_s = load.lasts_s * chance.uniform(0.5, 1.5)
        heapq.heappush(due, (at_us + round(lasts_s * SECOND), who, used))
    return outcome
