"""Reads `multipart/form-data` (RFC 7578, RFC 2046) while it arrives: the positions of its parts, and its short values.

Nothing of a file is kept. Memory is bounded by `MAX_FIELD_BYTES`, `MAX_HEAD_BYTES` and the numbers of parts.

Parsers of other servers differ in sloppy forms, and an upstream that reads a form differently would execute what was
not checked here. So everything on which they differ is refused: text before the first boundary or behind the last,
the boundary inside a part, folded headers, bare line feeds, escaped quotes, encodings, charsets, false lengths, forms
inside forms, a text field sent as a file.

All functions raise `InvalidRequest` and nothing else.
"""

from __future__ import annotations

import re
from typing import NamedTuple, NoReturn

from gateway.errors import BodyTooLarge, InvalidRequest

MAX_PARTS = 128
"""Fields and files. An image edit has at most 16 images and a mask (openai-openapi, CreateImageEditRequest)."""

MAX_FIELD_BYTES = 131_072
"""Bytes of one text field: a prompt of 32,000 characters in UTF-8."""

MAX_FIELDS_BYTES = 262_144
"""Bytes of all text fields together."""

MAX_HEAD_BYTES = 8_192
"""Bytes of the headers of one part."""

_PARAMETER = re.compile(r"[ \t]*;[ \t]*([A-Za-z*]{1,20})[ \t]*=[ \t]*(?:\"([^\"\\\r\n]*)\"|([^\s\";,\\]+))[ \t]*")
_BOUNDARY = re.compile(r"[0-9A-Za-z'()+_,./:=? -]{0,69}[0-9A-Za-z'()+_,./:=?-]")
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\x00-\x08\x0a-\x1f\x7f]*)")
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}(\[[A-Za-z0-9_]{0,64}\]){0,4}")
_UTF8 = frozenset({"utf-8", "utf8", "us-ascii"})
_IDENTITY = frozenset({"binary", "8bit", "7bit"})


class FormPart(NamedTuple):
    """One part; `start` and `end` are the positions of its content in the body, in bytes."""

    name: str
    start: int
    end: int
    value: str | None = None
    """The text of a field; None: a file."""


def boundary_of(content_type: str) -> str:
    """The boundary that a Content-Type names. Raises `InvalidRequest` if it names none, or not exactly one."""
    _, mark, rest = content_type.partition(";")
    parameters = _parameters(mark + rest)
    if parameters is None or parameters.keys() - {"boundary", "charset"}:
        _refuse("its Content-Type cannot be read", "Send 'multipart/form-data; boundary=...'.")
    boundary = parameters.get("boundary", "")
    if _BOUNDARY.fullmatch(boundary) is None:
        _refuse("its Content-Type has no valid boundary", "Let your HTTP library write this header.")
    return boundary


def content_type(boundary: str) -> str:
    """The Content-Type with this boundary, as every server reads it."""
    value = boundary if _TOKEN.fullmatch(boundary) else f'"{boundary}"'
    return f"multipart/form-data; boundary={value}"


