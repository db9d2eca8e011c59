"""Large bodies: small values and the positions of all values are kept, not the parsed document.

Parsing 25 MB takes one second, in the worst case four, and would block the worker's other calls. A separate process
reads such a body (`process/large_body_process.py`). The worker gets a small result: the checked `Params`, whose
document has placeholders for long values, and the facts that are somewhere inside these: the files that they name, and
whether a tool acts. It keeps the body as the received pieces.
"""

from __future__ import annotations

import json
import math
from codecs import BOM_UTF8
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from gateway.errors import InvalidRequest
from gateway.records import Document, ItemRef, LargeBody, LineCeilings, Params

from .acting_tools import acting_in, are_in_items
from .capabilities import has_value
from .file_ids import named_files
from .json_document import brackets, spans

LARGE_BYTES = 65536
"""A longer body is large. One of this length is read in about 3 ms, the worst in 10 ms."""

SHORT_BYTES, SHORT_BRACKETS = 1_048_576, 65_536
"""A body with more is read by a process of its own, since it may take seconds. One with less takes a quarter of one at
most; a megabyte of an agent's has some thousand arrays and objects."""

MAX_KEPT = 8192
"""Characters of a value that is kept. Every number is shorter."""

MAX_COUNTED = 1000
"""The placeholder of a list keeps its length up to this number, for limits on list lengths."""

MAX_BRIEF_BYTES = 262_144

MAX_SCALARS = 32_768
"""Characters of the texts and numbers that a stand-in of an object keeps."""

MAX_TEXT = 512
"""Characters of such a text."""

_DECISIVE = frozenset({
    "type", "enabled", "effort", "enable_thinking", "thinking", "include_usage", "user_id", "id",
})  # fmt: skip
"""Names in objects by which the gateway decides, of an object with more."""

_USERS = frozenset({"safety_identifier", "user", "user_id"})
Piece = bytes | bytearray | memoryview

_SCALARS = tuple(name for name in Params._fields if name != "document")


def brief(
    params: Params, drops: Iterable[str] = (), keep: Collection[str] = (), reads: Mapping[str, Any] | None = None
) -> bytes:
    """These `Params` for the worker, as one line of JSON. `drops`: the parameters that some upstream drops; `keep`:
    members that are kept, however long; `reads`: those of which a row of tasks reads parts, which are kept. Raises
    `InvalidRequest` if the line would be too long."""
    document = params.document
    places = spans(document)
    members = {
        name: value
        if name in keep or places[name][1] - places[name][0] <= MAX_KEPT
        else _stand_in(value, name)
        if reads is None
        else _parts(value, reads.get(name))
        for name, value in document.members.items()
    }
    known = {
        "params": {name: getattr(params, name) for name in _SCALARS},
        "members": members,
        "places": _in_bytes(document.text, places),
        "opening": document.text.index("{") + 1,
        "file_ids": named_files(document),
        "acts": acting_in(document.members),
        "inner_tools": are_in_items(document.members),
        "dropped": [path for path in drops if has_value(document.members, path.split("."))],
    }
    found = line(known)
    if len(found) > MAX_BRIEF_BYTES:
        long = [
            name for name in (*keep, *(reads or ())) if name in places and places[name][1] - places[name][0] > MAX_KEPT
        ]
        remedy = f": shorten '{long[0]}', which has to be read as a whole" if long else ""
        raise InvalidRequest(
            f"The body has too many parameters, or too long ones or names of them{remedy}.",
            param=long[0] if long else None,
        )
    return found


def is_long(pieces: Sequence[Piece]) -> bool:
    """Whether a body in these pieces may take long to read."""
    size = opened = 0
    for text in map(bytes, pieces):
        size += len(text)
        opened += brackets(text)
        if size > SHORT_BYTES or opened > SHORT_BRACKETS:
            return True
    return False


def line(known: Mapping[str, Any]) -> bytes:
    return json.dumps(known, separators=(",", ":")).encode() + b"\n"


