"""Keys, teams and overlays in Redis: reading them, and the arguments of `change.lua`.

The audit log's positions are the ids of its stream, which hold the time: no two servers give the same one.

A key is also traced in calls under way, bonds, and records older than the sums.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from json.encoder import encode_basestring_ascii as quote
from typing import Any

from gateway.chunked import portions
from gateway.quota import ledger_entry
from gateway.store import heir_of
from gateway.store.bonds import owners_of
from gateway.store.key_store import (
    AUDIT_KEPT,
    CHANGES_AT_ONCE,
    READ_AT_ONCE,
    ChangeFeed,
    DocumentKind,
    SecretTaken,
    StoreChange,
    StoredAudit,
)

from .connection import RedisConnection, Script
from .reports import Sought, days_with_sums, ms_of, seek

AT_ONCE = 500
"""Leases that one command reads."""


async def is_under_way(link: RedisConnection, base: str, key: str) -> bool:
    """Whether a call of this key has a lease."""
    workers, deferred = await link.ask(("ZRANGE", f"{base}alive", 0, -1), ("HKEYS", f"{base}deferred"))
    for worker in [*workers, *map(heir_of, deferred)]:
        cursor = "0"
        while True:
            ((cursor, found),) = await link.ask(("HSCAN", f"{base}leases:{worker}", cursor, "COUNT", AT_ONCE))
            if any(_is_of(key, text.split("\t")[2]) for text in found[1::2]):
                return True
            if cursor in ("0", 0):
                break
    return False


async def has_kept(link: RedisConnection, base: str, key: str) -> bool:
    """Whether this key has bonds, or records from before the oldest sums: each later one is in the sums as well."""
    (number,) = await link.ask(("EXISTS", *[f"{base}bonds:{owner}" for owner in owners_of(key)]))
    return bool(number) or await _has_old_record(link, base, key)


async def _has_old_record(link: RedisConnection, base: str, key: str) -> bool:
    days = await days_with_sums(link, base)
    end = f"({ms_of(days[0])}" if days else "+"
    async for text in seek(link, f"{base}records", end, Sought([quote(key)])):
        if _is_of(key, text):
            return True
    return False


def _is_of(key: str, record: str) -> bool:
    return quote(key) in record and bool(ledger_entry.decode_record(record).key == key)


EMPTY = "0-0"
"""The position of an empty log."""

_POSITION = re.compile(r"[0-9]{1,19}-[0-9]{1,19}")


async def find(link: RedisConnection, script: Script, base: str, digests: Sequence[str]) -> list[str | None]:
    found: list[str | None] = []
    for some in portions(digests, READ_AT_ONCE):
        found += await link.run(script, [f"{base}secrets", f"{base}documents:key"], some)
    return found


async def read(link: RedisConnection, base: str, kind: DocumentKind, names: Sequence[str]) -> list[str | None]:
    found: list[str | None] = []
    for some in portions(names, READ_AT_ONCE):
        (texts,) = await link.ask(("HMGET", f"{base}documents:{kind}", *some))
        found += texts
    return found


async def page(link: RedisConnection, base: str, kind: DocumentKind, after: str, limit: int) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    start = f"({after}" if after else "-"
    while len(rows) < limit:
        count = min(READ_AT_ONCE, limit - len(rows))
        (names,) = await link.ask(("ZRANGEBYLEX", f"{base}names:{kind}", start, "+", "LIMIT", 0, count))
        texts = await read(link, base, kind, names)
        # A name without a document was removed meanwhile.
        rows += [(name, text) for name, text in zip(names, texts, strict=True) if text is not None]
        if len(names) < count:
            break
        start = f"({names[-1]}"
    return rows


async def changes_since(link: RedisConnection, base: str, since: str | None) -> ChangeFeed:
    start = since if since is not None and _POSITION.fullmatch(since) else None
    # The last entry is read after the others: a worker that has to read all again must not miss one between.
    commands = [("XREVRANGE", f"{base}audit", "+", "-", "COUNT", 1)]
    if start is not None:
        commands.insert(0, ("XRANGE", f"{base}audit", start, "+", "COUNT", CHANGES_AT_ONCE + 2))
    *replies, newest = await link.ask(*commands)
    last = newest[0][0] if newest else EMPTY
    if start is None:
        return ChangeFeed(last, is_complete=since is None)
    (rows,) = replies
    # From a log that was empty nothing has been dropped, as long as it has not more than one list of changes.
    is_known = start == EMPTY or (rows and rows[0][0] == start)
    changed = rows if start == EMPTY else rows[1:]
    if not is_known or len(changed) > CHANGES_AT_ONCE:
        return ChangeFeed(last, is_complete=False)
    changes = [_audit_entry(*row) for row in changed]
    return ChangeFeed(rows[-1][0] if rows else EMPTY, tuple(dict.fromkeys((each.kind, each.name) for each in changes)))


async def last_change(link: RedisConnection, base: str, journal: str) -> int:
    (number,) = await link.ask(("HGET", f"{base}decisions", journal))
    return int(number or 0)


async def audit(link: RedisConnection, base: str, limit: int, before: str | None) -> list[StoredAudit]:
    if before is not None and not _POSITION.fullmatch(before):
        raise ValueError(f"{before!r} is no position in the audit log")
    if before is not None and not int(before.replace("-", "")):
        return []
    rows: list[StoredAudit] = []
    newest = "+" if before is None else f"({before}"
    while len(rows) < limit:
        count = min(READ_AT_ONCE, limit - len(rows))
        (found,) = await link.ask(("XREVRANGE", f"{base}audit", newest, "-", "COUNT", count))
        rows += [_audit_entry(*row) for row in found]
        if len(found) < count:
            break
        newest = f"({rows[-1].position}"
    return rows


def encode_change(change: StoreChange, base: str, schema: str, offset_us: int) -> tuple[list[str], list[str]]:
    kind = change.kind
    cleared = change.cleared if change.is_again and change.cleared else [""] * len(change.resets)
    resets = [pair for pair in zip(change.resets, cleared, strict=True) if pair[0].starts or pair[0].period_us]
    keys = [
        schema, f"{base}audit", f"{base}secrets", f"{base}names:{kind}", f"{base}documents:{kind}",
        f"{base}decisions",
        *[base + (f"windows:{window.starts}" if window.starts else "windows") for window, _ in resets],
    ]  # fmt: skip
    arguments = [
        kind, change.name, _encode_text(change.before), _encode_text(change.after), change.audit, str(AUDIT_KEPT),
        str(offset_us), str(len(change.secrets_added)), str(len(change.secrets_removed)), change.journal,
        str(change.number), *change.secrets_added, *change.secrets_removed,
    ]  # fmt: skip
    for window, used in resets:
        arguments += window.id, str(int(not window.starts)), str(used)
    return keys, arguments


def was_applied(result: int) -> bool:
    """Whether change.lua applied the change, by its result. Raises `SecretTaken`."""
    if result < 0:
        raise SecretTaken
    return result > 0


def _encode_text(text: str | None) -> str:
    return "" if text is None else f"={text}"


def _audit_entry(position: str, fields: Sequence[Any]) -> StoredAudit:
    return StoredAudit(position, *fields[1::2])
