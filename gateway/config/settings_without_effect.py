"""Settings that load and have no effect beside others, or make those beside them useless: one function each.

Warnings of `gateway check`, like those of `probable_mistakes.py`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import urlsplit

from .checks import Place, ValidParts, quota_lists
from .faults import ConfigFault, format_faults
from .sections import LOOPBACK, Config, Limits, Model, Quota

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

Warnings = Iterator[ConfigFault]


def without_effect(config: Config) -> list[ConfigFault]:
    """Every warning, in the order of the rules."""
    return [
        *_larger_than_the_gateway(config),
        *_overtaken_quotas(config),
        *_empty_lists(config),
        *_shadows_without_quotas(config),
        *_too_many_at_once(config),
        *_misspelled_parameters(config),
        *_endpoints_without_a_route(config),
        *_unused_upstreams(config),
        *_alerts_of_nothing(config),
        *_traces_of_nothing(config),
        *_addresses_behind_a_proxy(config),
        *_long_parts(config),
        *_small_buffers(config),
        *_hedges_of_nothing(config),
    ]


def _warning(place: Place, message: str) -> ConfigFault:
    return ConfigFault(format_faults(place), message)


def _larger_than_the_gateway(config: Config) -> Warnings:
    of_gateway = {(quota.unit, quota.per, quota.model): quota.limit for quota in config.quotas}
    for path, quotas, _ in quota_lists(ValidParts.of(config)):
        for index, quota in quotas.items() if path != ("quotas",) else ():
            if quota.limit > of_gateway.get((quota.unit, quota.per, quota.model), quota.limit):
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
    is_same = (other.unit, other.model) == (quota.unit, quota.model)
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
    for name, upstream in config.upstreams.items():
        if name not in used and upstream.discover is None:
            yield _warning(("upstreams", name), "no model has a route to it")


def _alerts_of_nothing(config: Config) -> Warnings:
    if config.alerts.webhook is None and config.alerts.proxy is not None:
        yield _warning(("alerts", "proxy"), "has no effect without alerts.webhook")
    quotas = [quota for _, quotas, _ in quota_lists(ValidParts.of(config)) for quota in quotas.values()]
    quotas += config.defaults.keys.quotas
    if config.alerts.webhook is not None and quotas and all(quota.per_s is not None for quota in quotas):
        yield _warning(("alerts", "webhook"), "nothing is ever sent: no quota is per day, week or month")


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


def _hedges_of_nothing(config: Config) -> Warnings:
    for name, model in config.models.items():
        if model.hedge_after is None or model.hedge_after == config.defaults.models.hedge_after:
            continue
        why = None
        if len(model.routes) < 2:
            why = "it needs a second route"
        elif model.sticky is not None:
            why = "calls of a sticky model have one place"
        elif model.max_attempts < 2:
            why = "max_attempts allows one attempt alone"
        if why is not None:
            yield _warning(("models", name, "hedge_after"), f"has no effect: {why}")