def from_brief(known: Mapping[str, Any], pieces: Sequence[Piece]) -> Params:
    """The `Params` of the body in these pieces, from the result of `brief`."""
    large = LargeBody(
        _without_mark(pieces), known["opening"], _places(known), tuple(known["file_ids"]), known["acts"],
        known["inner_tools"], frozenset(known["dropped"]),
    )  # fmt: skip
    document = Document("", known["members"], large)
    params = Params(document, **known["params"])
    counts, parts = (tuple([(name, count) for name, count in each]) for each in (params.units, params.token_parts))
    items = tuple([ItemRef(*item) for item in params.items])
    ceilings = LineCeilings(*params.line_ceilings)
    return params._replace(
        other_models=tuple(params.other_models), units=counts, token_parts=parts, items=items, line_ceilings=ceilings
    )


def written(members: Mapping[str, Any]) -> tuple[dict[str, Any], bytes]:
    """An object as JSON that a rewritten body is, and what `from_written` needs of it."""
    pieces: list[str] = []
    places: dict[str, tuple[int, int]] = {}
    at = 0
    for name, value in members.items():
        opening = f"{',' if pieces else '{'}{json.dumps(name)}:"
        text = json.dumps(value, allow_nan=False, separators=(",", ":"))
        start = at + len(opening)
        at = start + len(text)
        places[name] = (start, at)
        pieces += (opening, text)
    kept = {
        name: value if places[name][1] - places[name][0] <= MAX_KEPT else _stand_in(value)
        for name, value in members.items()
    }
    return {"members": kept, "places": places, "opening": 1}, ("".join(pieces) + "}").encode()


def from_written(known: Mapping[str, Any], pieces: Sequence[Piece]) -> Document:
    """The object in these pieces, from the result of `written`."""
    return Document("", known["members"], LargeBody(pieces, known["opening"], _places(known)))


def with_first(document: Document, name: str, value: Any, written: Sequence[Piece] = ()) -> Document:
    """The document of a large body with this member, which it has not, before its others. `written`: its JSON, of which
    `value` is kept."""
    large = document.large
    assert large is not None
    first, *others = large.pieces
    opening = bytes(first[: large.opening]) + f"{json.dumps(name)}:".encode()
    added = written or [json.dumps(value).encode()]
    at = len(opening)
    end = at + sum(map(len, added))
    more = end + len(",") - large.opening
    places = {each: (start + more, until + more) for each, (start, until) in large.places.items()}
    return document._replace(
        members={name: value, **document.members},
        large=large._replace(
            pieces=[opening, *added, b"," + bytes(first[large.opening :]), *others],
            places={name: (at, end), **places},
        ),
    )


def cut(pieces: Sequence[Piece], lengths: Iterable[int]) -> list[list[memoryview]]:
    """The parts of a body in pieces that have these lengths in bytes, one behind the other."""
    whole, at, found = _Pieces(pieces), 0, []
    for length in lengths:
        at += length
        found.append(whole.up_to(at))
    return found


