"""The facts passed between floors.

Everything here is a value: it never changes, and has no behaviour beyond what follows from its fields. A call is
described once, as a `Call`, and its outcome once, as a `Record`.

An object that is made for every call is a NamedTuple, which costs half of a frozen dataclass to make (0.9 against 1.9
us for the fields of a record); the rest are dataclasses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from ipaddress import IPv4Network, IPv6Network
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol

from . import units
from .config import Limits, Model, NamedModel, Priority, Quota

Endpoint = Literal[
    "completions", "chat", "embeddings", "messages", "count_tokens", "responses", "input_tokens", "compact",
    "moderations", "rerank", "images", "image_edits", "image_variations", "speech", "transcriptions", "translations",
    "generate_content", "count_content_tokens", "embed_content", "batch_embed_contents", "batches", "message_batches",
    "realtime",
]  # fmt: skip
UsageSource = Literal["reported", "estimated", "none"]
Ended = Literal["done", "error", "client_gone", "lost"]


class KeyInTeam(NamedTuple):
    """A key in a team. Its usage and stored objects of one team are out of its reach in another."""

    key: str
    team: str | None


@dataclass(frozen=True, slots=True)
class Key:
    """The calling key. It has no secret: keys are looked up by hash."""

    id: str
    team: str | None = None
    models: tuple[str, ...] = ("*",)
    expires: datetime | None = None
    ips: tuple[IPv4Network | IPv6Network, ...] = ()
    max_parallel: int | None = None
    limits: Limits = field(default_factory=Limits)
    quotas: tuple[Quota, ...] = ()
    is_shadow: bool = False
    priority: Priority = "normal"
    weight: int = 1
    max_wait_s: float | None = None
    owner: str | None = None
    """The person whose key it is."""
    labels: tuple[tuple[str, str], ...] = ()

    @property
    def in_team(self) -> KeyInTeam:
        """Returns the owner of the objects that this key makes now."""
        return KeyInTeam(self.id, self.team)


class Rewriting(NamedTuple):
    """A change of a large body as a whole, which another process makes: see `formats/bridges.py`."""

    kind: str
    """`renamed`, or that of a bridge."""
    detail: str
    """The member for an output limit in the upstream's format, the model's name, or nothing."""


class LargeBody(NamedTuple):
    """A body that is too long to be touched at once."""

    pieces: Sequence[bytes | bytearray | memoryview]
    opening: int
    """The position for a first member, in bytes."""
    places: Mapping[str, tuple[int, int]]
    """The positions of its members' values, in bytes."""
    file_ids: tuple[str, ...] = ()
    """The ids of kept files that it names, at any depth."""
    acts: bool = False
    """Whether it has a tool with which an upstream acts by itself."""
    has_inner_tools: bool = False
    """Whether its items or blocks bring tools."""
    dropped: frozenset[str] = frozenset()
    """Those of its parameters that some upstream drops."""
    rewritten: Mapping[Rewriting, Any] = MappingProxyType({})
    """The results of its rewritings; an `InvalidRequest` in place of one that is refused."""


class StoredBytes(Protocol):
    """Bytes in memory or in a file."""

    size: int

    def read(self, start: int, size: int) -> bytes:
        """Returns at most `size` bytes from the position `start`. Raises `OSError`."""

    def close(self) -> None:
        """Deletes the bytes in memory, or their file."""


class FormBody(NamedTuple):
    """A multipart form as the client wrote it."""

    stored: StoredBytes
    places: Mapping[str, tuple[int, int]]
    """The positions of the text fields that came once, in bytes."""


class Document(NamedTuple):
    """A JSON object as the client wrote it, and its parsed values."""

    text: str
    members: dict[str, Any]
    large: LargeBody | None = None
    """Then `text` is empty, and long values are placeholders: see `api/large_body.py`."""
    form: FormBody | None = None
    """Then the body is a form: `text` is empty, and files are placeholders: see `api/form.py`."""


class ItemRef(NamedTuple):
    """An input item with an id under which an upstream may keep it."""

    id: str
    param: str
    is_sole: bool
    """It is nothing but its id: the caller has to have a `Bond` with it. Another one must not be another key's."""


