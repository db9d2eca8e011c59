"""File descriptors: what a process may open, and when they run short.

A process out of descriptors can accept nobody, and tell nobody why. So a part of them is kept from clients: newcomers
are refused while they can still be answered, and what calls need besides (upstreams, store, journal) can be opened.
"""

from __future__ import annotations

import resource

OTHERS = 64
"""Store, journal, logs, the control line, the event loop's own."""


class FdLimit:
    """Tells from the newest descriptor how many there are: the kernel gives out the lowest number that is free."""

    def __init__(self, limit: int, connections: int) -> None:
        """`connections`: how many a process may open by itself, to upstreams."""
        self._short = limit - min(limit // 4, connections + OTHERS)

    def are_short(self, newest: int) -> bool:
        """Whether whoever was given this number can only be told to come back."""
        return newest >= self._short


def raise_limit() -> int:
    """Allow this process as many descriptors as an administrator lets it have; returns how many that are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ValueError, OSError):
        return soft  # macOS says that there is no limit, and means another
    return hard if hard != resource.RLIM_INFINITY else 2**31
