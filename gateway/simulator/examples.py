"""Example values of a JSON schema, for tool calls and structured output.

An object gets its required properties (all, if none is required); of several alternatives the first is used; `$ref` is
resolved inside the document. Patterns, formats and lengths are ignored.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .text import VOCABULARY

DEEPEST = 8
"""Depth at which a recursive schema ends, with null."""


def example(schema: Any, rolls: Iterator[int]) -> Any:
    """A value for the schema, chosen by the rolls."""
    return _Example(schema, rolls).value(schema, 0)


class _Example:
    def __init__(self, root: Any, rolls: Iterator[int]) -> None:
        self._root = root
        self._rolls = rolls

    def value(self, schema: Any, depth: int) -> Any:
        """A value for this part of the schema."""
        if not isinstance(schema, dict) or depth > DEEPEST:
            return None
        if "const" in schema:
            return schema["const"]
        if choices := _list(schema.get("enum")):
            return choices[next(self._rolls) % len(choices)]
        if isinstance(schema.get("$ref"), str):
            return self.value(self._resolve(schema["$ref"]), depth + 1)
        for name in ("anyOf", "oneOf", "allOf"):
            if arms := _list(schema.get(name)):
                return self.value(arms[0], depth + 1)
        return self._typed(schema, depth)

    def _typed(self, schema: dict[str, Any], depth: int) -> Any:
        kinds = schema.get("type", "object" if "properties" in schema else "string")
        match kinds[0] if _list(kinds) else kinds:
            case "object":
                return self._object(schema, depth)
            case "array":
                return [self.value(schema.get("items"), depth + 1)]
            case "integer" | "number":
                least = schema.get("minimum", 1)
                return least if isinstance(least, int | float) else 1
            case "boolean":
                return next(self._rolls) % 2 == 0
            case "null":
                return None
            case _:
                return VOCABULARY[next(self._rolls) % len(VOCABULARY)].strip()

    def _object(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        properties = schema.get("properties")
        if not isinstance(properties, dict):
            return {}
        names = [name for name in _list(schema.get("required")) if isinstance(name, str)] or list(properties)
        return {name: self.value(properties.get(name), depth + 1) for name in names}

    def _resolve(self, reference: str) -> Any:
        at = self._root
        for part in reference.removeprefix("#").strip("/").split("/"):
            if part:
                at = at.get(part) if isinstance(at, dict) else None
        return at


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
