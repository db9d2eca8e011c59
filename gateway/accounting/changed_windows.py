"""The windows that the calls of one worker changed since the alert watcher last looked.

They are noted after the store applied the batch, so that the watcher finds the change there. The cost per call is
small: whether an alert is due is decided later, off the call's path (gateway/wings/alerts).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from gateway.records import Claim, Granted, Refused, Window
from gateway.store import Settle

from .send_queue import End


class ChangedWindows:
    """The calendar windows that were charged, or refused a call for good. Private to one worker.

    Its size is bounded by the number of windows, and by the number of calls between two looks of the watcher.
    """

    def __init__(self, *, is_watched: bool = True) -> None:
        self.is_watched = is_watched
        """Whether there is a watcher. Without one nothing is noted, because nothing would remove it."""
        self._charged: dict[tuple[str, str], tuple[Claim, ...]] = {}
        """The windows of the last call, by key and model: all calls of both draw on the same windows, except those of a
        new day."""
        self._windows: dict[str, Window] = {}
        self._refused: set[str] = set()
        """Ids of windows that refused a call for good, because their settled use leaves too little for it."""

    def note(self, ends: Iterable[End], verdicts: Iterable[Granted | Refused | None]) -> None:
        if not self.is_watched:
            return
        charged = self._charged
        for end in ends:
            if isinstance(end, Settle):
                charged[end.record.key, end.record.model] = end.claims
        for verdict in verdicts:
            if isinstance(verdict, Refused) and verdict.retry_after_us is None:
                window = verdict.window_status.window
                self.put_back([window], [window.id])

    def gather(self, most: int) -> bool:
        """Prepare the windows of at most this many keys and models for `take`; returns whether there are more."""
        charged, windows = self._charged, self._windows
        for place in list(islice(charged, most)):
            windows.update({window.id: window for window, _ in charged.pop(place) if window.starts})
        return bool(charged)

    def take(self, most: int) -> tuple[list[Window], set[str]]:
        """Remove and return at most this many windows, the oldest first, and which of them have refused a call."""
        # All entries: otherwise those of invented model names could accumulate.
        self.gather(len(self._charged))
        windows = self._windows
        taken = [windows.pop(name) for name in list(islice(windows, most))]
        refused = {window.id for window in taken if window.id in self._refused}
        self._refused -= refused
        return taken, refused

    def put_back(self, windows: Sequence[Window], refused: Iterable[str]) -> None:
        for window in windows:
            self._windows.setdefault(window.id, window)
        self._refused.update(refused)
