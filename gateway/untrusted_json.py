"""JSON that another program has written: an identity provider, a vendor, an upstream, a file of a person.

Python's own reader raises three kinds of errors for it, and returns values that fail later: NaN and Infinity, which
servers in Python write, numbers that no float holds, and nesting that the next walk over the value cannot follow.
"""

from __future__ import annotations

import json
from math import isfinite
from typing import Any

MAX_DEPTH = 200
"""Lists and objects inside each other; pydantic's reader of JSON has the same limit."""
MAX_DIGITS = 300
"""A whole number has at most this many; a float would hold 309."""


def parse(text: str | bytes | bytearray, unusable: float | None = None) -> Any:
    """Numbers that cannot be used are read as `unusable`. Raises `ValueError` for all that is no JSON, or too deep."""

    def whole(digits: str) -> float | None:
        return int(digits) if len(digits) <= MAX_DIGITS else unusable

    def finite(digits: str) -> float | None:
        return value if isfinite(value := float(digits)) else unusable

    try:
        found = json.loads(text, parse_int=whole, parse_float=finite, parse_constant=lambda _: unusable)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    openings = (text.count("["), text.count("{")) if isinstance(text, str) else (text.count(b"["), text.count(b"{"))
    if sum(openings) > MAX_DEPTH and _is_deep(found):
        raise ValueError("nested too deeply")
    return found


def parse_object(text: str | bytes | bytearray, unusable: float | None = None) -> dict[str, Any]:
    """Raises `ValueError` for all but an object."""
    found = parse(text, unusable)
    if not isinstance(found, dict):
        raise ValueError("no object")
    return found


def _is_deep(value: Any) -> bool:
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH + 1:
            return True
        level = [
            inner
            for each in level
            if isinstance(each, list | dict)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
    return False
