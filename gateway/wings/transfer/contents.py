"""Whether the texts and names of a file's rows are those of a gateway: what cannot be read again would fail requests of
the admin API for as long as the store has it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gateway import untrusted_json
from gateway.quota.issued import IssuedKey, IssuedTeam, Overlay
from gateway.quota.ledger_entry import decode_record
from gateway.store.bonds import decode_bond
from gateway.store.refusals import decode_refusal

from .rows import StoreRow, forgotten_at, is_rate

_DOCUMENTS: Mapping[str, Callable[[str], object]] = {
    "key": IssuedKey.decode,
    "team": IssuedTeam.decode,
    "overlay": Overlay.decode,
}
"""The documents of the trunk; those of wings are read by them alone."""


def can_be_read(row: StoreRow) -> bool:
    """Whether a row can be read again once it was taken. `row` has the form of its kind."""
    try:
        match row.kind:
            case "document":
                read: Callable[[str], object] = _DOCUMENTS.get(row.names[0], untrusted_json.parse)
                read(row.text)
            case "record":
                decode_record(row.text)
            case "refusal":
                return isinstance(decode_refusal(row.text).time, int | float)
            case "bond":
                decode_bond(row.text)
            case "audit":
                return isinstance(untrusted_json.parse(row.text), dict)
            case "rate":
                is_rate(row.names[0])
            case "day" | "hour" | "tag" | "latency" | "window":
                forgotten_at(row.names[0], 1)
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError):
        return False
    return True
