"""Single calls, by the ids that a provider has for its generations: the recorded cost of a call beside that of its
generation. Pure.

Each worker notes the ids of its largest calls, by day and model, and posts them. The worker that reads the bills asks
for those of days and models that differ (`singles.py`).
"""

from __future__ import annotations

import heapq
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import NamedTuple

from gateway.records import Record

from .compare import Name, RecordedUsage

MOST_CALLS = 50
"""The calls of one day and model that a worker keeps: the largest ones."""
MOST_MODELS = 40
"""The models of one day that a worker keeps calls of."""
_ID = re.compile(r"[\w.:-]{1,100}")


class NotedCall(NamedTuple):
    """A call as the gateway has recorded it, with the provider's id for what it generated."""

    id: str
    time: float
    model: str
    """The provider's name, as in its bill."""
    cost_nusd: int | None
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    is_estimated: bool
    is_error: bool

    @property
    def size(self) -> tuple[int, int]:
        """The order of calls: by cost, and those of unknown cost first."""
        return 10**18 if self.cost_nusd is None else self.cost_nusd, self.prompt_tokens + self.completion_tokens

    @property
    def day(self) -> str:
        return datetime.fromtimestamp(self.time, UTC).date().isoformat()


class GenerationCost(NamedTuple):
    """A call as its provider states it."""

    nusd: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    provider: str = ""
    """The name of the server of the model."""
    is_cancelled: bool = False
    upstream_nusd: int | None = None
    """The cost for the customer's own key at that server, which is on no bill of this provider."""


class ReadCall(NamedTuple):
    """Both sides of one call."""

    noted: NotedCall
    generation: GenerationCost


def call_of(generation: str | None, record: Record) -> NotedCall | None:
    """The call of a record; None: what it cost is not that of one generation."""
    if generation is None or _ID.fullmatch(generation) is None or record.attempts != 1 or record.ended == "lost":
        return None
    usage = record.usage
    return NotedCall(
        generation, record.time, record.returned_model or record.routed_model, record.cost_nusd, usage.prompt_tokens,
        usage.cached_tokens, usage.completion_tokens, usage.source == "estimated", record.ended == "error",
    )  # fmt: skip


class NotedCalls:
    """The largest calls of one upstream and day."""

    def __init__(self) -> None:
        self._by_model: dict[str, list[tuple[tuple[int, int], str, NotedCall]]] = {}

    def add(self, call: NotedCall) -> None:
        kept = self._by_model.get(call.model)
        if kept is None:
            if len(self._by_model) >= MOST_MODELS:
                return
            kept = self._by_model[call.model] = []
        entry = call.size, call.id, call
        if len(kept) < MOST_CALLS:
            heapq.heappush(kept, entry)
        else:
            heapq.heappushpop(kept, entry)

    def written(self) -> str:
        """All of them as a text of one line."""
        return json.dumps([entry[2] for kept in self._by_model.values() for entry in kept], separators=(",", ":"))


class GenerationNotes:
    """The calls that one worker has noted, over all configurations, by upstream and day."""

    def __init__(self) -> None:
        self._noted: defaultdict[tuple[str, str], NotedCalls] = defaultdict(NotedCalls)
        self._changed: set[tuple[str, str]] = set()

    def note(self, generation: str | None, record: Record) -> None:
        """A call has ended with this record."""
        if (call := call_of(generation, record)) is not None:
            self._noted[record.upstream, call.day].add(call)
            self._changed.add((record.upstream, call.day))

    def changed(self, today: str) -> Iterator[tuple[str, str, str]]:
        """Upstream, day and text of what was noted since the last time. Days before yesterday are forgotten, for no
        call of theirs goes on."""
        names, self._changed = self._changed, set()
        for upstream, day in sorted(names):
            yield upstream, day, self._noted[upstream, day].written()
        newest = sorted({day for _, day in self._noted if day <= today})[-2:]
        for name in [each for each in self._noted if each[1] not in newest and each[1] < today]:
            del self._noted[name]

    def again(self, upstream: str, day: str) -> None:
        """The calls of this day could not be posted."""
        if (upstream, day) in self._noted:
            self._changed.add((upstream, day))


def calls_in(text: str) -> list[NotedCall]:
    """The calls that `NotedCalls.written` wrote; none of a text of another version."""
    try:
        return [NotedCall(*fields) for fields in json.loads(text)] if text else []
    except (TypeError, ValueError):
        return []


def corrections(read: Iterable[ReadCall]) -> Mapping[Name, RecordedUsage]:
    """The usage that the records of each day and model would have more, had each of these calls been recorded as its
    provider states it. Numbers may be negative."""
    found: defaultdict[Name, RecordedUsage] = defaultdict(RecordedUsage)
    for noted, generation in read:
        found[noted.day, noted.model] = found[noted.day, noted.model].plus(
            RecordedUsage(
                errors=-int(noted.is_error),
                prompt_tokens=generation.prompt_tokens - noted.prompt_tokens,
                completion_tokens=generation.completion_tokens - noted.completion_tokens,
                cached_tokens=generation.cached_tokens - noted.cached_tokens,
                estimated_tokens=-(noted.prompt_tokens + noted.completion_tokens) if noted.is_estimated else 0,
                cost_nusd=generation.nusd - (noted.cost_nusd or 0),
                unpriced=-int(noted.cost_nusd is None),
            )
        )
    return found
