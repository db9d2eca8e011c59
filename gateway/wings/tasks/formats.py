"""Calls of passthrough rows: a body of any API, an answer that is read by the row's JSON pointers.

Nothing is sent but the client's own bytes. An answer that is not JSON is passed on as it comes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple

from gateway import units, untrusted_json
from gateway.api import json_document
from gateway.api.multipart import FormPart
from gateway.api.prompt_tokens import FindsCounter
from gateway.config import Config
from gateway.errors import GatewayError, InvalidRequest
from gateway.formats.format import Format, PassedScan, PlainFacts, TaskEnd, no_usage
from gateway.formats.gemini.generate import status_of
from gateway.records import Document, Endpoint, FormBody, Params, StoredBytes, Usage
from gateway.spelling import folded, outer

from . import notation
from .settings import PLACEHOLDER, Passthrough, rows_of

FILE = "file"

MAX_ID = 1_024
"""Characters of a task's id; no API has longer ones. A task with one is charged at once, and cannot be asked for."""

_NOTHING_USED = Usage(source="reported")

_PARAMS = Params(Document("", {}), "", default_output=0, is_prompt_exact=True, is_usage_known=True)


def _read(raw: bytes, find_counter: FindsCounter) -> Params:
    return _PARAMS._replace(document=json_document.parse(raw)) if raw.strip() else _PARAMS


def _read_form(stored: StoredBytes, parts: Sequence[FormPart], find_counter: FindsCounter) -> Params:
    """Text fields are the options; files are there or not. Raises `InvalidRequest` for a text that comes twice, or
    beside a file of its name, which servers read differently."""
    members: dict[str, Any] = {}
    texts = {part.name for part in parts if part.value is not None}
    for part in parts:
        if part.name in members and part.name in texts:
            raise InvalidRequest(
                "A text field is given more than once in the form. Give it once.", code="duplicate_parameter"
            )
        members.setdefault(part.name, FILE if part.value is None else part.value)
    places = {part.name: (part.start, part.end) for part in parts if part.value is not None}
    return _PARAMS._replace(document=Document("", members, form=FormBody(stored, places)))


_CALLBACKS = frozenset(map(folded, ("callback", "callback_url", "notify_hook", "webhook", "webhook_url")))
"""Members in which task APIs accept a callback address, in any spelling."""


def reads(row: Passthrough, name: str) -> bool:
    """Whether the row decides something by a member of this name, in any spelling."""
    meant = {folded(name), folded(outer(name))}
    return not meant.isdisjoint(map(folded, row.members)) or (not row.callbacks and not meant.isdisjoint(_CALLBACKS))


def refuse_misread(row: Passthrough, members: Mapping[str, Any]) -> None:
    """Raises `InvalidRequest` for a member that the row reads, in a spelling that only an upstream may know; for JSON
    in a text that is read in several ways; and for an address that the upstream would call."""
    if not row.callbacks:
        for name, value in members.items():
            if value not in (None, False, "") and not _CALLBACKS.isdisjoint((folded(name), folded(outer(name)))):
                raise InvalidRequest(
                    f"Unsupported parameter: '{name}'. The gateway does not let upstreams call other addresses: read "
                    "the task instead.",
                    param=name,
                    code="unsupported_parameter",
                )
    _refuse_misspelled(row.members, members, "")


def refuse_in_query(row: Passthrough, own: str | None, names: Iterable[str]) -> None:
    """Raises `InvalidRequest` for a parameter of the query, other than the operation's own, that the row reads
    elsewhere: some servers look for the members of a body there, too."""
    params = {folded(read.query[0]): read.query[0] for read in row.reads if read.query is not None}
    for name in names:
        if name != own and (reads(row, name) or folded(name) in params or folded(outer(name)) in params):
            raise InvalidRequest(
                f"Unsupported parameter in the query: '{name[:_MAX_SHOWN]}'. Name it once, where the API has it.",
                param=name[:_MAX_SHOWN],
                code="unsupported_parameter",
            )


_MAX_SHOWN = 64


def _refuse_misspelled(known: Mapping[str, Any], value: Any, inside: str) -> None:
    """`known` are the members that the row reads in this value, each with those inside it."""
    if isinstance(value, str):
        value = _parsed(value, inside)
    if isinstance(value, list) and not all(map(str.isdecimal, known)):
        raise InvalidRequest(
            f"Invalid value for '{inside}': expected an object instead of an array.", param=inside, code="invalid_value"
        )
    if isinstance(value, list):
        value = dict(zip(map(str, range(len(value))), value, strict=True))
    if not isinstance(value, dict):
        return
    meant = {folded(name): name for name in known}
    for name, each in value.items():
        if name in known:
            if known[name]:
                _refuse_misspelled(known[name], each, f"{inside}.{name}" if inside else name)
            continue
        right = meant.get(folded(name)) or meant.get(folded(outer(name)))
        if right is not None:
            path = f"{inside}.{right}" if inside else right
            raise InvalidRequest(
                f"Unknown parameter: '{name[:_MAX_SHOWN]}'. Did you mean '{path}'? Give it once, and in this spelling.",
                param=path,
                code="unknown_parameter",
            )


