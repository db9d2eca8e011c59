"""The windows that the calls of one worker changed since the alert watcher last looked.

Noted after the store applied the batch, so that the watcher finds the change there. The cost per call is small: whether
an alert is due is decided later, off the call's path (gateway/alerts).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from gateway.records import Claim, Granted, Refused, Window
from gateway.store import Settle

from .send_queue import End


class ChangedWindows:
    """The calendar windows that were charged, or refused a call for good. Private to one worker.

    What is kept is bounded by the windows that there are, and by the calls between two looks.
    """

    def __init__(self) -> None:
        self._charged: dict[tuple[str, str], tuple[Claim, ...]] = {}
        """What a key's last call for a model has drawn on: of all its calls the same windows, but for a new day's."""
        self._windows: dict[str, Window] = {}
        """Windows to look at, by id."""
        self._refused: set[str] = set()
        """Ids of those on which a call was refused, because what settled usage leaves is too little for it."""

    def note(self, ends: Iterable[End], verdicts: Iterable[Granted | Refused | None]) -> None:
        """What one batch has done."""
        charged = self._charged
        for end in ends:
            if isinstance(end, Settle):
                charged[end.record.key, end.record.model] = end.claims
        for verdict in verdicts:
            if isinstance(verdict, Refused) and verdict.retry_after_us is None:
                window = verdict.standing.window
                self.put_back([window], [window.id])

    def gather(self, most: int) -> bool:
        """Make ready for `take` what at most so many keys' calls have drawn on; whether there is more."""
        charged, windows = self._charged, self._windows
        for place in list(islice(charged, most)):
            windows.update({window.id: window for window, _ in charged.pop(place) if window.starts})
        return bool(charged)

    def take(self, most: int) -> tuple[list[Window], set[str]]:
        """At most so many windows, the oldest first, and which of them have refused; they are removed here."""
        # All of them, however many models a client has made up: only so is what is kept bounded by the windows.
        self.gather(len(self._charged))
        windows = self._windows
        taken = [windows.pop(name) for name in list(islice(windows, most))]
        refused = {window.id for window in taken if window.id in self._refused}
        self._refused -= refused
        return taken, refused

    def put_back(self, windows: Sequence[Window], refused: Iterable[str]) -> None:
        """What has still to be looked at."""
        for window in windows:
            self._windows.setdefault(window.id, window)
        self._refused.update(refused)
