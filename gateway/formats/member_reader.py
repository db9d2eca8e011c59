"""Keeps the values of some members of a JSON text that comes in pieces and is too long to hold.

`MemberReader` does not check the text: what is no JSON yields nothing, or nonsense, and never an error. Memory is
bounded by the number of wanted members, `MAX_KEPT` and `MAX_OF_ITEMS`, however long the text is and however deep it is
nested.
"""

from __future__ import annotations

import json
import re
from codecs import getincrementaldecoder
from collections.abc import Callable, Collection, Mapping
from itertools import accumulate
from typing import Any, Generic, TypeVar

from gateway.api.json_document import steps_of

MAX_KEPT = 65_536
"""Bytes of a kept value; a longer one is dropped, but for an object and an error."""

LONGER_OBJECT, ERROR = b'{"message":null}', "error"
"""The former is kept in place of a longer object, and of a longer text or list of the latter name: an error is one,
whatever its form and length."""

MAX_NAME = 64
"""Bytes of a name; a longer one is no wanted one."""

MAX_ITEMS = 1024
"""Items of an array whose members are kept; those of further ones are dropped."""

MAX_OF_ITEMS = 131_072
"""Bytes of all values that are kept of items of arrays; further ones are dropped."""

SKIPPED_AT_ONCE = 16_384
"""Bytes that are passed over at once, or else looked at sign by sign."""

MAX_LEVELS = 200
"""Objects and arrays inside each other in an answer, as pydantic's parser allows (jiter, `DEFAULT_RECURSION_LIMIT`)."""

EACH = "*"
"""Element of a path that means each item of an array."""

Path = tuple[str, ...]

_INSIDE = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
_OUTSIDE, _BELOW = re.compile(rb'["{}\[\],]'), re.compile(rb'["{}\[\]]')
STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
WHOLE_STRINGS = re.compile(rb'(?:[^"]++|"[^"\\]*+(?:\\.[^"\\]*+)*+")*+', re.DOTALL)
_NO_JSON = re.compile(rb"[NI]|,[ \t\r\n]*[,}\]]")
_LINES_OF_DATA = re.compile(rb"[\r\n]+data: ?")
"""Matches what separates the lines of one event, where its JSON has several."""

_QUOTE, _COMMA, _OPEN_OBJECT, _CLOSE_OBJECT, _OPEN_ARRAY, _CLOSE_ARRAY = b'",{}[]'


class MemberReader:
    """Follows one JSON object. `wanted` are paths of names from its root, with `EACH` for the items of an array."""

    def __init__(self, wanted: Collection[Path]) -> None:
        self.counts: dict[Path, int] = {path: 0 for path in wanted if path[-1] == EACH}
        """Number of items that are objects or arrays, for each path that ends with `EACH`."""
        self._items: dict[Path, dict[int, dict[Path, bytes]]] = {}
        """Wanted members of items, by the path of the array and the place of the item in it."""
        self._bytes_of_items = 0
        self.is_whole = False
        self._found: dict[Path, bytes] = {}
        self._wanted = frozenset(wanted)
        self._deepest = max(map(len, wanted))
        self._path: list[str] = []
        """The present member of each open object and array, down to `_deepest`."""
        self._places: list[int] = []
        """Commas so far in each open object and array, down to `_deepest`."""
        self._is_object: list[bool] = []
        self._below = 0
        """Further open objects and arrays."""
        self._expects_name = False
        self._is_inside_string = False
        self._is_escaped = False
        self._name: bytearray | None = None
        self._kept: bytearray | None = None
        """The value that is being kept, from the colon on."""
        self._kept_at = 0
        """The number of open objects and arrays around it."""

    def get(self, *path: str) -> Any:
        """The last value of this member, parsed; None if there was none, it was too long or is no JSON."""
        return _parsed(self._found.get(path, b""))

    def value(self) -> dict[str, Any]:
        """The wanted members as one object; an array has its first items, each an object with its wanted members."""
        whole = _nested(self._found)
        for path, items in self._items.items():
            _put(whole, path, [_nested(items.get(place, {})) for place in range(max(items) + 1)])
        return whole

    def feed(self, data: bytes) -> None:
        """The next piece of the text. Bytes before the object may have no brackets, quotes and commas."""
        at, start, size, skipped = 0, 0, len(data), 0
        while at < size:
            if self._is_inside_string:
                at = self._inside_string(data, at)
                if self._begins_value():
                    start = at
                continue
            if self._below and at >= skipped:
                skipped, is_below = self._skip(data, at)
                if is_below:
                    at = skipped
            mark = (_BELOW if self._below else _OUTSIDE).search(data, at)
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

    def _skip(self, data: bytes, at: int) -> tuple[int, bool]:
        """The end of a piece of whole strings and other text, and whether all of it is below wanted members: then its
        brackets are counted, by loops in C, because lists of tokens and numbers have millions."""
        found = WHOLE_STRINGS.match(data, at, at + SKIPPED_AT_ONCE)
        assert found is not None
        text = STRING.sub(b"", found[0])
        steps = steps_of(text)
        if self._below + min(accumulate(steps), default=0) <= 0:
            return found.end(), False
        self._below += sum(steps)
        return found.end(), True

    def outside_strings(self, data: bytes) -> bytes:
        """The text of the next piece, with 0 for each of its strings."""
        at = 0
        if self._is_inside_string:
            end = _INSIDE.match(data, int(self._is_escaped))
            at = len(data) if end is None else end.end() + 1
        return STRING.sub(b"0", data[at:]).partition(b'"')[0]

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
            if path[-1] != ERROR and not value.lstrip(b" \t\r\n:").startswith(b"{"):
                return
            value = LONGER_OBJECT
        value = _LINES_OF_DATA.sub(b"\n", value).lstrip(b" \t\r\n:").rstrip()
        if EACH not in path:
            self._found[path] = value
            return
        at = path.index(EACH)
        place, self._bytes_of_items = self._places[at], self._bytes_of_items + len(value)
        if place < MAX_ITEMS and self._bytes_of_items <= MAX_OF_ITEMS:
            self._items.setdefault(path[:at], {}).setdefault(place, {})[path[at + 1 :]] = value

    def _step(self, sign: int) -> None:
        path = self._path
        if sign in (_OPEN_OBJECT, _OPEN_ARRAY):
            if path and path[-1] == EACH and not self._below and tuple(path) in self.counts:
                self.counts[tuple(path)] += 1
            if self._below or len(path) >= self._deepest:
                self._below += 1
                return
            path.append("" if sign == _OPEN_OBJECT else EACH)
            self._places.append(0)
            self._is_object.append(sign == _OPEN_OBJECT)
            self._expects_name = sign == _OPEN_OBJECT
        elif sign == _COMMA:
            if not self._below and path:
                self._places[-1] += 1
                self._expects_name = self._is_object[-1]
                if self._places[-1] == MAX_ITEMS and not self._expects_name:
                    self._leave()
                    self._below = 1  # the rest of the array has nothing that is wanted
        elif self._below:
            self._below -= 1
        elif path:
            self._leave()
            self._expects_name = False
            self.is_whole = not path

    def _leave(self) -> None:
        self._path.pop()
        self._places.pop()
        self._is_object.pop()


