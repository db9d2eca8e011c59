"""One run of the stack: the acts with a line for each, and the checks at the end."""

from __future__ import annotations

import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from bench.soak.balance import bill_of, differences, unfinished
from bench.soak.logs import troubles
from bench.soak.observed import ObservedCall
from tests.deploy.nginx import Nginx
from tests.flows.books import wait_until_settled
from tests.flows.gateway_process import eventually

from .acts import PATIENCE_S, Act, Acts, Excuse
from .place import NAMES, WORKERS, Place
from .public import Public
from .rules import active, history, wrong_alerts
from .totals import wrong_lines, wrong_totals

T = TypeVar("T")

HEADING = f"{'at':>5}  {'':34}{'calls':>6}{'served':>7}{'refused':>8}{'failed':>7}{'cut':>4}"
NGINX_TROUBLES = ("[error]", "[crit]", "[alert]", "[emerg]")


class Stack:
    """See the head of the file. `is_strict`: the machine is otherwise idle, and slow calls are not excused."""

    def __init__(self, place: Place, seed: int, *, steady_s: float, is_strict: bool) -> None:
        self.complaints: list[str] = []
        self._place, self._is_strict = place, is_strict
        self._public = Public(place.front.port, place.ca_file, place.issued, seed)
        self._acts = Acts(place, self._public, steady_s, is_strict=is_strict)
        eventually(self._is_watched, PATIENCE_S)
        self._began, self._since = time.monotonic(), time.time()
        self._shown_until = self._began

    def run(self) -> None:
        """Runs all acts and checks; errors go to `complaints`."""
        print(HEADING, flush=True)
        self._public.go_on()
        try:
            for act in self._acts.in_turn():
                self._tell(act, self._try(act.name, act.happen))
                if self.complaints:
                    break
        finally:
            self._public.stop()
        self.complaints += self._public.faults
        for name, judge in (
            ("calls", self._judge_calls), ("sums", self._judge_sums), ("alerts", self._judge_alerts),
            ("ends", self._judge_ends),
        ):  # fmt: skip
            self._try(f"in the end, {name}", lambda judge=judge: self.complaints.extend(judge()))  # type: ignore[misc]

    def _try(self, name: str, what: Callable[[], T]) -> T | None:
        """A step that raises is a complaint as well."""
        try:
            return what()
        except (AssertionError, OSError, subprocess.TimeoutExpired) as error:
            self.complaints.append(f"{name}: {error}")
            return None

    def _is_watched(self) -> bool:
        """Prometheus has scraped both gateways, and no alert is active."""
        server = self._place.prometheus
        return sum(server.query('up{job="gateway"}').values()) == len(NAMES) and not active(server)

    def _tell(self, act: Act, said: str | None) -> None:
        """Prints the results of the calls that have ended since the line before."""
        since, self._shown_until = self._shown_until, time.monotonic()
        received = [call for call in self._public.received if since < call.ended <= self._shown_until]
        refused = sum(call.status in (400, 401, 429) for call in received)
        failed = Counter(call.code for call in received if call.code and call.status in (200, 502, 503, 504))
        counts = f"{len(received):6}{sum(call.is_served for call in received):7}{refused:8}{failed.total():7}"
        counts += f"{sum(call.is_cut for call in received):4}"
        why = [*(f"{count} {code}" for code, count in failed.most_common(2)), *([said] if said else [])]
        print(f"{time.monotonic() - self._began:4.0f}s  {act.name:34}{counts}  {'; '.join(why)}", flush=True)
        print(f"{'':7}allowed: {act.allowed}", flush=True)

    def _judge_calls(self) -> Iterator[str]:
        yield from wrong_failures(self._public.received, self._acts.excuses, is_strict=self._is_strict)

    def _judge_sums(self) -> Iterator[str]:
        place, received = self._place, self._public.received
        gateway = place.alive[0]
        wait_until_settled(gateway)
        for each in place.alive:
            eventually(lambda each=each: not [*unfinished(each)], PATIENCE_S)  # type: ignore[misc]
        records = gateway.calls(limit=1_000_000)
        sold = sum((upstream.sold for upstream in place.upstreams.values()), Counter[int]())
        ends = Counter(record["ended"] for record in records)
        print(
            f"\n{len(received)} calls; {len(sold)} sold by the upstreams; {len(records)} records: "
            + ", ".join(f"{count} {ended}" for ended, count in ends.most_common())
        )
        print(bill_of(received, sold, records))
        dying = {
            call.number for call in received for since, until in self._acts.deaths if call.is_under_way(since, until)
        }
        if twice := {number for number, count in sold.items() if count > 1} - dying:
            yield f"sold more than once: {sorted(twice)}"
        if strangers := {f"client-{number}" for number in sold} ^ {record["client_request_id"] for record in records}:
            yield f"sold and not recorded, or recorded and not sold: {sorted(strangers)[:20]}"
        yield from differences(gateway, received, sold, [], records, dying)
        yield from wrong_lines(place.runs, records)
        yield from wrong_totals(place.prometheus, place.runs)

    def _judge_alerts(self) -> Iterator[str]:
        seen = history(self._place.prometheus, self._since, time.time())
        states: dict[str, set[str]] = {}
        for alert in seen:
            states.setdefault(alert.name, set()).add(alert.state)
        print("alerts: " + ", ".join(f"{name} {min(found)}" for name, found in states.items()))
        yield from wrong_alerts(seen, self._acts.causes)

    def _judge_ends(self) -> Iterator[str]:
        """Every journal is delivered, all processes end with success, and no log has errors."""
        place = self._place
        for name in NAMES:
            eventually(lambda name=name: len(place.journals(name)) == WORKERS, PATIENCE_S)  # type: ignore[misc]
            place.stop(name)
        yield from troubles(place.gateways)
        yield from in_nginx_log(place.front)


def in_nginx_log(front: Nginx) -> Iterator[str]:
    for line in front.log.splitlines():
        if any(word in line for word in NGINX_TROUBLES):
            yield f"in the log of nginx: {line}"


def wrong_failures(received: Sequence[ObservedCall], excuses: Sequence[Excuse], *, is_strict: bool) -> Iterator[str]:
    """Calls that failed without an excuse."""
    slow: list[ObservedCall] = []
    for call in received:
        if call.is_served or any(excuse.covers(call) for excuse in excuses):
            continue
        if call.code == "store_unavailable" and not is_strict:
            slow.append(call)  # 0.3 s without an answer, on a busy machine
        else:
            yield f"nothing excuses the end of this call: {call}"
    if len(slow) > 0.02 * len(received):
        yield f"{len(slow)} of {len(received)} calls found no store while it was there"
