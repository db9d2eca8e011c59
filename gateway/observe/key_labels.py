"""Which keys have a label of their own in metrics: at most so many, and the same ones for every worker.

The keys of the configuration come first, in its order; what room they leave goes to other keys in the order in which
they are first used. A key keeps its label until the gateway ends, because a counter that changes its name is lost.

The workers of one gateway share a file of ids, one a line. A worker reads it when it sees a key for the first time, and
only as long as there is room: once for each key.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

OTHER = "other"
"""The label of all other keys; no key may have it as its id."""


class KeyLabels:
    """The labels of one worker's keys. `folder` is that of all workers of the gateway; None: there is one worker."""

    def __init__(self, key_ids: Iterable[str], max_keys: int, folder: Path | None) -> None:
        self._file = None if folder is None else folder / "key-labels"
        self._own: dict[str, None] = {}
        self.configure(key_ids, max_keys)

    def __call__(self, key: str) -> str:
        """The key's own id, or `other`; a call without a key has no label. Only for existing keys."""
        if key in self._own or not key:
            return key
        if len(self._own) < self._max_keys:
            self._claim([key])
        return key if key in self._own else OTHER

    def every(self) -> frozenset[str]:
        """The keys that have a label of their own, whichever worker has given it to them."""
        if len(self._own) < self._max_keys:
            self._claim([])
        return frozenset(self._own)

    def configure(self, key_ids: Iterable[str], max_keys: int) -> None:
        """At most so many from now on, these keys before others. A key with a label keeps it."""
        self._max_keys = max_keys
        self._claim(list(islice(key_ids, max_keys)))

    def _claim(self, keys: Iterable[str]) -> None:
        """Give these a label, as far as there is room."""
        if self._file is None:
            self._own.update(dict.fromkeys(islice(keys, max(0, self._max_keys - len(self._own)))))
            return
        try:
            with self._file.open("a+") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                file.seek(0)
                known = dict.fromkeys(file.read().split())
                wanted = [key for key in keys if key not in known]
                new = wanted[: max(0, self._max_keys - len(known))]
                file.write("".join([f"{key}\n" for key in new]))
        except OSError:
            return  # the gateway is at its end, or its disk is: what has no label is counted with the others
        self._own = dict.fromkeys([*known, *new])
