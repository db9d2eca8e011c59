"""Names and addresses as the most lenient upstream reads them.

Readers of JSON and of forms take names without regard to case (Go's encoding/json, also with a long s, U+017F), in
camelCase and in snake_case (protobuf's JSON), with blanks around them, or with brackets and points behind them (PHP,
qs, Spring). A decision of the gateway by a name holds for all of these spellings.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from urllib.parse import unquote

_LONG = 64
"""Characters of a name that is kept: longer ones are no names of a known member."""

_PIECE = 32
"""Characters that are normalised at once: a run of combining marks takes the square of its length."""

_MOST = 65_536
"""Characters of a long text's normal form that are made: some characters have a form of eighteen."""

_TIMES_QUOTED = 3

_LONGEST_ASKED = 128
"""Characters of a name that is compared with others."""


def folded(name: str) -> str:
    """The same for all spellings of a name: its letters and digits without case, width and accents."""
    return _folded(name) if len(name) <= _LONG else _folded.__wrapped__(name)


@lru_cache(maxsize=4096)
def _folded(name: str) -> str:
    text = name.lower() if name.isascii() else compatible(name.strip().upper(), 16 * _LONG).casefold()
    return "".join(filter(str.isalnum, text))


def compatible(text: str, most: int = _MOST) -> str:
    """The text in letters of the common kind, with marks behind them (NFKD), up to about this length."""
    if text.isascii():
        return text
    made, size = list[str](), 0
    for at in range(0, len(text), _PIECE):
        made.append(unicodedata.normalize("NFKD", text[at : at + _PIECE]))
        size += len(made[-1])
        if size > most:
            break
    return "".join(made)


def outer(name: str) -> str:
    """The name of the whole that a field names a part of: `a` of `a[b]`, `a[]` and `a.b`."""
    return name.partition("[")[0].partition(".")[0]


def plain_address(address: str) -> str:
    """An address in small letters, without escapes, blanks and backslashes."""
    for _ in range(_TIMES_QUOTED):
        address = unquote(address)
    return "".join(compatible(address).casefold().split()).replace("\\", "/")


def nearest(asked: str, names: Sequence[str]) -> str | None:
    """The one of these names that was probably meant: the same but for case, blanks, signs and a prefix before a slash,
    else with a slip or two. None: there is none."""
    import difflib  # which is loaded for errors alone

    if len(asked) > _LONGEST_ASKED:
        return None
    wanted = {folded(asked), folded(asked.rpartition("/")[2])} - {""}
    found = next((each for each in names if wanted & {folded(each), folded(each.rpartition("/")[2])}), None)
    return found or next(iter(difflib.get_close_matches(asked, names, n=1, cutoff=0.85)), None)