class LineCeilings(NamedTuple):
    """The most tokens that requests of a batch can have if their answers show none: of the largest one, and of all
    together."""

    prompt: int = 0
    output: int = 0
    prompts: int = 0
    outputs: int = 0

    def plus(self, prompt: int, output: int) -> LineCeilings:
        """Returns the ceilings with one more request counted."""
        return LineCeilings(
            max(self.prompt, prompt), max(self.output, output), self.prompts + prompt, self.outputs + output
        )


class Params(NamedTuple):
    """The checked parameters of a body. Token counts are tokens, `prompt_tokens` an estimate unless
    `is_prompt_exact`."""

    document: Document
    model: str
    stream: bool = False
    include_usage: bool = False
    n: int = 1
    best_of: int = 1
    prompts: int = 1
    prompt_tokens: int = 0
    is_prompt_exact: bool = False
    output_limit: int | None = None
    is_output_limit_added: bool = False
    """The client gave none: `output_limit` is a limit of the key or the model, and has to be written into the body."""
    default_output: int | None = None
    """Output tokens of one candidate without a limit: 0 where the format generates none; None: up to the model."""
    output_param: str = "max_tokens"
    """The parameter to lower if the call is too large for a quota."""
    prompt_param: str = "prompt"
    other_models: tuple[str, ...] = ()
    """Further models that the body names, such as fallbacks; `*`: any that the upstream chooses."""
    units: units.Counts = ()
    """Units beside tokens that the request states. They are reserved."""
    variant: str = ""
    """The variant of the price that the request asks for, where answers do not state it."""
    refers_to: str | None = None
    """The id of what an upstream keeps and the call continues; the caller has to have a `Bond` with it."""
    refers_param: str = ""
    """The parameter that names it."""
    items: tuple[ItemRef, ...] = ()
    """Input items that an upstream may look up by their ids."""
    account_bound_by: str = ""
    """A digest of what the calls of a conversation have in common that only one account can go on with, because it
    alone reads what it has encrypted; empty: any can."""
    is_kept: bool = False
    """The upstream keeps the answer under its id, which the gateway binds to the caller."""
    is_deferred: bool = False
    """The answer is made without this connection, and may be incomplete when it comes."""
    is_usage_known: bool = False
    """A whole answer without a report has used `units` and nothing else; otherwise it is estimated."""
    are_units_estimated: bool = False
    token_parts: units.Counts = ()
    """The most tokens of the prompt and of the output that are sound or images. They estimate an answer without a
    report if the model has a price for tokens and none for `units`. Empty: there is no such estimate."""
    lines: int = 0
    """Requests of a batch, of which the counts here are the sums; 0: it is no batch."""
    lines_endpoint: str = ""
    """The endpoint of those requests."""
    line_ceilings: LineCeilings = LineCeilings()
    least_audio_ms: int = 0
    """The shortest sound that the bytes of the file can have."""

    @property
    def known_usage(self) -> Usage | None:
        """The usage of a whole answer without a report; None: it is estimated."""
        if not self.is_usage_known:
            return None
        source: UsageSource = "estimated" if self.are_units_estimated else "reported"
        return Usage(source=source, more=self.units, variant=self.variant)

    @property
    def choices(self) -> int:
        """How many choices the answer holds: indexes run over prompts times n."""
        return self.prompts * self.n

    @property
    def candidates(self) -> int:
        """How many outputs are generated, and so paid for."""
        return self.prompts * max(self.n, self.best_of)


class Bond(NamedTuple):
    """The owner of an object that an upstream keeps, such as a stored response, and the object's id."""

    id: str
    key: str
    """The id of the only key that may use it."""
    team: str | None
    """The team of that key when the bond was made: the key may use it in this team only."""
    upstream: str
    account: str
    """Which of the upstream's API keys: `upstream/credentials.py` writes it. Empty: the upstream has none."""
    model: str
    """The model's name at the upstream."""
    tokens: int
    """Context that a continuation repeats, in tokens; 0: not known (yet)."""
    made: float
    """Unix time of the bond's creation, in seconds."""
    kind: str = ""
    """`file`, `batch`, `message_batch` or `task`; empty: a response."""
    note: str = ""
    """Further facts for later requests; the module that makes such bonds writes and reads it."""

    @property
    def in_team(self) -> KeyInTeam:
        return KeyInTeam(self.key, self.team)


