"""Values that load and were probably meant in another unit, for another place, or as an example: one function each.

Warnings of `gateway check`, like those of `probable_mistakes.py`. Values that may be secrets are never shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from urllib.parse import urlsplit

from pydantic import SecretStr

from .checks import Place, ValidParts, is_bound, quota_lists
from .faults import ConfigFault, format_faults, printable
from .sections import LOOPBACK, Config

HIGHEST_PRICE = 5000
"""USD per million tokens. No provider's list has a higher price for text: a higher one is probably in another unit."""

SHORTEST_BODY = 1024
"""Bytes. A smaller limit was probably meant in megabytes."""

MILLISECONDS_FROM = 5000
"""Seconds. A longer time limit of one step was probably meant in milliseconds."""

LARGEST_OUTPUT = 1_000_000
"""Tokens. No model writes more in one answer."""

EXAMPLE = re.compile(
    r"(?i)(sk-|key-)?(your|my|the)[-_ ].*(key|token|secret)([-_ ]here)?|(sk-)?x{3,}.*|.*\bchange[-_]?me\b.*|"
    r"(sk-)?\.{3,}|(sk-)?(example|placeholder|todo|fixme|redacted)\b.*|sk-1234(5678.*)?"
)
"""Text that examples have in the place of a secret."""

MANAGERS = re.compile(r"(?:op|vault|aws-sm|gcp-sm|azure-kv|secret|awssm|doppler|sops|ref\+\w+):\S+|env\(\w+\)|!env \w+")
"""References to managers of secrets, which other programs resolve."""

NEEDS_KEY = frozenset({
    "api.openai.com", "api.groq.com", "api.mistral.ai", "api.together.xyz", "api.yescale.io", "openrouter.ai",
    "api.anthropic.com", "api.x.ai", "api.deepseek.com",
})  # fmt: skip
"""Providers that answer nothing without a key."""

WITHOUT_VERIFIED_ADDRESSES = frozenset({"login.microsoftonline.com", "login.microsoftonline.us", "sts.windows.net"})
"""Identity providers whose tokens have addresses without verification."""

OPENAI = "api.openai.com"
OLLAMA_PORT = 11434

Warnings = Iterator[ConfigFault]


def suspicious(config: Config) -> list[ConfigFault]:
    """Every warning, in the order of the rules."""
    return [
        *_examples(config),
        *_shared_secrets(config),
        *_addresses(config),
        *_prefixed_models(config),
        *_high_prices(config),
        *_small_money(config),
        *_large_outputs(config),
        *_milliseconds(config),
        *_megabytes(config),
        *_spaces(config),
        *_large_shares(config),
        *_unverified_names(config),
    ]


def _warning(place: Place, message: str) -> ConfigFault:
    return ConfigFault(format_faults(place), message)


def secrets_of(config: Config) -> Iterator[tuple[Place, SecretStr | None]]:
    """Every secret of the file with its place."""
    for name, upstream in config.upstreams.items():
        yield ("upstreams", name, "api_key"), upstream.api_key
        for index, one in enumerate(upstream.api_keys):
            yield ("upstreams", name, "api_keys", index), one
        for header, value in upstream.headers.items():
            yield ("upstreams", name, "headers", header), value
    for number, key in enumerate(config.keys):
        yield ("keys", number, "secret"), key.secret
    yield ("admin", "token"), config.admin.token
    yield ("admin", "viewer_token"), config.admin.viewer_token
    for name, each in config.admin.tokens.items():
        yield ("admin", "tokens", name, "token"), each.token
    if config.oidc is not None:
        yield ("oidc", "client_secret"), config.oidc.client_secret
        yield ("oidc", "session_key"), config.oidc.session_key
    yield ("metrics", "token"), config.metrics.token
    yield ("alerts", "webhook"), config.alerts.webhook
    for header, value in config.tracing.headers.items():
        yield ("tracing", "headers", header), value


def _examples(config: Config) -> Warnings:
    for place, secret in secrets_of(config):
        text = secret.get_secret_value().strip() if secret is not None else ""
        if MANAGERS.fullmatch(text):
            yield _warning(
                place,
                "looks like a reference to a manager of secrets, which the gateway does not ask; use ${NAME} or "
                "${file:/path}",
            )
        elif EXAMPLE.fullmatch(text):
            yield _warning(place, "looks like an example's text in the place of a secret; the form is ${NAME}")


def _shared_secrets(config: Config) -> Warnings:
    """A secret that is used for two purposes: one leak opens both."""
    first: dict[str, Place] = {}
    for place, secret in secrets_of(config):
        if secret is None or place[2:3] == ("headers",) or place[0] in ("alerts", "tracing"):
            continue
        known = first.setdefault(secret.get_secret_value(), place)
        if known[0] != place[0]:
            yield _warning(place, f"is the same secret as {format_faults(known)}: one leak opens both")


def _addresses(config: Config) -> Warnings:
    for name, upstream in config.upstreams.items():
        place: Place = ("upstreams", name, "base_url")
        address = urlsplit(upstream.base_url)
        host, port = address.hostname or "", address.port
        if host in NEEDS_KEY and address.scheme == "http":
            yield _warning(place, "http sends the key and the prompts in plain text; write https")
        has_key = upstream.credentials != (None,) or upstream.headers
        if host in NEEDS_KEY and not has_key:
            yield _warning(("upstreams", name, "api_key"), "is not set, and this provider refuses calls without a key")
        if port == OLLAMA_PORT and address.path.rstrip("/") != "/v1":
            yield _warning(
                place, f"Ollama's OpenAI-compatible API is below /v1: {address.scheme}://{address.netloc}/v1"
            )
        is_ours = host in LOOPBACK and config.server.host in {*LOOPBACK, "0.0.0.0", "::"}
        if is_ours and config.server.port and port == config.server.port:
            yield _warning(place, "leads to this gateway itself: it is the address of server.host and server.port")
        if address.path.rstrip("/").endswith(("/models", "/messages")):
            yield _warning(place, "ends in an endpoint, which the gateway adds itself; leave it out")


