"""Settings that load and cannot work as meant: typical mistakes, each with its place and the remedy.

Some were probably meant in another unit, for another place, or as an example; some have no effect beside others, or
make those beside them useless.

A warning is not a fault, because such a configuration may be intended, and existing files load as before. `gateway
check` prints warnings. Each rule below is one function; values that may be secrets are never shown.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from fnmatch import fnmatchcase
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from pydantic import SecretStr

from .checks import Place, ValidParts, is_bound, quota_lists
from .faults import ConfigFault, few, format_faults, printable
from .model_names import is_pattern, may_overlap
from .price_table import provider_of
from .secret_forms import warnings_of_forms
from .sections import LOOPBACK, Config, KeySettings, Limits, Model, Quota, Section, Team
from .wings import added_apis, wing_sections

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
    rules: tuple[Callable[[Config], Warnings], ...] = (
        _foreign_references, _base_urls, _prices, _unpriced_models, _money_without_prices, _small_quotas,
        partial(_expired_keys, now=now), _unused_patterns, _larger_than_the_team, _wide_limits, _examples,
        _shared_secrets, _addresses, _prefixed_models, _high_prices, _small_money, _large_outputs, _milliseconds,
        _megabytes, _spaces, _large_shares, _larger_than_the_gateway, _overtaken_quotas, _empty_lists,
        _shadows_without_quotas, _too_many_at_once, _misspelled_parameters, _endpoints_without_a_route,
        _unused_upstreams, _traces_of_nothing, _addresses_behind_a_proxy, _long_parts, _small_buffers,
        _forms_of_secrets, _swapped_prices, _public_addresses, _weak_tokens,
    )  # fmt: skip
    found = [warning for rule in rules for warning in rule(config)]
    return found + [warning for each in wing_sections() for warning in each.warnings(config)]


def warnings_of_key(config: Config, key: KeySettings, now: datetime) -> tuple[str, ...]:
    """The warnings that this key would have in the file."""
    alone = config.model_copy(update={"keys": (key,)})
    found = [*_expired_keys(alone, now), *_of_one(alone)]
    return tuple([str(each).removeprefix("keys[0].") for each in found if each.path.startswith("keys[0]")])


def warnings_of_team(config: Config, name: str, team: Team) -> tuple[str, ...]:
    """The warnings that this team would have in the file."""
    found, here = _of_one(config.model_copy(update={"keys": (), "teams": {name: team}})), format_faults(("teams", name))
    return tuple([str(each).removeprefix(f"{here}.") for each in found if each.path.startswith(here)])


def _of_one(alone: Config) -> Warnings:
    """The warnings that a key or team may have, in a configuration where it is alone."""
    for rule in (_unused_patterns, _small_quotas, _small_money, _larger_than_the_team, _wide_limits):
        yield from rule(alone)


def _forms_of_secrets(config: Config) -> Warnings:
    return warnings_of_forms(config, ((place, secret.get_secret_value()) for place, secret in secrets_of(config)))


def _swapped_prices(config: Config) -> Warnings:
    """No provider's list has a lower price for output than for input."""
    for name, model in config.models.items():
        price = model.price
        if price is None or price.source is not None or not price.input or price.output is None:
            continue
        if LOWEST_PRICE <= price.output < price.input:  # a lower one has a warning of its own
            yield _warning(("models", name, "price"), "output is cheaper than input; they are probably exchanged")


def _public_addresses(config: Config) -> Warnings:
    url = config.server.public_url
    if url is not None and urlsplit(url).path.rstrip("/").endswith("/v1"):
        yield _warning(("server", "public_url"), "ends in /v1, which the gateway adds itself; leave it out")
    is_secure = url is not None and url.startswith("https://")
    # A listener of its own is not published in a container, where it has to be 0.0.0.0.
    is_shared = config.has_admin_api and config.admin.listen is None
    if is_shared and config.server.host not in LOOPBACK and not is_secure:
        yield _warning(
            ("server", "host"),
            "the admin API is at the address for calls, and tokens travel in plain text: put TLS in front and name it "
            "in server.public_url (https://...), or give the admin API an address of its own, admin.listen",
        )