def _parsed(text: str, inside: str) -> Any:
    """The JSON in a text that begins like some; None: it does not. Raises `InvalidRequest` for one that readers take in
    several ways: with a name twice, or that is none."""
    begins = text.lstrip().lstrip("\ufeff").lstrip()[:1]
    if begins not in ("{", "["):
        return None
    try:
        return json_document.parse_any(text)
    except ValueError:
        raise InvalidRequest(
            f"Invalid value for '{inside}': expected JSON, in which each name is given once.",
            param=inside,
            code="invalid_value",
        ) from None


def end_of(row: Passthrough, answer: Any) -> TaskEnd | None:
    """How a task has ended, by an answer about it; None: it goes on."""
    if row.charged and _holds(row.charged, answer):
        return TaskEnd(has_failed=True)
    if row.failed and _holds(row.failed, answer):
        return TaskEnd(has_failed=True, paid=0)
    return _whole(row, answer) if row.done and _holds(row.done, answer) else None


def _whole(row: Passthrough, answer: Any) -> TaskEnd:
    """The end of a task that the upstream calls done."""
    found = [count for pointer in row.made if (count := notation.count_at(answer, pointer)) is not None]
    return TaskEnd(has_failed=sum(found) == 0, paid=sum(found)) if found else TaskEnd()


def id_at(answer: Any, pointer: str) -> str | None:
    """The id at this place of an answer; None: there is none."""
    found = notation.at_pointer(answer, pointer)
    is_id = isinstance(found, str | int) and not isinstance(found, bool)
    return notation.format_value(found) or None if is_id else None


def replace_links(row: Passthrough, base_path: str, public_url: str, answer: Any) -> tuple[list[str], bool]:
    """Make the addresses in an answer that the row names those of the gateway, in place. Returns the ids that they
    have, and whether there were any.

    Their host does not matter, and their path may be below the base URL of the upstream (`base_path`) and the row's
    prefix there, or below neither. One that is no read of the row becomes null.
    """
    ids, places = [], [each for pointer in row.links for each in notation.texts_at(answer, pointer)]
    for container, name in places:
        found = _read_at(row, base_path, container[name])
        container[name] = None if found is None else f"{public_url.rstrip('/')}{row.prefix}{found[0]}"
        if found is not None:
            ids.append(found[1])
    return ids, bool(places)


def _read_at(row: Passthrough, base_path: str, address: str) -> tuple[str, str] | None:
    """The path with its query below the prefix of the row, and the id; None: it is no read of the row."""
    path, query = notation.split_address(address)
    for above in (base_path + row.at_upstream(""), base_path, ""):
        below = path.removeprefix(above)
        if not path.startswith(above) or not below.startswith("/"):
            continue
        for operation in row.reads:
            if (parts := operation.match(operation.method, below, query)) is not None:
                return f"{below}?{query}" if query else below, parts[notation.TASK]
    return None


def _holds(conditions: Mapping[str, Sequence[str]], answer: Any) -> bool:
    return notation.holds(conditions, notation.read_options(conditions, {}, answer))


class SeenAnswer(NamedTuple):
    """The parts of an answer that the gateway acts on."""

    ended: TaskEnd | None
    made: str | None
    """The id of the task that a submission has made."""
    linked: list[str]
    """The ids in its addresses."""
    further: list[str]
    """Further ids that an answer about a task names."""
    body: bytes | None
    """Answer with the gateway's own addresses; None: it has no others."""


def seen(body: bytes, row: Passthrough, base_path: str, public_url: str) -> SeenAnswer | None:
    """The parts of an answer; None: it is no JSON."""
    try:
        content = untrusted_json.parse(body)
    except ValueError:
        return None
    ended, made = end_of(row, content), None if row.task is None else id_at(content, row.task)
    further = [found for pointer in row.also if (found := id_at(content, pointer)) is not None]
    ids, is_changed = replace_links(row, base_path, public_url, content)
    written = json.dumps(content, separators=(",", ":")).encode() if is_changed else None
    return SeenAnswer(ended, made, ids, further, written)


