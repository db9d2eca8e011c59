"""Reads a multipart form into checked `Params`, and writes it back to the bytes for an upstream.

Text fields are read as the types of the schema and then checked by the rules of JSON bodies (`validate.py`), with
OpenAI's messages. Names that end in `[]` are lists (openai-python, `array_format="brackets"`); a list of one item may
come without the brackets, and every other name may come once. The client's own bytes are forwarded; only a field that
has to change, such as the model's alias, is rewritten.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

from pydantic import ValidationError, WithJsonSchema

from gateway import untrusted_json
from gateway.errors import InvalidRequest
from gateway.records import Document, FormBody, Params, StoredBytes

from . import prompt_tokens, validation_errors
from .multipart import FormPart, shown
from .other_models import refuse_further
from .prompt_tokens import FindsCounter
from .validate import Rules, refuse_other_case

PIECE_BYTES = 65_536
"""Bytes that are read at once from a stored form."""

_INTEGER = re.compile(r"-?[0-9]{1,18}")
_DECIMAL = re.compile(r"-?[0-9]{1,18}(\.[0-9]{1,18})?([eE][+-]?[0-9]{1,2})?")
_BOOLEANS: Mapping[str, bool] = {"true": True, "True": True, "false": False, "False": False}
"""The words that JavaScript and Python write. Upstreams read other words differently."""

File = Annotated[bytes, WithJsonSchema({"type": "string", "format": "binary"})]
"""Type of an uploaded file in a schema; its value is a placeholder."""


class Upload(NamedTuple):
    """A body that is sent in pieces."""

    size: int
    """Size of the body in bytes."""
    open: Callable[[], Iterator[bytes]]
    """The pieces from the beginning, as often as it is called."""


class UploadedFile(NamedTuple):
    """One file of a form."""

    name: str
    """Name of the field that holds the file."""
    size: int
    """Size of the file in bytes."""
    read: Callable[[int, int], bytes]
    """Returns bytes of the file, from a position, at most a number of them."""


FormRules = Callable[[Document, Any, Sequence[UploadedFile]], Params]
"""The rules of a format between the fields and files of a form."""


def read(
    rules: Rules,
    finish: FormRules,
    stored: StoredBytes,
    parts: Sequence[FormPart],
    find_counter: FindsCounter = prompt_tokens.no_counter,
) -> Params:
    """The parameters of a form, checked by the API's own rules. Raises `InvalidRequest` for the first fault."""
    members, places = _members(rules, parts)
    refuse_other_case(members, rules.names)
    own = {name: value if name in rules.names else _from_json(value) for name, value in members.items()}
    refuse_further(own, rules.names)
    document = Document("", members, form=FormBody(stored, places))
    try:
        body = rules.schema.model_validate(members)
    except ValidationError as error:
        raise rules.explain(error) from None
    return finish(document, body, [uploaded(stored, part) for part in parts if part.value is None])


def replace(form: FormBody, values: Mapping[str, Any]) -> Upload:
    """The form with these text fields set; every other byte stays the client's own. The fields have to be there."""
    changes = sorted((*form.places[name], str(value).encode()) for name, value in values.items())
    size = form.stored.size + sum([len(value) - (end - start) for start, end, value in changes])

    def open_form() -> Iterator[bytes]:
        at = 0
        for start, end, value in (*changes, (form.stored.size, form.stored.size, b"")):
            yield from pieces(form.stored, at, start)
            if value:
                yield value
            at = end

    return Upload(size, open_form)


class WithField:
    """A stored form with a text field in front that the client's has not."""

    def __init__(self, stored: StoredBytes, boundary: str, name: str, value: str) -> None:
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n'.encode()
        self._stored = stored
        self._front = head + value.encode() + b"\r\n"
        self.size = len(self._front) + stored.size
        self.field = FormPart(name, len(head), len(self._front) - 2, value)
        """The field that was added."""

    def moved(self, parts: Sequence[FormPart]) -> list[FormPart]:
        """All parts, at their places in this form."""
        front = len(self._front)
        return [self.field, *[each._replace(start=each.start + front, end=each.end + front) for each in parts]]

    def read(self, start: int, size: int) -> bytes:
        """Implements `StoredBytes.read` for the form with the added field. Raises `OSError`."""
        front = len(self._front)
        if start < front:
            return self._front[start : start + size]
        return self._stored.read(start - front, size)

    def close(self) -> None:
        self._stored.close()