COMMON_WORDS = re.compile(r"(?i)(pass(word|wort|phrase)?|admin|secret|token|gateway|qwerty|letmein|welcome|changeit)")


def _weak_tokens(config: Config) -> Warnings:
    """Tokens that a list of common passwords has: words and digits in a row, or few different characters."""
    for place, token in config.admin.by_place().items():
        text = token.get_secret_value()
        if any(form.fullmatch(text) for form in (FOREIGN_REFERENCE, EXAMPLE, MANAGERS)):
            continue  # which has a warning of its own
        left = re.sub(r"(?:0?1234567890?|12345678|123456|1234)+|[\W_\d]+", "", COMMON_WORDS.sub("", text))
        if text.isdecimal() or len(set(text)) < 8 or (COMMON_WORDS.search(text) and len(left) < 4):
            yield _warning(("admin", *place), "is easy to guess; make one with: openssl rand -hex 32")


def _warning(place: Place, message: str) -> ConfigFault:
    return ConfigFault(format_faults(place), message)


def _foreign_references(config: Config) -> Warnings:
    for place, secret in secrets_of(config):
        if FOREIGN_REFERENCE.fullmatch(secret.get_secret_value()):
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
                    f"limits US dollars, and calls of models without a price are refused under it: {few(unpriced, 3)}; "
                    "give them a price, or unpriced: allow",
                )


def _money_without_prices(config: Config) -> Warnings:
    """`unpriced: allow` takes the price of the table away, and with it each quota of money for the model."""
    limited = [
        (quota, patterns)
        for _, quotas, patterns in quota_lists(ValidParts.of(config))
        for quota in quotas.values()
        if quota.unit == "usd"
    ]
    for name, model in config.models.items():
        upstreams = [config.upstreams[route.upstream] for route in model.routes]
        is_listed = all(provider_of({"provider": each.provider, "base_url": each.base_url}) for each in upstreams)
        if model.has_price or model.unpriced == "deny" or not is_listed:
            continue
        if any(is_bound(quota, patterns, name) for quota, patterns in limited):
            yield _warning(
                ("models", name, "unpriced"),
                "allow takes the price of the table away, so its calls draw on no quota of US dollars; leave it out, "
                "or write price: auto beside it",
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
    known = few([printable(name) for name in config.models], 3)
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
                same = _counts(quota) == _counts(other)
                if same and quota.limit > other.limit:
                    yield _warning(
                        ("keys", number, "quotas", index),
                        f"is larger than the same quota of the team {printable(str(key.team))!r}, which then refuses "
                        "first",
                    )


def _counts(quota: Quota) -> tuple[object, ...]:
    """Equal for quotas that count the same, whatever their limits are."""
    return quota.unit, quota.per, quota.model, quota.label


def _wide_limits(config: Config) -> Warnings:
    places: list[tuple[Place, Limits]] = [(("models", name, "limits"), m.limits) for name, m in config.models.items()]
    places += [(("keys", number, "limits"), key.limits) for number, key in enumerate(config.keys)]
    for place, limits in places:
        for field, most in API_LIMITS.items():
            value = getattr(limits, field)
            if value is not None and value > most:
                yield _warning((*place, field), f"{value} has no effect: the API's own maximum is {most}")


# --------------------------------------------------------- values in another unit, for another place, or of an example

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

OPENAI = "api.openai.com"
OLLAMA_PORT = 11434


def secrets_of(config: Config) -> Iterator[tuple[Place, SecretStr]]:
    """Every secret of the file with its place; addresses of proxies, which seldom have one, are left out. The most
    important ones come first: of two places with one secret, the later one has the warning."""
    sections = {name: section for name, section in config}  # noqa: C416 - dict() would call its `keys`
    for name in dict.fromkeys(("upstreams", "keys", "admin", *sections)):
        yield from _secrets_in(sections[name], (name,))


def _secrets_in(value: Any, place: Place) -> Iterator[tuple[Place, SecretStr]]:
    inner: Iterable[tuple[Any, Any]] = ()
    match value:
        case SecretStr() if place[-1] != "proxy":
            yield place, value
        case Section():
            inner = value
        case dict():
            inner = value.items()
        case tuple():
            inner = enumerate(value)
    for name, each in inner:
        yield from _secrets_in(each, (*place, name))


def _examples(config: Config) -> Warnings:
    for place, secret in secrets_of(config):
        text = secret.get_secret_value().strip()
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
    outside = {"tracing", *[each.name for each in wing_sections() if not each.has_own_secrets]}
    for place, secret in secrets_of(config):
        if place[2:3] == ("headers",) or place[0] in outside:
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


def _large_shares(config: Config) -> Warnings:
    """Warns because, with `on_outage: allow`, each worker spends its share independently of the others."""
    store, workers = config.store, config.server.workers
    if store.on_outage == "allow" and store.outage_share * workers > 1:
        yield _warning(
            ("store", "outage_share"),
            f"while the store is away, {workers} workers with this share each admit "
            f"{store.outage_share * workers:g} times every limit",
        )


# ---------------------------------------------------------------------------- settings without an effect beside others

PERIOD_S: Mapping[str, int] = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800, "month": 2592000}
"""About how long each period is."""

