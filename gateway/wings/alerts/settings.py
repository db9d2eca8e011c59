"""The section `alerts`: the receivers of alerts. `routing.py` decides which alerts each takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, model_validator

from gateway.config.checks import Place, ValidParts, quota_lists
from gateway.config.faults import ConfigFault, format_faults
from gateway.config.proxies import Addressed, Proxy, read_proxy
from gateway.config.sections import Config, Section
from gateway.config.sections.keys import folded_people
from gateway.config.sections.values import (
    NOT_BOOL,
    SomeSeconds,
    is_glob,
    is_http,
    or_else,
    proxy_address,
    shown_address,
)
from gateway.config.wings import WingSection
from gateway.standard_webhooks import NOT_READ, SigningSecret

PAGERDUTY = "https://events.pagerduty.com/v2/enqueue"
"""The address for events of PagerDuty, unless a receiver has another one."""

OWNER = "owner"
"""The word for the address of the key's owner, or of the person whose quota it is."""

Form = Literal["json", "slack", "mattermost", "teams", "pagerduty"]
QuotaKind = Literal["key", "person", "team", "label", "tag", "upstream_quota", "gateway"]
IncidentKind = Literal["upstream", "store", "ledger"]
QUOTAS, INCIDENTS = get_args(QuotaKind), get_args(IncidentKind)


def _percent(value: Any) -> Any:
    """A number of percent: 80, or 80%."""
    return int(value.rstrip("% ")) if isinstance(value, str) and value.rstrip("% ").isdecimal() else value


Percent = Annotated[
    int,
    Field(ge=1, le=100),
    BeforeValidator(_percent),
    or_else("expected a share such as 80%, from 1% to 100%"),
    NOT_BOOL,
]


def _mail_address(text: str) -> str:
    name, at, domain = text.rpartition("@")
    if not (name and at and domain) or any(each.isspace() or each in '<>,;"' for each in text) or not text.isascii():
        raise ValueError("expected an e-mail address such as team@example.com")
    return text


MailAddress = Annotated[str, AfterValidator(_mail_address)]


Levels = Annotated[tuple[Percent, ...], Field(min_length=1), AfterValidator(lambda levels: tuple(sorted({*levels})))]


def http_address(address: SecretStr | None) -> SecretStr | None:
    if address is not None and not is_http(address.get_secret_value()):
        raise ValueError("expected an address like https://hooks.example.com/services/..., http or https")
    return address


def shown(address: SecretStr | None) -> str:
    """Its scheme and host, for all else of it may be a secret; empty where there is none."""
    return "" if address is None else shown_address(address.get_secret_value())


class Smtp(Section):
    host: str
    """The server that takes the mail."""
    port: Annotated[int, Field(ge=1, le=65535)] = 587
    """Its port: 587 for starttls, 465 for tls."""
    security: Literal["starttls", "tls", "none"] = "starttls"
    """starttls, tls from the first byte, or none: in plain text, for a server on the same machine."""
    username: str | None = None
    """The name to sign in with; null: without signing in."""
    password: SecretStr | None = None
    """Its password."""
    sender: MailAddress
    """The address in From, and the one to which the server returns what it cannot deliver."""
    timeout: SomeSeconds = 10.0
    """How long one delivery may take."""


