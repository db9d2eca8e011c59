"""The ids of kept files that a request names, in any format: OpenAI's `file_id` of content parts, `file_ids` of the
code interpreter's container, and Anthropic's `file_id` of a source.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

_NAMES = {"file_id": "file_id", "fileid": "file_id", "file_ids": "file_ids", "fileids": "file_ids"}
"""In lower case, because some upstreams read names so."""

_FREE = frozenset({"metadata"})
"""Members with names of the client's own choice."""

_MAY_NAME = re.compile(rb"file_?id|\\u00[4-7]", re.IGNORECASE)
"""In the text of each request that names a file. JSON may write any letter as an escape."""

OVERLAP = 16
"""Bytes of which `_MAY_NAME` is never longer."""


def may_name_files(pieces: Sequence[bytes | bytearray]) -> bool:
    """Whether the body in these pieces may name a file. Cheap; `ids_in` decides."""
    before = b""
    for piece in pieces:
        if _MAY_NAME.search(piece) or _MAY_NAME.search(before + bytes(piece[:OVERLAP])):
            return True
        before = bytes(piece[-OVERLAP:])
    return False


def ids_in(members: dict[str, Any]) -> Iterator[str]:
    """The ids of files that these members name, in their order."""
    waiting: list[Any] = [value for name, value in reversed(members.items()) if name not in _FREE]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting.extend(reversed(value))
        elif isinstance(value, dict):
            yield from _named(value)
            waiting.extend(reversed(value.values()))


def _named(value: dict[str, Any]) -> Iterator[str]:
    for name, given in value.items():
        meant = _NAMES.get(name.lower()) if len(name) <= len("file_ids") else None
        if meant == "file_id" and isinstance(given, str):
            yield given
        elif meant == "file_ids" and isinstance(given, list):
            yield from (each for each in given if isinstance(each, str))