def _end_in(row: Passthrough, body: bytes) -> TaskEnd | None:
    try:
        return end_of(row, untrusted_json.parse(body))
    except ValueError:
        return None


def _ended(config: Config, endpoint: Endpoint) -> Callable[[bytes], TaskEnd | None] | None:
    """Reads how a task of the row with this name has ended (None: it goes on); None: there is no such row."""
    row = rows_of(config).get(endpoint)
    return None if row is None else partial(_end_in, row)


class _Unread:
    """This is a `FactsReader` of answers that have no facts."""

    def feed(self, data: bytes) -> None:
        pass

    def facts(self) -> PlainFacts:
        return PlainFacts()


def _submitted(row: Passthrough, outputs: int, reserved: units.Counts, body: bytes) -> PlainFacts:
    """Returns the facts of the answer to a submission. Raises `ValueError` if it is not JSON and the row has to read
    it."""
    if row.task is None and not row.accepted:
        return _paid(_result(row, body), outputs, reserved)
    answer = untrusted_json.parse(body)
    kept_id = None if row.task is None else id_at(answer, row.task)
    is_accepted = _holds(row.accepted, answer) if row.accepted else kept_id is not None
    if not is_accepted:
        return PlainFacts(usage=_NOTHING_USED, has_usage=True)
    if kept_id is not None and len(kept_id) > MAX_ID:
        return PlainFacts()
    ended = _whole(row, answer) if row.task is None else end_of(row, answer)
    if ended is None:
        return PlainFacts(kept_id=kept_id, is_pending=kept_id is not None)
    return _paid(ended, outputs, reserved)._replace(kept_id=kept_id)


def _result(row: Passthrough, body: bytes) -> TaskEnd:
    """The end of a submission whose answer is the result, and may be anything."""
    try:
        return _whole(row, untrusted_json.parse(body)) if row.made else TaskEnd()
    except ValueError:
        return TaskEnd()


def _paid(ended: TaskEnd, outputs: int, reserved: units.Counts) -> PlainFacts:
    """Returns the facts of an ended request: all reserved units are paid if the answer reports no number of outputs."""
    paid = ended.charged(reserved, outputs)
    return PlainFacts() if paid == reserved else PlainFacts(usage=_NOTHING_USED._replace(more=paid), has_usage=True)


PASSTHROUGH = Format(
    name="passthrough",  # type: ignore[arg-type]
    path="",
    operation="passthrough",
    read=_read,
    read_form=_read_form,
    facts=lambda body: PlainFacts(),
    facts_reader=_Unread,
    usage=no_usage,
    scan=lambda asked: PassedScan(no_usage),
    is_binary=True,
    error_event=lambda *_: None,  # bytes cannot carry one
    keepalive=b"",
    good_statuses=frozenset({200, 201, 202, 203}),
    has_model_in_path=True,
    response_headers=frozenset({"content-disposition"}),
    ended=_ended,
)


@cache
def format_of_reads() -> Format:
    """The format of reads, also of cancels and deletions: Runway and Luma answer those without a body
    (runwayml/sdk-python, `resources/tasks.py`; lumalabs/lumaai-api, `openapi.yaml`)."""
    return replace(PASSTHROUGH, good_statuses=PASSTHROUGH.good_statuses | {204})


def format_of(row: Passthrough, outputs: int, reserved: units.Counts) -> Format:
    """The format of the answer to a submission for this number of outputs, for which these units were reserved."""
    return replace(PASSTHROUGH, facts=partial(_submitted, row, outputs, reserved), facts_reader=None)


def error_body(row: Passthrough, error: GatewayError, request_id: str) -> bytes:
    """The JSON of an error, as the row's API writes it."""
    if row.error is None:
        return error.body()
    values = {
        "status": error.status, "code": error.name, "type": error.type, "message": error.message,
        "param": error.param, "request_id": request_id, "rpc_status": status_of(error.status),
    }  # fmt: skip
    return json.dumps(_filled(row.error, values), ensure_ascii=False).encode("utf-8", "replace")


def _filled(template: Any, values: Mapping[str, Any]) -> Any:
    """A template with these values: a text that is nothing but one of them becomes a number or null as it is."""
    if isinstance(template, Mapping):
        return {name: _filled(value, values) for name, value in template.items()}
    if isinstance(template, list | tuple):
        return [_filled(value, values) for value in template]
    if not isinstance(template, str):
        return template
    if (whole := PLACEHOLDER.fullmatch(template)) is not None:
        return values[whole[1]]
    return PLACEHOLDER.sub(lambda found: notation.format_value(values[found[1]]), template)