class AlertReceiver(Section):
    webhook: Annotated[SecretStr | None, AfterValidator(http_address)] = None
    """Address to POST to. PagerDuty's own for form pagerduty, unless another one is given."""
    form: Form = "json"
    """The form of the JSON: json (the facts), slack, mattermost, teams or pagerduty."""
    routing_key: SecretStr | None = None
    """PagerDuty's integration key."""
    secret: SigningSecret | None = None
    """Signs what is posted, as Standard Webhooks: whsec_ and base64 of 24 to 64 bytes."""
    proxy: Annotated[SecretStr | None, AfterValidator(proxy_address)] = None
    """The proxy to it, as upstreams.NAME.proxy."""
    email: tuple[Literal["owner"] | MailAddress, ...] = ()
    """Addresses to mail to, by alerts.smtp. owner is the key's owner, or the person whose quota it is."""
    kinds: tuple[QuotaKind | IncidentKind, ...] | None = None
    """The kinds of alerts that it takes; null: all of quotas, and for pagerduty all incidents."""
    teams: tuple[str, ...] = ()
    """Patterns of teams: only what is of these teams, of their keys, and of people in them."""
    owners: tuple[str, ...] = ()
    """Patterns of owners: only their keys, and quotas of these people."""
    keys: tuple[str, ...] = ()
    """Patterns of ids of keys: only quotas of these keys."""
    at: Levels | None = None
    """The shares of a quota at which it gets an alert; null: those of alerts.at."""

    @property
    def address(self) -> SecretStr | None:
        """Where it is posted to; None: it is mailed."""
        return SecretStr(PAGERDUTY) if self.form == "pagerduty" and self.webhook is None else self.webhook

    @property
    def way(self) -> Proxy | None:
        return read_proxy(self.proxy.get_secret_value()) if self.proxy is not None else None

    @property
    def wanted(self) -> tuple[str, ...]:
        """The kinds of alerts that it takes."""
        return self.kinds if self.kinds is not None else INCIDENTS if self.form == "pagerduty" else QUOTAS

    @property
    def shown_address(self) -> str:
        """Scheme and host of the address that it is posted to."""
        return shown(self.address)

    @property
    def shown(self) -> str:
        """Where it is, without a secret."""
        return f"e-mail to {', '.join(self.email)}" if self.email else f"{self.shown_address} ({self.form})"

    @model_validator(mode="after")
    def _has_one_way(self) -> AlertReceiver:
        if (self.address is None) == (not self.email):
            raise ValueError("expected one of webhook and email")
        if (self.form == "pagerduty") != (self.routing_key is not None):
            raise ValueError("form pagerduty and routing_key need each other")
        if self.email and (self.form != "json" or self.secret or self.proxy):
            raise ValueError("form, secret and proxy are of a webhook; a receiver with email has none of them")
        return self


WEBHOOK = "webhook"
"""The name of the receiver of `alerts.webhook`."""


class AlertSettings(Section):
    webhook: Annotated[SecretStr | None, AfterValidator(http_address)] = None
    """Address to POST every alert of a quota to; null: the log, a metric and the receivers alone."""
    proxy: Annotated[SecretStr | None, AfterValidator(proxy_address)] = None
    """The proxy to it, as upstreams.NAME.proxy."""
    at: Levels = (80, 100)
    """The shares of a quota of a day, week or month at which there is an alert. [50%, 80%, 100%]."""
    receivers: dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")], AlertReceiver] = Field(
        default_factory=dict
    )
    """Further receivers by name, each with its own kinds, teams, people and form."""
    smtp: Smtp | None = None
    """The server for receivers with email."""
    addresses: Annotated[dict[str, MailAddress], AfterValidator(folded_people)] = Field(default_factory=dict)
    """E-mail addresses of owners of keys whose name is none."""

    @property
    def way(self) -> Proxy | None:
        """The proxy through which the webhook is reached; None: directly."""
        return read_proxy(self.proxy.get_secret_value()) if self.proxy is not None else None

    @property
    def shown_webhook(self) -> str:
        """Its scheme and host, for all else of it may be a secret; empty where there is none."""
        return shown(self.webhook)

    @property
    def levels(self) -> tuple[int, ...]:
        """Every share at which there is an alert."""
        return tuple(sorted({*self.at, *[level for each in self.receivers.values() for level in each.at or ()]}))

    @property
    def all_receivers(self) -> dict[str, AlertReceiver]:
        """All receivers by name, that of `webhook` first."""
        if self.webhook is None:
            return self.receivers
        return {WEBHOOK: AlertReceiver(webhook=self.webhook, proxy=self.proxy), **self.receivers}