class PassedRequest(NamedTuple):
    """The upstream request of a call at an API that the configuration adds, by a passthrough row."""

    method: str
    path: str
    """Path below the upstream's base URL, as it was sent."""
    format: Any
    """The `Format` (formats/format.py) of its answers."""
    poll_path: Callable[[str], str]
    """Where the task with an id is read, below the upstream's base URL."""
    is_read: bool = False
    """It is about a task, and costs nothing."""
    owner: str = ""
    """The name of the row whose tasks these are."""
    outputs: int = 1
    """How many outputs it asks for."""


class Call(NamedTuple):
    """One checked call. No later step reads the raw request again."""

    id: str
    started: float
    """Unix time in seconds; the day and the windows a call belongs to are those of this moment."""
    key: Key
    endpoint: Endpoint
    params: Params
    model: Model
    label_model: str
    """The model in metrics and sums: its name, or `other` if a pattern serves it and no upstream has yet."""
    arrived: float
    """When the head was there, on the clock of `time.perf_counter`."""
    body_wait_s: float = 0.0
    """How long the client took to send the body, and others that were asked about the call to answer."""
    forwarded_headers: tuple[tuple[str, str], ...] = ()
    client_request_id: str | None = None
    remote: str | None = None
    """The client's address, as far as it is known."""
    query: str = ""
    """The forwarded part of the request's query, with its question mark."""
    target: str | None = None
    """The name of the model that serves, where it is not that of `params`: the client asked for an alias, or a fallback
    serves."""
    affinity: bytes | None = None
    """A hash that is equal for calls that go to the same place; None: it may go to any."""
    fallbacks: tuple[Call, ...] = ()
    """The same call for other models, which serve it in this order where this one cannot. They have no fallbacks."""
    other_models: tuple[tuple[str, Model], ...] = ()
    """The further models that the body names, each with its settings."""
    bond: Bond | None = None
    """Bond of the object that the call continues: only its upstream, with its API key, can serve."""

    @property
    def model_name(self) -> str:
        """The real name of the model that serves."""
        return self.params.model if self.target is None else self.target

    priority: Priority = "normal"
    """Its class where calls wait: the key's, or a lower one that the client asked for."""
    user: str = ""
    """Whom the client named as its user."""
    tags: str = ""
    """Tags in the format of `Record.tags`."""
    passed: PassedRequest | None = None
    """Upstream request of a call of a passthrough row, whose name is `endpoint`; None for other calls."""
    expected_output: int | None = None
    """The output tokens of one candidate that the call draws on rates; None: its output limit."""
    model_reason: str = ""
    """Why another model serves than the one that was asked for, as `Record.model_reason`."""
    amended: str = ""
    """The changes that wings have made, as `Record.amended`."""
    waits: tuple[tuple[str, str, float, float], ...] = ()
    """They asked others about it: the name, the fault, if any, and its begin and end in seconds since it arrived."""


class Amended(NamedTuple):
    """The changes of wings, or of one of them, to a call that is not reserved yet."""

    words: str = ""
    waits: tuple[tuple[str, str, float, float], ...] = ()
    headers: tuple[tuple[str, str], ...] = ()
    """Headers for the upstream in place of the client's; an empty one is left out."""
    body: Sequence[bytes | bytearray | memoryview] | None = None
    """The JSON in place of the client's, which is checked and counted like hers; None: it stays."""
    waited_s: float = 0.0
    model: NamedModel | None = None
    """Another model that serves; None: it stays."""
    model_reason: str = ""

    def plus(self, later: Amended) -> Amended:
        """Returns the changes of both, as far as they are kept for the end of the checks."""
        words = "; ".join(filter(None, (self.words, later.words)))
        waits, waited_s = self.waits + later.waits, self.waited_s + later.waited_s
        reason = later.model_reason or self.model_reason
        return Amended(words, waits, self.headers + later.headers, None, waited_s, model_reason=reason)


