"""The section `passthrough`: APIs that are forwarded as they are, with the checks within and between its rows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from gateway.config.faults import ConfigFault, format_faults, printable
from gateway.config.sections import AddedApi, Config, Positive, Price, Section, Usd
from gateway.config.sections.values import ONE_OR_SEVERAL
from gateway.config.wings import WingRows

from .notation import (
    TASK,
    KeyPlace,
    Reference,
    TaskOperation,
    format_value,
    is_pointer,
    read_key_place,
    read_operation,
    read_reference,
    steps_of,
)


def _is_option(name: str) -> str:
    if not (name.isidentifier() or is_pointer(name)):
        raise ValueError("expected a name in braces of the path, such as kind, or a JSON pointer, such as /mode")
    return name


def _is_pointer(name: str) -> str:
    if not is_pointer(name):
        raise ValueError("expected a JSON pointer, such as /data/task_id")
    return name


def _is_reference(text: str) -> str:
    read_reference(text)
    return text


def _is_operation(text: str) -> str:
    read_operation(text)
    return text


def _is_key_place(text: str) -> str:
    place = read_key_place(text)
    if place.header in _WITHHELD:
        raise ValueError(f"{place.header} cannot be one: it is read everywhere, or is of the connection")
    return text


def _read_texts(value: Any) -> Any:
    values = value if isinstance(value, list | tuple) else [value]
    if not values or any(each is not None and not isinstance(each, str | int | float) for each in values):
        raise ValueError("expected a text, a number, true or false, or a list of them")
    return tuple([format_value(each) for each in values])


_WITHHELD = frozenset({
    "authorization", "proxy-authorization", "x-api-key", "api-key", "x-goog-api-key", "cookie", "host", "connection",
    "content-length", "content-encoding", "transfer-encoding", "te", "trailer", "upgrade", "expect",
})  # fmt: skip
"""Headers with the client's key, and those of one connection."""

Option = Annotated[str, AfterValidator(_is_option)]
Pointer = Annotated[str, AfterValidator(_is_pointer)]
ReferenceText = Annotated[str, AfterValidator(_is_reference)]
OperationText = Annotated[str, AfterValidator(_is_operation)]
KeyPlaceText = Annotated[str, AfterValidator(_is_key_place)]
Options = Annotated[tuple[Option, ...], ONE_OR_SEVERAL]
Texts = Annotated[tuple[str, ...], BeforeValidator(_read_texts)]


class TaskPrice(Section):
    """The price of a submission with these options: USD for each task, second or image."""

    when: dict[Option, Texts] = {}
    """The options and the texts that they may have, with * for any characters; '' is an option that is not there."""
    task: Usd | None = None
    """USD per task."""
    second: Usd | None = None
    """USD per second; `count` names the option with their number."""
    image: Usd | None = None
    """USD per image; `count` names the option with their number."""
    count: Options = ()
    """The option with the number of seconds, images or tasks, or a list: the first that is there; default: one."""
    default: Positive | None = None
    """That number where the request has none; default: then the price does not apply."""
    outputs: Options = ()
    """The option with the number of outputs that each have this price, or such a list; default: one."""

    @model_validator(mode="after")
    def _has_one_unit(self) -> Self:
        if len(self.model_fields_set & {"task", "second", "image"}) != 1:
            raise ValueError("expected one of task, second and image")
        if not self.count and (self.default is not None or self.second is not None):
            raise ValueError("count is required: the option with the number")
        return self

    @cached_property
    def unit(self) -> str:
        """The counted unit, by its name in `units.UNITS`."""
        return "seconds" if self.second is not None else "images" if self.image is not None else "tasks"

    @cached_property
    def price(self) -> Price:
        """The price of that unit."""
        return Price.model_validate(
            {name: usd for name in ("task", "second", "image") if (usd := getattr(self, name)) is not None}
        )


