"""How long the attempts at one upstream took to their first byte lately, for `hedge_after: p95`.

Of each model, streams and plain answers apart, the last `KEPT` times are kept. (The metric
`gateway_time_to_first_token_seconds` does not serve here: it mixes streams with plain answers, counts the wait for room
and earlier attempts of a call, and forgets nothing.) An attempt that was stopped because another route answered counts
with the time that it had taken so far: without it the percentile would sink with every stopped attempt. Pure.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from math import ceil

KEPT = 200
MIN_SAMPLES = 20
"""Fewer samples do not show the slowest twentieth."""

SHARE = 0.95
FLOOR_S = 0.05
"""The lowest result: a smaller difference is no lateness but chance."""

MAX_SERIES = 1024
"""Models are named by clients where a pattern serves them. The series that was used least recently is dropped."""


class FirstByteTimes:
    """The times of one upstream in one worker, in seconds."""

    def __init__(self) -> None:
        self._series: OrderedDict[tuple[str, bool], deque[float]] = OrderedDict()

    def note(self, model: str, is_stream: bool, seconds: float) -> None:
        """Add the time of one attempt for this model."""
        series = self._series.setdefault((model, is_stream), deque(maxlen=KEPT))
        series.append(seconds)
        self._series.move_to_end((model, is_stream))
        if len(self._series) > MAX_SERIES:
            self._series.popitem(last=False)

    def p95_s(self, model: str, is_stream: bool) -> float | None:
        """The time within which 95 of 100 attempts had their first byte; None: too few are known."""
        series = self._series.get((model, is_stream), ())
        if len(series) < MIN_SAMPLES:
            return None
        return max(FLOOR_S, sorted(series)[ceil(SHARE * len(series)) - 1])
