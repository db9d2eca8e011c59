"""The refusal log: requests that the gateway refused itself, which have no usage record.

It is bounded by number and age, is written after the answer, and may miss entries under a flood: it explains single
refusals, while metrics count all of them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from gateway.records import TAG_SEPARATOR, Record

REFUSALS_KEPT = 50_000
"""The newest entries that are kept: about 20 MB."""

REFUSALS_KEPT_S = 7 * 86400.0
"""Seconds for which an entry is kept."""


class RefusalEntry(NamedTuple):
    id: str
    """The request id, as in `x-request-id`."""
    time: float
    """Unix time of the refusal in seconds."""
    key: str | None
    """None means that the request has no known key."""
    team: str | None
    endpoint: str | None
    """The format of the call; None: another path."""
    path: str
    model: str | None
    """A configured name, or `other`."""
    status: int
    code: str
    """The error's code, or its type."""
    param: str | None
    message: str
    """The message that the client received, without what looks like a key."""
    limit: str | None
    """Which limit refused the call."""
    remote: str | None
    requested_model: str | None = None
    """The name that the client sent, where `model` is another one: no model of the configuration, or an alias. Without
    what looks like a key."""
    user: str = ""
    """Whom the client named as its user."""
    tags: str = ""
    """Tags in the form of `Record.tags`."""


class StoredRefusal(NamedTuple):
    """An entry, and its position in the log: unique and opaque."""

    position: str
    entry: RefusalEntry


class PartOfAll(Protocol):
    """Which keys and teams a list is about."""

    def has(self, key: str | None, team: str | None) -> bool: ...


class RefusalQuery(NamedTuple):
    """Which entries are wanted. Fields of None do not matter."""

    key: str | None = None
    code: str | None = None
    since: float | None = None
    """The earliest time of an entry, in Unix time in seconds."""
    only: PartOfAll | None = None
    """A `ReportScope` that limits the entries to its keys and teams."""
    id: str | None = None
    team: str | None = None
    model: str | None = None
    status: tuple[int, int] | None = None
    until: float | None = None
    """The latest time of an entry, in Unix time in seconds."""
    user: str | None = None
    tag: str | None = None
    """A tag in the form `NAME=VALUE`."""

    def matches(self, entry: RefusalEntry) -> bool:
        return (
            (self.only is None or self.only.has(entry.key, entry.team))
            and self.key in (None, entry.key)
            and self.code in (None, entry.code)
            and (self.since is None or entry.time >= self.since)
            and (self.until is None or entry.time <= self.until)
            and self.id in (None, entry.id)
            and self.team in (None, entry.team)
            and self.model in (None, entry.model, entry.requested_model)
            and (self.status is None or self.status[0] <= entry.status <= self.status[1])
            and self.user in (None, entry.user)
            and (self.tag is None or self.tag in entry.tags.split(TAG_SEPARATOR))
        )


class RequestStore(Protocol):
    """Requests by their ids, and the refusal log. Every method raises `StoreUnavailable`."""

    async def add_refusals(self, entries: Sequence[RefusalEntry], now: float) -> None:
        """Append entries at the Unix time `now` (seconds), and delete those that are too old or too many."""

    async def refusals(
        self, limit: int, before: str | None = None, wanted: RefusalQuery | None = None
    ) -> list[StoredRefusal]:
        """The newest entries, newest first; `before`: those older than that position. Raises `ValueError` for what is
        no position."""

    async def find_request(self, request_id: str) -> Record | RefusalEntry | None:
        """The usage record or the refusal with this request id. Reads all records that are kept: for one look-up by a
        person, not for a loop."""


def encode_refusal(entry: RefusalEntry) -> str:
    return json.dumps(entry, separators=(",", ":"))


def decode_refusal(text: str) -> RefusalEntry:
    """The entry of a text. A newer gateway's further members are left out."""
    values: list[Any] = json.loads(text)
    return RefusalEntry(*values[: len(RefusalEntry._fields)])
