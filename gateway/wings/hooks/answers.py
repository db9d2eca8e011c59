"""The answers of calls under way, for hooks that get their text: bytes that are copied as they come, within bounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from gateway.accounting.call_log import CallLog
from gateway.keys.room import most_of_key
from gateway.observe.metrics import Telemetry
from gateway.observe.tracing import HEDGED
from gateway.records import Claim, Endpoint, Record
from gateway.relay.attempt import Attempt

from .reading import READS, texts_of

MOST_BYTES = 2**20
"""Bytes of one call's answers, as upstreams send them, of which the text is read."""
HELD_BYTES = 64 * 2**20
"""Bytes of all answers that one hook holds in a worker: of calls under way, and of those that wait."""


class HeldBytes:
    """The room for answers that a hook has in a worker, in bytes. Those of one key leave half of it to the others."""

    def __init__(self, most: int = HELD_BYTES) -> None:
        self.left = most
        self._most_of_key = most_of_key(most, MOST_BYTES)
        self._of_key = Counter[str]()

    def left_of(self, key: str) -> int:
        return min(self.left, self._most_of_key - self._of_key[key])

    def hold(self, key: str, size: int) -> None:
        """Hold `size` more bytes of this key's answers; negative: fewer."""
        self.left -= size
        self._of_key[key] += size
        if not self._of_key[key]:
            del self._of_key[key]


class _Answer:
    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.data = bytearray()
        self.is_cut = False


class Answers:
    """The answers of one call: that of the last attempt of each of its parts. To be released."""

    def __init__(self, room: HeldBytes, key: str, most: int = MOST_BYTES) -> None:
        self._room = room
        self._key = key
        self._left = most
        self._parts: dict[CallLog, _Answer] = {}

    @property
    def size(self) -> int:
        return sum([len(each.data) for each in self._parts.values()])

    @property
    def is_cut(self) -> bool:
        """Whether there is more than these bytes."""
        return any(each.is_cut for each in self._parts.values())

    def attempted(self, draft: Attempt) -> Attempt:
        """An attempt begins: its answer takes the place of the last one's. Other formats have no text."""
        if (before := self._parts.pop(draft.log, None)) is not None:
            self._give_back(before)
        if draft.format.name not in READS:
            return draft
        answer = self._parts[draft.log] = _Answer(draft.format.name)

        def take(data: bytes) -> None:
            kept = data[: min(self._left, self._room.left_of(self._key))]
            answer.is_cut = answer.is_cut or len(kept) < len(data)
            self._left -= len(kept)
            self._room.hold(self._key, len(kept))
            answer.data.extend(kept)

        return draft._replace(readers=(*draft.readers, take))

    def texts(self) -> list[str]:
        """The text of each choice, of each part."""
        return [text for each in self._parts.values() for text in texts_of(each.endpoint, bytes(each.data))]

    def end(self) -> None:
        """The call has ended: forget the answers of parts that did not serve: they failed, or another was faster."""
        for part in [part for part in self._parts if part.is_open or part.stopped_as == HEDGED]:
            self._give_back(self._parts.pop(part))

    def release(self) -> None:
        """Forget all of them, and keep no more."""
        for part in list(self._parts):
            self._give_back(self._parts.pop(part))
        self._left = 0

    def _give_back(self, answer: _Answer) -> None:
        self._left += len(answer.data)
        self._room.hold(self._key, -len(answer.data))


Put = Callable[[Record, Telemetry, Answers | None], None]


class Listener:
    """Hears the end of one call for one hook (`Reservation.ended`)."""

    def __init__(self, put: Put, telemetry: Telemetry, answers: Answers | None) -> None:
        self._put = put
        self._telemetry = telemetry
        self.answers = answers

    def __call__(self, record: Record, _: Sequence[Claim]) -> None:
        self._put(record, self._telemetry, self.answers)
