"""The type `Format`: its fields hold every difference between the APIs that the gateway speaks.

`pipeline`, `accounting` and `relay` read these fields and know no format by name. A new format is one module with one
or more values of `Format`, and its name in `formats/table.py`, or a wing's module `formats`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn, Protocol, Self

from pydantic import BaseModel

from gateway.api import json_document, other_models
from gateway.api.multipart import FormPart
from gateway.api.prompt_tokens import FindsCounter
from gateway.config import Capabilities, Config, Limits, Route
from gateway.errors import GatewayError, InvalidRequest, UpstreamRefused
from gateway.quota import limit_headers
from gateway.records import Call, Document, Ended, Endpoint, Params, StoredBytes, Usage
from gateway.units import Counts, counts
from gateway.wings import parts

from . import reported_usage, sse, token_rule
from .events import Event
from .member_reader import LongAnswer
from .reader import AnswerReader

AllowsReport = Callable[[Usage, Callable[[], int]], bool]
"""Whether a usage report is plausible, given the report and a function that counts the tokens shown so far."""


class Writer(Protocol):
    """Makes a client's answer of the events of an upstream's answer. Every method but `close` and `whole` raises
    `Unfit` for an answer that the client's format cannot express."""

    def feed(self, events: Iterable[Event], model: str | None) -> bytes:
        """Take events, and the name of the model as far as it is known; return what the client may see now."""

    def end(self) -> bytes:
        """The upstream's answer is complete: the rest of the content."""

    def close(self, usage: Usage) -> bytes:
        """The events that end the answer; `usage` is what it is charged."""

    def whole(self, usage: Usage) -> dict[str, Any]:
        """The whole answer, in place of its events."""


class Framing(Protocol):
    """Writes the events of one streamed answer in another form."""

    @property
    def headers(self) -> Iterable[tuple[str, str]]:
        """They take the place of `content-type`."""

    def write(self, data: bytes) -> bytes:
        """The next bytes, whole events or pieces of them, as far as they can be written."""

    def end(self) -> bytes:
        """The end of a complete answer."""


class ScanInput(NamedTuple):
    """Facts of a request that the scan of its streamed answer needs."""

    choices: int = 1
    shows_usage: bool = False
    count_texts: token_rule.CountsTexts = token_rule.count
    clean: Callable[[str], str] = str
    """Removes the gateway's own texts from what is not part of the answer."""
    allows: AllowsReport = lambda report, count_shown: True
    members: Mapping[str, Any] = MappingProxyType({})
    """Members of the request's JSON body."""
    is_events: bool = True
    """Whether the answer comes as events: those of a format that is binary may."""
    writer: Writer | None = None
    """Translates the answer for a client of another format; None: it is passed on."""
    max_translated: int = 0