def _places(known: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    return {name: (start, end) for name, (start, end) in known["places"].items()}


def _without_mark(pieces: Sequence[Piece]) -> Sequence[Piece]:
    """Returns the pieces without a byte order mark, because `json_document.parse` counts places after the mark."""
    whole = _Pieces(pieces)
    if b"".join(whole.up_to(len(BOM_UTF8))) != BOM_UTF8:
        return pieces
    return list(map(bytes, whole.up_to(None)))


class Replaced(list[memoryview]):
    """Holds the pieces of a body whose members were replaced."""

    places: Mapping[str, tuple[int, int]]
    """The positions of its members' values, in bytes; empty: they are not known."""


def replace(large: LargeBody, values: Mapping[str, Any]) -> Replaced:
    """Replaces members as `document.replace` does, but returns pieces, none of which is copied."""
    written = {name: json.dumps(value, allow_nan=False, separators=(",", ":")) for name, value in values.items()}
    added, places = "", dict[str, tuple[int, int]]()
    for name, value in written.items():
        if name not in large.places:
            start = large.opening + len(added) + len(f"{json.dumps(name)}:")
            places[name] = (start, start + len(value))
            added += f"{json.dumps(name)}:{value},"
    more = len(added)
    for name, (start, end) in sorted(large.places.items(), key=lambda each: each[1]):
        size = len(written[name]) if name in written else end - start
        places[name] = (start + more, start + more + size)
        more += size - (end - start)
    changes = [(large.opening, large.opening, added)]  # a large body is never empty
    changes += sorted((*large.places[name], value) for name, value in written.items() if name in large.places)
    whole = _Pieces(large.pieces)
    found: list[memoryview] = []
    for start, end, text in changes:
        found += whole.up_to(start)
        found.append(memoryview(text.encode()))
        whole.skip_to(end)
    replaced = Replaced([piece for piece in (*found, *whole.up_to(None)) if piece])
    replaced.places = places if large.places else {}
    return replaced


class _Pieces:
    """A body in pieces, from its beginning to its end."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._left = [memoryview(piece) for piece in reversed(pieces)]
        self._at = 0

    def up_to(self, end: int | None) -> list[memoryview]:
        """The body up to this byte; None: the whole remainder."""
        taken = []
        while self._left and (end is None or self._at < end):
            piece = self._left.pop()
            if end is not None and self._at + len(piece) > end:
                self._left.append(piece[end - self._at :])
                piece = piece[: end - self._at]
            taken.append(piece)
            self._at += len(piece)
        return taken

    def skip_to(self, end: int) -> None:
        self.up_to(end)


def _parts(value: Any, reads: Mapping[str, Any] | None) -> Any:
    """The parts of a value that a row of tasks reads, with stand-ins for all others. No text becomes an empty one."""
    if reads is None:
        return value[:1] if isinstance(value, str) else _stand_in(value)
    if isinstance(value, dict) and reads:
        return {name: _parts(each, reads.get(name)) for name, each in value.items()}
    if isinstance(value, list) and reads:
        return [_parts(each, reads.get(str(place))) for place, each in enumerate(value)]
    return value


def _stand_in(value: Any, name: str = "") -> Any:
    """Returns a short value of the same kind. An object keeps its own texts and numbers, because rules may depend on
    them; a user's name keeps its beginning, which records have (`api/attribution.py`)."""
    if isinstance(value, str) and name in _USERS:
        return value[:MAX_TEXT]
    if isinstance(value, list) and value:
        first = value[0]
        return [type(first)() if isinstance(first, str | dict | list) else first] * min(len(value), MAX_COUNTED)
    if isinstance(value, dict):
        kept = _scalars(value, MAX_SCALARS)
        return _scalars({name: value[name] for name in value.keys() & _DECISIVE}) if kept is None else kept
    return type(value)() if isinstance(value, str) else value


def _scalars(members: Mapping[str, Any], most: float = math.inf) -> dict[str, Any] | None:
    """The texts and numbers of an object; None: they have more characters."""
    kept = {}
    for name, value in members.items():
        if isinstance(value, dict | list) or (isinstance(value, str) and len(value) > MAX_TEXT and name not in _USERS):
            continue
        kept[name] = value[:MAX_TEXT] if isinstance(value, str) else value
        most -= len(name) + len(str(kept[name]))
        if most < 0:
            return None
    return kept


def _in_bytes(text: str, places: Mapping[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    """Places in the UTF-8 bytes of a text, from places in its characters."""
    if text.isascii():
        return dict(places)
    found, at, done = {}, 0, 0
    for name, (start, end) in places.items():  # in their order
        first = at + len(text[done:start].encode())
        at, done = first + len(text[start:end].encode()), end
        found[name] = (first, at)
    return found
