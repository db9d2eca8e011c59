"""`metrics`, `tracing` and `records`: the reports of the gateway about its calls."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator

from .values import FRAMING, NOT_BOOL, Count, Secret, Section, is_http, plain_headers


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


class TracingSettings(Section):
    endpoint: str | None = None
    """Address of an OpenTelemetry collector that takes OTLP over HTTP, such as http://localhost:4318; null is off."""
    sample_ratio: Annotated[float, NOT_BOOL, Field(ge=0, le=1)] = 1.0
    """Share of the calls that are traced, where the client does not decide it by a header."""
    headers: dict[str, SecretStr] = {}
    """Added to what is sent to the collector, for instance a token."""

    @field_validator("endpoint")
    @classmethod
    def _can_be_used(cls, endpoint: str | None) -> str | None:
        if endpoint is None:
            return None
        if not is_http(endpoint) or urlsplit(endpoint).query or urlsplit(endpoint).username is not None:
            raise ValueError("expected an address like http://localhost:4318, without user or query")
        if not _has_exporter():
            raise ValueError("needs packages that are not installed: pip install 'completions-gateway[otel]'")
        return endpoint

    @field_validator("headers")
    @classmethod
    def _are_headers(cls, headers: dict[str, SecretStr]) -> dict[str, SecretStr]:
        return plain_headers(headers, FRAMING)

    @property
    def address(self) -> str:
        """Where traces go: the path that the protocol gives them, unless the endpoint has it already."""
        base = (self.endpoint or "").rstrip("/")
        return base if base.endswith("/v1/traces") else f"{base}/v1/traces"


class RecordSettings(Section):
    user: bool = True
    """Whether records and reports contain the user that a client names; the upstream gets it either way."""
    tags: bool = True
    """Whether records and reports contain the tags of a client."""
