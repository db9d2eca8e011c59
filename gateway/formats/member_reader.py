"""Keeps the values of some members of a JSON text that comes in pieces and is too long to hold.

The text is not checked: what is no JSON yields nothing, or nonsense, and never an error. Memory is bounded by the
number of wanted members and `MAX_KEPT`, however long the text is and however deep it is nested.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection
from typing import Any

MAX_KEPT = 65_536
"""Bytes of a kept value; a longer one is dropped."""

MAX_NAME = 64
"""Bytes of a name; a longer one is no wanted one."""

MAX_DIFFERENT = 1024
"""Different values of one member over the items of an array; further ones are counted as one."""

EACH = "*"
"""In a path: each item of an array."""

Path = tuple[str, ...]

_INSIDE = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
_OUTSIDE = re.compile(rb'["{}\[\],]')
_LINES_OF_DATA = re.compile(rb"[\r\n]+data: ?")
"""Between the lines of one event, where its JSON has several."""

_QUOTE, _COMMA, _OPEN_OBJECT, _CLOSE_OBJECT, _OPEN_ARRAY, _CLOSE_ARRAY = b'",{}[]'


class MemberReader:
    """Follows one JSON object. `wanted` are paths of names from its root, with `EACH` for the items of an array."""

    def __init__(self, wanted: Collection[Path]) -> None:
        self.counted: dict[Path, Counter[bytes]] = {path: Counter() for path in wanted if EACH in path}
        """How often each value of a member came, over the items of an array: JSON, empty for one that is too long. Of a
        path that ends with `EACH`: how many items are objects or arrays, under `{`."""
        self.is_whole = False
        """The object has ended."""
        self._found: dict[Path, bytes] = {}
        self._wanted = frozenset(wanted)
        self._deepest = max(map(len, wanted))
        self._path: list[str] = []
        """The present member of each open object and array, down to `_deepest`."""
        self._is_object: list[bool] = []
        self._below = 0
        """Further open objects and arrays."""
        self._expects_name = False
        self._is_inside_string = False
        self._is_escaped = False
        self._name: bytearray | None = None
        """The name that is being read."""
        self._kept: bytearray | None = None
        """The value that is being kept, from the colon on."""
        self._kept_at = 0
        """The number of open objects and arrays around it."""

    def get(self, *path: str) -> Any:
        """The last value of this member, parsed; None if there was none, it was too long or is no JSON."""
        try:
            return json.loads(self._found[path])
        except (KeyError, ValueError, RecursionError):
            return None

    def feed(self, data: bytes) -> None:
        """The next piece of the text. Bytes before the object may have no brackets, quotes and commas."""
        at, start, size = 0, 0, len(data)
        while at < size:
            if self._is_inside_string:
                at = self._inside_string(data, at)
                if self._begins_value():
                    start = at
                continue
            mark = _OUTSIDE.search(data, at)
            if mark is None:
                break
            at = mark.end()
            sign = data[at - 1]
            if sign == _QUOTE:
                self._is_inside_string = True
                if self._expects_name and not self._below:
                    self._name = bytearray()
                continue
            if self._kept is not None and self._ends_value(sign):
                self._keep(data[start : at - 1])
                self._end_value()
            self._step(sign)
        if self._kept is not None:
            self._keep(data[start:])

    def _inside_string(self, data: bytes, at: int) -> int:
        """Go on to the end of the string, or of the data."""
        if self._is_escaped:
            self._is_escaped = False
            return at + 1
        end = data.find(b'"', at)
        end = len(data) if end < 0 else end
        if data.find(b"\\", at, end) >= 0:
            found = _INSIDE.match(data, at)
            end = found.end() if found else at
        if self._name is not None:
            self._name += data[at : min(end, at + MAX_NAME + 1)]
        if end == len(data):
            return end
        if data[end] == _QUOTE:
            self._is_inside_string = False
        else:  # the last byte, a backslash
            self._is_escaped = True
        return end + 1

    def _begins_value(self) -> bool:
        """Whether a name has ended here whose value is to be kept."""
        if self._name is None or self._is_inside_string:
            return False
        name = bytes(self._name)
        self._name = None
        self._expects_name = False
        self._path[-1] = name.decode("utf-8", "replace") if len(name) <= MAX_NAME else ""
        if self._kept is not None or tuple(self._path) not in self._wanted:
            return False
        self._kept = bytearray()
        self._kept_at = len(self._path)
        return True

    def _ends_value(self, sign: int) -> bool:
        is_there = not self._below and len(self._path) == self._kept_at
        return is_there and sign in (_COMMA, _CLOSE_OBJECT, _CLOSE_ARRAY)

    def _keep(self, data: bytes) -> None:
        assert self._kept is not None
        self._kept += data[: MAX_KEPT + 1 - len(self._kept)]

    def _end_value(self) -> None:
        assert self._kept is not None
        value, path = bytes(self._kept), tuple(self._path)
        self._kept = None
        if len(value) > MAX_KEPT:
            if path in self.counted:
                self.counted[path][b""] += 1
            return
        value = _LINES_OF_DATA.sub(b"\n", value).lstrip(b" \t\r\n:").rstrip()
        if path not in self.counted:
            self._found[path] = value
            return
        counter = self.counted[path]
        counter[value if value in counter or len(counter) < MAX_DIFFERENT else b""] += 1

    def _step(self, sign: int) -> None:
        path = self._path
        if sign in (_OPEN_OBJECT, _OPEN_ARRAY):
            if path and path[-1] == EACH and not self._below and (counter := self.counted.get(tuple(path))) is not None:
                counter[b"{"] += 1
            if self._below or len(path) >= self._deepest:
                self._below += 1
                return
            path.append("" if sign == _OPEN_OBJECT else EACH)
            self._is_object.append(sign == _OPEN_OBJECT)
            self._expects_name = sign == _OPEN_OBJECT
        elif sign == _COMMA:
            if not self._below and path:
                self._expects_name = self._is_object[-1]
        elif self._below:
            self._below -= 1
        elif path:
            path.pop()
            self._is_object.pop()
            self._expects_name = False
            self.is_whole = not path
