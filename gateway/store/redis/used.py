"""The traces of a key in Redis besides sums and refusals: calls under way, bonds, and records older than the sums."""

from __future__ import annotations

from datetime import UTC, datetime
from json.encoder import encode_basestring_ascii as quote

from gateway.quota import ledger_entry
from gateway.store import heir_of
from gateway.store.bonds import owners_of

from .connection import RedisConnection
from .daily_sums import BETWEEN
from .reports import CALLS_AT_ONCE, NEWEST

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
    (periods,) = await link.ask(("ZRANGE", f"{base}days", 0, -1))
    days = sorted(period for period in periods if len(period) == len("2026-11-20") and period[4] == period[7] == "-")
    newest = f"({int(datetime.fromisoformat(days[0]).replace(tzinfo=UTC).timestamp() * 1000)}" if days else "+"
    while True:
        found, last, texts = await link.run(NEWEST, [f"{base}records"], [newest, str(CALLS_AT_ONCE)])
        if any(_is_of(key, text.partition(" ")[2]) for text in texts.split(BETWEEN) if found):
            return True
        if found < CALLS_AT_ONCE:
            return False
        newest = f"({last}"


def _is_of(key: str, record: str) -> bool:
    return quote(key) in record and bool(ledger_entry.decode_record(record).key == key)
