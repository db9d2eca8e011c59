"""A reader takes an answer object by object: the facts that the ledger needs, and the events that a translation needs.

There is one reader for each format of answers, and nothing else reads their JSON. A whole answer is read as a stream of
one object. Passed on unchanged, a stream needs the facts alone, and of most of its events not even these: the scan
(`event_scan.py`) hands an event to the reader only if its bytes can hold a fact.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, ClassVar

from gateway.records import Usage

from .events import Event
from .member_reader import Path


class AnswerReader:
    """Follows one answer."""

    WANTED: ClassVar[Collection[Path]] = ()
    """The members with facts, for events that are too long to be parsed (`member_reader.py`)."""

    def __init__(self) -> None:
        self.model: str | None = None
        self.error: dict[str, Any] | None = None
        """The error object of an error in place of an answer, or behind it."""
        self.counts_output = True
        """Whether the newest report counts the output."""

    def facts(self, value: Mapping[str, Any]) -> Usage | None:
        """Take the facts of one object; return the usage so far if this is a report of it."""
        raise NotImplementedError

    def events(self, value: Mapping[str, Any]) -> list[Event]:
        """The events in one object. Raises `Unfit` for an answer that no other format can express."""
        raise NotImplementedError

    def rest(self) -> list[Event]:
        """At the end of the answer: events that were held back. Raises `Unfit` if something is missing."""
        return []

    def take_model(self, name: object) -> None:
        """Keep the first name of the model that is one."""
        if self.model is None and isinstance(name, str) and name:
            self.model = name

    def take_error(self, error: Any) -> None:
        """Keep an error as an object."""
        self.error = error if isinstance(error, dict) else {"message": error}


def objects(value: Any) -> list[dict[str, Any]]:
    """The objects in a list; nothing if it is none."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def value_at(value: Any, path: Iterable[str]) -> Any:
    """The member of an object at a path of names; None if it is not there."""
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def text_of(value: Any) -> str:
    """A text; empty if it is none."""
    return value if isinstance(value, str) else ""
