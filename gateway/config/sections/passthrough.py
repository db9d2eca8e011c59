"""`passthrough`: task APIs of providers that the gateway forwards as they are."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from gateway.config.operations import (
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

from .prices import Price
from .values import ONE_OR_SEVERAL, Positive, Section, Usd


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


class Passthrough(Section):
    """One API of tasks that is passed on by its row alone."""

    upstream: str
    """Name of an upstream; its base URL is without the prefix of the row."""
    prefix: Annotated[str, Field(pattern=r"^(/[\w.~-]+)*$")] = ""
    """Beginning of the paths that clients ask for."""
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
