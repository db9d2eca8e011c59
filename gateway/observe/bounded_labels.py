"""Which names have a label of their own in metrics: a limited number, the same ones for every worker. One object for
keys, one for models.

The names of the configuration come first, in its order; what room they leave goes to other names in the order in which
they are first used. A name keeps its label until the gateway ends, because a counter that changes its name is lost.

The workers of one gateway share a file of names, each a JSON text on a line of its own. A worker reads it when it sees
a name for the first time, and only as long as there is room: once for each name.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from gateway.records import OTHER


class BoundedLabels:
    """The labels of one worker. `file` is shared by all workers of the gateway; None: there is one worker."""

    def __init__(self, names: Iterable[str], most: int, file: Path | None) -> None:
        self._file = file
        self._own: dict[str, None] = {}
        self.configure(names, most)

    def __call__(self, name: str) -> str:
        """The name itself, or `other`, which no key may have as its id; no name has no label. Not for names that
        strangers invent."""
        if name in self._own or not name or name == OTHER:
            return name
        if len(self._own) < self._most:
            self._claim([name])
        return name if name in self._own else OTHER

    def every(self) -> frozenset[str]:
        """The names that have a label of their own, whichever worker has given it to them."""
        if len(self._own) < self._most:
            self._claim([])
        return frozenset(self._own)

    def configure(self, names: Iterable[str], most: int) -> None:
        """Allows at most `most` labels from now on and gives them to these names first. A name that has a label keeps
        it."""
        self._most = most
        self._claim(list(islice(names, most)))

    def _claim(self, names: Iterable[str]) -> None:
        """Give these a label, as far as there is room."""
        if self._file is None:
            self._own.update(dict.fromkeys(islice(names, max(0, self._most - len(self._own)))))
            return
        try:
            with self._file.open("a+") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                file.seek(0)
                known = dict.fromkeys(json.loads(line) for line in file)
                wanted = [name for name in names if name not in known]
                new = wanted[: max(0, self._most - len(known))]
                file.write("".join([f"{json.dumps(name)}\n" for name in new]))
        except OSError:
            return  # the gateway is at its end, or its disk is: what has no label is counted with the others
        self._own = dict.fromkeys([*known, *new])
