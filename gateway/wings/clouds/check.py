"""The line of `gateway check` about clouds."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from gateway.commands.check import WingLine
from gateway.config import Config

from .settings import AZURE_ENDINGS, VERTEX_HOST, clouds_of


def describe(config: Config) -> str:
    """The upstreams with an `auth` or with paths of their own."""
    found = []
    for name, each in clouds_of(config).items():
        region = f" in {each.region}" if each.auth.type == "aws" else ""
        paths = f", paths of {each.paths}" if each.paths != "openai" else ""
        found.append(f"{name} (auth {each.auth.type}{region}{paths})")
    return ", ".join(found) or "none: every upstream presents an API key at paths of OpenAI's form"


def bare_addresses(config: Config, _: Sequence[str]) -> list[str]:
    """Addresses of whole clouds, which serve fewer endpoints than their models have by default, or none."""
    routed = {route.upstream for model in config.models.values() for route in model.routes}
    chats = {
        route.upstream for model in config.models.values() if "chat" in model.endpoints for route in model.routes
        if "endpoints" not in model.model_fields_set  # else the file has a warning of its own
    }  # fmt: skip
    found = []
    for name, each in config.upstreams.items():
        url = urlsplit(each.base_url)
        if (url.hostname or "").endswith(AZURE_ENDINGS) and not url.path.rstrip("/"):
            found.append(
                f"upstreams.{name}.base_url: this provider's API is below /openai/v1: https://{url.hostname}/openai/v1"
            )
        if name in routed and VERTEX_HOST.fullmatch(url.hostname or "") and "/publishers/" not in f"{url.path}/":
            if "/projects/" not in url.path:
                found.append(
                    f"upstreams.{name}.base_url: is that of all projects: write {url.scheme}://{url.hostname}/v1/projects/"
                    "PROJECT/locations/LOCATION, and behind it /endpoints/openapi, /publishers/anthropic or "
                    "/publishers/google"
                )
        elif name in chats & clouds_of(config).keys() and each.capabilities.messages and not each.capabilities.chat:
            found.append(
                f"upstreams.{name}.base_url: serves Claude at Messages alone, and chats get 404: write capabilities: "
                "{chat: via_messages}, or models.NAME.endpoints: [messages]"
            )
    return found


LINE = WingLine("clouds", describe, bare_addresses)
