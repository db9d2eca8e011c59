"""`make soak`: mixed load with faults for minutes; checks for growth and wrong sums.

Load: valid and invalid calls, streams, large bodies, slow readers, clients that leave, wrong keys and junk, at a
bounded rate. Faults, in turn: failing upstreams, a killed worker, a killed Redis, a restart of a second gateway, a
change of the configuration. At the end of each round all clients pause: then nothing may be reserved. At the end,
memory and descriptors are flat, all sums agree, no log has a traceback, and every journal is delivered.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.fakes.redis_servers import MissingServer
from tests.flows.books import wait_until_settled
from tests.flows.gateway_process import Gateway, eventually

from . import flat
from .balance import bill_of, differences, wrong_metrics
from .crowd import Crowd
from .faults import FaultCounts, Faults
from .logs import troubles
from .observed import ObservedCall
from .place import Place
from .verdict import tell
from .watch import Watch

PHASE_S = 6.0
SHORT_S = 3.0
"""Seconds per phase in a short run."""
SETTLED_S = 90.0
ADOPTED_S = 90.0
STOPS_WITHIN_S = 100.0
"""Seconds: the gateway's `drain_timeout_s`, although no call is under way."""
HEADING = f"{'at':>6}  {'':32}{'calls':>7}{'served':>7}{'refused':>8}{'failed':>7}{'cut':>5}  worker MB   super MB"


