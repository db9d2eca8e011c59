"""A reader takes an answer object by object: the facts that the ledger needs, and the events that a translation needs.

There is one reader for each format of answers, and nothing else reads their JSON. A whole answer is read as a stream of
one object. Passed on unchanged, a stream needs the facts alone, and of most of its events not even these: the scan
(`event_scan.py`) hands an event to the reader only if its bytes can hold a fact.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, ClassVar

from gateway.records import Usage

from .events import Event
from .member_reader import Path


class AnswerReader:
    WANTED: ClassVar[Collection[Path]] = ()
    """The members with facts, for events that are too long to be parsed (`member_reader.py`)."""

    model: str | None = None
    error: dict[str, Any] | None = None
    """The error object of an error in place of an answer, or behind it."""
    texts: Collection[bytes] = ()
    """The texts of an answer that the object with its end repeats, as in JSON."""
    counts_output = True
    """Whether the newest report counts the output."""
    has_compacted = False
    """Whether the model has read the prompt once more beforehand, to shorten it."""
    _named: Usage = Usage()

    def facts(self, value: Mapping[str, Any]) -> Usage | None:
        """Take the facts of one object; return the usage so far if this is a report of it."""
        raise NotImplementedError

    def named(self) -> Usage:
        """The units, the service and the prompts of searches that the answer has named so far beside its reports."""
        return self._named

    def events(self, value: Mapping[str, Any]) -> list[Event]:
        """The events in one object. Raises `Unfit` for an answer that no other format can express."""
        raise NotImplementedError

    def rest(self) -> list[Event]:
        """Returns the events that were held back until the end of the answer. Raises `Unfit` if something is
        missing."""
        return []

    def take_model(self, name: object) -> None:
        """Keep the first name of the model that is one."""
        if self.model is None and isinstance(name, str) and name:
            self.model = name

    def take_error(self, error: Any) -> None:
        self.error = error if isinstance(error, dict) else {"message": error}


MOST_KEPT = 10_000
"""Tools, searches or choices of one answer that a reader distinguishes."""


def keep(known: set[int], names: Iterable[str | int]) -> None:
    """Remember numbers, and texts by their hashes, no more than `MOST_KEPT` of them: a stream and a text in it may be
    of any length."""
    for name in names:
        if len(known) >= MOST_KEPT:
            return
        known.add(hash(name) if isinstance(name, str) else name)


def objects(value: Any) -> list[dict[str, Any]]:
    """The objects in a list; nothing if it is none."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def objects_of(value: Any) -> list[dict[str, Any]]:
    """The objects in a list, or the one object."""
    return [value] if isinstance(value, dict) else objects(value)


def value_at(value: Any, path: Iterable[str]) -> Any:
    """The member of an object at a path of names; None if it is not there."""
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def values_of(value: Any) -> Iterator[str]:
    """Every name and text of a JSON value; numbers count as their digits."""
    pending = [value]
    while pending:
        each = pending.pop()
        if isinstance(each, dict):
            yield from each
            pending += each.values()
        elif isinstance(each, list):
            pending += each
        elif each is not None:
            yield each if isinstance(each, str) else repr(each)


HAS_ERROR = re.compile(rb'(?<!\\)"error"\s*:\s*(?!\s|null|""|\{\})')
ERRORS = frozenset({"error"})
"""Members with an error: also of an item of a good answer (openai-python, `types/responses/response_output_item.py`:
`McpCall`, `McpListTools`, `ImageGenerationCall`)."""


def text_of(value: Any) -> str:
    return value if isinstance(value, str) else ""


def as_arguments(value: Any) -> str:
    """The arguments of a call as a text: some upstreams write them as an object."""
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
