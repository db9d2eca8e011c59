"""The section `alerts`: the receiver of quota alerts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, SecretStr, field_validator

from gateway.config.checks import Place, ValidParts, quota_lists
from gateway.config.faults import ConfigFault, format_faults
from gateway.config.proxies import Proxy, read_proxy
from gateway.config.sections import Config, Section
from gateway.config.sections.values import is_http, proxy_address
from gateway.config.wings import WingSection


class AlertSettings(Section):
    webhook: SecretStr | None = None
    """Address to POST to at 80 % and 100 % of a quota of a day, week or month; null: a log line and a metric alone."""
    proxy: Annotated[SecretStr | None, AfterValidator(proxy_address)] = None
    """The proxy to it, as upstreams.NAME.proxy."""

    @property
    def way(self) -> Proxy | None:
        """The proxy through which the webhook is reached; None: directly."""
        return read_proxy(self.proxy.get_secret_value()) if self.proxy is not None else None

    @property
    def shown_webhook(self) -> str:
        """Its scheme and host, for all else of it may be a secret; empty where there is none."""
        if self.webhook is None:
            return ""
        parts = urlsplit(self.webhook.get_secret_value())
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"

    @field_validator("webhook")
    @classmethod
    def _is_http_address(cls, webhook: SecretStr | None) -> SecretStr | None:
        if webhook is not None and not is_http(webhook.get_secret_value()):
            raise ValueError("expected an address like https://hooks.example.com/services/..., http or https")
        return webhook


def _alerts_of_nothing(config: Config) -> Iterator[ConfigFault]:
    alerts = config.section(AlertSettings)
    if alerts.webhook is None and alerts.proxy is not None:
        yield _warning(("alerts", "proxy"), "has no effect without alerts.webhook")
    quotas = [quota for _, quotas, _ in quota_lists(ValidParts.of(config)) for quota in quotas.values()]
    quotas += config.defaults.keys.quotas
    if alerts.webhook is not None and quotas and all(quota.per_s is not None for quota in quotas):
        yield _warning(("alerts", "webhook"), "nothing is ever sent: no quota is per day, week or month")


def _warning(place: Place, message: str) -> ConfigFault:
    return ConfigFault(format_faults(place), message)


SECTION = WingSection("alerts", AlertSettings, ("webhook",), "webhook", _alerts_of_nothing)
