"""A request body as the client wrote it: read once, changed in single places.

The client's own bytes are what is forwarded; only a member that must change (a model's alias, an output limit) is
written anew. New members go in front; only where one that is there has to change is the top level walked a second time,
to find the positions of its values. Invalid input is walked as well, to report where it stops being JSON.

Upstreams interpret sloppy JSON differently, and an upstream that reads a body differently from the gateway would
execute what the gateway did not check. Everything on which parsers differ is therefore refused instead of read in one
way: duplicate names at any depth (RFC 8259, section 4: behaviour is unpredictable), NaN and Infinity, numbers beyond a
double, lone surrogates (they are no text, and cannot be forwarded as UTF-8), a byte order mark (section 8.1).

`parse` raises `InvalidRequest`; anything else is our bug. Each step is linear in the length of the body.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from itertools import accumulate
from json.encoder import encode_basestring_ascii as quote
from typing import Any, NoReturn

from gateway.errors import InvalidRequest
from gateway.records import Document

MAX_DEPTH = 256
"""Arrays and objects inside each other. Real bodies (a JSON schema inside a tool) stay below 30. Python's decoder gives
up at about 1,000, depending on version and call depth; a fixed limit is the same everywhere."""

MAX_MARKS = 2_000_000
"""Brackets, colons and commas. Each takes a microsecond or two: more of them would keep the bodies of others waiting.
Ten thousand requests of a batch have 200 each."""

MAX_PARAMETERS = 8192
"""Members of the body itself. Each is looked up by many rules."""

NOT_JSON = (
    "We could not parse the JSON body of your request. (HINT: This likely means you aren't using your HTTP library "
    "correctly. The OpenAI API expects a JSON payload, but what was sent was not valid JSON."
)
"""OpenAI's words; where the body stops being JSON, and a closing bracket, follow."""

MAX_SHOWN_NAME = 64
"""A longer name is not repeated in a message."""

_WHITESPACE = re.compile(r"[ \t\n\r]*+")
_AFTER_VALUE = re.compile(r"[ \t\n\r]*+([,}])[ \t\n\r]*+")
_COLON = re.compile(r"[ \t\n\r]*+:[ \t\n\r]*+")
# The usual text between two values, in one match: a comma, a name without escapes, a colon.
_PLAIN_NAME = re.compile(r'[ \t\n\r]*+,[ \t\n\r]*+"([^"\\\x00-\x1f]*+)"[ \t\n\r]*+:[ \t\n\r]*+')

# Text up to the first escape that is half of a surrogate pair. In JSON, backslashes occur only in strings.
_WHOLE_TEXT = re.compile(
    r"(?:[^\\]++|\\[^u]|\\u(?![dD][89a-fA-F])|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})*+"
)

_NOT_STRUCTURE = bytes(set(range(256)) - set(b'[]{}:,"'))
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")  # +1 and -1, as signed bytes

_KINDS = {"[": "an array", '"': "a string", "t": "a boolean", "f": "a boolean", "n": "null"} | dict.fromkeys(
    "-0123456789", "a number"
)


def parse(raw: bytes) -> Document:
    """The JSON object in `raw`. Raises `InvalidRequest` with the first error and its position.

    A byte order mark, which PowerShell and some editors write, is left out (RFC 8259, 8.1).
    """
    try:
        text = raw.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        _refuse(f"The body is not UTF-8: look at its byte {error.start + 1}")
    if brackets(raw) > MAX_DEPTH or len(raw) > MAX_MARKS:  # hardly ever: fewer brackets cannot be deep
        _refuse_structure(raw)
    try:
        members = _DECODER.decode(text)
    except (ValueError, RecursionError):
        members = None
    if type(members) is not dict:
        _refuse_unreadable(text)
    if len(members) > MAX_PARAMETERS:
        _refuse(f"It has more than {MAX_PARAMETERS} parameters")
    if "\\" in text:
        end = _end(_WHOLE_TEXT, text, 0)
        if end != len(text):
            _refuse("A \\u escape is half of a surrogate pair, which is no character", text, end)
    return Document(text, members)


def parse_any(text: str) -> Any:
    """The JSON value that a member has as its text. Raises `ValueError`, too where readers would differ."""
    try:
        return _DECODER.decode(text)
    except (InvalidRequest, RecursionError):
        raise ValueError("read differently, or nested too deeply") from None


def spans(document: Document) -> dict[str, tuple[int, int]]:
    """The position of each top-level value in the text. Reads the text a second time, because few calls need it."""
    return _walk(document.text, _QUICK_DECODER)


def replace(document: Document, values: Mapping[str, Any]) -> bytes:
    """The document as UTF-8 with these top-level members set; every other byte stays the client's own.

    A member that is there keeps its place and its name as it was written; new ones come first. Values are written in
    ASCII, so there is none that could not be encoded.
    """
    text, members = document.text, document.members
    if not values:
        return text.encode()
    written = {name: str(value) if type(value) is int else _ENCODER.encode(value) for name, value in values.items()}
    added = ",".join([f"{quote(name)}:{value}" for name, value in written.items() if name not in members])
    if added and members:
        added += ","
    # Only whitespace precedes the object.
    at = text.index("{") + 1
    pieces = [text[:at], added]
    if not members.keys().isdisjoint(written):
        places = spans(document)
        for (start, end), value in sorted((places[n], v) for n, v in written.items() if n in places):
            pieces += (text[at:start], value)
            at = end
    pieces.append(text[at:])
    return "".join(pieces).encode()


