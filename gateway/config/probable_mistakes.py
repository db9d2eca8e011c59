"""Settings that load and cannot work as meant: typical mistakes, each with its place and the remedy.

A warning is not a fault, because such a configuration may be intended, and existing files load as before. `gateway
check` prints warnings. Each rule below is one function; values that may be secrets are never shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from decimal import Decimal
from fnmatch import fnmatchcase
from urllib.parse import urlsplit

from .checks import Place, ValidParts, is_bound, quota_lists
from .faults import ConfigFault, format_faults, printable
from .model_names import is_pattern, may_overlap
from .sections import Config, Limits
from .settings_without_effect import without_effect
from .suspicious_values import secrets_of, suspicious

FOREIGN_REFERENCE = re.compile(
    r"os\.environ/\w+|env[:.]\w+|\$env:\w+|\$[A-Za-z_]\w*|%[A-Za-z_]\w*%|\{\{.*\}\}|<[\w -]+>|\$\(.*\)"
)
"""How other programs name an environment variable or a placeholder: LiteLLM, shells, Windows, templates."""

ENDPOINTS = ("/chat/completions", "/completions", "/embeddings", "/responses")
"""Paths that the gateway adds to `base_url` itself."""

BASE_PATHS: Mapping[str, str] = {
    "api.anthropic.com": "/v1",
    "api.openai.com": "/v1",
    "api.groq.com": "/openai/v1",
    "api.mistral.ai": "/v1",
    "api.together.xyz": "/v1",
    "api.yescale.io": "/v1",
    "api.x.ai": "/v1",
    "openrouter.ai": "/api/v1",
}
"""Providers whose API is below this path only, by the host of their documented base URL."""

LOWEST_PRICE = Decimal("0.001")
"""USD per million tokens. No provider's list has a lower price: a lower one is probably per token or per thousand."""

API_LIMITS: Mapping[str, int] = {"n": 128, "best_of": 20, "logprobs": 20, "stop": 4}
"""The API's own maxima (api/schema.py); `logprobs` includes the `top_logprobs` of chat."""

Warnings = Iterator[ConfigFault]


def warnings_of(config: Config, now: datetime) -> list[ConfigFault]:
    """Every warning, in the order of the rules."""
    return [
        *_foreign_references(config),
        *_base_urls(config),
        *_prices(config),
        *_unpriced_models(config),
        *_small_quotas(config),
        *_expired_keys(config, now),
        *_unused_patterns(config),
        *_larger_than_the_team(config),
        *_wide_limits(config),
        *suspicious(config),
        *without_effect(config),
    ]


def _warning(place: Place, message: str) -> ConfigFault:
    return ConfigFault(format_faults(place), message)


def _foreign_references(config: Config) -> Warnings:
    for place, secret in secrets_of(config):
        if secret is not None and FOREIGN_REFERENCE.fullmatch(secret.get_secret_value()):
            yield _warning(place, "looks like another program's form of a variable; the form here is ${NAME}")


def _base_urls(config: Config) -> Warnings:
    for name, upstream in config.upstreams.items():
        place = ("upstreams", name, "base_url")
        address = urlsplit(upstream.base_url)
        path = address.path.rstrip("/")
        if found := next((end for end in ENDPOINTS if path.endswith(end)), None):
            yield _warning(place, f"ends in {found}, which the gateway adds itself; leave it out")
        elif (needed := BASE_PATHS.get(address.hostname or "")) is not None and path != needed:
            yield _warning(place, f"this provider's API is at https://{address.hostname}{needed}")


def _prices(config: Config) -> Warnings:
    for name, model in config.models.items():
        if model.price is None or model.price.source is not None:
            continue
        for field in ("input", "output"):
            usd = getattr(model.price, field)
            if usd is not None and 0 < usd < LOWEST_PRICE:
                yield _warning(
                    ("models", name, "price", field),
                    f"{usd:f} USD per million tokens is very low; a price per token has to be multiplied by 1000000, "
                    "one per thousand tokens by 1000",
                )


