"""Cells of a provider's CSV as times, counts and amounts of money. None: not understood."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from decimal import Decimal

_COUNT = re.compile(r"(\d{1,15})(?:\.0*)?")  # `10.0`, where a spreadsheet was in between
_AMOUNT = re.compile(r"(-?)\$?(\d{1,12}(?:\.\d{0,80})?|\.\d{1,80})((?:[eE]-\d{1,2})?)")


def read_moment(text: str) -> datetime | None:
    """Unix time in seconds or milliseconds, or ISO 8601; without a zone it is UTC."""
    if re.fullmatch(r"\d{10}(\d{3})?(\.\d*)?", text):
        seconds = float(text)
        return datetime.fromtimestamp(seconds / 1000 if seconds > 1e11 else seconds, UTC)
    try:
        found = datetime.fromisoformat(text.removesuffix(" UTC"))
    except ValueError:
        return None
    try:
        return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
    except OverflowError:
        return None


def read_count(text: str) -> int | None:
    """Tokens or calls; nothing is none."""
    if not text:
        return 0
    found = _COUNT.fullmatch(text)
    return int(found[1]) if found else None


def read_amount(text: str) -> Decimal | None:
    """An amount of money, which may be given back; nothing is none."""
    if not text:
        return Decimal(0)
    found = _AMOUNT.fullmatch(text)
    return Decimal("".join(found.groups())) if found else None


def whole_nusd(usd: Decimal) -> int:
    """In billionths of a US dollar, rounded to the nearest."""
    return int((usd * 10**9).to_integral_value())
