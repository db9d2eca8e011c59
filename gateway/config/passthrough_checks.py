"""Checks between the settings of passthrough rows, and between rows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .faults import ConfigFault, format_faults, printable
from .operations import TASK, TaskOperation
from .sections import Passthrough

Place = tuple[str | int, ...]

OWN_PATHS = (
    "/admin", "/dashboard", "/healthz", "/livez", "/readyz", "/metrics", "/openapi.json", "/v1/models", "/v1/key",
    "/v1beta/models", "/openai/models", "/openai/v1/models",
)  # fmt: skip
"""Paths below which the gateway answers itself, so that no row there would ever be asked."""


def check_rows(
    rows: Mapping[str, Passthrough], upstreams: Iterable[str], models: Iterable[str]
) -> Iterator[ConfigFault]:
    """Every fault of the rows, with its path."""
    known, taken = list(upstreams), set(models)
    first: dict[tuple[str, str], Place] = {}
    for name, row in rows.items():
        place: Place = ("passthrough", name)
        if not name.isascii() or not name.replace("-", "").replace("_", "").isalnum():
            yield _fault(place, "expected a name of letters, digits, - and _")
        if name in taken or name in RESERVED:
            yield _fault(place, "is the name of a model or of an endpoint; give the row another one")
        if row.upstream not in known:
            there = printable(", ".join(known)) or "none"
            yield _fault((*place, "upstream"), f"there is no upstream {row.upstream!r}; there are: {there}")
        yield from _check_operations(place, row, first)
        yield from _check_options(place, row)
        yield from _check_ends(place, row)
        yield from _check_owner(place, row, rows)
        yield from _check_keys(place, row)
        yield from _check_error((*place, "error"), row.error)


RESERVED = frozenset({
    "completions", "chat", "embeddings", "messages", "count_tokens", "responses", "input_tokens", "compact",
    "moderations", "rerank", "images", "image_edits", "image_variations", "speech", "transcriptions", "translations",
    "generate_content", "count_content_tokens", "embed_content", "batch_embed_contents", "realtime", "files", "batches",
    "other", "passthrough",
})  # fmt: skip
"""Names of endpoints in records and metrics."""


def _fault(place: Place, message: str) -> ConfigFault:
    return ConfigFault(format_faults(place), message)


def _operations(row: Passthrough) -> Iterator[tuple[Place, TaskOperation]]:
    for part, operations in (("submit", row.submissions), ("read", row.reads), ("lists", row.listings)):
        for index, operation in enumerate(operations):
            yield (part, index), operation


def _check_operations(place: Place, row: Passthrough, first: dict[tuple[str, str], Place]) -> Iterator[ConfigFault]:
    for at, operation in _operations(row):
        path = row.prefix + operation.path
        where = (*place, *at)
        if any(path == own or path.startswith(f"{own}/") for own in OWN_PATHS):
            yield _fault(where, f"the gateway answers {path} itself; give the row a prefix of its own")
        query = "" if operation.query is None else f"?{operation.query[0]}"
        if (other := first.setdefault((operation.method, path + query), where)) != where:
            yield _fault(where, f"is the same operation as {format_faults(other)}; keep one")
        if at[0] == "read" and TASK not in operation.names:
            yield _fault(where, "expected {task} in the path or the query, for the id of the task")


def _check_options(place: Place, row: Passthrough) -> Iterator[ConfigFault]:
    options: list[tuple[Place, str]] = [] if row.model is None else [(("model",), row.model)]
    for index, price in enumerate(row.prices):
        options += [(("prices", index, "when", name), name) for name in price.when]
        for part in ("count", "outputs"):
            options += [(("prices", index, part), name) for name in getattr(price, part)]
    names = frozenset().union(*[operation.names for operation in row.submissions])
    for at, option in options:
        if not option.startswith("/") and option not in names and not (option == "model" and at[0] == "prices"):
            there = ", ".join(sorted(names)) or "none"
            yield _fault((*place, *at), f"no path in submit has {{{option}}}; names in braces: {there}")
    if row.default_model is not None and row.model is None:
        yield _fault((*place, "default_model"), "has no effect without model")


def _check_ends(place: Place, row: Passthrough) -> Iterator[ConfigFault]:
    if row.task is None:
        yield from [
            _fault((*place, name), "has no effect without task, the pointer to the id")
            for name in ("done", "failed", "charged", "also", "links", "tasks_of")
            if getattr(row, name)
        ]
        return
    if not row.done:
        yield _fault((*place, "done"), "is required with task: the values in the answer about a task that has ended")
    if not row.read:
        yield _fault((*place, "read"), "is required with task: where the gateway reads the state of a task")
        return
    poll = row.reads[0]
    if poll.method != "GET":
        yield _fault((*place, "read", 0), "is what the gateway asks, so it has to be GET")
    for index, operation in enumerate(row.submissions):
        if missing := sorted(poll.names - operation.names - {TASK}):
            yield _fault(
                (*place, "submit", index), f"has no {{{missing[0]}}}, which {format_faults((*place, 'read', 0))} needs"
            )


def _check_owner(place: Place, row: Passthrough, rows: Mapping[str, Passthrough]) -> Iterator[ConfigFault]:
    if row.tasks_of is None:
        return
    owner = rows.get(row.tasks_of)
    if owner is None or owner is row:
        there = printable(", ".join(name for name in rows if rows[name] is not row)) or "none"
        yield _fault((*place, "tasks_of"), f"there is no other row {row.tasks_of!r}; there are: {there}")
    elif owner.upstream != row.upstream or owner.tasks_of is not None:
        yield _fault((*place, "tasks_of"), f"{row.tasks_of} has another upstream or tasks of another row itself")


def _check_keys(place: Place, row: Passthrough) -> Iterator[ConfigFault]:
    for index, where in enumerate(row.key_places):
        if where.header in row.forwarded:
            yield _fault(
                (*place, "key_in", index), f"{where.header} has the key, which is never sent on; not in headers"
            )


PLACEHOLDERS = ("status", "code", "type", "message", "param", "request_id", "rpc_status")
"""The names that an error's template may have in braces (formats/passthrough.py has their values)."""

PLACEHOLDER = re.compile(r"\{(\w*)\}")


def _check_error(place: Place, template: Any) -> Iterator[ConfigFault]:
    if isinstance(template, Mapping):
        for name, value in template.items():
            yield from _check_error((*place, name), value)
    elif isinstance(template, list):
        for index, value in enumerate(template):
            yield from _check_error((*place, index), value)
    elif isinstance(template, str):
        for name in PLACEHOLDER.findall(template):
            if name not in PLACEHOLDERS:
                there = ", ".join(f"{{{each}}}" for each in PLACEHOLDERS)
                yield _fault(place, f"there is no {{{name}}}; there are: {there}")
