"""Usage and calls out of Redis: in portions, so that neither Redis nor our event loop stands still for a report."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from json.encoder import encode_basestring_ascii as quote
from typing import Any

from gateway.rules import entries

from . import TOLD_GROUPS
from .redis_link import Link, Script
from .reports import Sums, call_row, storable, told_name, usage_row, usage_rows

ABOUT = "?"
"""A field that is no group, but a line for people."""

BETWEEN = "\x1e"
SCAN = Script.read("scan.lua")

DAYS_AT_ONCE = 16
GROUPS_AT_ONCE = 500
"""What one portion holds, more or less; half a millisecond of Redis."""

BREATHE_EVERY = 100
"""Groups after which other threads get their turn; half a millisecond of ours."""

BREATH_S = 0.0005

CALLS_AT_ONCE = 200


async def usage(
    link: Link, base: str, group_by: Sequence[str], since: str | None, until: str | None, limit: int | None
) -> list[dict[str, Any]]:
    """The usage report. Raises `StoreAway`."""
    (days,) = await link.ask(("ZRANGE", f"{base}days", 0, -1))
    wanted = sorted(day for day in days if len(day) == len("2026-11-20") and (since or "") <= day <= (until or "9999"))
    found: list[tuple[str, str]] = []
    for first in range(0, len(wanted), DAYS_AT_ONCE):
        async for portion in _portions(link, base, wanted[first : first + DAYS_AT_ONCE]):
            found += portion
    # In a thread, because the sums of a large report take longer than a stream may stand still.
    return await asyncio.to_thread(lambda: usage_rows(_sums(found), group_by, limit))


async def _portions(link: Link, base: str, days: Sequence[str]) -> AsyncIterator[list[tuple[str, str]]]:
    """Days, and some of what stands there, as it is kept."""
    cursors = dict.fromkeys(days, "0")
    is_large = False
    while cursors:
        asked = list(cursors)[: 1 if is_large else DAYS_AT_ONCE]
        at_once = str(GROUPS_AT_ONCE // len(asked))
        told = await link.run(SCAN, [f"{base}sums:{day}" for day in asked], [at_once, *(cursors[day] for day in asked)])
        for day, cursor in zip(asked, told[::2], strict=True):
            if cursor == "0":
                del cursors[day]
            else:
                cursors[day] = cursor
                is_large = True
        yield list(zip(asked, told[1::2], strict=True))


def _sums(portions: Iterable[tuple[str, str]]) -> Iterator[Sums]:
    """Of a large report this is the long part, and it must not hold the interpreter: calls are under way."""
    seen: dict[str, set[str]] = {}  # a scan may tell a thing twice
    for day, text in portions:
        parts, known = text.split(BETWEEN), seen.setdefault(day, set())
        for group, numbers in zip(parts[::2], parts[1::2], strict=False):
            if group == ABOUT or group in known:
                continue
            known.add(group)
            if len(known) % BREATHE_EVERY == 0:
                time.sleep(BREATH_S)
            yield (day, *group.split(entries.SEPARATOR)), [int(number) for number in numbers.split()]


async def calls(link: Link, base: str, limit: int, key: str | None) -> list[Mapping[str, Any]]:
    """The newest records, newest first. Raises `StoreAway`.

    Of several records of one call the newest counts: apply_writing.lua says how there can be another.
    """
    rows: list[Mapping[str, Any]] = []
    told: set[str] = set()
    newest, mark = "+", "" if key is None else quote(key)
    while len(rows) < limit:
        # Of a key that calls rarely there may be few among many: more at once, of which most are not looked into.
        count = min(CALLS_AT_ONCE, limit - len(rows)) if key is None else CALLS_AT_ONCE
        (found,) = await link.ask(("XREVRANGE", f"{base}records", newest, "-", "COUNT", count))
        for _, (_, text) in found:
            if mark in text:
                record = entries.decode_record(text)
                if record.id not in told and (key is None or record.key == key):
                    told.add(record.id)
                    rows.append(call_row(record))
        if len(found) < count:
            break
        newest = f"({found[-1][0]}"
    return rows[:limit]


async def told_models(link: Link, base: str, since: str, until: str) -> list[dict[str, Any]]:
    """Rows by `TOLD_GROUPS`, in their order. Raises `StoreAway`."""
    sums: dict[tuple[str, ...], list[int]] = {}
    known: set[str] = set()
    newest = "+"
    # All of them: a record stands where its call ended, or was delivered, which may be long after its day.
    while True:
        (found,) = await link.ask(("XREVRANGE", f"{base}records", newest, "-", "COUNT", CALLS_AT_ONCE))
        for _, (_, text) in found:
            record = storable(entries.decode_record(text))
            day, _, _, model, upstream, _ = entries.group_of(record)
            if since <= day <= until and record.id not in known:
                known.add(record.id)
                group, numbers = (day, model, upstream, told_name(record)), entries.sums_of(record)
                sums[group] = [a + b for a, b in zip(sums.get(group, [0] * len(numbers)), numbers, strict=True)]
        if len(found) < CALLS_AT_ONCE:
            return [usage_row(TOLD_GROUPS, group, numbers) for group, numbers in sorted(sums.items())]
        newest = f"({found[-1][0]}"
