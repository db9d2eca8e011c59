"""Room in one worker that the calls of all keys share: bytes, places, records that wait."""

from __future__ import annotations


def most_of_key(most: int, largest: int = 1) -> int:
    """The limit of one key in a room of this size: half of it, so that others have the other half, but at least
    `largest`, the largest single amount."""
    return min(most, max(most // 2, largest))
