"""Compares Prometheus with the access lines, per run of a gateway, and the access lines with the records.

Counters begin at 0 in each run of a gateway. The last value in Prometheus of a running gateway is exact after a scrape.
That of an ended gateway counts the calls that had ended at its last scrape.
"""

from __future__ import annotations

import calendar
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tests.fakes.prometheus import Prometheus
from tests.flows.gateway_process import eventually

from .place import Run

SCRAPED_WITHIN_S = 30.0
LATE_S = 5.0
"""Seconds: access lines have times in whole seconds, and a call is counted shortly after its end."""

Line = Mapping[str, Any]


class Sum(NamedTuple):
    """A sum known to both: to Prometheus by a selector, to access lines by the value that a line adds."""

    name: str
    selector: str
    adds: Callable[[Line], float]


SUMS = (
    Sum("answers of 200", 'gateway_requests_total{status="200",', lambda line: line["status"] == 200),
    Sum("refused answers", 'gateway_requests_total{status!="200",', lambda line: line["status"] != 200),
    Sum("prompt tokens", 'gateway_tokens_total{type="prompt",', lambda line: line.get("prompt_tokens", 0)),
    Sum("completion tokens", 'gateway_tokens_total{type="completion",', lambda line: line.get("completion_tokens", 0)),
)


def lines_of(run: Run) -> list[Line]:
    """Access lines without those of operators, which no metric counts."""
    return [line for line in run.gateway.lines() if "endpoint" in line]


def wrong_totals(server: Prometheus, runs: Sequence[Run]) -> Iterator[str]:
    """Sums of Prometheus that differ from the access lines of the same run. No call may be under way."""
    for run in runs:
        lines = lines_of(run)
        for each in SUMS:
            whole = sum(map(each.adds, lines))
            if not run.ended:
                try:
                    eventually(
                        lambda run=run, each=each, whole=whole: _last(server, run, each) == whole, SCRAPED_WITHIN_S
                    )
                except AssertionError:
                    yield f"{each.name} of the {run.name} gateway: {whole} in its lines, {_last(server, run, each)}"
                continue
            scraped = _last_scrape(server, run)
            least = sum(each.adds(line) for line in lines if _ended(line) < scraped - LATE_S)
            if not least <= (received := _last(server, run, each)) <= whole:
                yield f"{each.name} of the {run.name} gateway, restarted: {least} to {whole} in its lines, {received}"


def wrong_lines(runs: Sequence[Run], records: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Records with no access line, two, or a different one."""
    lines = [line for run in runs for line in lines_of(run)]
    by_id = {line["id"]: line for line in lines}
    if twice := [name for name, count in Counter(line["id"] for line in lines).items() if count > 1]:
        yield f"{len(twice)} calls have two access lines: {twice[:3]}"
    for record in records:
        line = by_id.get(record["id"], {})
        names = ("status", "ended", "prompt_tokens", "completion_tokens", "client_request_id")
        if wrong := [name for name in names if line.get(name) != record[name]]:
            yield f"its access line has another {', '.join(wrong)}: {dict(record)}, {dict(line)}"


def _ended(line: Line) -> float:
    return calendar.timegm(time.strptime(line["time"], "%Y-%m-%dT%H:%M:%SZ"))


def _until(run: Run) -> float:
    return run.ended or time.time()


def _last(server: Prometheus, run: Run, each: Sum) -> float:
    found = server.samples(f'{each.selector}instance="127.0.0.1:{run.gateway.port}"}}', run.began, _until(run))
    return sum(taken[-1][1] for taken in found.values())


def _last_scrape(server: Prometheus, run: Run) -> float:
    """The time of the last scrape."""
    found = server.samples(f'up{{instance="127.0.0.1:{run.gateway.port}"}}', run.began, _until(run))
    return max((at for taken in found.values() for at, value in taken if value == 1), default=run.began)
