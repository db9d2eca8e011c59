"""Real time that passes in a test. A test that calls these is right however much longer it takes."""

from __future__ import annotations

import asyncio
import time


async def at_least(seconds: float) -> None:
    """A moment in which something would happen that must not, or has to go on for so long."""
    await asyncio.sleep(seconds)


def blocked_for_at_least(seconds: float) -> None:
    """The same for a test without an event loop."""
    time.sleep(seconds)