PARAMETERS = frozenset({
    "best_of", "dimensions", "echo", "encoding_format", "frequency_penalty", "function_call", "functions", "input",
    "logit_bias", "logprobs", "max_completion_tokens", "max_tokens", "messages", "metadata", "modalities", "model", "n",
    "parallel_tool_calls", "presence_penalty", "prompt", "reasoning_effort", "response_format", "seed", "service_tier",
    "stop", "store", "stream", "stream_options", "suffix", "temperature", "tool_choice", "tools", "top_logprobs",
    "top_p", "user",
})  # fmt: skip
"""The parameters that `api/schema.py` knows; a test holds the two together."""


def _larger_than_the_gateway(config: Config) -> Warnings:
    of_gateway = {_counts(quota): quota.limit for quota in config.quotas}
    for path, quotas, _ in quota_lists(ValidParts.of(config)):
        for index, quota in quotas.items() if path != ("quotas",) else ():
            if quota.limit > of_gateway.get(_counts(quota), quota.limit):
                yield _warning(
                    (*path, index), "is larger than the same quota of the whole gateway, which refuses first"
                )


def _overtaken_quotas(config: Config) -> Warnings:
    """A shorter period with at least as much as a longer one: the longer one refuses first."""
    for path, quotas, _ in quota_lists(ValidParts.of(config)):
        for index, quota in quotas.items():
            longer = next((other for other in quotas.values() if _overtakes(other, quota)), None)
            if longer is not None:
                yield _warning(
                    (*path, index),
                    f"has no effect beside the quota per {longer.per}, which is not larger and lasts longer",
                )


def _overtakes(other: Quota, quota: Quota) -> bool:
    is_same = (other.unit, other.model, other.label) == (quota.unit, quota.model, quota.label)
    return is_same and _length_s(other) > _length_s(quota) and other.limit <= quota.limit


def _length_s(quota: Quota) -> int:
    return quota.per if isinstance(quota.per, int) else PERIOD_S[quota.per]


def _empty_lists(config: Config) -> Warnings:
    for number, key in enumerate(config.keys):
        if not key.models:
            yield _warning(
                ("keys", number, "models"), "is empty: every call with this key is refused; leave it out for all"
            )
    for name, model in config.models.items():
        if not model.endpoints:
            yield _warning(
                ("models", name, "endpoints"), "is empty: every call of this model is refused; leave it out for all"
            )


def _shadows_without_quotas(config: Config) -> Warnings:
    for number, key in enumerate(config.keys):
        team = config.teams.get(key.team) if key.team is not None else None
        is_limited = key.quotas or key.max_parallel or config.quotas or (team is not None and team.quotas)
        if key.on_exceeded == "shadow" and not is_limited:
            yield _warning(("keys", number, "on_exceeded"), "shadow has no effect: no quota counts calls of this key")


def _too_many_at_once(config: Config) -> Warnings:
    most = config.server.max_in_flight
    for number, key in enumerate(config.keys):
        if key.max_parallel is not None and key.max_parallel > most:
            yield _warning(("keys", number, "max_parallel"), f"has no effect: server.max_in_flight is {most}")


