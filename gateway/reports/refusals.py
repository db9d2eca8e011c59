"""Entries of the refusal log as JSON members."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.store import RefusalEntry

from .calls import format_tags, tags_of
from .registry import Column
from .table import utc

COLUMNS = (
    *[
        Column(name)
        for name in ("at", "id", "key", "team", "endpoint", "path", "model", "requested_model", "status", "code",
                     "param", "limit", "remote", "message", "user")
    ],
    Column("tags", format_tags),
)  # fmt: skip

IN_TABLE = tuple(Column(name) for name in ("at", "id", "key", "model", "status", "code", "message"))


def refusal_members(entry: RefusalEntry) -> dict[str, Any]:
    """An entry with the names of the reports; `at` is `time` for people, in UTC."""
    return {**entry._asdict(), "tags": tags_of(entry.tags), "at": utc(entry.time)}


def in_table(row: Mapping[str, Any]) -> dict[str, Any]:
    """The members of an entry for a table, where the model is the one that the client named."""
    return {**row, "model": row.get("requested_model") or row["model"]}
