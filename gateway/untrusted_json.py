"""JSON that another program has written: an identity provider, a vendor, an upstream, a file of a person.

Python's own reader raises three kinds of errors for it, and returns values that fail later: NaN and Infinity, which
JSON does not have, numbers that no float holds, and nesting that the next walk over the value cannot follow.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NoReturn

MAX_DEPTH = 200
"""Lists and objects inside each other; pydantic's reader of JSON has the same limit."""
MAX_DIGITS = 300
"""A whole number has at most this many; a float would hold 309."""


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def parse(text: str | bytes | bytearray, constant: Callable[[str], Any] = _refuse) -> Any:
    """Raises `ValueError` for all that cannot be used. `constant` gets NaN, Infinity and -Infinity."""
    try:
        found = json.loads(text, parse_int=_whole, parse_float=_finite, parse_constant=constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    openings = (text.count("["), text.count("{")) if isinstance(text, str) else (text.count(b"["), text.count(b"{"))
    if sum(openings) > MAX_DEPTH and _is_deep(found):
        raise ValueError("nested too deeply")
    return found


def parse_object(text: str | bytes | bytearray) -> dict[str, Any]:
    """Raises `ValueError` for all but an object."""
    found = parse(text)
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


def _whole(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError("a number has too many digits")
    return int(digits)


def _finite(digits: str) -> float:
    value = float(digits)
    if value in (float("inf"), float("-inf")):
        raise ValueError("a number is too large")
    return value
