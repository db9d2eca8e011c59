"""Whether an upstream fails, since when, and with what: from the failures that its workers noted by minute."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from gateway.upstream.status import UpstreamReport

CALM_S = 90.0
"""A run of failures is over where this long only good answers came."""
FEW = 3
"""Good attempts between two failures that do not end a run, however long it takes: an upstream may be asked rarely."""
FAILING_SHARE = 0.2
"""The share of failed attempts from which an upstream counts as failing."""
LEAST = 3
"""Failures from which it does."""


KEPT_S = 3600.0
"""Older failures do not matter."""


class FailedMinute(NamedTuple):
    """Failures of one kind within one minute, with the number of attempts that had begun by the first of them."""

    first_ago_s: float
    last_ago_s: float
    number: int
    begun: int
    fault: str
    status: int | None
    detail: str
    message: str = ""


class Run(NamedTuple):
    """Failures that follow each other, and all attempts of that time; ages in seconds."""

    since_ago_s: float
    last_ago_s: float
    failures: int
    attempts: int
    kinds: Counter[tuple[str, int | None]]
    """Failures by fault and HTTP status."""
    detail: str
    """The newest failure in the words of the log."""
    message: str = ""
    """The first line of the upstream's newest message."""

    def plus(self, other: Run) -> Run:
        """The run of two workers."""
        newest = self if self.last_ago_s <= other.last_ago_s else other
        return Run(
            max(self.since_ago_s, other.since_ago_s), newest.last_ago_s, self.failures + other.failures,
            self.attempts + other.attempts, self.kinds + other.kinds, newest.detail,
            newest.message or self.message or other.message,
        )  # fmt: skip

    def is_failing(self, *, is_avoided: bool) -> bool:
        """Whether the upstream fails now. `is_avoided`: its circuit breaker is not closed, so few attempts are made."""
        if is_avoided:
            return True
        is_now = self.last_ago_s <= CALM_S and self.failures >= LEAST
        return is_now and self.failures >= FAILING_SHARE * self.attempts


def last_run(failed: Iterable[FailedMinute], begun: int) -> Run | None:
    """The last run of failures of one worker, whose attempts are `begun` so far; None: nothing failed in an hour."""
    rows = sorted([row for row in failed if row.last_ago_s <= KEPT_S], key=lambda row: row.last_ago_s)
    if not rows:
        return None
    run, first = [rows[0]], rows[0]
    for row in rows[1:]:
        if row.last_ago_s - first.first_ago_s > CALM_S and first.begun - row.begun - row.number > FEW:
            break
        run.append(row)
        first = max(first, row, key=lambda each: each.first_ago_s)
    # After the last failure, good attempts count only as long as the run may go on: later ones are another matter.
    failures = sum(row.number for row in run)
    kinds: Counter[tuple[str, int | None]] = Counter()
    for row in run:
        kinds[row.fault, row.status] += row.number
    attempts = max(failures, begun - min(row.begun for row in run) + 1)
    message = next((row.message for row in run if row.message), "")
    return Run(first.first_ago_s, rows[0].last_ago_s, failures, attempts, kinds, rows[0].detail, message)


def runs(reports: Iterable[Iterable[Sequence[Any]]], names: Iterable[str], at: float) -> list[dict[str, Any]]:
    """The last run of each upstream that failed within an hour, the newest first. `reports` are those of the workers,
    `at` is the present Unix time, `names` are the configured upstreams."""
    found: dict[str, Run] = {}
    avoided: dict[str, float] = {}
    for fields in [fields for worker in reports for fields in worker]:
        report = UpstreamReport(*fields)
        if report.state:
            avoided[report.name] = max(report.state_s, avoided.get(report.name, 0.0))
        run = last_run(map(FailedMinute._make, report.failed), report.begun)
        if run is not None:
            known = found.get(report.name)
            found[report.name] = run if known is None else known.plus(run)
    rows = [
        {
            "upstream": name,
            "failing": run.is_failing(is_avoided=name in avoided),
            "since": at - run.since_ago_s,
            "last": at - run.last_ago_s,
            "failures": run.failures,
            "attempts": run.attempts,
            "kinds": [
                {"fault": fault, "status": status, "count": number}
                for (fault, status), number in run.kinds.most_common()
            ],
            "detail": run.detail,
            "message": run.message,
        }
        for name, run in found.items()
        if name in set(names)
    ]
    return sorted(rows, key=lambda row: -row["last"])


def in_words(fault: str, status: int | None) -> str:
    """A kind of failure in few words."""
    return f"status {status}" if status is not None else fault.replace("_", " ")
