"""`queue`: calls that wait for room at upstreams, and the wait of each model."""

from __future__ import annotations

from typing import Literal

from gateway.config.sections import Section
from gateway.config.sections.values import Positive, Seconds
from gateway.config.wings import WingSection


class QueueSettings(Section):
    """Calls that wait for room at an upstream with limits, instead of being refused."""

    max_wait_s: Seconds = 0
    """How long a call may wait where no route has room; 0: it is refused at once."""
    max_calls: Positive = 1000
    """Calls of one worker that may wait at once; beyond, the flow with the most of them gives up its last one."""
    max_bytes: Positive = 67108864
    """Bytes of their requests that may wait at once in one worker."""
    by: Literal["key", "team"] = "key"
    """The sharers: keys, or teams with all of their keys."""


class WaitSettings(Section):
    max_wait_s: Seconds | None = None
    """How long its calls may wait for room at an upstream; default: as queue.max_wait_s."""


SECTION = WingSection("queue", QueueSettings)
OF_MODELS = WingSection("models", WaitSettings)
