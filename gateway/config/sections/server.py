"""`server`, `uploads`, `files`, `metrics`, `tracing`, `records`: the listener, its limits, uploaded files, and what the
gateway reports of its calls."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, field_validator

from gateway.config.faults import printable

from .values import (
    FRAMING,
    NOT_BOOL,
    Count,
    Network,
    Positive,
    Seconds,
    Secret,
    Section,
    Size,
    SomeSeconds,
    is_http,
    plain_headers,
    read_off,
    read_public_url,
)


class MetricsSettings(Section):
    token: Secret | None = None
    """Bearer token for /metrics; null leaves it open."""
    max_keys: Count = 200
    """Keys with a label of their own in metrics; further keys share the label "other"."""
    max_models: Count = 200
    """Models with a label of their own in metrics; further models share the label "other". Reports name them all."""


def _has_exporter() -> bool:
    """Whether the packages of the extra `otel` are there; none is loaded for this."""
    try:
        return all(find_spec(f"opentelemetry.{part}") is not None for part in ("sdk", "exporter.otlp.proto.http"))
    except ImportError:
        return False


def _otlp_endpoint(endpoint: str) -> str:
    if not is_http(endpoint) or urlsplit(endpoint).query or urlsplit(endpoint).username is not None:
        raise ValueError("expected an address like http://localhost:4318, without user or query")
    if not _has_exporter():
        raise ValueError("needs packages that are not installed: pip install 'completions-gateway[otel]'")
    return endpoint


OtlpEndpoint = Annotated[str, AfterValidator(_otlp_endpoint)]
SentHeaders = Annotated[dict[str, SecretStr], AfterValidator(lambda headers: plain_headers(headers, FRAMING))]
"""Headers that are added to what is sent."""


def traces_address(endpoint: str) -> str:
    """Where traces go: the path that the protocol gives them, unless the endpoint has it already."""
    base = endpoint.rstrip("/")
    return base if base.endswith("/v1/traces") else f"{base}/v1/traces"


class TracingSettings(Section):
    endpoint: OtlpEndpoint | None = None
    """Address of an OpenTelemetry collector that takes OTLP over HTTP, such as http://localhost:4318; null is off."""
    sample_ratio: Annotated[float, NOT_BOOL, Field(ge=0, le=1)] = 1.0
    """Share of the calls that are traced, where the client does not decide it by a header."""
    headers: SentHeaders = {}
    """Added to what is sent to the collector, for instance a token."""

    @property
    def address(self) -> str:
        return traces_address(self.endpoint or "")


class RecordSettings(Section):
    user: bool = True
    """Whether records and reports contain the user that a client names; the upstream gets it either way."""
    tags: bool = True
    """Whether records and reports contain the tags of a client."""


class ServerSettings(Section):
    host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    """Address to listen on."""
    port: Annotated[int, NOT_BOOL, Field(ge=0, le=65535)] = 8080
    """Port to listen on; 0 takes a free one and prints it."""
    workers: Annotated[int, NOT_BOOL, Field(ge=1, le=64)] = 1
    """Worker processes that share the port; one per core is a good number."""
    max_request_bytes: Size = 26214400
    """A longer request body is refused with 413, on its announced length already."""
    max_response_bytes: Size = 67108864
    """A longer answer that is not streamed is refused with 502."""
    max_buffered_bytes: Size = 536870912
    """Bytes of bodies, plain answers and WebSocket messages held at once, split by worker; a key: half. Beyond: 503."""
    client_head_timeout_s: SomeSeconds = 10
    """How long a request head may take, on a new connection from its beginning; then closed."""
    client_body_timeout_s: SomeSeconds = 60
    """How long a whole request body may take, however it trickles; then 408."""
    max_in_flight: Positive = 10000
    """Calls under way at once, split over the workers; beyond: 503 with Retry-After."""
    drain_delay_s: Seconds = 5
    """After SIGTERM: not ready, still serving, for this long; then no new connections. SIGINT does not wait."""
    drain_timeout_s: Seconds = 120
    """Then no new calls; running ones may end for this long."""
    keepalive_comment_s: Seconds = 0
    """Send a comment to streaming clients while the upstream is silent for this long; 0 is off."""
    trusted_proxies: tuple[Network, ...] = ()
    """Networks of the proxies whose X-Forwarded-For is trusted, for keys[].ips and the access log."""
    cors_origins: tuple[Annotated[str, Field(pattern=r"^(\*|[a-z][a-z0-9+.-]*://[^/\s]+)$")], ...] = ("*",)
    """Origins of pages that may call from a browser, such as https://chat.example; `*`: all; empty: none."""
    public_url: Annotated[str, AfterValidator(read_public_url)] | None = None
    """The address of the gateway for clients, without /v1; the dashboard shows it. Null: that of the dashboard."""
    reload_on_change: bool = True
    """Whether a changed file is applied by itself; false: on SIGHUP and when the admin API or the dashboard asks."""
    access_log: Annotated[Literal["json", "text", "off"], BeforeValidator(read_off)] = "json"
    """One line per call on standard output; never prompts, never secrets."""

    @field_validator("host")
    @classmethod
    def _is_a_host(cls, host: str) -> str:
        if host.startswith("[") and host.endswith("]"):
            raise ValueError(f"expected the address without brackets: {printable(host[1:-1])!r}")
        if re.match(r"[a-z]+://", host):
            raise ValueError("expected a host name or address alone, such as 0.0.0.0, without http://")
        if re.fullmatch(r"[^:\s]+:\d+|\[.*\]:\d+", host):
            raise ValueError("expected a host name or address alone; the port is server.port")
        if re.search(r"[\s/]", host):
            raise ValueError("expected a host name or address, such as 127.0.0.1 or 0.0.0.0")
        return host

    @field_validator("keepalive_comment_s")
    @classmethod
    def _no_flood(cls, seconds: float) -> float:
        if 0 < seconds < 0.01:
            raise ValueError("expected 0, which is off, or at least 0.01")
        return seconds


class UploadSettings(Section):
    """Multipart forms, such as the files of /v1/audio/transcriptions."""

    max_bytes: Size = 104857600
    """A longer form is refused with 413, on its announced length already."""
    max_file_bytes: Size = 52428800
    """A longer file in a form is refused with 413."""
    memory_bytes: Size = 1048576
    """A form up to this size is held in memory; a longer one is written to a temporary file."""
    max_stored_bytes: Size = 4294967296
    """Temporary files of forms at once, split over the workers; beyond: 503."""
    timeout_s: SomeSeconds = 300
    """How long a whole form may take to arrive; then 408."""
    folder: Annotated[str, Field(min_length=1)] | None = None
    """Folder of the temporary files; default: the system's (TMPDIR)."""

    @field_validator("folder")
    @classmethod
    def _is_folder(cls, folder: str | None) -> str | None:
        if folder is not None and not Path(folder).is_dir():
            raise ValueError("is no folder")
        return folder


class FileSettings(Section):
    """Files of /v1/files."""

    upstream: Annotated[str, Field(min_length=1)] | None = None
    """The upstream that keeps clients' files, with its first API key; without it /v1/files is not served."""
    max_per_key: Annotated[int, Field(ge=1, le=5000), NOT_BOOL] = 1000
    """Files that one key may have at once."""