NOT_AMENDED = Amended()


class Phase(Enum):
    """How far an attempt got. The further it got, the less we may repeat it."""

    CONNECT = "connect"
    """Nothing reached the upstream: always safe to repeat."""
    STALE = "stale"
    """A reused connection ended within 1 s without one answer byte: repeat once, counted as an attempt."""
    REFUSED = "refused"
    """It answered 429 or 5xx: repeat, elsewhere first."""
    WAITING = "waiting"
    """Sent, and not (wholly) answered: repeat only if the route allows it."""
    RELAYING = "relaying"
    """The client has bytes: never repeat."""


class Fault(Enum):
    """The fault of an upstream, with the words of the metric and the log line."""

    CONNECT = "connect_failed"
    BUSY = "no_free_connection"
    TIMEOUT = "timeout"
    CUT = "cut"
    PROTOCOL = "not_http"
    TOO_LARGE = "too_large"
    NOT_JSON = "not_json"
    ENCODING = "content_encoding"
    """The content encoding is unknown, or the body does not follow it."""
    REDIRECT = "redirect"
    STATUS = "status"
    WRONG_URL = "wrong_url"
    """404 for the URL itself: the setting `base_url` is wrong, or the upstream lacks this endpoint."""
    RATE_LIMITED = "rate_limited"
    AUTH = "auth_failed"
    BALANCE = "balance_spent"
    IN_BAND = "error_event"
    UNFIT = "unfit_answer"
    """A good answer to something else than was asked."""
    NO_CHANNEL = "no_channel"
    """A reseller has no channel for this model at present; its other models may work."""
    LIMIT = "upstream_limit"
    """Nothing was sent: the upstream's limit, as configured here, has no room."""
    SPENT = "upstream_quota"
    """Nothing was sent: what may be spent at the upstream, as configured here, is spent."""
    CIRCUIT_OPEN = "circuit_open"
    """Nothing was sent: the circuit breaker is open."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An attempt that came to nothing: a value between our own floors, because it is expected."""

    upstream: str
    phase: Phase
    fault: Fault
    detail: str = ""
    """Cause in plain words for the log; never shown to a client, never holds a secret."""
    status: int | None = None
    retry_after_s: float | None = None
    has_begun: bool = False
    """A good head had come: the client may have something of an answer."""
    is_of_credential: bool = False
    """The text of the refusal certainly concerns the gateway's own API key, not one model only."""
    was_held_back: bool = False
    """The client read the answer slowly, which delayed reading from the upstream: the cause cannot be attributed to the
    upstream."""
    message: str = field(default="", repr=False)
    """The first line of the upstream's message, without secrets: for the admin API, never for the log."""
    has_room: bool | None = None
    """Whether the headers of a refusal show room in the ordinary limits, or that nothing remains; None: neither."""