def _misspelled_parameters(config: Config) -> Warnings:
    places: list[tuple[Place, Limits]] = [(("models", name, "limits"), m.limits) for name, m in config.models.items()]
    places += [(("keys", number, "limits"), key.limits) for number, key in enumerate(config.keys)]
    for place, limits in places:
        for index, name in enumerate(limits.deny):
            close = difflib.get_close_matches(name, PARAMETERS, n=1, cutoff=0.75)
            if name not in PARAMETERS and close:
                yield _warning((*place, "deny", index), f"is no parameter of the API; did you mean {close[0]!r}?")


def _endpoints_without_a_route(config: Config) -> Warnings:
    of_all = config.defaults.models.endpoints if "endpoints" in config.defaults.models.model_fields_set else ()
    for name, model in config.models.items():
        if "endpoints" in model.model_fields_set and model.endpoints != of_all:
            yield from _not_served(("models", name, "endpoints"), model.endpoints, config, [model])
    if config.models:
        yield from _not_served(("defaults", "models", "endpoints"), of_all, config, [*config.models.values()])


def _not_served(place: Place, endpoints: Sequence[str], config: Config, models: Sequence[Model]) -> Warnings:
    """The endpoints that no route of these models leads to: each call of them gets 404."""
    names = sorted({route.upstream for model in models for route in model.routes})
    for index, endpoint in enumerate(endpoints):
        if names and not any(getattr(config.upstreams[each].capabilities, endpoint, True) for each in names):
            yield _warning(
                (*place, index),
                f"no route can serve {endpoint}, and its calls get 404: capabilities.{endpoint} is false for "
                f"{', '.join(names)}",
            )


def _unused_upstreams(config: Config) -> Warnings:
    used = {route.upstream for model in config.models.values() for route in model.routes}
    used |= {api.upstream for api in added_apis(config).values()}
    for name, upstream in config.upstreams.items():
        if name not in used and upstream.discover is None:
            yield _warning(("upstreams", name), "no model has a route to it")


def _traces_of_nothing(config: Config) -> Warnings:
    if config.tracing.endpoint is None:
        return
    if config.tracing.sample_ratio == 0:
        yield _warning(("tracing", "sample_ratio"), "0 traces only calls whose client asks for it; write 1 for all")
    if urlsplit(config.tracing.endpoint).port == 4317:
        yield _warning(
            ("tracing", "endpoint"), "4317 is a collector's port for gRPC; traces are sent over HTTP, to port 4318"
        )


def _addresses_behind_a_proxy(config: Config) -> Warnings:
    for index, network in enumerate(config.server.trusted_proxies):
        if network.prefixlen == 0:
            yield _warning(
                ("server", "trusted_proxies", index),
                "trusts every address: a client may write any other one and pass keys[].ips",
            )
    if config.server.host not in LOOPBACK or config.server.trusted_proxies:
        return
    for number, key in enumerate(config.keys):
        if key.ips and not any(network.is_loopback for network in key.ips):
            yield _warning(
                ("keys", number, "ips"),
                f"no client has such an address: the gateway listens at {config.server.host} alone; name a proxy "
                "before it in server.trusted_proxies",
            )


def _long_parts(config: Config) -> Warnings:
    """A part of an attempt that may last longer than the whole."""
    for name, upstream in config.upstreams.items():
        for field in ("connect_s", "head_s", "idle_s"):
            seconds = getattr(upstream.timeouts, field)
            is_set = field in upstream.timeouts.model_fields_set
            if is_set and seconds > upstream.timeouts.total_s:
                yield _warning(
                    ("upstreams", name, "timeouts", field),
                    f"has no effect: the whole attempt ends after total_s, {upstream.timeouts.total_s:g} s",
                )


def _small_buffers(config: Config) -> Warnings:
    server = config.server
    share = server.max_buffered_bytes // server.workers
    for field in ("max_request_bytes", "max_response_bytes"):
        if getattr(server, field) > share:
            yield _warning(
                ("server", field),
                f"a body of this length is refused: max_buffered_bytes holds {share} bytes for each worker",
            )
