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
_CACHES = frozenset({"cachedcontent"})
_LONGEST = 64
"""Characters of a name that can be one of these: fields with brackets among them."""

_FEW = 16
_NESTED = (dict, list)
_MAY_NAME = re.compile(r"file[_ -]?id|\\u", re.IGNORECASE)
_MAY_CACHE = re.compile(r"cached[_ -]?content|\\u", re.IGNORECASE)
"""Each matches each ASCII text that has such a name. They accept escapes, because JSON may write any letter as one."""


def named_files(document: Document) -> list[str]:
    """The ids of files that a body names, each once, in their order. A large body was looked through by its reader."""
    if document.large is not None:
        return list(document.large.file_ids)
    is_form = document.form is not None
    if not is_form and document.text.isascii() and not _MAY_NAME.search(document.text):
        return []
    return list(dict.fromkeys(ids_in(document.members)))


def names_cache(document: Document) -> bool:
    """Whether a body names a cache that the upstream keeps (Gemini's `cachedContent`, also of its chat: ai.google.dev,
    "OpenAI compatibility", `extra_body`)."""
    text = document.text
    if text.isascii() and not _MAY_CACHE.search(text):
        return False
    return any(True for _ in ids_in(document.members, _CACHES, _MAY_CACHE))


def ids_in(
    members: dict[str, Any], names: frozenset[str] = _FOLDED, may_name: re.Pattern[str] = _MAY_NAME
) -> Iterator[str]:
    """The ids that these members have under these names, those of files, in their order."""
    waiting: list[tuple[str, Any]] = [("", members)]
    while waiting:
        under, value = waiting.pop()
        if isinstance(value, list):
            waiting.extend([("", each) for each in reversed(value) if each and isinstance(each, _NESTED)])
            continue
        if under not in SCHEMAS:
            for name in _names_in(value, names, may_name):
                yield from texts_in(value[name])
        is_use = value.get("type") == "tool_use"  # the arguments of a tool are its own
        for name, each in reversed(value.items()):
            if each and isinstance(each, _NESTED) and name not in FREE and not (is_use and name == "input"):
                waiting.append((name, each))


def _names_in(value: dict[str, Any], names: frozenset[str], may_name: re.Pattern[str]) -> list[str]:
    """Those of these names that an object has. A large one is not looked at name by name without need."""
    if len(value) > _FEW:
        given = "\n".join(value)
        if given.isascii() and not may_name.search(given):
            return []
    return [name for name in value if len(name) <= _LONGEST and _is_name(name, names)]


@lru_cache(maxsize=4096)
def _is_name(name: str, names: frozenset[str]) -> bool:
    whole = outer(name)
    return folded(name) in names or (whole != name and folded(whole) in names)


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
