"""How much output the calls of a key for a model had lately: that is what the next one draws on rates.

Most calls use a small part of their output limit: chats a tenth, coding agents a thirtieth. The figure only divides
what a call uses into a part that is drawn when it begins and one that is charged when it ends. So a worker keeps it for
itself, and it may be forgotten.
"""

from __future__ import annotations

from gateway.records import Key

MAX_KNOWN = 20_000
"""Pairs of a key and a model whose output is remembered, 300 bytes each; the one that is known longest goes first."""

LEAST_PART = 32
"""A call draws at least this part of its output limit, so that calls that suddenly use all of it exceed a limit that
they draw at once by this factor at most."""

UP = 0.25
"""How much of the difference a call with more output than expected adds."""

DOWN = 1 / 16
"""The same of one with less. Small beside `UP`, so that long answers among short ones are expected for a while."""


class RecentOutput:
    """The averages that this worker has seen. Not stored."""

    def __init__(self, most: int = MAX_KNOWN) -> None:
        self._most = most
        self._known: dict[tuple[str, str], float] = {}

    def expected(self, key: Key, model: str, limit: int) -> int:
        """The output tokens of one candidate that a call with this limit draws: all of it where nothing is known."""
        known = self._known.get((key.id, model))
        return limit if known is None else min(limit, max(-(-limit // LEAST_PART), round(known)))

    def note(self, key: Key, model: str, tokens: float) -> None:
        """A candidate of a call had this output."""
        name = (key.id, model)
        known = self._known.get(name)
        if known is None:
            if len(self._known) >= self._most:
                del self._known[next(iter(self._known))]
            self._known[name] = tokens
        else:
            self._known[name] = known + (tokens - known) * (UP if tokens > known else DOWN)
