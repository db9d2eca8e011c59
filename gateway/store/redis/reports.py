"""Usage and calls from Redis, in portions, so that neither Redis nor the event loop is blocked by a report."""

from __future__ import annotations

import asyncio
import re
import sys
from bisect import bisect_left
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from datetime import UTC, datetime
from json.encoder import encode_basestring_ascii as quote
from typing import Any, NamedTuple

from gateway.chunked import portions
from gateway.quota import ledger_entry
from gateway.store import RETURNED_MODEL_GROUPS, CallFilter, Measures, ReportScope, Where, attribution_in
from gateway.store.report_rows import (
    TAGS,
    ReportRange,
    UsageReport,
    call_row,
    keys_of,
    parts_of,
    range_of,
    reported_name,
    usage_row,
)  # fmt: skip

from .connection import RedisConnection, Script
from .daily_sums import BETWEEN, DailySumReader

CALLS_AT_ONCE = 100

PASSED_AT_ONCE = 500
"""Records that Redis looks at in one go, where it sends only those with some text: less than two milliseconds."""

CLOCKS_APART_MS = 3_600_000
"""How far the clock of a Redis may be behind those of gateways."""

SOUGHT_BEHIND = 4
"""The portions after which the sums show where older records of keys by name are, if they have not filled the page."""

SOUGHT_KEYS = 50
"""The most keys of which the sums show it."""

LATENCY = "latency-"
"""How the names of days and hours begin under which measures are kept. An older gateway deletes them when it deletes
the days of their names, and does not read them."""

DAY_S = 86_400

LEAST, MANY = 20, 100_000
"""Groups that are read at once at the least, and more than one key has."""

PERIODS_AT_ONCE = 8
"""Days or hours of measures that are read at once: of 20 models about 40 kB."""

NEWEST = Script.read("newest.lua")
JOINED = Script.read("joined.lua")


class Sought(NamedTuple):
    """Marks of wanted records, by which Redis sends few others; the reader judges those that it gets."""

    texts: Sequence[str] = ()
    until: float | None = None
    """The last Unix time at which they may have begun."""
    pattern: str = ""
    """It is written as Lua's patterns are."""
    names: Collection[str] = ()
    """Their keys or their teams are among these; empty: these do not matter."""

    @classmethod
    def of(cls, wanted: CallFilter, key: str | None = None, only: ReportScope | None = None) -> Sought:
        texts = [*([] if key is None else [quote(key)]), *wanted.texts]
        names = () if only is None else sorted({*only.teams, *[each.key for each in only.keys]})
        if len(names) == 1:  # found faster than read
            texts, names = [*texts, quote(names[0])], ()
        lowest, highest = wanted.status or (0, 0)
        if highest - lowest != 99 or lowest % 100:
            return cls(texts, wanted.until, "", names)
        beginning = f'",{lowest // 100}'  # this text is found three times as fast as the pattern
        return cls([*texts, beginning], wanted.until, beginning + "%d%d,[tf]", names)

    @property
    def arguments(self) -> list[str]:
        """The arguments of newest.lua behind the number of records."""
        until = "" if self.until is None else str(int(self.until))
        return [until, self.pattern, BETWEEN.join(map(quote, self.names)), *self.texts]


async def passed(
    link: RedisConnection, log: str, end: str, count: int, sought: Sought
) -> tuple[int, str, list[tuple[str, str]]]:
    """How many entries of a log Redis has passed from there back, at most `count`; the position of the last one; and
    the positions and texts of those with what is sought."""
    found, last, texts = await link.run(NEWEST, [log], [end, str(count), *sought.arguments])
    parted = [text.partition(" ") for text in texts.split(BETWEEN)] if texts else []
    return found, last, [(position, text) for position, _, text in parted]


async def seek(link: RedisConnection, log: str, end: str, sought: Sought, oldest_ms: int = 0) -> AsyncGenerator[str]:
    """The texts of a log from there back with what is sought, as far as entries of this time."""
    while True:
        found, last, texts = await passed(link, log, end, PASSED_AT_ONCE, sought)
        for portion in portions(texts, CALLS_AT_ONCE):
            for _, text in portion:
                yield text
            await asyncio.sleep(0)
        if found < PASSED_AT_ONCE or int(last.partition("-")[0]) < oldest_ms:
            return
        end = f"({last}"


async def days_with_sums(link: RedisConnection, base: str) -> list[str]:
    (periods,) = await lists(link, [f"{base}days"], "ZRANGE", "0", "-1")
    return sorted(filter(ReportRange(False, "", "9999").has, periods))


