"""The section `billing`: what the providers of upstreams bill."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from gateway.config.faults import ConfigFault, format_faults
from gateway.config.sections import Config, Section
from gateway.config.sections.values import DAY_S, Secret, SomeSeconds, SomeUsd, is_http
from gateway.config.wings import WingSection

Provider = Literal["openai", "anthropic", "openrouter", "newapi", "oneapi", "litellm"]
OF_RESELLERS = ("newapi", "oneapi", "litellm")
"""Programs that each reseller runs at an address of its own."""


class BillSource(Section):
    """The billing API of one upstream's provider."""

    provider: Provider
    """Whose API it is: openai, anthropic, openrouter, or that of a reseller: newapi, oneapi or litellm."""
    api_key: Secret
    """The key for it, which can read usage and costs; another one than calls use."""
    base_url: str = ""
    """Its address; default: the provider's own. A reseller needs one: https://reseller.example.com."""
    user: str = ""
    """new-api: the number of the user whose access token api_key is; LiteLLM: the id of the user whose key it is."""
    key_ids: tuple[str, ...] = ()
    """The provider's ids of the keys that this gateway uses; what other keys used is set apart. Default: all."""
    projects: tuple[str, ...] = ()
    """The same for its projects (OpenAI) or workspaces (Anthropic)."""

    @field_validator("base_url")
    @classmethod
    def _is_address(cls, base_url: str) -> str:
        if base_url and not is_http(base_url):
            raise ValueError("expected an address like https://api.openai.com/v1, http or https")
        return base_url.rstrip("/")

    @model_validator(mode="after")
    def _is_complete(self) -> BillSource:
        if self.provider in OF_RESELLERS and not self.base_url:
            raise ValueError("a reseller needs base_url, its address without a path, as https://reseller.example.com")
        if self.provider == "newapi" and not self.user:
            raise ValueError("a new-api needs user, the number of the user in its console")
        return self


class BillingSettings(Section):
    upstreams: dict[str, BillSource] = {}
    """The billing APIs, by the name of an upstream."""
    every: Annotated[SomeSeconds, Field(ge=60)] = 3600
    """How often a bill is read."""
    days: Annotated[int, Field(ge=2, le=90)] = 35
    """How many days back it is read each time, for providers correct their bills."""
    settles_after: Annotated[SomeSeconds, Field(le=14 * DAY_S)] = DAY_S
    """How long after its end a day may lack usage in a bill."""
    alert_above: SomeUsd = Decimal(1)
    """US dollars without an explanation, in the days that are read, from which a log line warns."""


def _warnings(config: Config) -> Iterator[ConfigFault]:
    for name, source in config.section(BillingSettings).upstreams.items():
        place = ("billing", "upstreams", name)
        if name not in config.upstreams:
            known = ", ".join(config.upstreams)
            yield ConfigFault(format_faults(place), f"there is no upstream {name!r}; there are: {known}")
            continue
        used = [each.get_secret_value() for each in config.upstreams[name].credentials if each is not None]
        if source.api_key.get_secret_value() in used:
            text = "is the key that calls use, and most providers bill to an admin key alone"
            yield ConfigFault(format_faults((*place, "api_key")), text)
        host = urlsplit(source.base_url).hostname
        if source.base_url.startswith("http://") and host not in ("localhost", "127.0.0.1", "::1"):
            yield ConfigFault(format_faults((*place, "base_url")), "sends the key in clear text; use https")


SECTION = WingSection("billing", BillingSettings, warnings=_warnings)
