"""Cleans the reasons of failures in JSON that comes in pieces, of any length and depth, and leaves every other byte.

A text is held until it is whole, so that no name is lost where two pieces meet. Texts that are no JSON pass.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection

MAX_TEXT = 40_000
"""Bytes of a reason that are read; the rest is left out."""
LONGEST_NAME = 1_024
"""Characters of a name of an account. A part of one may stand where a reason was cut."""
_LONGEST_MEMBER = 128
_ECHOED = frozenset({"input", "instructions", "metadata", "prompt", "text", "tools", "args"})
"""Members in which an answer repeats the request (openai-python, `types/responses/response.py`), or has a call's
arguments (python-genai, `types.FunctionCall`): there names mean nothing."""
_MARKS = (re.compile(rb'["{}\[\]]'), re.compile(rb'["{}\[\],]'))
_REST = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+("?)', re.DOTALL)
_CUT_ESCAPE = re.compile(rb"\\[^\\]{0,5}\Z")
_OBJECT, _IS_REASON, _IS_ECHO = 1, 2, 4
_QUOTE, _COMMA, _OPEN_OBJECT = b'",{'


class ReasonCleaner:
    """`clean` changes the texts in members of these names, at any depth."""

    def __init__(self, names: Collection[str], clean: Callable[[str], str]) -> None:
        self._names = names
        self._clean = clean
        self._open = bytearray()
        """The kind of each open object and array."""
        self._value = 0
        """The kind of the present value."""
        self._expects_name = False
        self._is_inside = self._is_dropped = False
        """Whether the rest of a string passes, or is left out."""
        self._held = b""

    def feed(self, data: bytes, *, is_last: bool = False) -> bytes:
        data, start, at = self._held + data, 0, 0
        passed: list[bytes] = []
        while at < len(data):
            if self._is_inside:
                found = _REST.match(data, at)
                assert found is not None
                start, at = (found.start(1) if self._is_dropped else start), found.end()
                self._is_inside = not found[1]
                if self._is_inside:
                    break
            mark = _MARKS[self._open[-1] & _OBJECT if self._open else 0].search(data, at)
            if mark is None:
                at = len(data)
                break
            at = mark.end()
            if data[at - 1] != _QUOTE:
                self._step(data[at - 1])
            elif not (self._expects_name or self._value & _IS_REASON):
                self._is_inside, self._is_dropped = True, False
            elif (found := self._text(data, at, is_last=is_last)) is None:
                at -= 1
                break
            else:
                passed += data[start:at], self._read(data[at : found.start(1)])
                start, at = found.start(1), found.end()
        at = len(data) if is_last else at
        self._held = data[at:]
        return b"".join([*passed, data[start:at]])

    def _step(self, sign: int) -> None:
        if sign == _COMMA:
            self._expects_name = True
        elif sign in b"{[":
            self._expects_name = sign == _OPEN_OBJECT
            self._open.append(self._value | self._expects_name)
        else:
            self._value, self._expects_name = (self._open.pop() & ~_OBJECT if self._open else 0), False

    def _text(self, data: bytes, at: int, *, is_last: bool) -> re.Match[bytes] | None:
        """The name or the reason that begins here; None: its end has to come."""
        found = _REST.match(data, at)
        assert found is not None
        longest = _LONGEST_MEMBER if self._expects_name else MAX_TEXT
        if not (found[1] or is_last or len(data) - at > longest):
            return None
        self._is_inside = not found[1]
        self._is_dropped = self._is_inside and not self._expects_name
        return found

    def _read(self, text: bytes) -> bytes:
        """The name, or the cleaned reason."""
        if not self._expects_name:
            return self._cleaned(text)
        self._value, self._expects_name = self._open[-1] & ~_OBJECT, False
        if not self._value:
            name = _decoded(text[:_LONGEST_MEMBER])
            self._value = _IS_ECHO if name in _ECHOED else _IS_REASON if name in self._names else 0
        return text

    def _cleaned(self, text: bytes) -> bytes:
        given = _decoded(_CUT_ESCAPE.sub(b"", text[:MAX_TEXT]) if len(text) > MAX_TEXT else text)
        cleaned = self._clean(given)
        if len(text) > MAX_TEXT:
            cleaned = f"{cleaned[:-LONGEST_NAME]}..."
        return text if cleaned == given else json.dumps(cleaned)[1:-1].encode()


def _decoded(text: bytes) -> str:
    try:
        return json.loads(b'"%b"' % text, strict=False)  # type: ignore[no-any-return]
    except ValueError:
        return text.decode("utf-8", "surrogateescape")