def _unpriced_models(config: Config) -> Warnings:
    for path, quotas, patterns in quota_lists(ValidParts.of(config)):
        for index, quota in quotas.items():
            if quota.unit != "usd":
                continue
            unpriced = [
                printable(name)
                for name, model in config.models.items()
                if is_bound(quota, patterns, name) and not model.has_price and model.unpriced == "deny"
            ]
            if unpriced:
                yield _warning(
                    (*path, index),
                    f"limits US dollars, and calls of models without a price are refused under it: {_few(unpriced)}; "
                    "give them a price, or unpriced: allow",
                )


def _small_quotas(config: Config) -> Warnings:
    for path, quotas, patterns in quota_lists(ValidParts.of(config)):
        for index, quota in quotas.items():
            if quota.unit != "tokens":
                continue
            for name, model in config.models.items():
                reserved = model.min_output_tokens or model.max_output_tokens
                if reserved is None or "chat" not in model.endpoints or not is_bound(quota, patterns, name):
                    continue
                if reserved >= quota.limit:
                    yield _warning(
                        (*path, index),
                        f"a chat call of {printable(name)!r} without a limit of its own reserves {reserved} output "
                        f"tokens, and this quota of {quota.limit} refuses it; lower models.*.max_output_tokens, "
                        "raise the quota, or let models.*.min_output_tokens reduce the call to it",
                    )
                    break


def _expired_keys(config: Config, now: datetime) -> Warnings:
    for number, key in enumerate(config.keys):
        if key.expires is not None and key.expires <= now:
            yield _warning(("keys", number, "expires"), "is in the past: every call with this key is refused")


def _unused_patterns(config: Config) -> Warnings:
    if "*" in config.models or any(upstream.discover is not None for upstream in config.upstreams.values()):
        return  # any name may be served
    known = _few([printable(name) for name in config.models])
    for number, key in enumerate(config.keys):
        for index, pattern in enumerate(key.models):
            if pattern != pattern.strip() or "," in pattern:
                continue  # which has a warning of its own
            if not any(_may_match(pattern, name) for name in (*config.models, *config.aliases)):
                yield _warning(("keys", number, "models", index), f"matches none of the models: {known}")
    for path, quotas, _ in quota_lists(ValidParts.of(config)):
        for index, quota in quotas.items():
            names = (*config.models, *config.aliases)
            if quota.model is not None and not any(_may_match(quota.model, name) for name in names):
                yield _warning((*path, index, "model"), f"matches none of the models: {known}")


def _may_match(glob: str, model: str) -> bool:
    """Whether this pattern of a key or quota matches the model, or a name under the model's pattern."""
    return may_overlap(model, glob) if is_pattern(model) else fnmatchcase(model, glob)


def _larger_than_the_team(config: Config) -> Warnings:
    for number, key in enumerate(config.keys):
        team = config.teams.get(key.team) if key.team is not None else None
        for index, quota in enumerate(key.quotas):
            for other in team.quotas if team is not None else ():
                same = (quota.unit, quota.per, quota.model) == (other.unit, other.per, other.model)
                if same and quota.limit > other.limit:
                    yield _warning(
                        ("keys", number, "quotas", index),
                        f"is larger than the same quota of the team {printable(str(key.team))!r}, which then refuses "
                        "first",
                    )


def _wide_limits(config: Config) -> Warnings:
    places: list[tuple[Place, Limits]] = [(("models", name, "limits"), m.limits) for name, m in config.models.items()]
    places += [(("keys", number, "limits"), key.limits) for number, key in enumerate(config.keys)]
    for place, limits in places:
        for field, most in API_LIMITS.items():
            value = getattr(limits, field)
            if value is not None and value > most:
                yield _warning((*place, field), f"{value} has no effect: the API's own maximum is {most}")


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
