"""Calls of passthrough rows: a body of any API, an answer that is read by the row's JSON pointers.

Nothing is sent but the client's own bytes. An answer that is not JSON is passed on as it comes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from gateway.api import json_document
from gateway.api.multipart import FormPart
from gateway.api.prompt_tokens import FindsCounter
from gateway.config import Passthrough
from gateway.config.operations import TASK, at_pointer, format_value, holds, read_options, split_address, texts_at
from gateway.errors import GatewayError, InvalidRequest
from gateway.records import Document, FormBody, Params, StoredBytes, Usage

from .format import Format, PlainFacts, ScanInput, no_usage
from .passed_scan import PassedScan

Outcome = Literal["done", "failed"]

_NOTHING_USED = Usage(source="reported")

_PARAMS = Params(Document("", {}), "", default_output=0, is_prompt_exact=True, is_usage_known=True)


def _read(raw: bytes, find_counter: FindsCounter) -> Params:
    """A JSON object, or no body. Raises `InvalidRequest`."""
    return _PARAMS._replace(document=json_document.parse(raw)) if raw.strip() else _PARAMS


def _read_form(stored: StoredBytes, parts: Sequence[FormPart], find_counter: FindsCounter) -> Params:
    """Text fields are the options. Raises `InvalidRequest` for one that comes twice, which servers read differently."""
    members: dict[str, Any] = {}
    for part in parts:
        if part.name in members and part.value is not None:
            raise InvalidRequest(
                "A text field is given more than once in the form. Give it once.", code="duplicate_parameter"
            )
        members.setdefault(part.name, "" if part.value is None else part.value)
    places = {part.name: (part.start, part.end) for part in parts if part.value is not None}
    return _PARAMS._replace(document=Document("", members, form=FormBody(stored, places)))


def read_answer(body: bytes) -> Any:
    """The JSON of an answer. Raises `ValueError`."""
    try:
        return json.loads(body)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def outcome(row: Passthrough, answer: Any) -> Outcome | None:
    """How a task has ended, by an answer about it; None: it goes on."""
    if row.failed and _holds(row.failed, answer):
        return "failed"
    return "done" if row.done and _holds(row.done, answer) else None


def id_at(answer: Any, pointer: str) -> str | None:
    """The id at this place of an answer; None: there is none."""
    found = at_pointer(answer, pointer)
    is_id = isinstance(found, str | int) and not isinstance(found, bool)
    return format_value(found) or None if is_id else None


def replace_links(row: Passthrough, base_path: str, public_url: str, answer: Any) -> tuple[list[str], bool]:
    """Make the addresses in an answer that the row names those of the gateway, in place. Returns the ids that they
    have, and whether there were any.

    Their host does not matter, and their path may be below the base URL of the upstream (`base_path`) and the row's
    prefix there, or below neither. One that is no read of the row becomes null.
    """
    ids, places = [], [each for pointer in row.links for each in texts_at(answer, pointer)]
    for container, name in places:
        found = _read_at(row, base_path, container[name])
        container[name] = None if found is None else f"{public_url.rstrip('/')}{row.prefix}{found[0]}"
        if found is not None:
            ids.append(found[1])
    return ids, bool(places)


def _read_at(row: Passthrough, base_path: str, address: str) -> tuple[str, str] | None:
    """The path with its query below the prefix of the row, and the id; None: it is no read of the row."""
    path, query = split_address(address)
    for above in (base_path + row.at_upstream(""), base_path, ""):
        below = path.removeprefix(above)
        if not path.startswith(above) or not below.startswith("/"):
            continue
        for operation in row.reads:
            if (parts := operation.match(operation.method, below, query)) is not None:
                return f"{below}?{query}" if query else below, parts[TASK]
    return None


def _holds(conditions: Mapping[str, Sequence[str]], answer: Any) -> bool:
    return holds(conditions, read_options(conditions, {}, answer))


def _submitted(row: Passthrough, body: bytes) -> PlainFacts:
    """Of the answer to a submission. Raises `ValueError` if it is not JSON and the row has to read it."""
    if row.task is None and not row.accepted:
        return PlainFacts()
    answer = read_answer(body)
    kept_id = None if row.task is None else id_at(answer, row.task)
    is_accepted = _holds(row.accepted, answer) if row.accepted else kept_id is not None
    ended = outcome(row, answer)
    if not is_accepted or ended == "failed":
        return PlainFacts(usage=_NOTHING_USED, has_usage=True, kept_id=kept_id if is_accepted else None)
    return PlainFacts(kept_id=kept_id, is_pending=kept_id is not None and ended is None)


def _any(body: bytes) -> PlainFacts:
    return PlainFacts()


def _scan(asked: ScanInput) -> PassedScan:
    return PassedScan(no_usage)


def _no_event(error: GatewayError, scan: object, request_id: str) -> None:
    """A file cannot carry an error: the connection is closed, and the message stays incomplete."""


PASSTHROUGH = Format(
    name="passthrough",  # type: ignore[arg-type]
    path="",
    upstream_path="",
    operation="passthrough",
    read=_read,
    read_form=_read_form,
    facts=_any,
    usage=no_usage,
    scan=_scan,
    is_binary=True,
    error_event=_no_event,
    keepalive=b"",
    good_statuses=frozenset({200, 201, 202, 203}),
    has_model_in_path=True,
    response_headers=frozenset({"content-disposition"}),
)
"""The format of the calls of any row."""


def format_of(row: Passthrough, *, is_read: bool) -> Format:
    """The format of the answers to calls of one row."""
    return PASSTHROUGH if is_read else replace(PASSTHROUGH, facts=partial(_submitted, row))