class Scan:
    """Follows one streamed answer: finds its usage, end and errors, and decides what the client gets.

    After the end (`is_done`) or an error nothing more is passed on: `last` holds back what ends the answer until the
    call is settled, because clients close there. The defaults are those of bytes without events.
    """

    usage: Usage | None = None
    """The highest of the plausible reports."""
    excess: Usage | None = None
    """The highest of the implausible reports."""
    error: dict[str, Any] | None = None
    """The error object of an error inside the stream."""
    is_done = False
    """The event that ends the stream has arrived."""
    model: str | None = None
    has_reasoned = False
    """Whether some of the text was reasoning."""
    has_media = False
    """Whether some of the answer is sound or a picture."""
    has_compacted = False
    """Whether the answer begins with a shorter form of its prompt, which was read for it."""
    has_begun = False
    """Whether any data other than comments and an error arrived."""
    is_at_start = False
    """Whether the next byte certainly begins an event: the condition for calling `is_alike`."""
    is_over = False
    """Whether no further bytes of this stream may be passed on."""

    @property
    def is_usage_final(self) -> bool:
        """Whether `usage` counts the whole answer."""
        return self.is_complete

    @property
    def is_inside_event(self) -> bool:
        """Whether a part of a long event has been passed on: other bytes need a blank line before them."""
        return False

    @property
    def is_between_events(self) -> bool:
        """Whether the bytes so far end with a complete event."""
        return True

    @property
    def is_complete(self) -> bool:
        """Whether the answer is complete: each choice has ended."""
        raise NotImplementedError

    @property
    def has_text(self) -> bool:
        """Whether any text arrived. Does not count tokens."""
        return False

    def last(self, usage: Usage) -> bytes:
        """The bytes that end a complete answer, held back until now. `usage` is what it is charged."""
        return b""

    def is_alike(self, data: bytes) -> bool:
        """Whether these bytes are one event that may be passed on as it is, without `feed`; if so, count it."""
        return False

    def is_sign_of_life(self, passed: bytes) -> bool:
        """Whether these bytes, which were passed on, show that an answer is being generated."""
        return True

    def feed(self, data: bytes) -> tuple[bytes, bool]:
        """Take bytes from the upstream; return what may go to the client now, and `is_over`. Raises `Unfit` where the
        answer cannot be translated."""
        raise NotImplementedError

    def finish(self) -> bytes:
        """Call at the end of the upstream's stream: returns the last bytes for the client. Raises `Unfit`."""
        raise NotImplementedError

    def named(self) -> Usage:
        """The units, the service and the prompts of searches that events have named so far beside reports."""
        return Usage()

    def text_events(self) -> int:
        return 0

    def delivered_tokens(self) -> int:
        """The number of tokens of text, by `count_texts`."""
        return 0


class PassedScan(Scan):
    """Follows one answer without meaning to the gateway. It is complete when the upstream has ended its message."""

    def __init__(self, read: Callable[[Any], Usage | None]) -> None:
        self._read = read
        self._tail = b""
        self._has_ended = False

    @property
    def is_complete(self) -> bool:
        return self._has_ended

    def feed(self, data: bytes) -> tuple[bytes, bool]:
        self.has_begun = True
        self._tail = (self._tail + data)[-reported_usage.USAGE_WITHIN :]
        if b'"usage"' in self._tail:  # also of an answer that breaks off behind its report
            self.usage = reported_usage.found_in(self._tail, self._read)
        return data, False

    def finish(self) -> bytes:
        self._has_ended = True
        return b""


class PlainFacts(NamedTuple):
    model: str | None = None
    usage: Usage | None = None
    has_usage: bool = False
    """Whether it has a usage object, even one that cannot be read."""
    is_error: bool = False
    """It has an error, instead of an answer or in addition."""
    has_output: bool = False
    error: dict[str, Any] | None = None
    """The error object, where it is not simply the member `error`."""
    is_pending: bool = False
    """Generation continues at the upstream without this connection."""
    items: tuple[str, ...] = ()
    """The ids of its items, if the upstream keeps these, too."""
    is_cancelled: bool = False
    kept_id: str | None = None
    """The id under which the upstream keeps it, if it does."""


MOST_MADE = 16
"""Outputs of one task that are charged, where it asked for fewer: no row's API makes more than 8."""