def _prefixed_models(config: Config) -> Warnings:
    for name, model in config.models.items():
        for index, route in enumerate(model.routes):
            sent = route.model or name.removeprefix(model.strip_prefix or "")
            host = urlsplit(config.upstreams[route.upstream].base_url).hostname
            if host == OPENAI and sent.startswith("openai/"):
                yield _warning(
                    ("models", name, "routes", index),
                    "sends a name with the prefix openai/, which OpenAI itself does not know; write routes[].model, or "
                    "strip_prefix: openai/",
                )


def _high_prices(config: Config) -> Warnings:
    for name, model in config.models.items():
        for field in ("input", "output", "cached_input"):
            usd = getattr(model.price, field) if model.price is not None else None
            if usd is not None and usd > HIGHEST_PRICE:
                yield _warning(
                    ("models", name, "price", field),
                    f"{usd:f} USD per million tokens is very high; the unit is US dollars",
                )


def _small_money(config: Config) -> Warnings:
    """A quota of money that is smaller than what one chat call without a limit of its own reserves."""
    for path, quotas, patterns in quota_lists(ValidParts.of(config)):
        for index, quota in quotas.items():
            if quota.unit != "usd":
                continue
            for name, model in config.models.items():
                price = model.price.output if model.price is not None else None
                if not price or model.max_output_tokens is None or "chat" not in model.endpoints:
                    continue
                reserved = price * (model.min_output_tokens or model.max_output_tokens) / Decimal(1_000_000)
                if is_bound(quota, patterns, name) and quota.usd is not None and reserved >= quota.usd:
                    yield _warning(
                        (*path, index),
                        f"a chat call of {printable(name)!r} without a limit of its own reserves ${reserved:.6f}, and "
                        f"this quota of ${quota.usd} refuses it; lower models.*.max_output_tokens, raise the quota, or "
                        "set models.*.min_output_tokens",
                    )
                    break


def _large_outputs(config: Config) -> Warnings:
    for name, model in config.models.items():
        if (model.max_output_tokens or 0) > LARGEST_OUTPUT:
            yield _warning(
                ("models", name, "max_output_tokens"),
                "is more than any model writes, and each chat call without a limit of its own reserves it and sends it",
            )


def _milliseconds(config: Config) -> Warnings:
    times: dict[Place, float] = {}
    for name, upstream in config.upstreams.items():
        for field in ("connect_s", "head_s", "idle_s"):
            times["upstreams", name, "timeouts", field] = getattr(upstream.timeouts, field)
        times["upstreams", name, "timeouts", "total_s"] = upstream.timeouts.total_s / 10
        times["upstreams", name, "drain_limit_s"] = upstream.drain_limit_s
        times["upstreams", name, "probe_s"] = upstream.probe_s
    for field in ("client_head_timeout_s", "client_body_timeout_s", "drain_delay_s", "drain_timeout_s",
                  "keepalive_comment_s"):  # fmt: skip
        times["server", field] = getattr(config.server, field)
    for place, seconds in times.items():
        if seconds >= MILLISECONDS_FROM:
            yield _warning(place, "is in seconds, and more than an hour; for milliseconds write ms behind it: 500ms")


def _megabytes(config: Config) -> Warnings:
    for field in ("max_request_bytes", "max_response_bytes", "max_buffered_bytes"):
        size = getattr(config.server, field)
        if size < SHORTEST_BODY:
            yield _warning(("server", field), f"is {size} bytes, which no call fits into; did you mean {size}MB?")


def _spaces(config: Config) -> Warnings:
    parts: Mapping[str, Iterator[str]] = {
        "models": iter(config.models), "upstreams": iter(config.upstreams), "teams": iter(config.teams),
        "aliases": iter(config.aliases),
    }  # fmt: skip
    for part, names in parts.items():
        for name in names:
            if name != name.strip():
                yield _warning((part, name), "begins or ends with a space")
    for number, key in enumerate(config.keys):
        for index, pattern in enumerate(key.models):
            if pattern != pattern.strip() or "," in pattern:
                yield _warning(
                    ("keys", number, "models", index),
                    "holds a space at its edge or a comma; write one pattern per item",
                )


def _unverified_names(config: Config) -> Warnings:
    """Tokens of Entra name no `email_verified`, and an administrator of any tenant writes any address."""
    for section, settings in (("oidc", config.oidc), ("jwt", config.jwt)):
        if settings is not None and settings.person_claim == "email":
            host = urlsplit(settings.issuer).hostname or ""
            if host in WITHOUT_VERIFIED_ADDRESSES:
                yield _warning(
                    (section, "person_claim"),
                    f"is email, and {host} does not state whether an address was verified: a person can have another's "
                    "address there and would own her keys; write oid, or sub",
                )


def _large_shares(config: Config) -> Warnings:
    """With `on_outage: allow` each worker spends its share alone."""
    store, workers = config.store, config.server.workers
    if store.on_outage == "allow" and store.outage_share * workers > 1:
        yield _warning(
            ("store", "outage_share"),
            f"while the store is away, {workers} workers with this share each admit "
            f"{store.outage_share * workers:g} times every limit",
        )
