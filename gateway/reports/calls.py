"""Usage records as JSON members and CSV lines; entries of the refusal log as JSON members."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gateway import units
from gateway.chunked import in_chunks
from gateway.quota.pricing import PaidPrice, cost_parts, read_price, usd
from gateway.records import OTHER, TAG_SEPARATOR, Usage
from gateway.store import RefusalEntry

from .csv_text import csv_text
from .registry import Column
from .table import plain_usd, utc

ROWS_AT_ONCE = 25
"""Rows that are formatted without a pause; about half a millisecond."""

_NO_COUNTS = frozenset({"source", "more", "variant", "parts", "model"})
"""Fields of a usage that are no counts of tokens."""
_MONEY = ("cost_usd", "price_input", "price_cached_input", "price_output")
COLUMNS = (
    "id", "time", "key", "team", "endpoint", "model", "routed_model", "returned_model", "upstream", "status", "stream",
    "ended", "client_gone", "first_byte_s", "duration_s", "attempts", "truncated", "client_request_id",
    "prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens", "usage_source", *_MONEY,
    "units", "failed", "user", "tags", "served_model", "price_more", "price_tier", "price_variant", "price_source",
    "timeline", "model_reason", "amended",
)  # fmt: skip
"""Columns of the calls in CSV."""


LISTED = (
    Column("time", utc),
    *[Column(name) for name in ("id", "key", "model", "upstream", "status", "ended")],
    *[Column(name, is_number=True) for name in ("prompt_tokens", "completion_tokens", "cost_usd")],
)
"""Columns of a table for people."""


def tags_of(text: str) -> dict[str, str]:
    """The tags of a record, by their names."""
    return dict(tag.split("=", 1) for tag in text.split(TAG_SEPARATOR) if tag)


def format_tags(tags: Mapping[str, str]) -> str:
    return " ".join([f"{name}={value}" for name, value in tags.items()])


def timeline_of(text: str) -> list[dict[str, Any]]:
    """The attempts and waits of a record, with their times in seconds since the call arrived."""
    found = []
    for each in text.split():
        upstream, began, ended, fault = each.split(":")
        found.append({
            "upstream": upstream or None, "began_s": int(began) / 1000, "ended_s": int(ended) / 1000,
            "fault": fault or None,
        })  # fmt: skip
    return found


def cost_parts_of(call: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The cost of a row of `Store.calls` as a sum; empty where it is not known which prices made it."""
    if call["price"] is None or call["cost_nusd"] is None:
        return []
    return [part._asdict() for part in cost_parts(call["price"], Usage(**call["usage"]), call["cost_nusd"])]


def call_members(call: Mapping[str, Any]) -> dict[str, Any]:
    """A row of `Store.calls` with the names of the reports. Prices in USD per million tokens."""
    return {**_members(call), "timeline": timeline_of(call["timeline"]), "cost_parts": cost_parts_of(call)}


def _members(call: Mapping[str, Any]) -> dict[str, Any]:
    """Those that a CSV has, too."""
    stored = ("usage", "label_model", "cost_nusd", "position")
    price, cost_nusd = call["price"], call["cost_nusd"]
    return {
        **{name: value for name, value in call.items() if name not in stored},
        **{name: value for name, value in call["usage"].items() if name not in _NO_COUNTS},
        "usage_source": call["usage"]["source"],
        "units": dict(call["usage"]["more"]),
        "tags": tags_of(call["tags"]),
        "failed": [dict(zip(("upstream", "fault"), each.split(":"), strict=False)) for each in call["failed"].split()],
        "cost_usd": None if cost_nusd is None else usd(cost_nusd),
        **_price_members(None if price is None else read_price(price)),
        "client_gone": call["ended"] == "client_gone",
        "served_model": call["model"] if call["label_model"] == OTHER else call["label_model"],
    }


def _price_members(price: PaidPrice | None) -> dict[str, Any]:
    if price is None:
        return {"price": None, "price_source": None, "price_tier": None, "price_variant": None}
    return {
        "price": price.rows, "price_source": price.source, "price_tier": price.above, "price_variant": price.variant,
    }  # fmt: skip


def format_calls_csv(calls: Iterable[Mapping[str, Any]], *, has_heading: bool) -> str:
    """One line for each row of `Store.calls`, with line ends as in RFC 4180. For a thread: it takes its time."""
    return csv_text(COLUMNS, map(_line, in_chunks(calls, ROWS_AT_ONCE)), has_heading=has_heading)


def _line(call: Mapping[str, Any]) -> dict[str, Any]:
    members = _members(call)
    rows = {f"price_{name}": value for name, value in (members["price"] or {}).items()}
    further = [f"{name}={plain_usd(usd)}" for name, usd in rows.items() if name not in _MONEY]
    members |= rows | {"price_more": " ".join(further).replace("price_", "")}
    members |= {"units": units.format_counts(call["usage"]["more"])}
    members |= {name: call[name] for name in ("failed", "timeline")}
    members |= {"tags": call["tags"].replace(TAG_SEPARATOR, " ")}
    return members | {name: plain_usd(members.get(name)) for name in _MONEY}


REFUSAL_COLUMNS = (
    *[
        Column(name)
        for name in ("at", "id", "key", "team", "endpoint", "path", "model", "requested_model", "status", "code",
                     "param", "limit", "remote", "message", "user")
    ],
    Column("tags", format_tags),
)  # fmt: skip

REFUSALS_IN_TABLE = tuple(Column(name) for name in ("at", "id", "key", "model", "status", "code", "message"))


def refusal_members(entry: RefusalEntry) -> dict[str, Any]:
    """An entry with the names of the reports; `at` is `time` for people, in UTC."""
    return {**entry._asdict(), "tags": tags_of(entry.tags), "at": utc(entry.time)}


def refusal_in_table(row: Mapping[str, Any]) -> dict[str, Any]:
    """The members of an entry for a table, where the model is the one that the client named."""
    return {**row, "model": row.get("requested_model") or row["model"]}
