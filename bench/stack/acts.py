"""The acts (restarts, kills, reloads) of the stack, one after the other, under load.

Each act declares the errors that clients may get because of it (`Excuse`), and the alerts that it may or must raise
(`Cause`).
"""

from __future__ import annotations

import itertools
import math
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from bench.soak.observed import ObservedCall
from tests.flows.gateway_process import ADMIN_TOKEN, Gateway, eventually

from .place import NAMES, Place
from .public import GUEST, METERED, Public
from .rules import Cause, active

T = TypeVar("T")

PATIENCE_S = 90.0
LOOKS_EVERY_S = 0.1
IN_A_ROW = 30
"""Calls served in a row: enough for each of two workers of two gateways."""
TIMES = 4
"""Calls per gateway that need the reloaded configuration, so that both workers get some."""


@dataclass
class Excuse:
    """A call that was under way between `since` and `until` (monotonic) may have got this error."""

    code: str
    statuses: tuple[int, ...]
    """HTTP status; 200: an error event in a stream."""
    since: float = 0.0
    until: float = math.inf
    kind: str = ""
    """The kind of the call; empty: any."""

    def covers(self, received: ObservedCall) -> bool:
        is_meant = received.code == self.code and received.status in self.statuses and self.kind in ("", received.kind)
        return is_meant and received.is_under_way(self.since, self.until)


class Act(NamedTuple):
    """A name, the permitted errors of its clients, and the function; it returns a remark for the report."""

    name: str
    allowed: str
    happen: Callable[[], str]


