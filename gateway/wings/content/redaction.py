"""Leaves out of kept content members at paths, files, and matches of patterns. Pure, and run where it may take long
(`process.py`)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from .messages import MEDIA

REDACTED = "[redacted]"


class Redactor:
    """Leaves out what the settings name, and files, from values as JSON has them."""

    def __init__(self, paths: Sequence[str], patterns: Sequence[str]) -> None:
        self._paths = [path.split(".") for path in paths]
        self._patterns = [re.compile(pattern) for pattern in patterns]

    def __call__(self, content: Mapping[str, Any]) -> dict[str, Any]:
        """The content without it. `input`, `output` and `system` are its first names of paths."""
        kept: Any = dict(content)
        for path in self._paths:
            kept = _without(kept, path)
        return {name: self._cleaned(value) for name, value in kept.items()}

    def _cleaned(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {self._text(name): self._cleaned(each) for name, each in value.items()}
        if isinstance(value, list):
            return [self._cleaned(each) for each in value]
        if isinstance(value, int | float) and not isinstance(value, bool):
            return value if (text := self._text(str(value))) == str(value) else text
        return self._text(value) if isinstance(value, str) else value

    def _text(self, text: str) -> str:
        if MEDIA.match(text) is not None:
            return f"[left out: a file of {len(text)} characters]"
        for pattern in self._patterns:
            text = pattern.sub(REDACTED, text)
        return text


def _without(value: Any, path: Sequence[str]) -> Any:
    """The value with `REDACTED` in place of what is at the path. A name on the way through a list means its items with
    this role or type."""
    if not path:
        return _redacted(value)
    name, *rest = path
    if isinstance(value, dict):
        return {each: _without(below, rest) if name in (each, "*") else below for each, below in value.items()}
    if isinstance(value, list):
        return [_without(each, rest) if name == "*" or _is_called(each, name) else each for each in value]
    return value


def _redacted(value: Any) -> Any:
    """`REDACTED` in the form of the value: messages stay messages, and parts parts."""
    if isinstance(value, list):
        return [_redacted(each) for each in value]
    if isinstance(value, dict) and "parts" in value:
        return value | {"parts": _redacted(value["parts"])}
    return {"type": "text", "content": REDACTED} if isinstance(value, dict) and "type" in value else REDACTED


def _is_called(item: Any, name: str) -> bool:
    return isinstance(item, dict) and name in (item.get("role"), item.get("type"))
