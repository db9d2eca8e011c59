"""A report of latency and failed attempts: its parameters, rows and CSV.

Requests and errors come from the sums of usage, the rest from measures (`quota/measures.py`).
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gateway.chunked import in_chunks
from gateway.quota.measures import DURATION, FAILED, FIRST_TOKEN, SPEED, count_of, percentile
from gateway.store import MEASURE_GROUPS, Measures

from .table import Row

PERCENTILES = {
    "first_token_p50_s": (FIRST_TOKEN, 50), "first_token_p95_s": (FIRST_TOKEN, 95),
    "first_token_p99_s": (FIRST_TOKEN, 99),
    "tokens_per_s_p5": (SPEED, 5), "tokens_per_s_p50": (SPEED, 50), "tokens_per_s_p95": (SPEED, 95),
    "tokens_per_s_p99": (SPEED, 99),
    "duration_p50_s": (DURATION, 50), "duration_p95_s": (DURATION, 95), "duration_p99_s": (DURATION, 99),
}  # fmt: skip
"""Of a row: the histogram, and the percent of it that is below."""

COUNTS = {"first_token_count": FIRST_TOKEN, "tokens_per_s_count": SPEED, "duration_count": DURATION}
"""The numbers of measurements."""

COLUMNS = ("requests", "errors", "failed_attempts", *COUNTS, *PERCENTILES)
"""Of a report besides its groups."""

ROWS_AT_ONCE = 5
"""Rows made at once: about half a millisecond."""


def read_measure_groups(text: str) -> list[str]:
    """What `model,hour` groups by. Raises `ValueError`."""
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


def _row(names: dict[str, Any], requests: int, errors: int, counters: Mapping[int, int]) -> dict[str, Any]:
    return {
        **names, "requests": requests, "errors": errors, "failed_attempts": counters.get(FAILED, 0),
        **{name: count_of(counters, histogram) for name, histogram in COUNTS.items()},
        **{name: percentile(counters, *which) for name, which in PERCENTILES.items()},
    }  # fmt: skip


def format_latency_csv(groups: Sequence[str], rows: Sequence[Row]) -> str:
    """A line of names, then one for each row, with line ends as in RFC 4180."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [*groups, *COLUMNS])
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
