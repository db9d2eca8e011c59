"""What reports show of records and daily sums, whichever store keeps them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gateway.records import Record
from gateway.rules.entries import SUMS

from . import USAGE_GROUPS

_PLACES = {name: place for place, name in enumerate(("day", "key", "team", "model", "upstream", "endpoint"))}

Sums = tuple[tuple[str, ...], Sequence[int]]
"""A row of the daily sums: day, key, team, model, upstream, endpoint; and numbers in the order of `SUMS`."""


def usage_rows(sums: Iterable[Sums], group_by: Sequence[str], limit: int | None = None) -> list[dict[str, Any]]:
    """The usage report: daily sums grouped by some of `USAGE_GROUPS`, in the order of the groups."""
    assert set(group_by) <= set(USAGE_GROUPS)
    totals: dict[tuple[str, ...], list[int]] = {}
    for places, numbers in sums:
        name = tuple([places[0][:7] if group == "month" else places[_PLACES[group]] for group in group_by])
        known = totals.get(name)
        totals[name] = (
            list(numbers) if known is None else [one + other for one, other in zip(known, numbers, strict=True)]
        )
    # What was counted and taken back leaves zeros.
    rows = [usage_row(group_by, name, numbers) for name, numbers in sorted(totals.items()) if numbers[0] > 0]
    return rows if limit is None else rows[:limit]


def usage_row(group_by: Sequence[str], names: Sequence[str], numbers: Sequence[int]) -> dict[str, Any]:
    """One row: its groups, its sums, and what follows from them. A cost that nobody knows at all is None."""
    row: dict[str, Any] = dict(zip(group_by, names, strict=True)) | dict(zip(SUMS, numbers, strict=True))
    cost_nusd = row.pop("cost_nusd")
    row["total_tokens"] = row["prompt_tokens"] + row["completion_tokens"]
    row["estimated_percent"] = percent(row["estimated_tokens"], row["total_tokens"])
    row["cost_usd"] = None if row["unpriced"] == row["requests"] else cost_nusd / 1e9
    return row


def percent(part: int, whole: int) -> float:
    """With two decimals; neither rounded to nothing, nor to all."""
    if part in (0, whole):
        return 0.0 if part == 0 else 100.0
    return min(99.99, max(0.01, round(100 * part / whole, 2)))


def told_name(record: Record) -> str:
    """What the upstream called the model: in its answer, else when it was asked."""
    return record.returned_model or record.routed_model


def call_row(record: Record) -> Mapping[str, Any]:
    """A record by its field names."""
    record = storable(record)
    return record._asdict() | {"usage": record.usage._asdict()}


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