async def lists(link: RedisConnection, keys: Sequence[str], *command: str) -> list[list[str]]:
    """The texts that this command finds in each key."""
    texts = await link.run(JOINED, keys, command)
    return [text.split(BETWEEN) if text else [] for text in texts]


async def usage(
    link: RedisConnection, reader: DailySumReader, base: str, group_by: Sequence[str],
    since: str | None, until: str | None, at_once: int, after: Sequence[str] | None = None,
    only: ReportScope | None = None, where: Where = (),
) -> AsyncGenerator[UsageReport]:  # fmt: skip
    """Reports one after another, each read when it is asked for: together they have all rows behind `after`, and some
    before it. One by key is read by ranges of keys of about `at_once` rows."""
    (days,) = await lists(link, [f"{base}days"], "ZRANGE", "0", "-1")
    has, keys = range_of(group_by, since, until).has, sorted(keys_of(only, where))
    prefix = "" if attribution_in(group_by) is None else TAGS
    wanted = sorted(day for day in days if day.startswith(prefix) and has(day.removeprefix(prefix)))
    is_of_keys = bool(keys or "key" in group_by) and not prefix
    if not wanted or not is_of_keys or not await reader.has_index(sorted({day[:10] for day in wanted})):
        report = UsageReport(group_by, only, where)
        await reader.add(report, wanted)
        yield report
        return
    for periods, first_key, count in parts_of(group_by, wanted, after, at_once):
        months: dict[str, list[str]] = {}
        for period in periods:
            months.setdefault(f"{base}sums:groups-{period[:7]}", []).append(period)
        ranges = [(f"[{name}{ledger_entry.SEPARATOR}", f"({name} ") for name in keys]
        first: str | None = f"[{first_key}{ledger_entry.SEPARATOR}" if first_key else "-"
        report = UsageReport(group_by, only, where)
        if not keys and first_key is None:
            await reader.add(report, periods)
            yield report
            continue
        while ranges or (first is not None and not keys):
            begin, end = ranges.pop() if keys else (first, "+")
            found, first = await _groups_of(link, [*months], begin or "-", end, MANY if keys else max(count, LEAST))
            for days_of_month, groups in zip(months.values(), found, strict=True):
                await reader.add_groups(report, days_of_month, groups)
            if not ranges:
                yield report
                report = UsageReport(group_by, only, where)


async def _groups_of(
    link: RedisConnection, indexes: Sequence[str], first: str, last: str, count: int
) -> tuple[list[list[str]], str | None]:
    """About `count` groups from there on, those of each index apart, all of a key or none; and where to go on, None at
    the end."""
    while True:
        found = await lists(link, indexes, "ZRANGEBYLEX", first, last, "LIMIT", "0", str(count))
        if not (cut := [names[-1] for names in found if len(names) == count]):
            return found, None
        end = min(cut).partition(ledger_entry.SEPARATOR)[0] + ledger_entry.SEPARATOR
        whole = [names[: bisect_left(names, end)] for names in found]
        if any(whole):
            return whole, f"[{end}"
        count *= 2  # one key has more groups than that


async def measures(link: RedisConnection, base: str, range_: ReportRange, group_by: Sequence[str]) -> Measures:
    (names,) = await lists(link, [f"{base}days"], "ZRANGE", "0", "-1")
    periods = [name.removeprefix(LATENCY) for name in names if name.startswith(LATENCY)]
    found: dict[tuple[str, ...], dict[int, int]] = {}
    for some in portions(sorted(filter(range_.has, periods)), PERIODS_AT_ONCE):
        replies = await link.ask(*[("HGETALL", f"{base}sums:{LATENCY}{period}") for period in some])
        for period, (fields, texts) in zip(some, [(reply[::2], reply[1::2]) for reply in replies], strict=True):
            for field, text in zip(fields, texts, strict=True):
                model, _, upstream = field.partition(ledger_entry.SEPARATOR)
                parts = {"model": model, "upstream": upstream, "hour": period, "day": period[:10], "month": period[:7]}
                total = found.setdefault(tuple([parts[name] for name in group_by]), {})
                for counter, number in [each.split(":") for each in text.split()]:
                    total[int(counter)] = total.get(int(counter), 0) + int(number)
            await asyncio.sleep(0)
    return found