class TaskEnd(NamedTuple):
    """How a task has ended that an upstream went on with."""

    has_failed: bool = False
    paid: int | None = None
    """How many outputs are paid; None: all that were asked for."""

    def charged(self, reserved: Counts, outputs: int) -> Counts:
        """The units that are paid, where these were reserved for this number of outputs: more than that, if the
        upstream made more, up to `MOST_MADE`."""
        if self.paid is None or self.paid == outputs:
            return reserved
        return counts({name: self.share(count, outputs) for name, count in reserved})

    def share(self, reserved: int, outputs: int) -> int:
        """The part that is paid of an amount for this number of outputs."""
        if self.paid is None:
            return reserved
        return -(-reserved * min(self.paid, max(outputs, MOST_MADE)) // outputs)


class AnswerMembers(BaseModel):
    """The members of plain answers that are read; each format adds its own. Others are not built, because it is
    validated from the bytes."""

    model: Any = None
    usage: Any = None
    error: Any = None
    type: Any = None
    success: Any = None

    @classmethod
    def read(cls, body: bytes) -> Self:
        """Raises `ValueError` if it is not JSON. Pydantic accepts NaN and Infinity as numbers; JSON does not have them,
        and most clients fail on them."""
        answer = cls.model_validate_json(body)
        if b"NaN" in body or b"Infinity" in body:
            json.loads(body, parse_constant=_refuse_constant)
        return answer

    @property
    def is_error(self) -> bool:
        """Whether it is an error, as OpenAI, Anthropic or Cloudflare (`success`) write it."""
        return bool(self.error) or self.type == "error" or self.success is False

    def facts(self, usage: Usage | None, *, is_error: bool = False, has_output: bool, **others: Any) -> PlainFacts:
        """The facts, given the usage that the format reads."""
        model = self.model if isinstance(self.model, str) else None
        return PlainFacts(model, usage, self.usage is not None, is_error or self.is_error, has_output, **others)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


def counting(document: Document, model: str, param: str) -> Params:
    """The parameters of a call that counts the tokens of this parameter: nothing is generated or charged."""
    return Params(
        document=document, model=model, is_prompt_exact=True, default_output=0, output_param=param, prompt_param=param
    )


def counted(body: bytes) -> PlainFacts:
    """Returns the facts of a token count, which uses no tokens. Raises `ValueError` if the body cannot be read."""
    return PlainFacts(usage=Usage(), is_error=AnswerMembers.read(body).is_error)


VARIANT = "batch"
"""The variant of batches in the prices of models."""


class BatchState(NamedTuple):
    is_over: bool
    ended: Ended = "done"
    status: int = 200
    results: tuple[str, ...] = ()
    """The paths of its results below the upstream's base URL."""
    failures: tuple[str, ...] = ()
    """The paths of results of failed requests; they may be missing."""


class BatchLine(NamedTuple):
    """One line of the results of a batch."""

    custom_id: str | None
    facts: PlainFacts | None = None
    """The facts of the answer; None: the request failed, and is free."""
    body: bytes = b""


class ReadsLine(Protocol):
    """Reads a line of the results of a batch in pieces, because it is too long to be parsed at once."""

    def feed(self, data: bytes) -> None:
        """The next bytes of the line."""

    def line(self, shown: bytes) -> BatchLine:
        """The line, which has ended and begins with `shown`. Raises `ValueError`."""


class BatchFormat(NamedTuple):
    kind: str
    """The kind of their bonds."""
    endpoints: frozenset[str]
    """The endpoints of requests whose results can be read."""
    state: Callable[[bytes], BatchState]
    """Reads a batch object. Raises `ValueError` if it is none."""
    line: Callable[[bytes, Endpoint], BatchLine]
    """Reads one line of the results, given the endpoint of the requests. Raises `ValueError`."""
    long_line: Callable[[Endpoint], ReadsLine | None] = lambda _: None
    """Reads a line of more than `LONG_ANSWER` bytes in pieces; None: `line` reads it at once."""


Restricts = Callable[[Mapping[str, Any], Limits, Limits], None]
"""Checks the requests in the members of a body by the limits of the key and of the model. Raises `InvalidRequest` for
one that is beyond them."""


def restrict_body(body: bytes, restrict: Restricts, key: Limits, model: Limits) -> None:
    """Checks the requests in a body, as `restrict` does."""
    restrict(json_document.parse(body).members, key, model)


def no_json(*body: object) -> Params:
    """A `read` of a format that takes forms only. Raises `InvalidRequest`."""
    raise InvalidRequest("This API method takes a form: send 'multipart/form-data'.", code="unsupported_content_type")


def no_usage(report: object) -> Usage | None:
    """The `usage` of a format whose answers report none that the gateway knows."""
    return None


class FactsReader(Protocol):
    """Reads a plain answer in pieces, because it is too long to be parsed at once."""

    def feed(self, data: bytes) -> None:
        """The next bytes of the answer."""

    def facts(self) -> PlainFacts:
        """The facts of the whole answer. Raises `ValueError` if it is no complete JSON object."""


NO_TEXT = re.compile(rb"(?!)")
LONG_ANSWER = 65_536
"""Bytes of a plain answer that is read at once: up to ten milliseconds."""


@dataclass(frozen=True, slots=True)
class Format:
    """One format of calls: where it is served, and how its requests, answers and errors are read and written."""

    name: Endpoint
    """The name in records, metrics and `models.NAME.endpoints`."""
    path: str
    """Empty: it is that of the APIs that a configuration adds, with names and paths of their own."""
    operation: str
    """The operation's name in traces (OpenTelemetry, `gen_ai.operation.name`)."""
    read: Callable[[bytes, FindsCounter], Params]
    """Checks a body by the API's own rules. Raises `InvalidRequest` for the first fault."""
    facts: Callable[[bytes], PlainFacts]
    """Reads a plain answer. Raises `ValueError` if it is not JSON."""
    usage: Callable[[Any], Usage | None]
    """Reads one usage object of an answer; None if it cannot be read."""
    upstream_path: str = ""
    """The path below an upstream's base URL; empty: as `path`, without its version. A
    `replace` of the path keeps it."""
    tier_header: str = ""
    """The header of an answer that names the tier that served it, where its usage does not; empty: there is none."""
    more_paths: tuple[str, ...] = ()
    read_form: Callable[[StoredBytes, Sequence[FormPart], FindsCounter], Params] | None = None
    """Checks a multipart form in the same way; None: the format takes JSON only. With `no_json` as `read` it takes
    forms only."""
    facts_reader: Callable[[], FactsReader] | None = None
    """Reads a plain answer with status 200 in pieces; None: `facts` reads it at once."""
    long_reader: Callable[[], LongAnswer[PlainFacts]] | None = None
    """The same for an answer of more than `LONG_ANSWER` bytes: to build its members would hold up other calls. None:
    another process calls `facts`, which is a function of a module."""
    is_text: Callable[[Params], bool] | None = None
    """Whether a whole answer to this request is text and not JSON; None: never."""
    scan: Callable[[ScanInput], Scan] | None = None
    """Scans a streamed answer; None: the format has no streams."""
    gather: Callable[[bytes], bytes | None] | None = None
    """Puts the events of a whole stream together as the plain answer, of which they may make none (None), for a client
    that asked for one; None: that is not possible."""
    reader: Callable[[], AnswerReader] | None = None
    """Reads answers for translations; None: there is no way from this format to another."""
    kept_id: Callable[[Scan], str | None] | None = None
    """The id under which the upstream keeps a streamed answer, as soon as `scan` has seen it; None: nothing is kept."""
    kept_items: Callable[[Scan], tuple[str, ...]] = lambda scan: ()
    """The ids of the items of a streamed answer, at its end, if the upstream keeps these, too."""
    pending_id: Callable[[Scan], str | None] | None = None
    """The id of a streamed answer that may be made without its connection; None: it has ended, or is not known yet."""
    is_binary: bool = False
    """Whether answers are bytes of any type, which `scan` follows; an answer in JSON is an error or of another kind."""
    as_events: Callable[[bytes, bool, Usage], bytes] | None = None
    """Writes a plain answer as the events of a stream, given whether the client asked for the usage, and what is
    charged, for a client that has been promised events; None: that is not possible. Raises `Unfit`. As `answer` it
    is a function of a module, which another process may call."""
    streams_only_events: bool = False
    """Whether a client that asked for a stream can read only events: a plain answer is always written as such."""
    answer: Callable[[bytes, Usage], bytes] | None = None
    """Rewrites a plain answer for the client, given the charged usage; None: it is passed on. Raises `Unfit`."""
    reword: Callable[[UpstreamRefused], UpstreamRefused] | None = None
    """Writes an upstream's refusal with the names of the client's own parameters; None: it is passed on."""
    changes: Callable[[Call, Route, Capabilities, int | None], dict[str, Any]] = lambda call, route, *_: (
        other_models.changes(call, route) if call.other_models else {}
    )
    """The members that a forwarded body needs besides the model's name; the last argument: the output limit of one
    candidate to add, because of a limit of the key or the model, or because tokens or money are counted."""
    limit_fields: tuple[str, ...] = ()
    """The members that limit the output of one candidate."""
    texts: re.Pattern[bytes] = NO_TEXT
    """Generated texts in an answer's JSON: its one group."""
    media: re.Pattern[bytes] = NO_TEXT
    """Finds sound and pictures in the JSON of an answer, where their tokens are output."""
    may_reason: bool = False
    """Whether answers may have reasoning that is billed and not shown."""
    error_body: Callable[[GatewayError, str], bytes] = lambda error, _: error.body()
    """An error as the client reads it, given the request id."""
    error_event: Callable[[GatewayError, Scan | None, str], bytes | None] = lambda error, *_: sse.write_event(
        error.body()
    )
    """The event that ends a stream with an error, given the scan of what the client has of it, and the request id.
    None: the connection is closed before the message is complete."""
    error_headers: Callable[[GatewayError], Iterable[tuple[str, str]]] = lambda error: ()
    """Headers of an error, beside its body."""
    error_keeps_status: bool = False
    """Whether an error that comes before anything of a stream has gone to the client is shown by its status, not by an
    event behind a 200."""
    rate_headers: limit_headers.WritesHeaders = limit_headers.rate_headers
    keepalive: bytes = sse.KEEPALIVE
    """An event that every client of the format ignores; empty: there is none."""
    good_statuses: frozenset[int] = frozenset({200})
    passed_statuses: frozenset[int] = field(default_factory=frozenset)
    """Statuses of a failed upstream that the client sees, beside 503."""
    passes_query: bool = False
    request_headers: frozenset[str] = field(default_factory=frozenset)
    """Further request headers that are forwarded, in lower case."""
    response_headers: frozenset[str] = field(default_factory=frozenset)
    """Further headers of the upstream's answer that the client sees, in lower case."""
    id_header: str | None = None
    """A further header for the request id, beside `x-request-id`."""
    unserved_paths: tuple[str, ...] = ()
    """Paths of the API that are not served: errors there are written in its words too."""
    is_optional: bool = False
    """Whether clients go on without it: where an upstream does not have it, they get 404 and not a server's fault."""
    list_models: Callable[[Mapping[str, Collection[Endpoint]], Mapping[str, str]], Any] | None = None
    """Writes the list of these models for the API's own clients, given the query; None: as OpenAI does. Raises
    `InvalidRequest`."""
    show_model: Callable[[str, Collection[Endpoint]], Any] | None = None
    has_model_in_path: bool = False
    """Whether the model is named in the path instead of the body: as `{model}` in all of its paths."""
    default_type: str = ""
    """The media type of a body that names none; empty: it is refused."""
    stream_paths: tuple[str, ...] = ()
    """Further paths, whose calls are streams."""
    upstream_stream_path: str = ""
    """Replaces `upstream_path` for streams, where those have a path of their own."""
    keeps: Callable[[Params], Collection[str]] = lambda params: ()
    """Members that decide, which of a large body are kept however long they are."""
    rename: Callable[[Mapping[str, Any], str], dict[str, Any]] | None = None
    """Returns the members that name the model inside them, with this name; None: it is a member itself, or in the
    path. It is called in one place (`pipeline/request.py`); of a large body another process writes them."""
    restrict: Restricts | None = None
    """None: the limits are for the body as a whole. Of a large body another process calls it."""
    framing: Callable[[Mapping[str, str]], Framing | None] = lambda query: None
    """The form of a stream for a client with this query; None: events."""
    query_key: str | None = None
    """A parameter of the query in which clients of this API may put the key."""
    listed: frozenset[Endpoint] = frozenset()
    """`list_models` gets only models that are served at one of these endpoints; empty: every model."""
    batch: BatchFormat | None = None
    ended: Callable[[Config, Endpoint], Callable[[bytes], TaskEnd | None] | None] = lambda *_: None
    """Reads how a task of an added API has ended, by an answer about it; None: it goes on, as far as is known."""
    client_header: str | None = None
    """A request header, in lower case, that only clients of this API send: what they ask for outside of the formats'
    own paths is answered in this API's words."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "upstream_path", self.upstream_path or self.path.removeprefix("/v1"))


def formats_of_wings() -> list[Format]:
    return parts(Format, "formats")
