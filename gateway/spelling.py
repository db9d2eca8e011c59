"""Names and addresses as the most lenient upstream reads them.

Readers of JSON and of forms take names without regard to case (Go's encoding/json, also with a long s, U+017F), in
camelCase and in snake_case (protobuf's JSON), with blanks around them, or with brackets and points behind them (PHP,
qs, Spring). A decision of the gateway by a name holds for all of these spellings.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache
from urllib.parse import unquote

_LONG = 64
"""Characters of a name that is kept: longer ones are no names of a known member."""

_TIMES_QUOTED = 3


def folded(name: str) -> str:
    """The same for all spellings of a name: its letters and digits without case, width and accents."""
    return _folded(name) if len(name) <= _LONG else _folded.__wrapped__(name)


@lru_cache(maxsize=4096)
def _folded(name: str) -> str:
    text = name.lower() if name.isascii() else unicodedata.normalize("NFKD", name.upper()).casefold()
    return "".join(filter(str.isalnum, text))


def outer(name: str) -> str:
    """The name of the whole that a field names a part of: `a` of `a[b]`, `a[]` and `a.b`."""
    return name.partition("[")[0].partition(".")[0]


def plain_address(address: str) -> str:
    """An address in small letters, without escapes, blanks and backslashes."""
    for _ in range(_TIMES_QUOTED):
        address = unquote(address)
    return "".join(unicodedata.normalize("NFKC", address).casefold().split()).replace("\\", "/")
