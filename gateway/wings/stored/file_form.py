"""The form of POST /v1/files (openai-openapi, CreateFileRequest): its fields, checked, and what is forwarded of it.

Every file gets an end, because the gateway knows an id for `store.bonds.BOND_KEPT_S` only: a client that asks for none
gets this one, and a later one is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, get_args

from gateway.api import form, validation_errors
from gateway.api.form import File, Upload, UploadedFile
from gateway.api.multipart import FormPart, shown
from gateway.api.schema import Part
from gateway.api.validate import refuse_other_case
from gateway.errors import InvalidRequest
from gateway.records import StoredBytes

MIN_KEPT_S, MAX_KEPT_S = 3600, 30 * 86_400
"""Minimum and maximum of `expires_after[seconds]`; the upstream's own limits are an hour and 30 days (openai-openapi,
FileExpirationAfter)."""

_ANCHOR, _SECONDS = "expires_after[anchor]", "expires_after[seconds]"
_NAMES = frozenset({"file", "purpose", _ANCHOR, _SECONDS})
_NEAR = 512
"""So close in front of a file's content are the headers of its part."""

_DIGITS = re.compile(r"[0-9]{1,9}")


Purpose = Literal["assistants", "batch", "fine-tune", "vision", "user_data", "evals"]
PURPOSES: tuple[str, ...] = get_args(Purpose)


class CreateFile(Part):
    """The fields of the form, for the API document."""

    file: File
    purpose: Purpose


class FileForm(NamedTuple):
    """The form of a file upload, after its fields are checked."""

    purpose: str
    file: UploadedFile
    part: FormPart
    """The part of the form that holds the file."""
    has_end: bool
    """Whether the client states when the file expires."""


def read(stored: StoredBytes, parts: Sequence[FormPart]) -> FileForm:
    """Raises `InvalidRequest` for the first fault."""
    refuse_other_case([part.name for part in parts], _NAMES)
    fields: dict[str, FormPart] = {}
    for part in parts:
        if part.name in fields:
            raise InvalidRequest(
                f"Duplicate parameter: '{shown(part.name)}' is given more than once in the form. Give it once.",
                param=shown(part.name),
                code="duplicate_parameter",
            )
        fields[part.name] = part
    for name, part in fields.items():
        if (part.value is None) != (name == "file"):
            what = "This parameter is no file." if part.value is None else "Send it as a file, with a file name."
            raise validation_errors.wrong_value(shown(name), what)
    for name in ("file", "purpose"):
        if name not in fields:
            raise validation_errors.missing(name)
    file = fields["file"]
    uploaded = form.uploaded(stored, file)
    form.no_empty_file([uploaded])
    purpose = fields["purpose"].value or ""
    if purpose not in PURPOSES:
        raise validation_errors.wrong_value("purpose", f"Expected one of: {', '.join(PURPOSES)}.")
    return FileForm(purpose, uploaded, file, _has_end(fields))


def _has_end(fields: dict[str, FormPart]) -> bool:
    if _ANCHOR not in fields and _SECONDS not in fields:
        return False
    anchor, seconds = (fields[name].value or "" if name in fields else "" for name in (_ANCHOR, _SECONDS))
    if anchor != "created_at":
        raise validation_errors.wrong_value(_ANCHOR, "Expected 'created_at'.")
    if _DIGITS.fullmatch(seconds) is None or not MIN_KEPT_S <= int(seconds) <= MAX_KEPT_S:
        raise validation_errors.wrong_value(_SECONDS, f"Expected a number from {MIN_KEPT_S} to {MAX_KEPT_S}.")
    return True


def forwarded(stored: StoredBytes, asked: FileForm, boundary: str, written: StoredBytes | None = None) -> Upload:
    """The client's own bytes, behind the fields that it left out; with `written` in place of the file's content. Raises
    `InvalidRequest` if that is not possible."""
    added = b"" if asked.has_end else _fields(boundary, ((_ANCHOR, "created_at"), (_SECONDS, str(MAX_KEPT_S))))
    part = asked.part
    if written is not None and b"content-length" in stored.read(max(0, part.start - _NEAR), _NEAR).lower():
        raise InvalidRequest("Leave the header Content-Length out of the parts of the form.", param="file")
    size = stored.size if written is None else stored.size - (part.end - part.start) + written.size

    def pieces() -> Iterator[bytes]:
        if added:
            yield added
        if written is None:
            yield from form.pieces(stored, 0, stored.size)
            return
        yield from form.pieces(stored, 0, part.start)
        yield from form.pieces(written, 0, written.size)
        yield from form.pieces(stored, part.end, stored.size)

    return Upload(len(added) + size, pieces)


def _fields(boundary: str, fields: Sequence[tuple[str, str]]) -> bytes:
    head = '--{}\r\nContent-Disposition: form-data; name="{}"\r\n\r\n{}\r\n'
    return "".join([head.format(boundary, name, value) for name, value in fields]).encode()
