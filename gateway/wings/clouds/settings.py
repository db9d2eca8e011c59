"""The settings of clouds, which extend those of each upstream."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from gateway.config.sections import Config, Upstream
from gateway.config.wings import WingUpstream

from .auth import Auth, ReadAuth, Text
from .betas import KNOWN

Paths = Literal["openai", "azure", "vertex", "bedrock"]

AWS_HOST = re.compile(r"(bedrock(?:-runtime|-mantle)?)(?:-fips)?\.([a-z0-9-]+)\.(?:amazonaws\.com(?:\.cn)?|api\.aws)")
VERTEX_HOST = re.compile(r"(?:[a-z0-9-]+-)?aiplatform\.googleapis\.com|aiplatform\.[a-z]+\.rep\.googleapis\.com")

VERTEX_GLOBAL = "aiplatform.googleapis.com"
AZURE_OPENAI = ".openai.azure.com"
AZURE_ENDINGS = (AZURE_OPENAI, ".services.ai.azure.com")

MESSAGES_ALONE: Mapping[str, bool] = {
    "messages": True, "completions": False, "chat": False, "embeddings": False, "responses": False,
}  # fmt: skip
GEMINI_ALONE: Mapping[str, bool] = {
    "generate_content": True, "completions": False, "chat": False, "embeddings": False, "responses": False,
}  # fmt: skip


def paths_of(url: str) -> Paths:
    """The kind of paths behind a `base_url`, by its form."""
    parts = urlsplit(url)
    host, path = parts.hostname or "", parts.path.rstrip("/")
    if path.endswith("/publishers/anthropic"):
        return "vertex"
    if host.endswith(".azure.com") and path == "/openai":
        return "azure"
    return "bedrock" if aws_of(url)[0] == "bedrock-runtime" and not path else "openai"


def aws_of(url: str) -> tuple[str, str]:
    """The service and the region of AWS that an address names; empty: it names none."""
    found = AWS_HOST.fullmatch(urlsplit(url).hostname or "")
    return (found[1], found[2]) if found else ("", "")


def control_of(url: str) -> str | None:
    """The address of Bedrock's own list of models for one of its runtime; None: unknown. As for botocore,
    AWS_ENDPOINT_URL_BEDROCK names another one."""
    if named := os.environ.get("AWS_ENDPOINT_URL_BEDROCK"):
        return named.rstrip("/")
    if aws_of(url)[0] != "bedrock-runtime":
        return None
    return f"https://{(urlsplit(url).hostname or '').replace('bedrock-runtime', 'bedrock', 1)}"


def _capabilities_of(paths: str, url: str) -> Mapping[str, bool]:
    """The capabilities of an address that differ from those of OpenAI's API."""
    path = urlsplit(url).path.rstrip("/")
    if paths == "bedrock":
        return {**MESSAGES_ALONE, "count_tokens": False}
    if paths == "vertex":
        return MESSAGES_ALONE
    if path.endswith("/publishers/google"):
        return GEMINI_ALONE
    return {"messages": True, **dict.fromkeys(("completions", "chat", "embeddings", "responses"), False)} if (
        path.endswith("/anthropic/v1")
    ) else {}  # fmt: skip


class CloudUpstream(Upstream):
    auth: ReadAuth = Auth()
    """The authorization of requests; a word alone is its type."""
    paths: Paths = "openai"
    """The form of its paths: OpenAI's, Azure's deployments, Claude at Vertex AI or at Bedrock; default: by base_url."""
    api_version: Annotated[str, Field(pattern=r"^[0-9a-z-]+$")] | None = None
    """The api-version in the query, which Azure's paths of deployments need."""

    betas: tuple[Text, ...] | None = None
    """The values of anthropic-beta that go to Claude at Vertex AI or by InvokeModel; default: those known there."""

    @model_validator(mode="before")
    @classmethod
    def _by_address(cls, settings: Any) -> Any:
        if not isinstance(settings, dict) or not isinstance(url := settings.get("base_url"), str):
            return settings
        try:
            found: dict[str, Any] = {"paths": paths_of(url)} | settings
            able: dict[str, Any] = dict(_capabilities_of(found["paths"], url))
        except ValueError:
            return settings
        own = found.get("capabilities", {})
        return found | {"capabilities": able | own} if able and isinstance(own, dict) else found

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if self.paths == "azure" and self.api_version is None:
            raise ValueError(
                "api_version is missing: paths of deployments need one, such as 2024-10-21; /openai/v1 needs none"
            )
        if self.auth.renews:
            if self.credentials != (None,):
                raise ValueError(f"expected either auth of type {self.auth.type} or api_key, and not both")
            if any(name.lower() in ("authorization", "api-key") for name in self.headers):
                raise ValueError("headers has the authorization that auth writes; remove one of them")
            if self.capabilities.realtime:
                raise ValueError("capabilities.realtime: sessions present api_key alone; auth cannot authorize them")
        if not self.lists_models and self.discover is not None:
            raise ValueError("discover: this address has no list of models; write each into models")
        if self.betas is not None and self.paths not in KNOWN:
            raise ValueError("betas: only for Claude at Vertex AI or by InvokeModel; elsewhere all of them go up")
        if self.auth.type == "aws" and not self.region:
            raise ValueError("auth.region is missing: base_url names no region of AWS")
        return self

    @property
    def counts_output_limits(self) -> bool:
        """As Azure's limits do ("Manage Azure OpenAI quota")."""
        is_azure = (urlsplit(self.base_url).hostname or "").endswith(AZURE_OPENAI)
        return is_azure if self.limits.counts is None and is_azure else super().counts_output_limits

    @property
    def lists_models(self) -> bool:
        """AWS, "Get list of models": bedrock-mantle has a list at /models, and bedrock-runtime at another host."""
        url = urlsplit(self.base_url)
        at_vertex = VERTEX_HOST.fullmatch(url.hostname or "") or url.path.rstrip("/").endswith("/publishers/google")
        is_runtime = aws_of(self.base_url)[0] == "bedrock-runtime"
        return not (is_runtime or at_vertex or self.paths in ("vertex", "bedrock"))

    @property
    def region(self) -> str:
        """The region of AWS that its signatures are for; empty: unknown."""
        return self.auth.region or aws_of(self.base_url)[1]

    @property
    def service(self) -> str:
        """The service of AWS that its signatures are for."""
        is_mantle = aws_of(self.base_url)[0] == "bedrock-mantle"
        return self.auth.service or ("bedrock-mantle" if is_mantle else "bedrock")


def clouds_of(config: Config) -> dict[str, CloudUpstream]:
    """The upstreams whose settings ask for something here."""
    found = {name: each for name, each in config.upstreams.items() if isinstance(each, CloudUpstream)}
    return {name: each for name, each in found.items() if each.auth.renews or each.paths != "openai"}


def provider_of(host: str) -> str | None:
    """The provider in the table of prices whose listed price is billed at a host. Regional hosts may cost more."""
    return "azure" if host.endswith(AZURE_ENDINGS) else "google" if host == VERTEX_GLOBAL else None


UPSTREAM = WingUpstream(CloudUpstream, provider_of)