class FormParser:
    """Follows one form. To be fed with all of it, then to be asked for its `parts`."""

    def __init__(self, boundary: str, max_file_bytes: int) -> None:
        self._delimiter = b"\r\n--" + boundary.encode()
        self._max_file_bytes = max_file_bytes
        self._held = b"\r\n"
        """Bytes that have come and are not read yet. The line break before the first boundary is not sent."""
        self._at = -2
        """The position of `_held` in the body."""
        self._step = self._begin
        self._part: FormPart | None = None
        self._announced: str | None = None
        """The length of the content as its headers have it."""
        self._value = bytearray()
        self._fields_bytes = 0
        self._parts: list[FormPart] = []
        self._is_whole = False

    def feed(self, data: bytes) -> None:
        """The next bytes of the body. Raises `InvalidRequest` for the first fault, `BodyTooLarge` for a long file."""
        self._held += data
        while self._step():
            pass

    def parts(self) -> list[FormPart]:
        """All parts in their order, after the last byte. Raises `InvalidRequest` for a form that was cut."""
        if not self._is_whole:
            _refuse("it ends before its last boundary", "Send all of it.")
        if self._held not in (b"", b"\r\n"):
            _refuse("there is something behind its last boundary", "Leave it out.")
        return self._parts

    # ------------------------------------------------------------- steps: whether there is enough for another one

    def _begin(self) -> bool:
        size = len(self._delimiter)
        if not self._delimiter.startswith(self._held[:size]):
            _refuse("it does not begin with its boundary", "The first line is '--' and the boundary.")
        if len(self._held) < size:
            return False
        self._take(size)
        self._step = self._behind_delimiter
        return True

    def _behind_delimiter(self) -> bool:
        if len(self._held) < 2:
            return False
        sign = self._take(2)
        if sign == b"--":
            self._is_whole = True
            self._step = self._end
        elif sign != b"\r\n":
            _refuse("a boundary is followed by other bytes on its line", "Choose a boundary that is in no part.")
        else:
            self._step = self._head
        return True

    def _end(self) -> bool:
        if len(self._held) > 2:
            _refuse("there is something behind its last boundary", "Leave it out.")
        return False

    def _head(self) -> bool:
        end = self._held.find(b"\r\n\r\n", 0, MAX_HEAD_BYTES + 4)
        if end < 0:
            if len(self._held) > MAX_HEAD_BYTES:
                _refuse(f"the headers of a part are longer than {MAX_HEAD_BYTES} bytes", "Shorten them.")
            return False
        if len(self._parts) >= MAX_PARTS:
            _refuse(f"it has more than {MAX_PARTS} parts", "Send fewer.")
        head = self._take(end + 4)[:-4]
        name, is_file, self._announced = _read_head(head)
        self._part = FormPart(name, self._at, self._at, None if is_file else "")
        self._step = self._content
        return True

    def _content(self) -> bool:
        # Some parsers take the boundary behind a bare line feed for one (the standard library's, Go's).
        mark = self._held.find(self._delimiter[2:])
        end = mark - 2
        if mark >= 0 and self._held[max(0, end) : mark] != b"\r\n":
            _refuse("its boundary is inside a part", "Choose a boundary that is in no part.")
        size = max(0, len(self._held) - len(self._delimiter) + 1) if end < 0 else end
        assert self._part is not None
        self._keep(self._part, self._take(size))
        if end < 0:
            return False
        self._end_part(self._part)
        self._take(len(self._delimiter))
        self._step = self._behind_delimiter
        return True

    def _take(self, size: int) -> bytes:
        taken, self._held = self._held[:size], self._held[size:]
        self._at += size
        return taken

    def _keep(self, part: FormPart, content: bytes) -> None:
        if part.value is None:
            if self._at - part.start > self._max_file_bytes:
                raise BodyTooLarge(
                    f"The file '{shown(part.name)}' is longer than {self._max_file_bytes} bytes.",
                    param=shown(part.name),
                )
            return
        self._value += content
        self._fields_bytes += len(content)
        if len(self._value) > MAX_FIELD_BYTES or self._fields_bytes > MAX_FIELDS_BYTES:
            _refuse(f"the field '{shown(part.name)}' is too long", "Shorten it.", shown(part.name))

    def _end_part(self, part: FormPart) -> None:
        if self._announced not in (None, str(self._at - part.start)):
            _refuse("a part has another length than its Content-Length", "Leave this header out.")
        value = None
        if part.value is not None:
            try:
                value = self._value.decode()
            except UnicodeDecodeError:
                _refuse(f"the field '{shown(part.name)}' is not UTF-8", "Send text.", shown(part.name))
            self._value.clear()
        self._parts.append(part._replace(end=self._at, value=value))
        self._part = None


def shown(name: str) -> str:
    """A part's name for a message: a long or strange one is not repeated."""
    return name if len(name) <= 64 and name.isprintable() else "?"


def _read_head(head: bytes) -> tuple[str, bool, str | None]:
    """Name of a part, whether it is a file, and its announced length."""
    headers: dict[str, str] = {}
    for line in head.decode("utf-8", "surrogateescape").split("\r\n"):
        found = _HEADER.fullmatch(line)
        if found is None or found[1].lower() in headers:
            _refuse("the headers of a part cannot be read", "Send each once, on a line of its own.")
        headers[found[1].lower()] = found[2].strip()
    kind, mark, rest = headers.get("content-disposition", "").partition(";")
    parameters = _parameters(mark + rest)
    is_known = parameters is not None and parameters.keys() <= {"name", "filename", "filename*"}
    if kind.strip().lower() != "form-data" or parameters is None or not is_known or not parameters.get("name"):
        _refuse("a part has no Content-Disposition that can be read", "Send 'form-data; name=\"...\"'.")
    if headers.get("content-transfer-encoding", "binary").lower() not in _IDENTITY or "content-encoding" in headers:
        _refuse("a part has a Content-Transfer-Encoding or Content-Encoding", "Send its bytes as they are.")
    if headers.get("content-type", "").lower().startswith(("multipart/", "message/")):
        _refuse("a part is a form or a message itself", "Send each file as a part of its own.")
    name, is_file = parameters["name"], "filename" in parameters or "filename*" in parameters
    if _NAME.fullmatch(name) is None or name == "_charset_":
        _refuse("the name of a part is not supported", "Use the names of the API.")
    if not is_file and not _is_utf8(headers.get("content-type", "")):
        _refuse(f"the field '{shown(name)}' has a charset other than UTF-8", "Send UTF-8.", shown(name))
    return name, is_file, headers.get("content-length")


def _is_utf8(media_type: str) -> bool:
    _, mark, rest = media_type.partition(";")
    parameters = _parameters(mark + rest)
    return parameters is not None and parameters.get("charset", "utf-8").lower() in _UTF8


def _parameters(text: str) -> dict[str, str] | None:
    """Parameters of a header by their names in lower case; None if they cannot be read in only one way."""
    found: dict[str, str] = {}
    at = 0
    while at < len(text):
        match = _PARAMETER.match(text, at)
        if match is None or match[1].lower() in found:
            return None
        found[match[1].lower()] = match[3] if match[2] is None else match[2]
        at = match.end()
    return found


def _refuse(what: str, advice: str, param: str | None = None) -> NoReturn:
    raise InvalidRequest(f"The form in the body is not valid: {what}. {advice}", param=param, code="invalid_form")
