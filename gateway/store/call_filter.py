"""Which usage records a list of calls shows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from json.encoder import encode_basestring_ascii as quote
from typing import NamedTuple

from gateway.records import TAG_SEPARATOR, Record


class CallFilter(NamedTuple):
    """Which records are wanted. Fields of None do not matter."""

    id: str | None = None
    team: str | None = None
    model: str | None = None
    """The name that the client requested, or the name in the sums."""
    upstream: str | None = None
    status: tuple[int, int] | None = None
    ended: str | None = None
    since: float | None = None
    """Unix time in seconds, at which a call was accepted."""
    until: float | None = None
    user: str | None = None
    tag: str | None = None
    """A tag in the form `NAME=VALUE`."""
    failed_at: str | None = None
    """An upstream at which an attempt failed."""

    def matches(self, record: Record) -> bool:
        lowest, highest = self.status or (0, 999)
        return (
            self.id in (None, record.id)
            and self.team in (None, record.team)
            and self.model in (None, record.model, record.label_model)
            and self.upstream in (None, record.upstream)
            and lowest <= record.status <= highest
            and self.ended in (None, record.ended)
            and (self.since is None or record.time >= self.since)
            and (self.until is None or record.time <= self.until)
            and self.user in (None, record.user)
            and (self.tag is None or self.tag in record.tags.split(TAG_SEPARATOR))
            and (self.failed_at is None or f" {self.failed_at}:" in f" {record.failed}")
        )

    @property
    def texts(self) -> list[str]:
        """Texts that occur in every wanted record as its ledger entry has it."""
        texts = (self.id, self.team, self.model, self.upstream, self.ended, self.user)
        lowest, highest = self.status or (0, 999)
        statuses = [f",{lowest},"] if lowest == highest else []
        return [
            *[quote(text) for text in texts if text is not None],
            *statuses,
            *([quote(self.tag)[1:-1]] if self.tag else []),
            *([quote(self.failed_at)[1:-1]] if self.failed_at else []),
        ]

    @property
    def conditions(self) -> Mapping[str, tuple[str | float, ...]]:
        """The same in SQL: conditions, and their arguments."""
        wanted: dict[str, tuple[str | float, ...] | None] = {
            "id = ?": _one(self.id),
            "team = ?": _one(self.team),
            "(model = ? OR label_model = ?)": None if self.model is None else (self.model, self.model),
            "upstream = ?": _one(self.upstream),
            "status BETWEEN ? AND ?": self.status,
            "ended = ?": _one(self.ended),
            "time >= ?": _one(self.since),
            "time <= ?": _one(self.until),
            "user = ?": _one(self.user),
            "instr(char(31) || tags || char(31), char(31) || ? || char(31)) > 0": _one(self.tag),
            "instr(' ' || failed, ' ' || ? || ':') > 0": _one(self.failed_at),
        }
        return {condition: values for condition, values in wanted.items() if values is not None}


def _one(value: str | float | None) -> tuple[str | float] | None:
    return None if value is None else (value,)


def read_tag(text: str) -> str:
    """A tag as `NAME:VALUE`, in the form of a record. Raises `ValueError`."""
    name, colon, value = text.partition(":")
    if not (name and colon and value):
        raise ValueError(f"{text!r} is not a tag such as project:atlas")
    return f"{name}={value}"


def read_status(text: str) -> tuple[int, int]:
    """A status such as 429, or a class of them such as 5xx. Raises `ValueError`."""
    if re.fullmatch(r"[1-5]xx", text):
        return int(text[0]) * 100, int(text[0]) * 100 + 99
    if re.fullmatch(r"[0-9]{1,3}", text):
        return int(text), int(text)
    raise ValueError(f"{text!r} is not a status such as 429 or 5xx")
