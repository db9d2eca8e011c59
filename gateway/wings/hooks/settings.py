"""The section `hooks`: programs that are asked about calls before they are reserved, and get their records after."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr

from gateway.config.faults import ConfigFault, format_faults
from gateway.config.model_names import compiled, is_pattern, may_overlap
from gateway.config.proxies import Addressed, Proxy, read_proxy
from gateway.config.sections import Config, KeySettings, Route, Section
from gateway.config.sections.values import LOOPBACK, NOT_BOOL, Size, is_glob, is_http, proxy_address, shown_address
from gateway.config.wings import WingSection, added_apis, endpoint_names
from gateway.standard_webhooks import NOT_READ, SigningSecret

MOST_BYTES = 4 * 2**20
"""The longest body that is shown: it is signed and read in this worker, beside other calls."""

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,31}$")]


def _address(address: SecretStr) -> SecretStr:
    if not is_http(address.get_secret_value()):
        raise ValueError("expected an address like https://hooks.example.com/before, http or https")
    return address


class HookReceiver(Section):
    """A program, and the calls that it is about."""

    url: Annotated[SecretStr, AfterValidator(_address)]
    """Address to POST to."""
    secret: SigningSecret | None = None
    """Signs what is posted, as Standard Webhooks: whsec_ and base64 of 24 to 64 bytes."""
    proxy: Annotated[SecretStr | None, AfterValidator(proxy_address)] = None
    """The proxy to it, as upstreams.NAME.proxy."""
    keys: tuple[str, ...] = ("*",)
    """Patterns of ids of keys: only their calls."""
    teams: tuple[str, ...] = ()
    """Patterns of teams: only calls of their keys; empty: of all keys, also of those without a team."""
    models: tuple[str, ...] = ("*",)
    """Patterns of models: only calls that ask for one of these names, or that it serves."""
    endpoints: tuple[str, ...] = ()
    """Only calls at these endpoints, as records name them, or of these rows of passthrough; empty: all."""

    @property
    def way(self) -> Proxy | None:
        return read_proxy(self.proxy.get_secret_value()) if self.proxy is not None else None

    @property
    def shown(self) -> str:
        return shown_address(self.url.get_secret_value())

    def is_about_key(self, key: str, team: str | None) -> bool:
        """Whether it is asked about some calls of this key."""
        return any(fnmatchcase(key, pattern) for pattern in self.keys) and (
            not self.teams or (team is not None and any(fnmatchcase(team, each) for each in self.teams))
        )

    def is_about(self, key: str, team: str | None, endpoint: str, *models: str) -> bool:
        """Whether it is asked about such calls."""
        return (
            self.is_about_key(key, team)
            and any(fnmatchcase(model, pattern) for pattern in self.models for model in models)
            and (not self.endpoints or endpoint in self.endpoints)
        )


class BeforeCall(HookReceiver):
    timeout_ms: Annotated[int, NOT_BOOL, Field(ge=10, le=30_000)] = 2000
    """How long an answer may take, waiting for a free place included."""
    on_failure: Literal["refuse", "allow"] = "refuse"
    """Whether a call without a valid answer is refused with 503, or goes on."""
    sees: Literal["facts", "body"] = "facts"
    """The facts of a call alone, or its body, too, which the answer may then replace."""
    max_bytes: Annotated[Size, Field(le=MOST_BYTES)] = 2**20
    """The longest body that is shown; calls with a longer one are refused. At most 4 MiB."""
    at_once: Annotated[int, NOT_BOOL, Field(ge=1, le=1000)] = 64
    """Questions of one worker under way at a time; calls of one key have at most half of them."""


class AfterCall(HookReceiver):
    timeout_ms: Annotated[int, NOT_BOOL, Field(ge=10, le=30_000)] = 5000
    """How long one delivery may take."""
    max_waiting: Annotated[int, NOT_BOOL, Field(ge=1, le=100_000)] = 1000
    """Records of one worker that wait for delivery, half of them of one key; further ones are counted alone."""
    answers_of: tuple[str, ...] = ()
    """Patterns of ids of keys whose owners agreed: their records come with the text of the answer; empty: none do."""


class HookSettings(Section):
    before_call: dict[Name, BeforeCall] = Field(default_factory=dict)
    """They are asked before a call is reserved, one after the other in this order."""
    after_call: dict[Name, AfterCall] = Field(default_factory=dict)
    """They get the record of a call when it is settled."""


def all_of(settings: HookSettings) -> Iterator[tuple[tuple[str, str], HookReceiver]]:
    """Every hook with its place."""
    yield from ((("before_call", name), each) for name, each in settings.before_call.items())
    yield from ((("after_call", name), each) for name, each in settings.after_call.items())


def warnings_of(config: Config) -> Iterator[ConfigFault]:
    for place, hook in all_of(config.section(HookSettings)):
        is_here = urlsplit(hook.url.get_secret_value()).hostname in LOOPBACK
        if hook.secret is None and not is_here:
            yield _warning(place, "has no secret: it cannot know that the gateway asks")
        if not is_here and hook.url.get_secret_value().startswith("http://"):
            yield _warning((*place, "url"), "sends in plain text; write https://")
        for number, team in enumerate(hook.teams):
            if not is_glob(team) and team not in config.teams:
                yield _warning((*place, "teams", number), f"no team in this file is called {team!r}")
        for number, endpoint in enumerate(hook.endpoints):
            if endpoint not in endpoints() and endpoint not in added_apis(config):
                yield _warning((*place, "endpoints", number), "is no endpoint, and no row of passthrough")
        if isinstance(hook, BeforeCall):
            yield from _of_batches(config, place, hook)
            yield from _of_other_names(config, place, hook)
            if hook.sees == "body":
                yield from _of_unseen(config, place, hook)


def _of_unseen(config: Config, place: tuple[str, ...], hook: BeforeCall) -> Iterator[ConfigFault]:
    """Calls that are refused because their body cannot be shown."""
    served = {endpoint for model in config.models.values() for endpoint in model.endpoints}
    hidden = sorted(served & UNSEEN & {*(hook.endpoints or UNSEEN)})
    if hidden:
        yield _warning(
            place, f"sees bodies in JSON: calls at {', '.join(hidden)} that it is about are refused; list its endpoints"
        )


def _of_batches(config: Config, place: tuple[str, ...], hook: BeforeCall) -> Iterator[ConfigFault]:
    """Requests that pass the hook inside a batch."""
    served = {endpoint for model in config.models.values() for endpoint in model.endpoints}
    for batches, inside in IN_BATCHES.items():
        passing = sorted(served & inside & {*hook.endpoints})
        if passing and batches not in hook.endpoints and (batches != "batches" or config.files.upstream is not None):
            yield _warning(
                (*place, "endpoints"),
                f"batches of {', '.join(passing)} pass it: list {batches}, too, if it is to be asked",
            )


def _of_other_names(config: Config, place: tuple[str, ...], hook: BeforeCall) -> Iterator[ConfigFault]:
    """Names that the hook does not list and that lead where one of its models does, for a key that may use both."""
    about = [name for name in config.models if _is_among(name, hook.models)]
    ends = {(route.upstream, route.model or name): name for name in about for route in config.models[name].routes}
    keys = [key for key in config.keys if hook.is_about_key(key.id, key.team)]
    for name, model in config.models.items():
        if hook.endpoints and not {*hook.endpoints}.intersection(model.endpoints):
            continue
        asked = {each: ends[end] for route in model.routes for each, end in _asked(name, route, ends) if end in ends}
        for passing, other in asked.items():
            if _is_among(passing, hook.models) or (passing != name and passing in config.models):
                continue
            if both := [key.id for key in keys if _may_use(key, passing) and _may_use(key, other)]:
                message = f"{passing!r} leads where {other!r} does, and passes it: the key {both[0]!r} may use both"
                yield _warning((*place, "models"), message)


def _asked(name: str, route: Route, ends: Iterable[tuple[str, str]]) -> Iterator[tuple[str, tuple[str, str]]]:
    """The names of calls that this route of a model takes to these ends, each with its end: of a pattern, the names
    there."""
    if route.model is not None or not is_pattern(name):
        yield name, (route.upstream, route.model or name)
        return
    names = compiled(name)
    yield from ((there, (host, there)) for host, there in ends if host == route.upstream and names.match(there))


def _may_use(key: KeySettings, name: str) -> bool:
    return any(may_overlap(name, each) if is_pattern(name) else fnmatchcase(name, each) for each in key.models)


def _is_among(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, each) for each in patterns)


IN_BATCHES = {
    "batches": frozenset({"chat", "completions", "embeddings", "moderations", "responses"}),
    "message_batches": frozenset({"messages"}),
}
"""The endpoints of requests that each kind of batches holds."""

BESIDE = (
    "count_tokens",
    "input_tokens",
    "count_content_tokens",
    "compact",
    "batch_embed_contents",
    "batches",
    "message_batches",
)
"""Endpoints that models need not list."""


def endpoints() -> frozenset[str]:
    """The names of all endpoints but those of passthrough rows."""
    return frozenset({*endpoint_names(), *BESIDE})


UNSEEN = frozenset({"image_edits", "image_variations", "transcriptions", "translations", "realtime", "batches"})
"""Endpoints whose calls are forms, sessions or files."""


def _warning(place: tuple[str | int, ...], message: str) -> ConfigFault:
    return ConfigFault(format_faults(("hooks", *place)), message)


def _addressed(values: Any) -> Iterator[Addressed]:
    section = values.get("hooks")
    for kind in ("before_call", "after_call"):
        hooks = section.get(kind) if isinstance(section, dict) else None
        for name, each in hooks.items() if isinstance(hooks, dict) else ():
            if isinstance(each, dict):
                yield ("hooks", kind, name), each, each.get("url")


SECRETS = {
    "hooks/*/*/url": "https://not-read.invalid",
    "hooks/*/*/proxy": "http://not-read.invalid:9",
    "hooks/*/*/secret": NOT_READ,
}

SECTION = WingSection("hooks", HookSettings, _addressed, warnings_of, secrets=SECRETS)