async def calls(
    link: RedisConnection, reader: DailySumReader, base: str, limit: int, key: str | None, before: str | None,
    only: ReportScope | None = None, wanted: CallFilter | None = None,
) -> list[Mapping[str, Any]]:  # fmt: skip
    """The newest records, newest first. Raises `StoreUnavailable`, `ValueError`.

    Of several records of one call the newest counts: apply_writing.lua explains how there can be another.
    """
    rows: list[Mapping[str, Any]] = []
    seen: set[str] = set()
    if before is not None and not re.fullmatch(r"[0-9]{1,18}-[0-9]{1,18}", before):
        raise ValueError("not a position of a record")
    if before is not None and not int(before.replace("-", "")):
        return []  # nothing is older than 0-0
    if only is not None and only.is_empty:
        return []
    newest, wanted = "+" if before is None else f"({before}", wanted or CallFilter()
    is_narrow = only is not None or wanted != CallFilter()
    sought = Sought.of(wanted, key, only)
    keys = {key} if key is not None else set() if only is None or only.teams else {each.key for each in only.keys}
    # A record is written when its call has ended, at the earliest when it began.
    oldest = 0 if wanted.since is None else int(wanted.since * 1000) - CLOCKS_APART_MS
    gap, turns = (0, 0), 0
    while len(rows) < limit:
        # Of a key that calls rarely there may be few among many: more at once, of which most are not looked into.
        most = PASSED_AT_ONCE if any(sought) else CALLS_AT_ONCE if is_narrow else min(CALLS_AT_ONCE, limit - len(rows))
        found, last, texts = await passed(link, f"{base}records", newest, most, sought)
        for portion in portions(texts, CALLS_AT_ONCE):
            for position, text in portion:
                record = ledger_entry.decode_record(text)
                is_meant = only is None or only.has(record.key, record.team)
                if record.id not in seen and (key is None or record.key == key) and is_meant and wanted.matches(record):
                    seen.add(record.id)
                    rows.append(call_row(record, position))
            if len(rows) >= limit:
                break
            await asyncio.sleep(0)
        if found < most:
            break
        turns += 1
        if turns == SOUGHT_BEHIND and 0 < len(keys) <= SOUGHT_KEYS:
            gap = await _gap_of(link, reader, base, keys)
        last_ms = int(last.partition("-")[0])
        newest, last_ms = (str(gap[0]), gap[0]) if gap[0] < last_ms < gap[1] else (f"({last}", last_ms)
        if last_ms < oldest:
            break
    return rows[:limit]


async def _gap_of(link: RedisConnection, reader: DailySumReader, base: str, keys: Collection[str]) -> tuple[int, int]:
    """Two times in milliseconds between which no record of these keys was written.

    Each record is in the sums of its day, and is written at the earliest when its call began. So between the first day
    with sums of a key and the oldest sums there is none; before these there may be records that outlived their sums.
    """
    days = await days_with_sums(link, base)
    if not days or not await reader.is_indexed(days):
        return 0, 0
    months: dict[str, list[str]] = {}
    for day in days:
        months.setdefault(f"{base}sums:groups-{day[:7]}", []).append(day)
    groups: dict[str, list[str]] = {}
    for name in keys:
        some = await lists(link, [*months], "ZRANGEBYLEX", f"[{name}{ledger_entry.SEPARATOR}", f"({name} ")
        for month, found in zip(months, some, strict=True):
            groups.setdefault(month, []).extend(found)
    begins = ms_of(days[0]) + CLOCKS_APART_MS  # records of the day before may have been written an hour late
    for month, found in groups.items():
        report = UsageReport(("day",))
        await reader.add_groups(report, months[month], found)
        if rows := report.rows(1):
            return begins, ms_of(rows[0]["day"]) - CLOCKS_APART_MS
    return begins, sys.maxsize


def ms_of(day: str) -> int:
    return int(datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp()) * 1000


async def usage_by_returned_model(link: RedisConnection, base: str, since: str, until: str) -> list[dict[str, Any]]:
    """Rows by `RETURNED_MODEL_GROUPS`, in their order. Raises `StoreUnavailable`."""
    sums: dict[tuple[str, ...], list[int]] = {}
    known: set[str] = set()
    # A record is written when its call has ended or was delivered, which may be long after its day, and never before.
    sought = Sought(until=ms_of(until) / 1000 + DAY_S - 1)
    async for text in seek(link, f"{base}records", "+", sought, ms_of(since) - CLOCKS_APART_MS):
        record = ledger_entry.storable(ledger_entry.decode_record(text))
        hour, _, _, model, upstream, _ = ledger_entry.group_of(record)
        day = hour[:10]
        if since <= day <= until and record.id not in known:
            known.add(record.id)
            group, numbers = (day, model, upstream, reported_name(record)), ledger_entry.sums_of(record)
            sums[group] = [a + b for a, b in zip(sums.get(group, [0] * len(numbers)), numbers, strict=True)]
    return [usage_row(RETURNED_MODEL_GROUPS, group, numbers) for group, numbers in sorted(sums.items())]
