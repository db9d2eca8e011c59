"""The section `content`: which calls have their prompts and answers kept, and where."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, model_validator

from gateway.config.faults import ConfigFault, format_faults
from gateway.config.proxies import Addressed, Proxy, read_proxy
from gateway.config.sections import Config, Section
from gateway.config.sections.server import OtlpEndpoint, SentHeaders, traces_address
from gateway.config.sections.values import (
    NOT_BOOL,
    Size,
    is_glob,
    or_else,
    plain_path,
    proxy_address,
    read_days,
    shown_address,
)
from gateway.config.wings import WingSection

_DAYS = "expected a number of days such as 30, or a time such as 4w"
Days = Annotated[int, Field(ge=1, le=3650), BeforeValidator(read_days), or_else(_DAYS), NOT_BOOL]
Patterns = Annotated[tuple[str, ...], Field(min_length=1)]


def _expression(text: str) -> str:
    try:
        found = re.compile(text)
    except re.error as fault:
        raise ValueError(f"is no regular expression: {fault.msg}") from None
    if found.match("") is not None:
        raise ValueError("matches an empty text, and would be written between all characters")
    return text


def _path(text: str) -> str:
    first, *rest = text.split(".")
    if first not in ("input", "output", "system") or "" in rest:
        raise ValueError("expected input, output or system, and names or * behind dots: input.*.parts.tool_call")
    return text


class OtlpStore(Section):
    endpoint: OtlpEndpoint
    """Address that takes OTLP over HTTP, such as http://localhost:4318; /v1/traces is added where it is missing."""
    headers: SentHeaders = {}
    """Added to what is sent there, for instance a token."""
    proxy: Annotated[SecretStr | None, AfterValidator(proxy_address)] = None
    """The proxy to it, as upstreams.NAME.proxy."""

    @property
    def address(self) -> str:
        return traces_address(self.endpoint)

    @property
    def shown(self) -> str:
        return shown_address(self.endpoint)

    @property
    def way(self) -> Proxy | None:
        return None if self.proxy is None else read_proxy(self.proxy.get_secret_value())


class FileStore(Section):
    folder: Annotated[str, Field(min_length=1), AfterValidator(plain_path)]
    """The folder of the files, which only the gateway's user can read."""
    max_bytes: Size = 104857600
    """A file that has grown to this size is followed by another one; each day begins a new one, too."""
    keep_days: Days = 30
    """A file is deleted when its day (UTC) is more than this number of days ago."""


def _is_among(name: str, patterns: tuple[str, ...] | None) -> bool:
    return patterns is None or any(fnmatchcase(name, pattern) for pattern in patterns)


class KeptCalls(Section):
    """Calls that meet all of these. The highest share of those that a call meets counts."""

    keys: Patterns | None = None
    """Patterns of ids of keys; null: all keys."""
    teams: Patterns | None = None
    """Patterns of teams; null: also keys without a team."""
    models: Patterns | None = None
    """Patterns of models, as they are called in this file; null: all models."""
    share: Annotated[float, NOT_BOOL, Field(gt=0, le=1)] = 1.0
    """The share of these calls that is kept, chosen by their ids."""

    def has(self, key: str, team: str | None) -> bool:
        """Whether calls of such a key are meant, of some model."""
        return _is_among(key, self.keys) and (self.teams is None or (team is not None and _is_among(team, self.teams)))

    def has_model(self, model: str) -> bool:
        return _is_among(model, self.models)


class Redaction(Section):
    paths: tuple[Annotated[str, AfterValidator(_path)], ...] = ()
    """Members of what is kept whose values are left out, such as input.*.parts.tool_call_response."""
    patterns: tuple[Annotated[str, AfterValidator(_expression)], ...] = ()
    """Regular expressions; what they match in any text is left out."""


class ContentSettings(Section):
    otlp: OtlpStore | None = None
    """Keep them in a store that takes traces, as Langfuse and Phoenix do."""
    files: FileStore | None = None
    """Keep them in files, a line of JSON for each call."""
    keep: tuple[KeptCalls, ...] = ()
    """The calls that are kept: those of any of these entries."""
    never: tuple[str, ...] = ()
    """Patterns of ids of keys whose calls are never kept, whatever else is set."""
    redact: Redaction = Redaction()
    """Parts of every kept call that are left out."""
    max_call_bytes: Size = 4194304
    """Bytes of a call's request, and of its answer as the upstream sends it, that are kept; the rest is cut."""
    max_waiting_bytes: Size = 67108864
    """Bytes of kept calls in one worker; beyond, content is dropped: a third for calls, a third for each store."""

    @model_validator(mode="after")
    def _has_a_place(self) -> ContentSettings:
        if self.keep and self.otlp is None and self.files is None:
            raise ValueError("keep needs a place: set otlp or files")
        return self

    @property
    def room(self) -> int:
        """A third of max_waiting_bytes."""
        return self.max_waiting_bytes // 3

    @property
    def places(self) -> tuple[str, ...]:
        """Where content goes, without secrets."""
        return (
            *(() if self.otlp is None else (self.otlp.shown,)),
            *(() if self.files is None else (f"files of the gateway, for {self.files.keep_days} days",)),
        )


def _addressed(values: Any) -> Iterator[Addressed]:
    section = values.get("content")
    otlp = section.get("otlp") if isinstance(section, dict) else None
    if isinstance(otlp, dict):
        yield ("content", "otlp"), otlp, otlp.get("endpoint")


def _content_of_nothing(config: Config) -> Iterator[ConfigFault]:
    content = config.section(ContentSettings)
    if content.places and not content.keep:
        yield _warning(("content", "keep"), "nothing is ever kept: it has no entry")
    if content.otlp is not None and urlsplit(content.otlp.endpoint).port == 4317:
        place = ("content", "otlp", "endpoint")
        yield _warning(place, "4317 is a collector's port for gRPC; content is sent over HTTP, to port 4318")
    for number, entry in enumerate(content.keep):
        for team in entry.teams or ():
            if not is_glob(team) and team not in config.teams:
                yield _warning(("content", "keep", number, "teams"), f"no team in this file is called {team!r}")
    if content.max_call_bytes * 2 > content.room:
        yield _warning(("content", "max_waiting_bytes"), "has no room for one long call: six times max_call_bytes")


def _warning(place: tuple[str | int, ...], message: str) -> ConfigFault:
    return ConfigFault(format_faults(place), message)


SECTION = WingSection("content", ContentSettings, addressed=_addressed, warnings=_content_of_nothing)
