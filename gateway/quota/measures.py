"""The measurements of each call for reports of latency: counters, which add up over calls, hours and days.

A counter is a whole number. `FAILED` counts failed attempts at an upstream; the others are buckets of histograms, a
histogram's base plus the number of the bucket. Bucket 0 is below one unit of the histogram, bucket i from
`2**((i-1)/4)` to `2**(i/4)` units, and the last one is open: a percentile that is interpolated within a bucket is off
by less than 19 %, the width of a bucket.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import log2
from typing import NamedTuple

from gateway.records import Record


class Histogram(NamedTuple):
    """A kind of measurement, counted in logarithmic buckets, four for each doubling."""

    base: int
    """Number of the counter of its first bucket."""
    unit: float
    """The upper bound of its first bucket: seconds, or tokens per second."""


FAILED = 1

FIRST_TOKEN = Histogram(100, 0.001)
"""Seconds from the request for a stream to the first byte of its answer."""

SPEED = Histogram(200, 0.1)
"""Tokens per second: of a stream those behind the first byte, of another answer all, over its whole duration."""

DURATION = Histogram(300, 0.001)
"""Seconds from the request to the end of the answer."""

LAST_BUCKET = 80
"""It begins at 2**19.75 units: 882 s, or 88,000 tokens per second."""

STOPPED = ":hedged"
"""The end of an attempt that was stopped because another one answered: no failure."""

SHORTEST_S = 0.001
"""Shortest time in seconds in which tokens came; a shorter one measures a buffer, not a model."""


def measures_of(record: Record) -> list[tuple[str, int]]:
    """The counters that a call adds one to, each of an upstream. Latency is that of whole answers, not of errors."""
    found = (
        [(attempt.partition(":")[0], FAILED) for attempt in record.failed.split() if not attempt.endswith(STOPPED)]
        if record.failed
        else []
    )
    if record.ended != "done" or record.status != 200:
        return found
    upstream, first_s, duration_s = record.upstream, record.first_byte_s, record.duration_s
    values = [(DURATION, duration_s)]
    busy_s = duration_s
    if record.stream and first_s is not None:
        values.append((FIRST_TOKEN, first_s))
        busy_s -= first_s
    tokens = record.usage.completion_tokens
    if tokens > 1 and busy_s >= SHORTEST_S and record.usage.source == "reported":
        values.append((SPEED, tokens / busy_s))
    for (base, unit), value in values:
        units = value / unit
        found.append((upstream, base + (min(LAST_BUCKET, int(4 * log2(units)) + 1) if units >= 1 else 0)))
    return found


def count_of(counters: Mapping[int, int], histogram: Histogram) -> int:
    return sum(counters.get(histogram.base + bucket, 0) for bucket in range(LAST_BUCKET + 1))


def percentile(counters: Mapping[int, int], histogram: Histogram, percent: float) -> float | None:
    """The value below which `percent` of the measurements are, to three digits; None without measurements."""
    rank = count_of(counters, histogram) * percent / 100
    below = 0
    for bucket in range(LAST_BUCKET + 1):
        number = counters.get(histogram.base + bucket, 0)
        if number and below + number >= rank:
            first = 2 ** ((bucket - 1) / 4) if bucket else 0.0
            last = 2 ** (bucket / 4)
            return float(f"{(first + (last - first) * (rank - below) / number) * histogram.unit:.3g}")
        below += number
    return None
