"""The notation of passthrough rows: operations, options and conditions.

An operation is a method and a path below the row's prefix: `POST /v1/videos/{kind}`, `GET /v1/tasks?id={task}`. A name
in braces matches one segment or a part of it, `{task*}` several segments. Without a method it is POST.

A reference is a JSON pointer to the id of an earlier task, or to a text that has it: `/content={task} *`.

A key place is where clients put their key: the name of a header, `?key` for a parameter of the query, or
`Authorization: Token` for that header with another scheme than Bearer.

An option is the name of such a part, or a JSON pointer (RFC 6901) into the body: `kind`, `/parameters/mode`. In a form
the pointer names a text field; a pointer into a text goes into the JSON that it holds. A condition is an option with
the texts that it may have, `*` for any characters in them; what is not there is the empty text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from gateway import untrusted_json

TASK = "task"
"""The name of the part that is the id of a task, and of the parameter that names it in errors."""

_OPERATION = re.compile(r"(?:(GET|POST|PUT|PATCH|DELETE) +)?(/[^\s?#]*)(?:\?([\w-]+)=\{(\w+)\})?")
_PART = re.compile(r"\{(\w+)(\*?)\}")
_POINTER = re.compile(r"(?:/(?:[^~/]|~[01])*)+")
_KEY_PLACE = re.compile(r"(\?)?([A-Za-z0-9_-]{1,64})|[Aa]uthorization: ([A-Za-z][A-Za-z0-9_-]{0,31})")
_UNSAFE = re.compile(r"[\x00-\x1f\x7f\\]")


class TaskOperation(NamedTuple):
    """One method and path of an API."""

    method: str
    path: str
    """Path with its parts in braces."""
    pattern: re.Pattern[str]
    """Matches paths as they are sent, percent-encoded."""
    query: tuple[str, str] | None
    """The parameter of the query that holds a part, and the part's name."""

    @property
    def names(self) -> frozenset[str]:
        found = {name for name, _ in _PART.findall(self.path)}
        return frozenset(found if self.query is None else {*found, self.query[1]})

    def match(self, method: str, path: str, query: str) -> dict[str, str] | None:
        """The parts of a request by their names; None: it is another operation. `path` and `query` are as they were
        sent."""
        if method != self.method or (found := self.pattern.fullmatch(path)) is None:
            return None
        parts = {name: unquote(value) for name, value in found.groupdict().items()}
        if self.query is not None:
            param, name = self.query
            values = [value for given, value in parse_qsl(query, keep_blank_values=True) if given == param]
            if len(values) != 1:
                return None
            parts[name] = values[0]
        return parts if all(map(_is_safe, parts.values())) else None

    def fill(self, parts: Mapping[str, str]) -> str:
        """The path and query with these parts. Raises `KeyError` for one that is not given."""
        path = _PART.sub(lambda part: quote(parts[part[1]], safe="/" if part[2] else ""), self.path)
        return path if self.query is None else f"{path}?{self.query[0]}={quote(parts[self.query[1]], safe='')}"


def _is_safe(value: str) -> bool:
    """Whether no server can take the value of a part for another path."""
    return bool(value) and not _UNSAFE.search(value) and not {"", ".", ".."} & set(value.split("/"))


def split_address(address: str) -> tuple[str, str]:
    """Path and query of an URL as they are written; both empty: it is none."""
    try:
        url = urlsplit(address)
    except ValueError:
        return "", ""
    return url.path, url.query


@lru_cache(maxsize=1024)
def read_operation(text: str) -> TaskOperation:
    """Parses a method and a path. Raises `ValueError` if the text is invalid."""
    found = _OPERATION.fullmatch(text)
    names = _PART.findall(text)
    if found is None or re.search(r"[{}]", _PART.sub("", text)):
        raise ValueError("expected a method and a path such as POST /v1/videos/{kind} or GET /v1/tasks?id={task}")
    if len({name for name, _ in names}) < len(names):
        raise ValueError("expected each name in braces once")
    method, path, param, name = found.groups()
    at, pattern = 0, ""
    for part in _PART.finditer(path):
        segment = r"(?:(?!%2[fF])[^?#])+" if part[2] else r"(?:(?!%2[fF])[^/?#])+"
        pattern += f"{re.escape(path[at : part.start()])}(?P<{part[1]}>{segment})"
        at = part.end()
    return TaskOperation(
        method or "POST", path, re.compile(pattern + re.escape(path[at:])), (param, name) if param is not None else None
    )


def steps_of(pointer: str) -> list[str]:
    """The names and indexes of a JSON pointer."""
    return [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]


def is_pointer(text: str) -> bool:
    """Whether a text is a JSON pointer to a part of a document."""
    return _POINTER.fullmatch(text) is not None


def at_pointer(document: Any, pointer: str) -> Any:
    """The value at this place of a JSON document; None: there is none."""
    for step in steps_of(pointer):
        if isinstance(document, str):
            document = _parsed(document)
        if isinstance(document, dict):
            document = document.get(step)
        elif isinstance(document, list) and step.isdecimal() and len(step) < 6 and int(step) < len(document):
            document = document[int(step)]
        else:
            return None
    return document


def _parsed(text: str) -> Any:
    """The JSON in a text, such as in a field of a form; None: it holds none."""
    try:
        return untrusted_json.parse(text) if text.lstrip().startswith(("{", "[")) else None
    except ValueError:
        return None