def pieces(stored: StoredBytes, start: int, end: int) -> Iterator[bytes]:
    """The bytes between these positions, in pieces. Raises `OSError`."""
    while start < end:
        piece = stored.read(start, min(PIECE_BYTES, end - start))
        if not piece:
            raise OSError("a stored form ended early")
        start += len(piece)
        yield piece


def _members(rules: Rules, parts: Sequence[FormPart]) -> tuple[dict[str, Any], dict[str, tuple[int, int]]]:
    members: dict[str, Any] = {}
    places: dict[str, tuple[int, int]] = {}
    lists: set[str] = set()
    for part in parts:
        name = part.name.removesuffix("[]")
        value = b"file" if part.value is None else _typed(part.value, _kinds(rules, name))
        if name != part.name:
            if name in members and name not in lists:
                raise _duplicate(part.name)
            lists.add(name)
            members.setdefault(name, []).append(value)
            continue
        if name in members:
            raise _duplicate(part.name)
        members[name] = [value] if _is_list(rules, name) else value
        if part.value is not None:
            places[name] = (part.start, part.end)
    return members, places


def uploaded(stored: StoredBytes, part: FormPart) -> UploadedFile:
    size = part.end - part.start

    def read_file(start: int, wanted: int) -> bytes:
        start = max(0, start)
        return stored.read(part.start + start, max(0, min(wanted, size - start)))

    return UploadedFile(part.name.removesuffix("[]"), size, read_file)


def _duplicate(name: str) -> InvalidRequest:
    known = shown(name)
    return InvalidRequest(
        f"Duplicate parameter: '{known}' is given more than once in the form. Give it once; lists are sent as "
        f"'{known.removesuffix('[]')}[]'.",
        param=known.removesuffix("[]"),
        code="duplicate_parameter",
    )


def _kinds(rules: Rules, name: str) -> frozenset[Any]:
    """The plain types that the schema allows for a field or for the items of a list."""
    field = rules.schema.model_fields.get(name)
    return frozenset() if field is None else frozenset(_plain_types(field.annotation))


def _is_list(rules: Rules, name: str) -> bool:
    """Whether the schema has a list: one item may be sent without `[]`."""
    field = rules.schema.model_fields.get(name)
    arms = () if field is None else (field.annotation, *get_args(field.annotation))
    return any(get_origin(get_args(arm)[0] if get_origin(arm) is Annotated else arm) is list for arm in arms)


def _plain_types(annotation: Any) -> Iterator[Any]:
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from _plain_types(get_args(annotation)[0])
    elif origin in (Union, UnionType, list):
        for each in get_args(annotation):
            yield from _plain_types(each)
    else:
        yield annotation


def _typed(value: str, kinds: frozenset[Any]) -> Any:
    """The value in the schema's type, if it is written as one; else the text, which the schema then refuses."""
    if bool in kinds and value in _BOOLEANS:
        return _BOOLEANS[value]
    if int in kinds and _INTEGER.fullmatch(value):
        return int(value)
    if float in kinds and _DECIMAL.fullmatch(value):
        return float(value)
    return value


def _from_json(value: Any) -> Any:
    """The value that a field has as JSON, as some clients write it; else the field itself."""
    try:
        return untrusted_json.parse(value) if isinstance(value, str) else value
    except ValueError:
        return value


def no_empty_file(files: Sequence[UploadedFile]) -> None:
    for file in files:
        if not file.size:
            raise validation_errors.wrong_value(file.name, "The file is empty.")
