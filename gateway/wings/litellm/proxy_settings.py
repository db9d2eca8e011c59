"""The three sections of settings: the budget, retries, fallbacks, aliases, the master key and the store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.config.faults import printable
from gateway.config.include import Place

from .budgets import budget_of, number_of, plain
from .given import Given
from .providers import GEMINI

MAX_OUTPUT_TOKENS = 4096
MAX_ATTEMPTS = 10


def convert_settings(given: Given) -> dict[str, Any]:
    """Write all of them into the result; returns `defaults.models`."""
    values = given.done.values
    defaults: dict[str, Any] = {"max_output_tokens": MAX_OUTPUT_TOKENS}
    if (master := given.take("general_settings", "master_key")) is not None:
        token = given.reference(("general_settings", "master_key"), master, "LITELLM_MASTER_KEY")
        values["admin"] = {"token": token}
        given.note(("general_settings", "master_key"), "opens the admin API here, and no model")
    if isinstance(size := given.take("general_settings", "max_request_size_mb"), int | float):
        values.setdefault("server", {})["max_request_bytes"] = f"{size:g}MB"
    if isinstance(number := given.take("general_settings", "global_max_parallel_requests"), int):
        values.setdefault("server", {})["max_in_flight"] = number
    for section in ("litellm_settings", "router_settings"):
        if isinstance(retries := given.take(section, "num_retries"), int):
            defaults["max_attempts"] = min(MAX_ATTEMPTS, retries + 1)
        seconds = given.take(section, "timeout" if section == "router_settings" else "request_timeout")
        if isinstance(seconds, int | float) and seconds > 0:
            for upstream in values["upstreams"].values():
                upstream.setdefault("timeouts", {}).setdefault("total_s", seconds)
        _fallbacks(given, section)
    _probes(given)
    _lists(given)
    _budget(given)
    _aliases(given)
    _store(given)
    return defaults


def _fallbacks(given: Given, section: str) -> None:
    models = given.done.values["models"]
    for kind in ("fallbacks", "context_window_fallbacks"):
        entries = given.take(section, kind)
        for index, entry in enumerate(entries if isinstance(entries, list) else []):
            for name, others in entry.items() if isinstance(entry, dict) else ():
                place: Place = (section, kind, index)
                model = models.get(name)
                named = others if isinstance(others, list) else []
                found = [each for each in named if isinstance(each, str) and each in models]
                if model is None or found != others:
                    given.note(place, f"{printable(str(name))}: a model of it is not there")
                if model is not None and found:
                    model["fallbacks"] = list(dict.fromkeys([*model.get("fallbacks", []), *found]))


def _probes(given: Given) -> None:
    is_on = given.take("general_settings", "background_health_checks")
    seconds = number_of(given.take("general_settings", "health_check_interval"))
    if is_on is True and seconds:
        for upstream in given.done.values["upstreams"].values():
            upstream["probe_s"] = plain(seconds)


def _lists(given: Given) -> None:
    """`check_provider_endpoint` lists the models of a provider below a pattern of all of them."""
    if given.take("litellm_settings", "check_provider_endpoint") is not True:
        return
    values = given.done.values
    for name, model in values["models"].items():
        if not name.endswith("*"):
            continue
        inner = name.removeprefix(model.get("strip_prefix", ""))
        for route in model["routes"]:
            if "model" not in route and values["upstreams"][route["upstream"]]["base_url"] != GEMINI.base_url:
                values["upstreams"][route["upstream"]]["discover"] = True if inner == "*" else {"include": [inner]}
        if "strip_prefix" in model:
            given.note(
                ("litellm_settings", "check_provider_endpoint"),
                f"the models that an upstream lists have no prefix here: {printable(name)} serves them with it as well",
            )


def _budget(given: Given) -> None:
    budget = given.take("litellm_settings", "max_budget")
    duration = given.take("litellm_settings", "budget_duration")
    quota, note = budget_of(budget, duration)
    if quota is not None:
        given.done.values["quotas"] = [quota]
    if note:
        given.note(("litellm_settings", "budget_duration" if duration else "max_budget"), note)


def _aliases(given: Given) -> None:
    aliases = given.take("router_settings", "model_group_alias")
    for name, to in aliases.items() if isinstance(aliases, dict) else ():
        place: Place = ("router_settings", "model_group_alias", name)
        target = to.get("model") if isinstance(to, dict) else to
        if target in given.done.values["models"] and name not in given.done.values["models"]:
            given.done.values.setdefault("aliases", {})[name] = target
        else:
            given.note(place, f"leads to {printable(str(target))}, which is no model here, or is a model itself")


def _store(given: Given) -> None:
    redis: Mapping[str, Any] = {
        name: given.take("router_settings", f"redis_{name}") for name in ("url", "host", "port", "password", "username")
    }
    store = given.done.values
    if redis["url"] is not None:
        store["store"] = {"url": given.reference(("router_settings", "redis_url"), redis["url"], "REDIS_URL")}
    elif redis["host"] is not None:
        login = ""
        if redis["password"] is not None:
            word = given.reference(("router_settings", "redis_password"), redis["password"], "REDIS_PASSWORD")
            login = f"{given.plain(redis['username']) or ''}:{word}@"
        url = f"redis://{login}{given.plain(redis['host'])}:{given.plain(redis['port']) or 6379}/0"
        store["store"] = {"url": url}
    if "store" in store:
        place: Place = ("router_settings", "redis_url" if redis["url"] is not None else "redis_host")
        given.note(place, "holds keys, quotas and usage here, not only a cache: it needs an append-only file")
