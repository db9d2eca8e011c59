"""File descriptors: the process's limit, and what happens near it.

A process without free descriptors cannot accept a connection, not even to refuse it. So a part of them is reserved: new
clients are refused while they can still be answered, and calls can open upstream connections, store and journal.
"""

from __future__ import annotations

import resource

OTHERS = 64
"""Store, journal, logs, the control line, the event loop's own."""


class FdLimit:
    """Estimates the number of open descriptors from the newest one: the kernel assigns the lowest free number."""

    def __init__(self, limit: int, connections: int) -> None:
        """`connections`: how many a process may open by itself, to upstreams."""
        self._short = limit - min(limit // 4, connections + OTHERS)

    def are_short(self, newest: int) -> bool:
        """Whether a connection with this descriptor has to be refused."""
        return newest >= self._short


def raise_limit() -> int:
    """Raise this process's limit to the administrator's hard limit; returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ValueError, OSError):
        return soft  # macOS reports no limit, and has another one
    return hard if hard != resource.RLIM_INFINITY else 2**31
