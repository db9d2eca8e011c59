"""How many streams an upstream without a published limit serves well at once, by the time to their first token.

This is the gradient algorithm of Netflix's concurrency-limits (`GradientLimit.java`; the idea is TCP Vegas', Brakmo and
Peterson, 1995). A server that is not full answers in a time that does not depend on the number of calls; when calls
queue there, the time grows. So the ratio of the time without load to the last one shows by how much there are too many:

    gradient = unloaded / last, times `TOLERANCE`, between 1/2 and 1
    limit    = limit x gradient + `QUEUE`, of which `SMOOTHING` counts at once

A sample that was taken while less than half of the limit was in use proves nothing of a higher limit. Netflix measures
the time without load by lowering the limit now and then; here it is the mean of samples that were taken under light
load, because a worker that lowered its limit alone would be refused while others fill the upstream. (Gradient2, which
takes a mean of all samples, drifts upwards under a load that never ends.) So a server that computes N calls at once
gets about 1.5 N + 4; one that computes fewer than 8 may get 16. Pure.
"""

from __future__ import annotations

from typing import NamedTuple

TOLERANCE = 1.5
QUEUE = 4
"""Calls that may wait at the upstream, so that the limit can grow."""
SMOOTHING = 0.2
FIRST = 4
"""The limit before the first sample, unless fewer are permitted."""
LIGHT, LIGHT_SHARE = 2 * QUEUE, 0.25
"""Calls under way, and share of the limit, up to which a sample is one of light load. A server that has become slower
for good looks like a full one until such samples come."""
WARM_UP, WINDOW = 10, 100
"""Samples: the mean of the first `WARM_UP` is plain; then it is exponential, over about `WINDOW`."""


class AdaptiveLimit(NamedTuple):
    """The state of one limit."""

    limit: float = FIRST
    unloaded_s: float = 0.0
    samples: int = 0
    """Number of samples under light load."""

    def after(self, first_token_s: float, under_way: int, most: int) -> AdaptiveLimit:
        """The state after a first token that took `first_token_s` with `under_way` calls; `most`: the highest limit."""
        last_s = max(first_token_s, 1e-6)
        limit, unloaded_s, samples = min(self.limit, most), self.unloaded_s, self.samples
        if under_way <= max(LIGHT, LIGHT_SHARE * limit) or not samples:
            samples += 1
            unloaded_s += (last_s - unloaded_s) * (1 / samples if samples <= WARM_UP else 2 / (WINDOW + 1))
        if under_way >= limit / 2:
            gradient = max(0.5, min(1.0, TOLERANCE * unloaded_s / last_s))
            limit += (limit * gradient + QUEUE - limit) * SMOOTHING
        return AdaptiveLimit(max(1.0, min(limit, most)), unloaded_s, samples)