class Acts:
    """See the head of the file. `is_strict`: the gateway must serve again 2 s after the store's return, and expected
    alerts must fire."""

    def __init__(self, place: Place, public: Public, steady_s: float, *, is_strict: bool) -> None:
        few = ("insufficient_quota", "rate_limit_exceeded")  # the quota is used up, or reserved by running calls
        self.excuses = [Excuse("invalid_api_key", (401,), kind=GUEST)]
        self.excuses += [Excuse(code, (429,), kind=METERED) for code in few]
        self.causes = [Cause("GatewayQuotaNearlySpent", {"key": METERED}, 0, is_needed=True)]
        if not is_strict:  # scrapes and Redis are slow on a busy machine
            self.causes += [Cause(name, {}, 0) for name in ("GatewayDown", "GatewayStoreAway")]
        self.deaths: list[tuple[float, float]] = []
        """Times (from, to) of kills of an upstream: its unanswered calls may have been retried at another."""
        self._place, self._public = place, public
        self._steady_s = steady_s
        self._learns_within_s = 2.0 if is_strict else 20.0
        """Seconds until a gateway notices the return of the store, or a broken connection."""
        self._alert_states = "firing" if is_strict else "pending|firing"

    def in_turn(self) -> Iterator[Act]:
        nothing = "nothing but answers"
        yield Act("steady load", nothing, self._steady)
        for name in NAMES:
            yield Act(f"the {name} gateway is restarted", nothing, lambda name=name: self._restart(name))  # type: ignore[misc]
        store = "503 store_unavailable until it is back"
        yield Act("Redis is restarted", store, lambda: self._lose_store(self._place.redis.shutdown, is_first=True))
        yield Act("Redis is killed", store, lambda: self._lose_store(self._place.redis.kill, is_first=False))
        yield Act("a reload: a quota, a key", nothing, self._reload)
        yield Act(
            "an upstream dies",
            "502 upstream_error, and in a stream an error event, for what it had begun",
            self._lose_upstream,
        )
        yield Act("the upstream returns", nothing, self._return_upstream)

    # ---------------------------------------------------------------------------------------------- what calls say

    def _calls_since(self, first: int) -> list[ObservedCall]:
        """Ended calls in order of their end, without those of keys that belong to an act."""
        mine = [
            received
            for received in self._public.received[first:]
            if received.ended and received.kind not in (METERED, GUEST)
        ]
        return sorted(mine, key=lambda received: received.ended)

    def _await(self, look: Callable[[], T]) -> T:
        return eventually(look, PATIENCE_S, LOOKS_EVERY_S)

    def _await_service(self) -> None:
        """Waits until this many calls in a row are served, all begun after now."""
        first = len(self._public.received)

        def is_so() -> bool:
            last = self._calls_since(first)[-IN_A_ROW:]
            return len(last) == IN_A_ROW and all(received.is_served for received in last)

        self._await(is_so)

    def _await_alert(self, name: str, count: int = 1, **labels: str) -> None:
        try:
            self._await(lambda: active(self._place.prometheus, name, self._alert_states, **labels) >= count)
        except AssertionError:
            raise AssertionError(f"{name} was not {self._alert_states} within {PATIENCE_S:g} s") from None

    # -------------------------------------------------------------------------------------------------------- acts

    def _steady(self) -> str:
        time.sleep(self._steady_s)
        self._await_service()
        return ""

    def _restart(self, name: str) -> str:
        """By deploy/nginx.conf: marks the gateway's line "down", reloads nginx, restarts the gateway."""
        place, run = self._place, self._place.run_of(name)
        down = Cause("GatewayDown", {"instance": f"127.0.0.1:{run.gateway.port}"}, time.time())
        place.front.leave_out(run.gateway.port)
        running = run.gateway.metric("gateway_in_flight_requests")
        began = time.monotonic()
        place.stop(name)
        took_s = time.monotonic() - began
        place.start(name)
        gateway = place.run_of(name).gateway
        self._await(lambda: gateway.get("/readyz", key=None).status == 200)
        place.front.leave_out()
        down.until = time.time()
        self.causes.append(down)
        self._await_service()
        return f"{running:.0f} calls were under way, gone after {took_s:.1f} s"

    def _lose_store(self, lose: Callable[[], None], *, is_first: bool) -> str:
        place, began, at = self._place, time.monotonic(), time.time()
        first = len(self._public.received)
        self.excuses.append(excuse := Excuse("store_unavailable", (503,), began))
        self.causes += [
            away := Cause("GatewayStoreAway", {}, at, is_needed=is_first),
            errors := Cause("GatewayErrorRate", {}, at),
        ]
        lose()
        self._await(lambda: any(received.code == excuse.code for received in self._calls_since(first)))
        for gateway in place.alive:
            self._await(lambda gateway=gateway: gateway.get("/readyz", key=None).status == 503)  # type: ignore[misc]
        if is_first:
            self._await_alert("GatewayStoreAway", len(NAMES))
        place.redis.restart()
        back, first_after = time.monotonic(), len(self._public.received)
        excuse.until = back + self._learns_within_s
        served = self._await(lambda: [received for received in self._calls_since(first_after) if received.is_served])[0]
        self._await_service()
        away.until = errors.until = time.time()
        return f"away for {back - began:.1f} s, served again {served.ended - back:.1f} s after its return"

    def _reload(self) -> str:
        """Reloads one gateway by its admin API, the other by SIGHUP."""
        place, (asked, received) = self._place, self._place.alive
        self._await_alert("GatewayQuotaNearlySpent", key=METERED)
        assert not self._public.ask(GUEST).is_served
        before = [_generation(gateway) for gateway in place.alive]
        place.change_configuration()
        answer = asked.send("POST", "/admin/api/reload", key=None, headers={"Authorization": f"Bearer {ADMIN_TOKEN}"})
        assert answer.status == 200, answer
        received.kill(signal.SIGHUP)
        for gateway, number in zip(place.alive, before, strict=True):
            self._await(lambda gateway=gateway, number=number: _generation(gateway) > number)  # type: ignore[misc]
        since = time.monotonic()
        for excuse in self.excuses:
            excuse.until = min(excuse.until, since) if excuse.kind else excuse.until
        self.causes[0].until = time.time()
        for kind, port in itertools.product((GUEST, METERED), [*(gateway.port for gateway in place.alive), None]):
            for _ in range(TIMES):
                self._public.ask(kind, port)
        self._await_service()
        return f"refused before, served since: {METERED}, {GUEST}"

    def _lose_upstream(self) -> str:
        place, began, at = self._place, time.monotonic(), time.time()
        place.upstreams["main"].kill()
        dead = time.monotonic() + self._learns_within_s
        self.deaths.append((began, dead))
        self.excuses.append(Excuse("upstream_error", (200, 502), began, dead))
        self.causes += [
            Cause("GatewayUpstreamIll", {"upstream": "main"}, at, is_needed=True),
            Cause("GatewayUpstreamFails", {"upstream": "main"}, at),
        ]
        self._await_service()
        self._await_alert("GatewayUpstreamIll", upstream="main")
        return ""

    def _return_upstream(self) -> str:
        place, began = self._place, time.monotonic()
        main = place.upstreams["main"]
        main.start()
        self._await(lambda: not any(_ill(gateway) for gateway in place.alive))
        sold = main.sold.total()
        self._await(lambda: main.sold.total() > sold + IN_A_ROW)
        for cause in self.causes[-2:]:
            cause.until = time.time()
        self._await_service()
        return f"asked again after {time.monotonic() - began:.1f} s"


def _generation(gateway: Gateway) -> float:
    return gateway.metric("gateway_config_generation")


def _ill(gateway: Gateway) -> float:
    return gateway.metric("gateway_upstream_state", upstream="main")
