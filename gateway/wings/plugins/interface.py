"""The interface of plug-ins, version 1: the values that they get, and the methods that get them.

It imports nothing of the gateway, so that it stays the same while the gateway changes. Within a version fields and
methods are only added: nothing is renamed, taken away or given another meaning.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import InitVar, dataclass, field
from functools import cached_property
from typing import Any, Literal, NoReturn

INTERFACE_VERSION = 1


def _refuse_change(*_: Any, **__: Any) -> NoReturn:
    raise TypeError("a plug-in only reads the request: copy what it wants to change")


class _ReadOnlyDict(dict[str, Any]):
    """An object of the request; `json` and `isinstance` take it for the dict that it is."""

    __setitem__ = __delitem__ = __ior__ = _refuse_change
    clear = pop = popitem = setdefault = update = _refuse_change

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)  # a copy may be changed


class _ReadOnlyList(list[Any]):
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse_change
    append = clear = extend = insert = pop = remove = reverse = sort = _refuse_change

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)


def _read_only(value: Any) -> Any:
    if isinstance(value, dict):
        return _ReadOnlyDict({name: _read_only(each) for name, each in value.items()})
    return _ReadOnlyList(map(_read_only, value)) if isinstance(value, list) else value


@dataclass(frozen=True)
class PluginCall:
    """One call, as its plug-ins see it. It never changes."""

    id: str
    """The request id, which the client has in `x-request-id`."""
    key: str
    """The id of the key; never its secret."""
    team: str | None = None
    owner: str | None = None
    """The person whose key it is."""
    model: str = ""
    """The model as the client named it."""
    endpoint: str = "chat"
    """The format of the call: `chat`, `completions`, `messages`, `responses`, `embeddings`, and the others that
    `models.NAME.endpoints` has; of a task, the name of its row."""
    stream: bool = False
    tags: Mapping[str, str] = field(default_factory=dict)
    is_whole: bool = True
    """Whether `request` has all values. False: the body is longer than 64 KiB, and values above 8 KiB are
    placeholders, or it is a form, and so are its files. `body()` has the bytes."""
    members: InitVar[Mapping[str, Any] | None] = None
    """The original of `request`: tests of plug-ins give it."""
    read_body: InitVar[Callable[[], bytes] | None] = None

    _given: tuple[Mapping[str, Any], Callable[[], bytes] | None] = field(init=False, repr=False, compare=False)

    def __post_init__(self, members: Mapping[str, Any] | None, read_body: Callable[[], bytes] | None) -> None:
        object.__setattr__(self, "_given", (members or {}, read_body))

    @cached_property
    def request(self) -> Mapping[str, Any]:
        """The members of the client's request, read-only at every depth."""
        found: Mapping[str, Any] = _read_only(dict(self._given[0]))
        return found

    def body(self) -> bytes:
        """The bytes of the client's JSON, joined anew each time; of a form none. Parsing 25 MB takes a second: do that
        in a thread, from a wrapper."""
        members, read_body = self._given
        return json.dumps(dict(members)).encode() if read_body is None else read_body()


@dataclass(frozen=True)
class PluginAttempt:
    """One request to an upstream for a call: a retry, another model, each prompt of several, and a second request
    beside a slow one are attempts of their own."""

    call: PluginCall
    upstream: str = ""
    """The upstream's name in the configuration."""
    model: str = ""
    """The model's name at the upstream."""
    notes: dict[str, Any] = field(default_factory=dict)
    """The plug-in's own, for this attempt: empty at first, and no other plug-in sees it."""


@dataclass(frozen=True)
class AnswerHead:
    """The head of an upstream's answer."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers by name; all names are in lower case."""


@dataclass(frozen=True)
class AttemptEnd:
    """How an attempt has ended, and what it is charged."""

    status: int | None
    """200 for a good answer, else the status of the upstream or of the client's error; 499: its answer is of no
    use any more; None: there is none."""
    error: str | None = None
    """Why it came to nothing, in the words of the metrics or as the code of the client's error; None: it did not."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    usage: Literal["reported", "estimated", "none"] = "none"
    """Where the tokens come from; `none`: it has no usage, or what it costs is not known here."""
    seconds: float = 0.0
    """They count from its beginning."""


@dataclass(frozen=True)
class CallEnd:
    """How a call has ended, behind all its attempts."""

    status: int
    error: str | None = None
    """The code of the client's error."""
    upstream: str = ""
    """Where it ended; empty: no upstream was asked."""
    attempts: int = 0
    seconds: float = 0.0
    """They count from its arrival."""


class Refuse(Exception):
    """Raised in `before_attempt`, or in a wrapper before its `carry()`: the client gets this status, code and message
    as an error of the API that it speaks."""

    def __init__(self, message: str, *, status: int = 403, code: str = "refused_by_plugin") -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.code = code


class Plugin:
    """Base of all plug-ins. Each method may be left out, and costs nothing then.

    One object serves all calls of a worker, so what belongs to one attempt is kept in its `notes`. Plain methods run on
    the worker's event loop, on which all calls wait meanwhile: they compute, and never sleep, do I/O or wait for a
    lock.
    """

    interface: int = 0
    """The version of the interface that it was written for; required: `interface = 1`."""
    name: str = ""
    """Logs, metrics and `gateway check` have it; required."""
    version: str = ""
    """Its own version, which is only shown."""

    def before_attempt(self, attempt: PluginAttempt) -> Mapping[str, str] | None:
        """Runs before the request is sent. Returns headers to add to it, or raises `Refuse`."""

    def head(self, attempt: PluginAttempt, head: AnswerHead) -> None:
        """Runs at the head of an answer, whatever its status is."""

    def event(self, attempt: PluginAttempt, event: bytes) -> None:
        """Runs before an event of a stream goes to the client. It has the client's format and its blank line; one of
        more than 64 KiB comes in pieces, and so does an answer that is no stream of events, such as sound."""

    def end(self, attempt: PluginAttempt, end: AttemptEnd) -> None:
        """Runs once for each attempt whose `before_attempt` has passed, before the call is settled."""

    async def around_attempt(self, attempt: PluginAttempt, carry: Callable[[], Awaitable[AttemptEnd]]) -> None:
        """Wraps an attempt: awaits `carry()` once, or raises `Refuse` before."""
        await carry()

    async def around_call(self, call: PluginCall, carry: Callable[[], Awaitable[CallEnd]]) -> None:
        """Wraps all attempts of a call, which is reserved: awaits `carry()` once, or raises `Refuse` before."""
        await carry()