F = TypeVar("F")


class LongAnswer(Generic[F]):
    """Reads a plain answer in pieces. `facts` gets an object with its wanted members; an array of `EACH` that has items
    has one there at least. The answer is the whole text, or what is `within` it; then members `beside` it are kept."""

    def __init__(
        self, facts: Callable[[bytes], F], wanted: Collection[Path], within: Path = (), beside: Collection[Path] = ()
    ) -> None:
        self._facts = facts
        self._wanted = wanted
        self._within = within
        self._reader = MemberReader([*[(*within, *path) for path in wanted], *beside])
        self._decoder = getincrementaldecoder("utf-8")()
        self._depth = 0
        self._is_object = True

    def feed(self, data: bytes) -> None:
        self._check(data)
        self._reader.feed(data)

    def inside(self, path: Path, beside: Collection[Path]) -> LongAnswer[F]:
        """A reader of such an answer at this place of a text, and of members of that text."""
        return LongAnswer(self._facts, self._wanted, path, beside)

    def whole(self) -> dict[str, Any]:
        """The wanted members of the whole text. Raises `ValueError` if it is no whole JSON object, as far as that can
        be seen without building it."""
        if not self._is_object or not self._reader.is_whole:
            raise ValueError("no JSON object")
        return self._reader.value()

    def facts(self) -> F:
        """Raises `ValueError` as `whole` does."""
        value, depth = self.whole(), len(self._within)
        for name in self._within:
            value = value.get(name) or {}
        for path, number in self._reader.counts.items():
            if number and not value.get(path[depth]):
                value[path[depth]] = [{}]
        return self._facts(json.dumps(value).encode())

    def _check(self, data: bytes) -> None:
        """Look for faults that a client's parser would find: other bytes than UTF-8, anything around the object, NaN
        and Infinity, a comma without a value, and too many levels."""
        try:
            self._decoder.decode(data)
        except UnicodeDecodeError:
            self._is_object = False
        text = self._reader.outside_strings(data)
        levels = [*accumulate(steps_of(text), initial=self._depth)]
        around = b""
        if not levels[0]:
            around += text.partition(b"{")[0] if not self._reader.is_whole else text
        if not levels[-1]:
            around += text.rpartition(b"}")[2]
        if around.strip() or _NO_JSON.search(text) or 0 in levels[1:-1] or max(levels) > MAX_LEVELS:
            self._is_object = False
        self._depth = levels[-1]


def _parsed(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _nested(members: Mapping[Path, bytes]) -> dict[str, Any]:
    whole: dict[str, Any] = {}
    for path, text in members.items():
        _put(whole, path, _parsed(text))
    return whole


def _put(whole: dict[str, Any], path: Path, value: Any) -> None:
    for name in path[:-1]:
        below = whole.get(name)
        if not isinstance(below, dict):
            below = whole[name] = {}
        whole = below
    whole[path[-1]] = value
