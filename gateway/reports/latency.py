"""A report of latency and failed attempts: its parameters, rows and CSV.

Requests and errors come from the sums of usage, the rest from measures (`quota/measures.py`): from those that the store
adds up by model and upstream, or, where the report is about a key, a team or a person, from the newest calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from gateway.chunked import in_chunks
from gateway.quota.measures import DURATION, FAILED, FIRST_TOKEN, SPEED, count_of, measures_of, percentile
from gateway.records import Record, Usage
from gateway.store import MEASURE_GROUPS, Measures

from .csv_text import csv_text
from .table import Row

PERCENTILES = {
    "first_token_p50_s": (FIRST_TOKEN, 50), "first_token_p95_s": (FIRST_TOKEN, 95),
    "first_token_p99_s": (FIRST_TOKEN, 99),
    "tokens_per_s_p5": (SPEED, 5), "tokens_per_s_p50": (SPEED, 50), "tokens_per_s_p95": (SPEED, 95),
    "tokens_per_s_p99": (SPEED, 99),
    "duration_p50_s": (DURATION, 50), "duration_p95_s": (DURATION, 95), "duration_p99_s": (DURATION, 99),
}  # fmt: skip
"""Histogram of each column of a row, and the percent of its measurements that is below the value."""

COUNTS = {"first_token_count": FIRST_TOKEN, "tokens_per_s_count": SPEED, "duration_count": DURATION}

COLUMNS = ("requests", "errors", "failed_attempts", *COUNTS, *PERCENTILES)
"""Columns of a report besides its groups."""

ROWS_AT_ONCE = 5
"""Rows made at once: about half a millisecond."""

CALLS_AT_ONCE = 50
"""Calls measured at once; as long."""

MEASURED_CALLS = 2000
"""Number of the newest calls in the range that are measured for a key, a team or a person."""


def read_measure_groups(text: str) -> list[str]:
    """The groups of a text such as `model,hour`. Raises `ValueError`."""
    groups = [name for name in dict.fromkeys(part.strip() for part in text.split(",")) if name]
    if unknown := [name for name in groups if name not in MEASURE_GROUPS]:
        raise ValueError(f"{unknown[0]!r} is not one of {', '.join(MEASURE_GROUPS)}")
    return groups


def latency_rows(groups: Sequence[str], usage: Iterable[Row], measures: Measures) -> list[dict[str, Any]]:
    """The rows, in the order of their groups; `usage`: by the same groups. For a thread: it takes its time."""
    counts = {tuple([row[name] for name in groups]): (row["requests"], row["errors"]) for row in usage}
    return [
        _row(dict(zip(groups, names, strict=True)), *counts.get(names, (0, 0)), measures.get(names, {}))
        for names in in_chunks(sorted({*counts, *measures}), ROWS_AT_ONCE)
    ]


def measures_of_calls(groups: Sequence[str], calls: Iterable[Mapping[str, Any]]) -> Measures:
    """The measurements of these rows of `Store.calls`, by some of `MEASURE_GROUPS`. To be run in a thread: it may take
    long."""
    found: dict[tuple[str, ...], Counter[int]] = {}
    for call in in_chunks(calls, CALLS_AT_ONCE):
        record = Record(
            **{name: call[name] for name in Record._fields if name != "usage"}, usage=Usage(**call["usage"])
        )
        hour = datetime.fromtimestamp(record.time, UTC).strftime("%Y-%m-%dT%H")
        places = {"model": record.label_model, "hour": hour, "day": hour[:10], "month": hour[:7]}
        for upstream, counter in measures_of(record):
            place = tuple([{**places, "upstream": upstream}[name] for name in groups])
            found.setdefault(place, Counter())[counter] += 1
    return found


def bounds(since: str | None, until: str | None) -> tuple[float | None, float | None]:
    """The Unix times at which a range of days or hours, both included, begins and ends."""

    def start(period: str) -> float:
        return datetime.fromisoformat(period if "T" in period else f"{period}T00").replace(tzinfo=UTC).timestamp()

    length_s = 3600 if "T" in (until or "") else 86_400
    return (
        None if since is None else start(since),
        None if until is None else start(until) + length_s - 0.001,  # a datetime has no day behind 9999-12-31
    )


def _row(names: dict[str, Any], requests: int, errors: int, counters: Mapping[int, int]) -> dict[str, Any]:
    return {
        **names, "requests": requests, "errors": errors, "failed_attempts": counters.get(FAILED, 0),
        **{name: count_of(counters, histogram) for name, histogram in COUNTS.items()},
        **{name: percentile(counters, *which) for name, which in PERCENTILES.items()},
    }  # fmt: skip


def format_latency_csv(groups: Sequence[str], rows: Sequence[Row]) -> str:
    """A line of names, then one for each row, with line ends as in RFC 4180."""
    return csv_text([*groups, *COLUMNS], rows)
