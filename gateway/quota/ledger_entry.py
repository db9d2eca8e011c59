"""The text form of a call in the ledger: one line, the same in the journal, in commands to Redis and in a lease there.

An entry is a settlement. The entry of a reservation is the settlement that applies if the call is lost: its estimate.
Two JSON arrays with a tab between them:

    [lease, day, group, sums, claims] TAB record

- `lease`: the call's id.
- `day`, `group`: where in the daily sums it counts. `group` is key, team, model, upstream and endpoint, joined by
  U+001F; the model is the configured one. `sums` are its numbers, in the order of `SUMS`.
- `claims`: one array for each window, `[id, starts, unit, limit, period_us, is_enforced, amount, actual]`: what was
  drawn, and what is charged in the end.
- `record`: the usage record, its fields in the order of `Record`, those of its usage in their place; behind them
  `Usage.more` as a text (`cache_write=100`), and the fields of `Record` behind the price, all left out where they are
  empty. No store looks into it.

The first array holds whole numbers below 2^53 and texts only, which Lua can read exactly. The second is opaque to the
scripts, so that a record may gain a field without a new script.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from json.encoder import encode_basestring_ascii as quote
from typing import Any

from gateway import units
from gateway.records import TAG_SEPARATOR, UPSTREAM, Claim, Record, Settlement, Usage, Window

from .windows import calendar_window, charges

SUMS = (
    "requests", "errors", "prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens",
    "estimated_tokens", "cost_nusd", "unpriced",
)  # fmt: skip
"""The fields of the daily sums. `unpriced`: requests without a known cost."""

SEPARATOR = "\x1f"

_USAGE_AT = Record._fields.index("usage")
_USAGE_UNTIL = _USAGE_AT + Usage._fields.index("more")
_MORE_AT = Record._fields.index("price") + Usage._fields.index("more")
_FIELDS = len(Record._fields) - 1 + _MORE_AT - Record._fields.index("price") + 1
"""Number of values in the entry of a record with all of its fields."""
_NOTE = "deferral"
_FLAGS = ("false", "true")


def encode(record: Record, claims: Sequence[Claim], charged: Sequence[int] | None = None) -> str:
    """The entry of a call that ends with this record, and of its charges where they are known. Times are kept in whole
    microseconds.

    Put together by hand and in one go, because this happens twice a call, and json takes three times as long.
    """
    (
        name, time, key, team, endpoint, model, label_model, routed_model, returned_model, upstream, status, stream,
        usage, ended, first_byte_s, duration_s, attempts, truncated, client_id, cost_nusd, price, failed,
        user, tags, timeline, reason, amended,
    ) = record  # fmt: skip
    prompt, completion, cached, reasoning, source, more = usage[:6]
    name = quote(name)
    place, names = _encode_group(
        int(time // 86400), key, team, endpoint, model, label_model, routed_model, returned_model, upstream
    )
    sums = ",".join(map(str, sums_of(record)))
    if charged is None:
        charged = charges(record, claims)
    models = ",".join([
        f"{encode_window(window)},{amount},{actual}]"
        for (window, amount), actual in zip(claims, charged, strict=True)
    ])  # fmt: skip
    return (
        f"[{name},{place},[{sums}],[{models}]]\t"
        f"[{name},{time:.6f},{names},{status},{_FLAGS[stream]},{prompt},{completion},{cached},{reasoning},"
        f'"{source}","{ended}",{"null" if first_byte_s is None else f"{first_byte_s:.6f}"},{duration_s:.6f},{attempts},'
        f"{_FLAGS[truncated]},{'null' if client_id is None else quote(client_id)},"
        f"{'null' if cost_nusd is None else cost_nusd},{'null' if price is None else quote(price)}"
        + (
            f",{quote(units.format_counts(more))},{quote(failed)},{quote(user)},{quote(tags)}"
            + (f",{quote(timeline)}" if timeline or reason or amended else "")
            + (f",{quote(reason)},{quote(amended)}]" if reason or amended else "]")
            if more or failed or user or tags or timeline or reason or amended
            else "]"
        )
    )


def with_note(entry: str, note: str) -> str:
    """The entry of an open lease, with the note of a deferral for the case that its worker is killed.

    The note follows the fields of the record, where gateways that do not know it read past it.
    """
    head, _, record = entry.partition("\t")
    values: list[Any] = json.loads(record)
    values += [""] * (_FIELDS - len(values))
    return f"{head}\t{json.dumps([*values, {_NOTE: note}], separators=(',', ':'))}"


def without_note(entry: str) -> str:
    """The entry without its note. Raises `ValueError`."""
    head, _, record = entry.partition("\t")
    values: list[Any] = json.loads(record)
    return f"{head}\t{json.dumps([each for each in values if not isinstance(each, dict)], separators=(',', ':'))}"


def note_of(entry: str) -> str | None:
    """The note of an entry; None: it has none. Raises `ValueError`."""
    values: list[Any] = json.loads(entry.partition("\t")[2])
    found = values[-1].get(_NOTE) if values and isinstance(values[-1], dict) else None
    return found if isinstance(found, str) else None


def sums_of(record: Record) -> tuple[int, ...]:
    """The amounts that a record adds to the daily sums, in the order of `SUMS`."""
    usage, cost = record.usage, record.cost_nusd
    return (
        1, int(record.ended == "error"), usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens,
        usage.reasoning_tokens, usage.prompt_tokens + usage.completion_tokens if usage.source == "estimated" else 0,
        cost or 0, int(cost is None),
    )  # fmt: skip


def group_of(record: Record) -> tuple[str, str, str, str, str, str]:
    """Where a record counts in the sums: hour, key, team, model, upstream, endpoint. The day is `hour[:10]`."""
    hour = _hour(int(record.time // 3600))
    return hour, record.key, record.team or "", record.label_model, record.upstream, record.endpoint


def attributions_of(record: Record) -> list[tuple[str, str]]:
    """The groups by user and tag in which a call counts: `user` or `tag:NAME`, and the value. A lost call has none."""
    if record.ended == "lost":
        return []
    found = [("user", record.user)] if record.user else []
    for tag in record.tags.split(TAG_SEPARATOR) if record.tags else ():
        name, _, value = tag.partition("=")
        found.append((f"tag:{name}", value))
    return found


def decode(entry: str) -> Settlement:
    """The settlement of an entry. Of its windows only what a settlement needs is known. Raises `ValueError`."""
    head, _, record = entry.partition("\t")
    try:
        _, _, _, _, claims = json.loads(head)
        return Settlement(decode_record(record), tuple(_claim(*claim) for claim in claims))
    except TypeError as error:
        raise ValueError(f"not an entry of the ledger: {error}") from None


def decode_record(text: str) -> Record:
    """The record of such an array; fields that an older gateway did not write have defaults. Raises `ValueError`."""
    values: list[Any] = json.loads(text)
    if values and isinstance(values[-1], dict):
        values.pop()  # a note
    try:
        more = units.read(values[_MORE_AT]) if len(values) > _MORE_AT else ()
        usage = Usage(*values[_USAGE_AT:_USAGE_UNTIL])._replace(more=more)
        fields = [*values[:_USAGE_AT], usage, *values[_USAGE_UNTIL:_MORE_AT], *values[_MORE_AT + 1 :]]
        return Record(**dict(zip(Record._fields, fields, strict=False)))
    except (AttributeError, TypeError) as error:
        raise ValueError(f"not a record of the ledger: {error}") from None


def storable(record: Record) -> Record:
    """The same, without halves of surrogate pairs, which no UTF-8 can hold. Outsiders write these fields."""
    model, returned, client_id = record.model, record.returned_model or "", record.client_request_id or ""
    if model.isascii() and returned.isascii() and client_id.isascii():
        return record
    return record._replace(
        model=_whole(model), returned_model=_whole(record.returned_model),
        client_request_id=_whole(record.client_request_id),
    )  # fmt: skip


def _whole(text: str | None) -> Any:
    return text and text.encode("utf-8", "replace").decode()


def _claim(
    name: str, starts: str, unit: Any, limit: int, period_us: int, is_enforced: int, amount: int, actual: int
) -> Claim:
    _, _, models = name.rpartition(f"|{starts}")[0].rpartition("|")  # the window's id ends in its models and its name
    model = None if name.startswith(UPSTREAM) else models or None
    window = Window(name, "", unit, "", model, limit, period_us, starts, is_enforced=bool(is_enforced))
    return Claim(window, amount)


# The rest is equal for many calls; formatting it costs ten times as much as a look-up.


@lru_cache(maxsize=64)
def _hour(number: int) -> str:
    """The hour with this number since 1970, as 2026-11-20T14 (UTC)."""
    return f"{calendar_window('day', number * 3600)[0]}T{number % 24:02d}"


@lru_cache(maxsize=65536)
def encode_window(window: Window) -> str:
    """The window's part of a claim: the beginning of the array, without its end."""
    return (
        f'[{quote(window.id)},"{window.starts}","{window.unit}",{window.limit},{window.period_us},'
        f"{int(window.is_enforced)}"
    )


@lru_cache(maxsize=16384)
def _encode_group(
    day: int, key: str, team: str | None, endpoint: str, model: str, label_model: str, routed_model: str,
    returned_model: str | None, upstream: str,
) -> tuple[str, str]:  # fmt: skip
    """Where such calls count, and their names in a record."""
    group = SEPARATOR.join((key, team or "", label_model, upstream, endpoint))
    names = (key, team, endpoint, model, label_model, routed_model, returned_model, upstream)
    return (
        f'"{calendar_window("day", day * 86400)[0]}",{quote(group)}',
        ",".join(["null" if name is None else quote(name) for name in names]),
    )