class KeyPlace(NamedTuple):
    """Where the clients of an API put their key; one of the three, in lower case but for the parameter."""

    header: str = ""
    param: str = ""
    scheme: str = ""


@lru_cache(maxsize=1024)
def read_key_place(text: str) -> KeyPlace:
    """Parses a header, a query parameter or a scheme. Raises `ValueError` if the text is invalid."""
    found = _KEY_PLACE.fullmatch(text)
    if found is None:
        raise ValueError("expected a header such as x-key, a parameter such as ?key, or a scheme: Authorization: Token")
    in_query, name, scheme = found.groups()
    if scheme is not None:
        return KeyPlace(scheme=scheme.lower())
    return KeyPlace(param=name) if in_query else KeyPlace(header=name.lower())


class Reference(NamedTuple):
    """Where a body may name an earlier task."""

    pointer: str
    pattern: re.Pattern[str] | None = None
    """Matches the text at `pointer`, with the id in the group `task`; None: the text is the id."""

    def find(self, body: Any) -> list[str]:
        """The ids; of a value in another type than text those of all texts and numbers in it. Raises `ValueError` for
        a text without one."""
        value = at_pointer(body, self.pointer)
        if self.pattern is None:
            return _scalars(value)
        if value is None or value == "":
            return []
        if not isinstance(value, str) or (found := self.pattern.fullmatch(value)) is None:
            raise ValueError(f"no id at {self.pointer}")
        return [found[TASK]]


def _scalars(value: Any) -> list[str]:
    """Every text and number in a JSON value, as conditions compare them."""
    if isinstance(value, dict | list):
        return [found for each in (value.values() if isinstance(value, dict) else value) for found in _scalars(each)]
    text = format_value(value)
    return [text] if text else []


@lru_cache(maxsize=1024)
def read_reference(text: str) -> Reference:
    """A pointer, or a pointer and the form of the text there: `/content={task} *`. Raises `ValueError`."""
    if "{" not in text and is_pointer(text):
        return Reference(text)
    pointer, _, form = text.partition("=")
    before, found, after = form.partition("{task}")
    if not is_pointer(pointer) or not found or "{" in before + after:
        raise ValueError(
            "expected a JSON pointer, such as /taskId, or one with the form of its text: /content={task} *"
        )
    parts = [".*".join(map(re.escape, part.split("*"))) for part in (before, after)]
    return Reference(pointer, re.compile(rf"{parts[0]}(?P<task>\S+){parts[1]}", re.DOTALL))


def texts_at(document: Any, pointer: str) -> list[tuple[Any, str | int]]:
    """Every text at this place of a JSON document, as its container and its name there; a `*` in the pointer matches
    each element of an array."""
    path, _, last = pointer.rpartition("/")
    found = [document]
    for step in path.split("/")[1:]:
        if step == "*":
            found = [each for one in found if isinstance(one, list) for each in one]
        else:
            found = [at_pointer(one, f"/{step}") for one in found]
    name = last.replace("~1", "/").replace("~0", "~")
    places: list[tuple[Any, str | int]] = [(one, name) for one in found if isinstance(one, dict)]
    if last == "*":
        places = [(one, number) for one in found if isinstance(one, list) for number in range(len(one))]
    return [(one, at) for one, at in places if isinstance(one.get(at) if isinstance(one, dict) else one[at], str)]


def count_at(document: Any, pointer: str) -> int | None:
    """The number of values that a pointer with `*` finds, without null and empty texts; None: it is unknown, for the
    object is missing, too, in which their array would be."""
    path, star, rest = pointer.partition("/*")
    found, parent = at_pointer(document, path), path.rpartition("/")[0]
    if found is None and (not parent or at_pointer(document, parent) is None):
        return None
    if not star:
        return int(found is not None and found != "")
    values = [at_pointer(each, rest) for each in found] if isinstance(found, list) else []
    return len([value for value in values if value is not None and value != ""])


def format_value(value: Any) -> str:
    """A JSON value as conditions compare it: text as it is, a whole number without a decimal point, nothing as ''."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    return json.dumps(value, separators=(",", ":"))


Conditions = Mapping[str, Sequence[str]]
"""Texts with `*`, by the options that have to match one of them."""


def holds(conditions: Conditions, texts: Mapping[str, str]) -> bool:
    """Whether each option matches. `texts` are the options of `conditions` at least."""
    return all(any(fnmatchcase(texts[name], text) for text in allowed) for name, allowed in conditions.items())


def read_options(names: Iterable[str], parts: Mapping[str, str], body: Any) -> dict[str, str]:
    """The texts of these options of a request or an answer."""
    return {
        name: format_value(at_pointer(body, name)) if name.startswith("/") else parts.get(name, "") for name in names
    }


_NUMBER = re.compile(r"[0-9]{1,6}(?:\.[0-9]{1,6})?s?")


def read_number(text: str) -> int | None:
    """A number of seconds or images from 1 to 999,999, rounded up, such as 5, 5.5 or 5s; None: it is none."""
    if not _NUMBER.fullmatch(text):
        return None
    whole, _, fraction = text.rstrip("s").partition(".")
    count = int(whole) + (int(fraction or 0) > 0)
    return count if 0 < count < 1_000_000 else None