class Soak:
    """One run."""

    def __init__(self, place: Place, minutes: float, seed: int) -> None:
        self._place = place
        self._end = time.monotonic() + 60 * minutes
        self._callers = Crowd(lambda: [gateway.port for gateway in place.running], seed)
        self._faults = Faults(place, self._callers, PHASE_S if minutes >= 3 else SHORT_S)
        self._watch = Watch({"worker": place.elder, "supervisor": place.gateway.process.pid})
        self.complaints: list[str] = []
        self._records: Sequence[Mapping[str, Any]] = ()

    def run(self) -> None:
        """Runs whole rounds until the time is over; errors go to `complaints`."""
        print(HEADING)
        with self._watch:
            while time.monotonic() < self._end and not self.complaints:
                self._try(self._round)
        self._callers.stop()
        self.complaints += self._callers.faults + self._faults.counts.faults
        for judge in (self._judge_growth, self._judge_sums, self._judge_adoption):
            self._try(judge)
        self.complaints += troubles(self._place.gateways)

    def _try(self, what: Callable[[], None]) -> None:
        """A step that raises is a complaint as well."""
        try:
            what()
        except (AssertionError, OSError, subprocess.TimeoutExpired) as error:
            self.complaints.append(str(error))

    def _round(self) -> None:
        self._callers.go_on()
        for name, happen in self._faults.in_turn():
            first = len(self._callers.received)
            happen()
            self._tell(name, first)
        self._callers.rest()
        wait_until_settled(self._place.gateway, SETTLED_S)
        self._check_sums_so_far()
        self.complaints += troubles(self._place.gateways)

    def _check_sums_so_far(self) -> None:
        """Served calls are in the reports; cheap, so that the check itself takes no memory."""
        served = sum(received.is_served for received in self._callers.received)
        counted = sum(row["requests"] for row in self._place.gateway.usage(group_by="key"))
        assert counted >= served, f"{served} calls were served, and the reports know of {counted}"

    def _tell(self, name: str, first: int) -> None:
        received = [call for call in self._callers.received[first:] if call.ended]
        refused = sum(call.status in (400, 401, 429) for call in received)
        failed = Counter(call.code for call in received if call.code and (call.status >= 500 or call.status == 200))
        counts = f"{len(received):7}{sum(call.is_served for call in received):7}{refused:8}{failed.total():7}"
        counts += f"{sum(call.is_cut for call in received):5}"
        looks = [self._watch.look(each) for each in ("worker", "supervisor")]
        shown = "".join(f"{look.memory / 1e6:11.1f}" for look in looks)
        why = ", ".join(f"{count} {code}" for code, count in failed.most_common(2))
        print(f"{looks[0].at_s:5.0f}s  {name:32}{counts}{shown}  {why}", flush=True)

    def _judge_growth(self) -> None:
        print(f"\n{'median of each third':32}{'first':>9}{'middle':>9}{'last':>9}")
        for name, samples in self._watch.samples.items():
            if len(samples) < flat.FEWEST:
                print(f"{name:32}{len(samples)} looks are too few to tell whether it grows")
                continue
            memory, descriptors = flat.of_memory(samples), flat.of_descriptors(samples)
            for what, verdict, unit in (("memory, MB", memory, 1e6), ("descriptors", descriptors, 1)):
                thirds = "".join(f"{value / unit:9.1f}" for value in verdict.thirds)
                print(f"{f'{name}: {what}':32}{thirds}  {'flat' if verdict.is_flat else 'GROWS'}")
                if not verdict.is_flat:
                    self.complaints.append(f"the {what.split(',')[0]} of the {name} is not flat")

    def _judge_sums(self) -> None:
        """Runs before the watched gateway is stopped."""
        place, received, counts = self._place, self._callers.received, self._faults.counts
        self._records = place.gateway.calls(limit=10_000_000)
        _show(self._records, received, self._callers.junk, counts)
        wait_until_settled(place.gateway, SETTLED_S)
        self._records = place.gateway.calls(limit=10_000_000)
        print(bill_of(received, place.market.sold, self._records))
        self.complaints += differences(place.gateway, received, place.market.sold, counts.kills, self._records)
        self.complaints += wrong_metrics(place.gateway, received, len(counts.kills), self._records)

    def _judge_adoption(self) -> None:
        """The next gateways adopt all journals, and count nothing twice."""
        place = self._place
        for gateway in place.running:
            self._stop(gateway)
        heirs = [("watched", 2, place.start("watched", 2))]
        if place.redis:
            heirs.append(("second", 1, place.start("second")))
        place.ended += [heir for _, _, heir in heirs]
        for name, workers, heir in heirs:
            eventually(lambda: len(place.journals(name)) == workers, ADOPTED_S)  # noqa: B023 - all others are adopted
            if {record["id"] for record in heir.calls(limit=10_000_000)} != {record["id"] for record in self._records}:
                self.complaints.append("the next gateway finds other records than the one before")
            self._stop(heir)

    def _stop(self, gateway: Gateway) -> None:
        began = time.monotonic()
        gateway.kill(signal.SIGTERM)
        if code := gateway.wait(2 * STOPS_WITHIN_S):
            self.complaints.append(f"{gateway!r} ended with {code}")
        if (took_s := time.monotonic() - began) > STOPS_WITHIN_S:
            self.complaints.append(f"{gateway!r} took {took_s:.0f} s to end, though nothing was under way")


def _show(
    records: Sequence[Mapping[str, Any]], received: Sequence[ObservedCall], junk: int, counts: FaultCounts
) -> None:
    ends = Counter(record["ended"] for record in records)
    shown = ", ".join(f"{count} {ended}" for ended, count in ends.most_common())
    print(f"\n{len(received)} calls and {junk} times junk; {len(records)} records: {shown}")
    more = f"{counts.restarts} restarts, {counts.reloads} reloads"
    print(f"{len(counts.kills)} workers killed, {counts.redis_deaths} kills of Redis, {more}")


def main() -> int:
    """Runs the soak; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description="Whether anything grows or is lost.")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--store", choices=["redis", "embedded"], default="redis")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    print(f"{args.minutes:g} minutes on {args.store}, seed {args.seed}\n")
    with tempfile.TemporaryDirectory(prefix="gateway-soak-") as folder:
        try:
            with Place(args.store, Path(folder)) as place:
                soak = Soak(place, args.minutes, args.seed)
                soak.run()
        except (MissingServer, KeyboardInterrupt) as error:
            print(f"soak: {str(error) or 'stopped'}", file=sys.stderr)
            return 1
    return tell("soak", soak.complaints, "flat and balanced")


if __name__ == "__main__":
    sys.exit(main())
