"""The ids of kept files that a request names, in any format and at any depth, by the names of `NAMES` in any spelling
(`gateway/spelling.py`) and as values of any type.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from gateway.records import Document
from gateway.spelling import folded, outer

NAMES = ("file_id", "file_ids")
"""OpenAI's content parts, images and masks, and Anthropic's sources; the code interpreter's container."""

FREE = frozenset({"metadata"})
"""Members of the client's own choice, which no upstream reads."""

SCHEMAS = frozenset({"properties", "$defs", "definitions"})
"""Members of a JSON Schema whose names are those of a tool's parameters."""

_FOLDED = frozenset(map(folded, NAMES))
_LONGEST = 64
"""Characters of a name that can be one of these: fields with brackets among them."""

_FEW = 16
_NESTED = (dict, list)
_MAY_NAME = re.compile(r"file[_ -]?id|\\u", re.IGNORECASE)
"""Matches each ASCII text that names a file. It accepts escapes, because JSON may write any letter as one."""


def named_files(document: Document) -> list[str]:
    """The ids of files that a body names, each once, in their order. A large body was looked through by its reader."""
    if document.large is not None:
        return list(document.large.file_ids)
    is_form = document.form is not None
    if not is_form and document.text.isascii() and not _MAY_NAME.search(document.text):
        return []
    return list(dict.fromkeys(ids_in(document.members)))


def ids_in(members: dict[str, Any]) -> Iterator[str]:
    """The ids of files that these members name, in their order."""
    waiting: list[tuple[str, Any]] = [("", members)]
    while waiting:
        under, value = waiting.pop()
        if isinstance(value, list):
            waiting.extend([("", each) for each in reversed(value) if each and isinstance(each, _NESTED)])
            continue
        if under not in SCHEMAS:
            for name in _names_in(value):
                yield from texts_in(value[name])
        is_use = value.get("type") == "tool_use"  # the arguments of a tool are its own
        for name, each in reversed(value.items()):
            if each and isinstance(each, _NESTED) and name not in FREE and not (is_use and name == "input"):
                waiting.append((name, each))


def _names_in(value: dict[str, Any]) -> list[str]:
    """The names of files among those of an object. Those of a large one are not looked at one by one without need."""
    if len(value) > _FEW:
        names = "\n".join(value)
        if names.isascii() and not _MAY_NAME.search(names):
            return []
    return [name for name in value if len(name) <= _LONGEST and _is_name(name)]


@lru_cache(maxsize=4096)
def _is_name(name: str) -> bool:
    whole = outer(name)
    return folded(name) in _FOLDED or (whole != name and folded(whole) in _FOLDED)


def texts_in(given: Any) -> Iterator[str]:
    """Every text and number of a value."""
    waiting = [given]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting.extend(reversed(value.values()))
        elif isinstance(value, list):
            waiting.extend(reversed(value))
        elif isinstance(value, float) and value.is_integer():
            yield str(int(value))
        elif value is not None and not isinstance(value, bool):
            yield str(value)