class Usage(NamedTuple):
    """Tokens of one call, their source, and what else was used."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    source: UsageSource = "none"
    more: units.Counts = ()
    """Further units (`units.UNITS`): parts of the prompt and of the completion, and units beside tokens."""
    variant: str = ""
    """The service named in the answer (`flex`, `priority`, `batch`): it may have prices of its own. Not stored."""
    parts: tuple[Usage, ...] = ()
    """If this is a sum of several upstream requests, or of runs of models inside one: each of them, because a long
    prompt of one may have other prices. Not stored."""
    model: str = ""
    """The model named in the answer for a part that another model than the call's ran; the part has its prices. Not
    stored."""

    @property
    def total_tokens(self) -> int:
        """The tokens that a quota is charged."""
        return self.prompt_tokens + self.completion_tokens


class Record(NamedTuple):
    """The one usage record of a call, as it is kept in the store and shown in reports."""

    id: str
    time: float
    key: str
    team: str | None
    endpoint: str
    model: str
    """Model as the client asked for it: a model's name, or an alias."""
    label_model: str
    """The group of the daily sums: the model's name, or `other` where a pattern served it and no upstream ever answered
    to this name."""
    routed_model: str
    returned_model: str | None
    upstream: str
    status: int
    stream: bool
    usage: Usage
    ended: Ended
    first_byte_s: float | None
    duration_s: float
    attempts: int
    truncated: bool = False
    client_request_id: str | None = None
    cost_nusd: int | None = None
    """Cost in billionths of a US dollar; None where no price is known."""
    price: str | None = None
    """The prices of the model's tokens when the call was charged, in USD per million: input, cached input and output
    with a space between (`1.5 0.75 2`). It explains the cost after the configuration has changed. None where no price
    is known, and in records of gateways that did not keep it."""
    failed: str = ""
    """The attempts that failed, in their order, each as `UPSTREAM:FAULT` (`Fault`), with spaces between.
    `UPSTREAM:hedged` was stopped because another one answered."""
    user: str = ""
    """Whom the client named as its user."""
    tags: str = ""
    """Each as `NAME=VALUE`, by name, with `TAG_SEPARATOR` between."""
    timeline: str = ""
    """Attempts and waits in the order in which they began, each as `UPSTREAM:BEGAN:ENDED:FAULT` in milliseconds since
    the call arrived, with spaces between. Kept for a call with several attempts, or that waited for room at its
    upstreams. An attempt without a fault answered the call, or a part; a wait has no upstream. Empty where it is not
    known."""
    model_reason: str = ""
    """Why another model was chosen than was asked for, in the words of `x-gateway-model-reason`; empty: none was."""
    amended: str = ""
    """Changes to the request before it was reserved, in the words of `x-gateway-amended`; empty: there were none."""


TAG_SEPARATOR = "\x1f"
"""Separator between the tags of a call; not a printable character."""


OTHER = "other"
"""The name in sums and metrics for all names that have no row of their own."""

UPSTREAM = "upstream:"
"""How the scopes of upstreams' limits begin: `upstream:NAME`, and `upstream:NAME#2` of its second API key."""

Unit = Literal["requests", "tokens", "usd", "parallel"]
"""The unit of a window. Money is in billionths of a US dollar."""


class Window(NamedTuple):
    """The period of one limit in which usage is counted; made by `quota/windows`."""

    id: str
    """Scope, unit, period and, of a calendar window, its name; never the limit, so that changing a limit keeps what
    was used."""
    scope: str
    """Owner of the window, as in `quota/scopes`; an upstream's begins with `UPSTREAM`."""
    unit: Unit
    per: str
    """`minute`, `day`, `90` (seconds) ...; empty for parallel calls."""
    model: str | None
    """Pattern of the models that the window counts."""
    limit: int
    period_us: int = 0
    """Microseconds over which a rate refills; 0 for calendar windows and parallel calls."""
    starts: str = ""
    """A calendar window's own name: `2026-11-20`, `2026-W47`, `2026-11`."""
    resets_us: int = 0
    """Unix time in microseconds at which a calendar window ends."""
    is_enforced: bool = True


class Claim(NamedTuple):
    """The amount that one call reserves on one window, in units."""

    window: Window
    amount: int


class WindowState(NamedTuple):
    """The stored state of one window. `at_us` is when `used` was last leaked (rates only)."""

    used: int = 0
    reserved: int = 0
    at_us: int = 0


class WindowStatus(NamedTuple):
    """The state of a window at one moment, for headers, messages and reports."""

    window: Window
    used: int
    reserved: int
    reset_us: int
    """Microseconds until the whole limit is free again."""

    @property
    def remaining(self) -> int:
        return max(0, self.window.limit - self.used - self.reserved)


class Granted(NamedTuple):
    """Every window of the call was drawn on."""

    window_statuses: tuple[WindowStatus, ...] = ()


class Refused(NamedTuple):
    """No window was drawn on, because this one has no room for `asked` units."""

    window_status: WindowStatus
    asked: int
    retry_after_us: int | None
    """None: settled usage alone fills the window, and no wait before its end helps."""
    window_statuses: tuple[WindowStatus, ...] = ()
    """Status of every window that the call would have drawn on, this one among them."""


class Settlement(NamedTuple):
    """The end of a call, as an entry of the ledger has it. The record's id is the call's and the lease's."""

    record: Record
    claims: tuple[Claim, ...]
