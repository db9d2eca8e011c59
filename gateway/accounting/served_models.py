"""Which model names may be groups of the daily sums: the configured ones, and those that an upstream has served.

Under a pattern a client may request any name, and groups, which are kept for years, must not be invented by clients. So
a name becomes a group when an upstream has answered a call for it with 200; calls before that count as `other`, but
their records have the name. Some upstreams accept every name: hence the limit of names.
"""

from __future__ import annotations

from collections.abc import Iterable

from gateway.config import is_plain_name
from gateway.records import OTHER

MAX_SERVED = 2000
"""Maximum number of names per worker; five times the catalogue of a large reseller."""


class ServedModels:
    """The names under patterns that this worker has seen served."""

    def __init__(self, names: Iterable[str] = (), most: int = MAX_SERVED) -> None:
        self._names = set(names)
        self._most = most

    def group(self, name: str) -> str:
        """The name of the group of calls for this name, which only a pattern serves."""
        return name if name in self._names else OTHER

    def note(self, name: str) -> str:
        """An upstream has served this name. Returns the name of the group."""
        if name not in self._names and len(self._names) < self._most and is_plain_name(name):
            self._names.add(name)
        return self.group(name)
