"""Where our translations differ from another gateway's or server's, and why: rows of a table that name such places.

A place is a line: `FORMAT SIDE PATH` of a body, or of a stream `FORMAT KIND PATH` in an event that both have,
`FORMAT +KIND` where only ours has an event, and `FORMAT -KIND` where only the other has one. Numbers of list entries
are left out.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

NO_MATTER = re.compile(r".*\.(id|item_id|phase|caller|namespace)")
"""Ids are made up by each; the others are null in both."""
TEXTS = ("delta", "text", "thinking", "partial_json")


class Row(NamedTuple):
    """Places of one kind."""

    where: str
    """A pattern of the line."""
    why: str


def unexplained(rows: Iterable[Row], lines: Iterable[str]) -> list[str]:
    """The lines without a row."""
    return [line for line in lines if not any(re.fullmatch(row.where, line) for row in rows)]


def unused(rows: Iterable[Row], lines: Iterable[str]) -> list[str]:
    """The patterns of the rows without a line."""
    every = set(lines)
    return [row.where for row in rows if not any(re.fullmatch(row.where, line) for line in every)]


def places(ours: Any, others: Any, path: str = "") -> Iterator[str]:
    """Where two JSON values differ. A member that is null is as one that is missing."""
    if isinstance(ours, dict) and isinstance(others, dict):
        for name in sorted({**ours, **others}):
            yield from places(ours.get(name), others.get(name), f"{path}.{name}")
    elif isinstance(ours, list) and isinstance(others, list) and len(ours) == len(others):
        for one, other in zip(ours, others, strict=True):
            yield from places(one, other, f"{path}[]")
    elif ours != others and NO_MATTER.fullmatch(path) is None:
        yield path


def stream_places(way: str, ours: list[dict[str, Any]], others: list[dict[str, Any]]) -> Iterator[str]:
    """Where two streams differ, deltas that follow each other as one."""
    one, other = _joined(ours), _joined(others)
    kinds = [_kind_of(event) for event in one], [_kind_of(event) for event in other]
    for what, start, end, from_, to in difflib.SequenceMatcher(None, *kinds, autojunk=False).get_opcodes():
        if what == "equal":
            for mine, yours in zip(one[start:end], other[from_:to], strict=True):
                yield from (f"{way} {_kind_of(mine)} {path}" for path in places(mine, yours))
        else:
            yield from (f"{way} +{kind}" for kind in kinds[0][start:end])
            yield from (f"{way} -{kind}" for kind in kinds[1][from_:to])


def _joined(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The events, deltas of one thing that follow each other as one; without pings and numbers."""
    found: list[dict[str, Any]] = []
    for event in events:
        if event["type"] == "ping":
            continue
        if event["type"].endswith("delta") and found and _is_same_delta(found[-1], event):
            found[-1] = _with_more(found[-1], event)
        else:
            found.append({name: value for name, value in event.items() if name != "sequence_number"})
    return found


def _is_same_delta(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two deltas add to the same text."""
    names = ("type", "index", "output_index", "content_index")
    kinds = [each["delta"].get("type") if isinstance(each.get("delta"), dict) else "" for each in (one, other)]
    return kinds[0] == kinds[1] and all(one.get(name) == other.get(name) for name in names)


def _with_more(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Both as one delta."""
    if isinstance(one["delta"], str):
        return one | {"delta": one["delta"] + other["delta"]}
    more = {name: one["delta"][name] + value for name, value in other["delta"].items() if name in TEXTS}
    return one | {"delta": one["delta"] | more}


def _kind_of(event: dict[str, Any]) -> str:
    """Its type; of blocks and items also theirs."""
    inner = event.get("item") or event.get("part") or event.get("content_block") or event.get("delta")
    return f"{event['type']}:{inner['type']}" if isinstance(inner, dict) and "type" in inner else event["type"]
