"""Extracts the free text of a custom tool from the streamed arguments of a chat function.

The function has one member, `{"input": "..."}` (`tool_names`); its arguments may be split at any byte. Arguments of
another shape are passed on as the input.
"""

from __future__ import annotations

import json
import re

_OPENING = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_MAY_OPEN = re.compile(r'\s*(?:\{\s*(?:"(?:i(?:n(?:p(?:u(?:t(?:"\s*(?::\s*)?)?)?)?)?)?)?)?)?')
_STRING = re.compile(r'(?:[^"\\]++|\\(?:u[0-9a-fA-F]{4}|[^u]))*+')
_HIGH_SURROGATE = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\Z")
_ESCAPES = re.compile(r"(?:\\u[0-9a-fA-F]{4})++|\\[^u]")


class CustomInput:
    """Follows the arguments of one call."""

    def __init__(self) -> None:
        self._held = ""
        self._is_open = False
        self._is_raw = False
        self._is_over = False

    def feed(self, piece: str) -> str:
        """Take a piece of the arguments; return the further text of the input that is certain."""
        if self._is_over:
            return ""
        self._held += piece
        if not self._is_raw and not self._is_open:
            opening = _OPENING.match(self._held)
            if opening is not None:
                self._held = self._held[opening.end() :]
                self._is_open = True
            elif _MAY_OPEN.fullmatch(self._held):
                return ""
            else:
                self._is_raw = True
        return self.finish() if self._is_raw else self._decoded()

    def finish(self) -> str:
        """Call at the end of the arguments; returns the rest, which may be a partial escape."""
        text, self._held = self._held, ""
        return text

    def _decoded(self) -> str:
        match = _STRING.match(self._held)
        end = match.end() if match else 0
        self._is_over = self._held[end : end + 1] == '"'
        if not self._is_over and (half := _HIGH_SURROGATE.search(self._held, 0, end)):
            end = half.start()  # its other half is still to come
        written, self._held = self._held[:end], "" if self._is_over else self._held[end:]
        return _ESCAPES.sub(_unescaped, written)


def _unescaped(match: re.Match[str]) -> str:
    try:
        text: str = json.loads(f'"{match[0]}"', strict=False)
    except ValueError:  # no valid JSON escape
        return match[0]
    return text


def whole(arguments: str) -> str:
    """The input in complete arguments."""
    reader = CustomInput()
    return reader.feed(arguments) + reader.finish()


def as_arguments(text: str) -> str:
    """The arguments of the chat function for this input."""
    return json.dumps({"input": text}, ensure_ascii=False)


def compact(members: object) -> str:
    """A JSON text as arguments of a function."""
    return json.dumps(members, ensure_ascii=False, separators=(",", ":"))