class Passthrough(AddedApi):
    """One API of tasks that is passed on by its row alone."""

    upstream_prefix: Annotated[str, Field(pattern=r"^(/[\w.~-]+)*$")] | None = None
    """The beginning of their paths at the upstream; default: the same."""
    submit: Annotated[tuple[OperationText, ...], Field(min_length=1)]
    """Operations that are paid: POST /v1/videos/{kind}."""
    read: tuple[OperationText, ...] = ()
    """Operations on one task, which cost nothing: GET /v1/tasks/{task}; the first one is how the gateway polls."""
    headers: tuple[Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{1,64}$")], ...] = ()
    """Further request headers that are sent on."""
    key_in: tuple[KeyPlaceText, ...] = ()
    """Where clients may put the key besides: a header (x-key), the query (?key), a scheme (Authorization: Token)."""
    model: Option | None = None
    """The option that names the model; default: the row has one model, of the row's name."""
    default_model: Annotated[str, Field(min_length=1)] | None = None
    """The model where the request names none; default: the request is refused."""
    refers: tuple[ReferenceText, ...] = ()
    """Where a submission names earlier tasks, which have to be the same key's: /taskId, in a text /content={task} *."""
    accepted: dict[Pointer, Texts] = {}
    """Values in the answer to a submission that is paid; default: an id, where the row has tasks."""
    task: Pointer | None = None
    """Where the answer to a submission has the id of the task; default: it is the whole result."""
    tasks_of: str | None = None
    """The row whose tasks these are, where one API has several rows; default: its own."""
    done: dict[Pointer, Texts] = {}
    """Values in the answer about a task that has ended and is paid."""
    failed: dict[Pointer, Texts] = {}
    """Values in the answer about a task that has ended and is not paid."""
    charged: dict[Pointer, Texts] = {}
    """Values in the answer about a task that has failed and is paid all the same; these are looked at first."""
    made: tuple[Pointer, ...] = ()
    """Where the answer has what was made, * for each of an array: charged where fewer or more than were asked for."""
    also: tuple[Pointer, ...] = ()
    """Where the answer about a task has further ids, such as of files, that are read like tasks."""
    links: tuple[Pointer, ...] = ()
    """Where answers have addresses of the upstream; they become the gateway's own of a read, else null."""
    lists: tuple[OperationText, ...] = ()
    """Operations that list tasks: refused, because an upstream lists those of all keys."""
    error: dict[str, Any] | None = None
    """The JSON of the gateway's errors: {code: "{status}", message: "{message}"}; default: that of OpenAI."""
    callbacks: bool = False
    """Whether a submission may name an address that the upstream calls."""
    prices: tuple[TaskPrice, ...] = ()
    """The prices of submissions: the first one whose options match counts."""
    unpriced: Literal["deny", "allow"] = "deny"
    """Without a price under a USD quota: deny (403 model_not_priced), or allow, and nothing is drawn on that quota."""

    @field_validator("headers")
    @classmethod
    def _no_secrets(cls, headers: tuple[str, ...]) -> tuple[str, ...]:
        if withheld := _WITHHELD.intersection(map(str.lower, headers)):
            raise ValueError(f"{min(withheld)} is never sent on")
        return headers

    @cached_property
    def key_places(self) -> tuple[KeyPlace, ...]:
        """Those of `key_in`."""
        return tuple(map(read_key_place, self.key_in))

    @cached_property
    def forwarded(self) -> frozenset[str]:
        """The names of `headers` in lower case."""
        return frozenset(map(str.lower, self.headers))

    @cached_property
    def submissions(self) -> tuple[TaskOperation, ...]:
        """The operations of `submit`."""
        return tuple(map(read_operation, self.submit))

    @cached_property
    def reads(self) -> tuple[TaskOperation, ...]:
        """The operations of `read`."""
        return tuple(map(read_operation, self.read))

    @cached_property
    def references(self) -> tuple[Reference, ...]:
        """Those of `refers`."""
        return tuple(map(read_reference, self.refers))

    @cached_property
    def members(self) -> Mapping[str, Any]:
        """The members of a body in which the row reads options or ids of tasks, each with those inside it."""
        read = [*([] if self.model is None else [self.model]), *[each.pointer for each in self.references]]
        read += [name for price in self.prices for name in (*price.when, *price.count, *price.outputs)]
        found: dict[str, Any] = {}
        for pointer in read:
            inside = found
            for step in steps_of(pointer):
                inside = inside.setdefault(step, {})
        return found

    @cached_property
    def listings(self) -> tuple[TaskOperation, ...]:
        """The operations of `lists`."""
        return tuple(map(read_operation, self.lists))

    def has_path(self, path: str) -> bool:
        """Whether a path is below the prefix or, where there is none, that of an operation with any method."""
        if self.prefix:
            return path.startswith(f"{self.prefix}/")
        return any(each.pattern.fullmatch(path) for each in (*self.submissions, *self.reads, *self.listings))

    def at_upstream(self, path: str) -> str:
        """Where a path below the prefix is at the upstream."""
        return (self.prefix if self.upstream_prefix is None else self.upstream_prefix) + path


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


def _check_operations(place: Place, row: Passthrough, first: dict[tuple[str, str], Place]) -> Iterator[ConfigFault]:
    parts = (("submit", row.submissions), ("read", row.reads), ("lists", row.listings))
    for at, operation in [((part, index), each) for part, found in parts for index, each in enumerate(found)]:
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
"""The names that an error's template may have in braces (formats.py has their values)."""

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


def rows_of(config: Config) -> Mapping[str, Passthrough]:
    """The rows by name, in the order of the file."""
    found: Mapping[str, Passthrough] = vars(config)["passthrough"]
    return found


ROWS = WingRows("passthrough", Passthrough, check_rows)
