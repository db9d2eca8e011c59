"""The capacity of one worker: its share of the whole gateway's concurrent calls, buffered bytes and stored bytes.

Requests beyond it are refused at once, not queued. Private to a worker; unused capacity is not shared with other
workers.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gateway.config import ServerSettings, UploadSettings
from gateway.errors import Unavailable
from gateway.keys.room import most_of_key


class Room:
    """Room for bytes, which keys take and give back. Bytes are counted when they are there, not when they are
    announced."""

    def __init__(self) -> None:
        self.held = 0
        """Bytes, or whatever is counted."""
        self._by_key: dict[str, int] = {}
        self._most = self._most_of_key = 0
        self._shared = 0
        """Those that count for other keys: of each key at most its share, so that its answers leave them theirs."""
        self._read_on: dict[str, str] = {}
        """The one call of each key beyond its share whose answer is read on."""
        self._waiting: dict[str, list[weakref.WeakMethod[Callable[[], None]]]] = {}

    def resize(self, most: int, largest: int) -> None:
        """Replace the limits (`most_of_key`). Held bytes stay counted."""
        self._most = max(most, largest)
        self._most_of_key = most_of_key(self._most, largest)
        self._shared = sum([min(size, self._most_of_key) for size in self._by_key.values()])

    def __repr__(self) -> str:
        return f"<Room {self.held} of {self._most} bytes, {self._most_of_key} for one key>"

    def hold(self, size: int, key: str) -> bool:
        """Hold these bytes if there is room, and return whether there was; `release` gives them back."""
        of_key = self._by_key.get(key, 0) + size
        if of_key > self._most_of_key or self._shared + size > self._most:
            return False
        self.held += size
        self._shared += size
        self._by_key[key] = of_key
        return True

    def hold_unchecked(self, size: int, key: str) -> None:
        """Holds room for an answer without a check of the limit, because the answer is paid for and is not refused.
        Requests are refused until there is room again."""
        self._set(key, self._by_key.get(key, 0) + size)

    def hold_answer(self, size: int, key: str, call: str, proceed: Callable[[], None]) -> bool:
        """Holds room for a part of an answer, as `hold_unchecked` does. Returns whether it may be read on: beyond its
        share a key has one answer read on until its client has it, while its others wait for `proceed`, a method."""
        of_key = self._by_key.get(key, 0) + size
        if of_key <= self._most_of_key:  # as nearly always, without another function
            self.held += size
            self._shared += size
            self._by_key[key] = of_key
            return True
        self._set(key, of_key)
        if self._read_on.setdefault(key, call) == call:
            return True
        self._waiting.setdefault(key, []).append(weakref.WeakMethod(proceed))
        return False

    def release(self, size: int, key: str, call: str = "") -> None:
        """Gives back bytes; `call` is the one whose whole answer they are."""
        of_key = self._by_key.get(key, 0)
        if of_key > self._most_of_key:
            self._set(key, of_key - size)
        else:
            self.held -= size
            self._shared -= size
            self._by_key[key] = of_key - size
        if of_key == size:
            del self._by_key[key]
        if key not in self._read_on:
            return
        if call == self._read_on[key] or of_key - size <= self._most_of_key:
            del self._read_on[key]
            for each in self._waiting.pop(key, ()):
                if (proceed := each()) is not None:
                    proceed()

    def _set(self, key: str, size: int) -> None:
        before = self._by_key.get(key, 0)
        self._by_key[key] = size
        self.held += size - before
        self._shared += min(size, self._most_of_key) - min(before, self._most_of_key)


class Capacity:
    """How many calls may be under way; `memory` has the bytes of request bodies and of answers that are not streamed,
    `disk` those of forms in temporary files, `uncounted` the requests that hold a place of a call and draw on no limit
    of their key, or not yet: those whose body is still coming, and reads of what is kept."""

    def __init__(self, server: ServerSettings, uploads: UploadSettings) -> None:
        self.memory = Room()
        self.disk = Room()
        self.uncounted = Room()
        self.resize(server, uploads)

    def resize(self, server: ServerSettings, uploads: UploadSettings) -> None:
        """Replace the limits. Held bytes stay counted."""
        self.max_calls = server.max_in_flight // server.workers
        self.uncounted.resize(self.max_calls, (self.max_calls + 1) // 2)
        self.memory.resize(server.max_buffered_bytes // server.workers, server.max_request_bytes)
        # A batch's file is stored as it came and as it is sent.
        most = max(uploads.max_stored_bytes // server.workers, uploads.max_bytes)
        self.disk.resize(most, min(most, 2 * uploads.max_bytes))

    def __repr__(self) -> str:
        return f"<Capacity at most {self.max_calls} calls, memory {self.memory}, disk {self.disk}>"

    def refuse_when_full(self, calls: int) -> None:
        """Raises `Unavailable` if the calls under way are as many as the limit."""
        if calls >= self.max_calls:
            raise _too_many_calls()

    def take_place(self, key: str) -> None:
        """Count a request of this key among `uncounted`. Raises `Unavailable` if the key has half of all calls with
        such requests."""
        if not self.uncounted.hold(1, key):
            raise _too_many_calls()

    @contextmanager
    def wait_for_body(self, key: str, *, has_place: bool) -> Iterator[None]:
        """Count a request of this key while its body comes, unless it has a place. Raises as `take_place`."""
        if has_place:
            yield
            return
        self.take_place(key)
        try:
            yield
        finally:
            self.uncounted.release(1, key)


def _too_many_calls() -> Unavailable:
    return Unavailable("The gateway has too many calls under way. Please try again.", code="too_many_calls")


def buffers_full() -> Unavailable:
    """There is no room for bytes in memory."""
    return Unavailable("The gateway holds too much data right now. Please try again.", code="buffers_full")
