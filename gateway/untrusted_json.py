"""JSON that another program has written: an identity provider, a vendor, an upstream, a file of a person.

Python's own reader raises three kinds of errors for it, and returns values that fail later: NaN and Infinity, which
servers in Python write, numbers that no float holds, and nesting that the next walk over the value cannot follow.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
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
    if openings(text) > MAX_DEPTH and any(depth > MAX_DEPTH for depth, _ in enumerate(levels(found))):
        raise ValueError("nested too deeply")
    return found


def parse_object(text: str | bytes | bytearray, unusable: float | None = None) -> dict[str, Any]:
    """Raises `ValueError` for all but an object."""
    found = parse(text, unusable)
    if not isinstance(found, dict):
        raise ValueError("no object")
    return found


def openings(text: str | bytes | bytearray) -> int:
    """Counts lists and objects, and the brackets in texts."""
    return text.count("[") + text.count("{") if isinstance(text, str) else text.count(b"[") + text.count(b"{")


def levels(value: Any) -> Iterator[list[Any]]:
    """Yields the values at each depth: first the whole, then what is in it."""
    level = [value]
    while level:
        yield level
        level = [
            inner
            for each in level
            if isinstance(each, list | dict)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
