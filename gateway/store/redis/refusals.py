"""The refusal log in Redis, a stream, and requests by their ids."""

from __future__ import annotations

import re
from collections.abc import Sequence
from json.encoder import encode_basestring_ascii as quote

from gateway.chunked import portions
from gateway.quota import ledger_entry
from gateway.records import Record
from gateway.store.refusals import (
    REFUSALS_KEPT,
    REFUSALS_KEPT_S,
    RefusalEntry,
    RefusalQuery,
    StoredRefusal,
    decode_refusal,
    encode_refusal,
)

from .connection import RedisConnection
from .reports import Sought, seek

AT_ONCE = 200
"""Entries that one command writes or reads."""

_POSITION = re.compile(r"[0-9]{1,18}-[0-9]{1,18}")


async def add(link: RedisConnection, base: str, entries: Sequence[RefusalEntry], now: float) -> None:
    log = f"{base}refusals"
    for some in portions(entries, AT_ONCE):
        texts = [encode_refusal(entry) for entry in some]
        await link.ask(*[("XADD", log, "MAXLEN", "~", REFUSALS_KEPT, "*", "refusal", text) for text in texts])
    oldest_ms = int((now - REFUSALS_KEPT_S) * 1000)
    await link.ask(("XTRIM", log, "MINID", "=", f"{oldest_ms}-0"))


async def newest(
    link: RedisConnection, base: str, limit: int, before: str | None, wanted: RefusalQuery
) -> list[StoredRefusal]:
    if before is not None and not _POSITION.fullmatch(before):
        raise ValueError("not a position of a refusal")
    if before is not None and not int(before.replace("-", "")):
        return []
    found: list[StoredRefusal] = []
    end = "+" if before is None else f"({before}"
    while len(found) < limit:
        (rows,) = await link.ask(("XREVRANGE", f"{base}refusals", end, "-", "COUNT", AT_ONCE))
        read = [StoredRefusal(position, decode_refusal(fields[1])) for position, fields in rows]
        found += [each for each in read if wanted.matches(each.entry)]
        if len(rows) < AT_ONCE:
            break
        end = f"({rows[-1][0]}"
    return found[:limit]


async def find_request(link: RedisConnection, base: str, request_id: str) -> Record | RefusalEntry | None:
    for log, decode in ((f"{base}refusals", decode_refusal), (f"{base}records", ledger_entry.decode_record)):
        async for text in seek(link, log, "+", Sought([quote(request_id)])):
            if (entry := decode(text)).id == request_id:
                return entry
    return None