def _alerts_of_nothing(config: Config) -> Iterator[ConfigFault]:
    alerts = config.section(AlertSettings)
    if alerts.webhook is None and alerts.proxy is not None:
        yield _warning(("alerts", "proxy"), "has no effect without alerts.webhook")
    quotas = [quota for _, quotas, _ in quota_lists(ValidParts.of(config)) for quota in quotas.values()]
    quotas += config.defaults.keys.quotas
    has_quotas = not quotas or any(quota.per_s is None for quota in quotas)
    if alerts.webhook is not None and not has_quotas:
        yield _warning(("alerts", "webhook"), "nothing is ever sent: no quota is per day, week or month")
    for name, receiver in alerts.receivers.items():
        yield from _of_receiver(config, ("alerts", "receivers", name), receiver, has_quotas=has_quotas)
    if alerts.smtp is not None:
        yield from _of_smtp(alerts, alerts.smtp)


def _of_receiver(config: Config, place: Place, receiver: AlertReceiver, *, has_quotas: bool) -> Iterator[ConfigFault]:
    alerts = config.section(AlertSettings)
    if place[-1] == WEBHOOK and alerts.webhook is not None:
        yield _warning(place, "has the name of the receiver of alerts.webhook, which gets nothing; name it otherwise")
    if receiver.email and alerts.smtp is None:
        yield _warning((*place, "email"), "no mail is ever sent: alerts.smtp is not set")
    if not has_quotas and not {*INCIDENTS} & {*receiver.wanted}:
        yield _warning(place, "nothing is ever sent: no quota is per day, week or month")
    for setting in ("teams", "owners", "keys"):
        if getattr(receiver, setting) and not {*QUOTAS} & {*receiver.wanted}:
            yield _warning((*place, setting), "nothing is ever sent: upstream, store and ledger have none of these")
    for number, team in enumerate(receiver.teams):
        if not is_glob(team) and team not in config.teams:
            yield _warning((*place, "teams", number), f"no team in this file is called {team!r}")
    if OWNER in receiver.email and not {"key", "person"} & {*receiver.wanted}:
        yield _warning((*place, "email"), "owner has no effect: only alerts of the kinds key and person have one")


def _of_smtp(alerts: AlertSettings, smtp: Smtp) -> Iterator[ConfigFault]:
    place = ("alerts", "smtp")
    if not any(each.email for each in alerts.receivers.values()):
        yield _warning(place, "has no effect: no receiver has email")
    if smtp.security == "none" and smtp.password is not None:
        yield _warning((*place, "security"), "sends the password in plain text; write starttls or tls")
    if (smtp.username is None) != (smtp.password is None):
        yield _warning(place, "does not sign in: username and password need each other")
    if (smtp.port, smtp.security) in ((465, "starttls"), (587, "tls"), (25, "tls")):
        usual = "tls" if smtp.port == 465 else "starttls"
        yield _warning((*place, "security"), f"port {smtp.port} is usually {usual}, which is not {smtp.security}")


def _warning(place: Place, message: str) -> ConfigFault:
    return ConfigFault(format_faults(place), message)


def _addressed(values: Any) -> Iterator[Addressed]:
    section = values.get("alerts")
    if isinstance(section, dict):
        yield ("alerts",), section, section.get("webhook")
        receivers = section.get("receivers")
        for name, each in receivers.items() if isinstance(receivers, dict) else ():
            if isinstance(each, dict) and not each.get("email"):
                yield ("alerts", "receivers", name), each, each.get("webhook") or PAGERDUTY


SECRETS = {
    **dict.fromkeys(("alerts/receivers/*/routing_key", "alerts/smtp/password"), ""),
    **dict.fromkeys(("alerts/proxy", "alerts/receivers/*/proxy"), "http://not-read.invalid:9"),
    **dict.fromkeys(("alerts/webhook", "alerts/receivers/*/webhook"), "https://not-read.invalid"),
    "alerts/receivers/*/secret": NOT_READ,
}

SECTION = WingSection("alerts", AlertSettings, _addressed, _alerts_of_nothing, secrets=SECRETS)