def has_more_nested(raw: bytes, most: int) -> bool:
    """Whether a body has more than `most` arrays and objects."""
    return brackets(raw) > most and brackets(_structure(raw)) > most


def steps_of(structure: bytes) -> memoryview[int]:
    """1 and -1 for each opening and closing bracket of JSON without its strings."""
    return memoryview(structure.translate(_STEPS, _NO_BRACKETS)).cast("b")


def brackets(text: bytes) -> int:
    """How many arrays and objects begin, and brackets in texts."""
    return text.count(b"{") + text.count(b"[")


def _structure(raw: bytes) -> bytes:
    # Without escapes every other piece between quotes is a string. (Outside strings JSON has no backslash, and what is
    # not JSON is refused later.) All of this is done by loops in C, since a body may hold millions of brackets.
    pieces = raw.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _NOT_STRUCTURE).split(b'"')
    return b"".join(pieces[::2])


def _refuse_structure(raw: bytes) -> None:
    if _marks(raw) > MAX_MARKS or brackets(raw) > MAX_DEPTH:
        structure = _structure(raw)
        if _marks(structure) > MAX_MARKS:
            _refuse(f"There are more than {MAX_MARKS} brackets, colons and commas between its texts: send less at once")
        if max(accumulate(steps_of(structure)), default=0) > MAX_DEPTH:
            _refuse_nesting()


def _marks(text: bytes) -> int:
    return brackets(text) + text.count(b":") + text.count(b",")


def _refuse_unreadable(text: str) -> NoReturn:
    """Raise the reason why the text is not one JSON object, with its position."""
    try:
        _walk(text, _DECODER)
    except json.JSONDecodeError as error:
        # Only the decoder's own fixed words: some versions add a piece of the input after a colon.
        _refuse(error.msg.partition(":")[0].removesuffix(" starting at").removesuffix(" at"), text, error.pos)
    except RecursionError:
        _refuse_nesting()
    except ValueError:
        # int() itself refuses more than 4,300 digits (sys.set_int_max_str_digits): its time grows with their square.
        _refuse("A number has too many digits")
    _refuse("It could not be read")


def _walk(text: str, decoder: json.JSONDecoder) -> dict[str, tuple[int, int]]:
    """The positions of the values of the object that the text must be."""
    places: dict[str, tuple[int, int]] = {}
    at = _enter(text)
    if text[at : at + 1] == "}":
        _refuse_rest(text, _end(_WHITESPACE, text, at + 1))
        return places
    name, start = _name(text, at)
    while True:
        _, at = decoder.raw_decode(text, start)
        if name in places:
            _refuse_duplicate(name)
        places[name] = (start, at)
        plain = _PLAIN_NAME.match(text, at)
        if plain is not None:
            name, start = plain[1], plain.end()
            continue
        mark = _AFTER_VALUE.match(text, at)
        if mark is None:
            at = _end(_WHITESPACE, text, at)
            _refuse("Expecting ',' or '}'" if at < len(text) else "The object has no end", text, at)
        if mark[1] == "}":
            _refuse_rest(text, mark.end())
            return places
        name, start = _name(text, mark.end())


def _enter(text: str) -> int:
    """The position of the first name, or of the end of an empty object."""
    at = _end(_WHITESPACE, text, 0)
    if at == len(text):
        _refuse("The body is empty")
    if text[at] != "{":
        kind = _KINDS.get(text[at])
        _refuse(f"The body has to be an object, but begins like {kind}" if kind else "Expecting an object", text, at)
    return _end(_WHITESPACE, text, at + 1)


def _name(text: str, at: int) -> tuple[str, int]:
    """The name at position `at`, and where its value begins."""
    if text[at : at + 1] != '"':
        _refuse("Expecting a name in double quotes", text, at)
    name, at = _DECODER.raw_decode(text, at)
    colon = _COLON.match(text, at)
    if colon is None:
        _refuse("Expecting ':' after a name", text, at)
    return name, colon.end()


def _refuse_rest(text: str, at: int) -> None:
    if at != len(text):
        _refuse("There is something after the end of the object", text, at)


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    """Where the match of a pattern ends that matches anywhere, if only nothing."""
    found = pattern.match(text, at)
    return found.end() if found else at


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        counts = Counter(name for name, _ in pairs)
        _refuse_duplicate(next(name for name, count in counts.items() if count > 1))
    return members


def _float(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        _refuse("A number is too large")
    return number


def _constant(name: str) -> NoReturn:
    _refuse(f"{name} is not a JSON value")


_ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"))
_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_float=_float, parse_constant=_constant)
_QUICK_DECODER = json.JSONDecoder()  # for text that was checked


def _refuse(what: str, text: str = "", at: int | None = None) -> NoReturn:
    """OpenAI's words for a body that is not JSON, with an ending that helps to find the place."""
    where = ""
    if at is not None:
        where = f" at line {text.count(chr(10), 0, at) + 1}, column {at - text.rfind(chr(10), 0, at)}"
    raise InvalidRequest(f"{NOT_JSON} {what}{where}.)") from None


def _refuse_nesting() -> NoReturn:
    _refuse(f"Arrays and objects are nested more than {MAX_DEPTH} deep")


def _refuse_duplicate(name: str) -> NoReturn:
    is_shown = len(name) <= MAX_SHOWN_NAME and name.isprintable()
    called = f"'{name}'" if is_shown else "One name"
    raise InvalidRequest(
        f"Duplicate parameter: {called} is given more than once in the same object. Give it once.",
        param=name if is_shown else None,
        code="duplicate_parameter",
    )
