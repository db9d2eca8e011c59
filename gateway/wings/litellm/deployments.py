"""`model_list` as upstreams, models and routes: entries of one name are one model, and keys of one account are one
upstream."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

from gateway.config.faults import printable
from gateway.config.include import Place
from gateway.wings import parts

from .budgets import number_of, plain
from .given import Given, section_of
from .providers import (
    CLOUD_HOSTS,
    GEMINI,
    MODES,
    OF_CHATS,
    OF_OPENAI,
    OTHER_RERANKS,
    PROVIDERS,
    RERANKERS,
    Provider,
    mode_by_name,
    provider_without_prefix,
)

FindPrice = Callable[[str, str], Mapping[str, Any] | None]
"""The price table's price of a provider's model, in the form of the file; None: it has none."""

COSTS: Mapping[str, tuple[str, int]] = {
    "input_cost_per_token": ("input", 1_000_000),
    "output_cost_per_token": ("output", 1_000_000),
    "cache_read_input_token_cost": ("cached_input", 1_000_000),
    "cache_creation_input_token_cost": ("cache_write", 1_000_000),
    "cache_creation_input_token_cost_above_1hr": ("cache_write_1h", 1_000_000),
    "output_cost_per_reasoning_token": ("reasoning", 1_000_000),
    "input_cost_per_audio_token": ("audio_in", 1_000_000),
    "output_cost_per_audio_token": ("audio_out", 1_000_000),
    "input_cost_per_image_token": ("image_in", 1_000_000),
    "output_cost_per_image_token": ("image_out", 1_000_000),
    "input_cost_per_character": ("characters_per_million", 1_000_000),
    "input_cost_per_second": ("audio_per_hour", 3600),
    "output_cost_per_image": ("image", 1),
    "input_cost_per_query": ("search_units_per_1000", 1000),
}
"""Our row for each price of LiteLLM (`types/utils.py`, `ModelInfoBase`), and by how much its number is multiplied."""
OF_TEXT = frozenset({"chat", "completions", "messages", "responses", "generate_content"})


@dataclass(slots=True)
class Deployment:
    """One entry of `model_list` that can be converted."""

    place: Place
    name: str
    model: str
    """Its name at the upstream."""
    provider: Provider
    settings: dict[str, Any]
    """The upstream without its keys."""
    key: str | None
    endpoints: Sequence[str]
    prefix: str
    """LiteLLM's name of the provider."""
    further: list[tuple[dict[str, Any], str | None, str]] = field(default_factory=list)
    """Upstreams for other endpoints of the same model: settings, key, and its name there."""
    order: int | None = None
    weight: int | None = None


def convert_models(given: Given, find_price: FindPrice) -> dict[str, list[str]]:
    """Write `upstreams` and `models`, and a note for each entry that is not in them. Returns the names of upstreams by
    LiteLLM's name of their provider."""
    of_provider: dict[str, list[str]] = {}
    groups: dict[tuple[Any, ...], list[Deployment]] = {}
    for index, entry in enumerate(given.values["model_list"]):
        found = _deployment(given, ("model_list", index), entry if isinstance(entry, dict) else {})
        if found is not None:
            alike = (found.name, found.model, repr(found.settings), found.order)
            groups.setdefault(alike, []).append(found)
    upstreams = _Upstreams(given)
    for alike_ones in groups.values():
        keys = list(dict.fromkeys(each.key for each in alike_ones if each.key is not None))
        name = upstreams.name_of(alike_ones[0].settings, keys)
        sent = [(name, alike_ones[0].model)]
        for settings, key, model in alike_ones[0].further:
            sent.append((upstreams.name_of(settings, [key] if key else []), model))
        named = of_provider.setdefault(alike_ones[0].prefix, [])
        named += [each for each, _ in sent if each not in named]
        for position, each in enumerate(alike_ones):
            if position and each.key in [other.key for other in alike_ones[:position]]:
                given.note(
                    each.place, f"{printable(each.name)} leads to the same place as another entry; it is there once"
                )
            _add(given, each, sent if not position else [], upstreams, find_price)
            if "realtime" in each.endpoints:
                upstreams.settings[name].setdefault("capabilities", {})["realtime"] = True
    return of_provider


class _Upstreams:
    """The upstreams, which are named by their hosts."""

    def __init__(self, given: Given) -> None:
        self.settings: dict[str, dict[str, Any]] = given.done.values["upstreams"]
        self._known: dict[str, str] = {}

    def name_of(self, settings: Mapping[str, Any], keys: Sequence[str]) -> str:
        identity = repr((settings, keys))
        if (known := self._known.get(identity)) is not None:
            return known
        name = _name_of(settings["base_url"], self.settings)
        held = {"api_key": keys[0]} if len(keys) == 1 else {"api_keys": list(keys)} if keys else {}
        copied = {part: dict(value) if isinstance(value, dict) else value for part, value in settings.items()}
        self.settings[name] = {"base_url": copied.pop("base_url"), **held, **copied}
        self._known[identity] = name
        return name


# ------------------------------------------------------------------------------------------------------- one entry


def _deployment(given: Given, place: Place, entry: Mapping[str, Any]) -> Deployment | None:
    params = (*place, "litellm_params")
    name, sent = given.take(*place, "model_name"), given.take(*params, "model")
    if not isinstance(name, str) or not isinstance(sent, str):
        given.skip(place, "has no model_name or no litellm_params.model")
        return None
    prefix, model = _provider_and_model(sent, given.take(*params, "custom_llm_provider"))
    mode = given.take(*place, "model_info", "mode")
    mode = mode_by_name(model) if mode is None and "*" not in model else mode
    if (why := _refusal(name, prefix, model, mode)) is not None:
        given.skip(place, f"{printable(name)}: {why}")
        return None
    provider = RERANKERS.get(prefix, PROVIDERS[prefix]) if mode == "rerank" else PROVIDERS[prefix]
    credential = _credential(given, params)
    settings = _settings(given, params, provider, credential)
    if settings is None:
        given.skip(place, f"{printable(name)}: has no api_base")
        return None
    wings = parts(SimpleNamespace, "from_litellm")
    convert = next((each.kinds[prefix] for each in wings if prefix in each.kinds), None)
    made = convert(given, place, credential, model, mode, settings) if convert is not None else None
    if isinstance(made, str):
        given.skip(place, f"{printable(name)}: {made}")
        return None
    key = made and made.key
    if key is None and "auth" not in settings:
        key = _key(given, params, provider, settings, credential)
    endpoints = (made and made.endpoints) or _endpoints(prefix, provider, model, mode)
    found = Deployment(place, name, made.model if made else model, provider, settings, key, endpoints, prefix)
    if "generate_content" in endpoints and settings["base_url"] == provider.base_url:
        found.further.append(({"base_url": GEMINI.base_url}, key, model))
    found.further += [(more, key, each) for more, each in made.further] if made else []
    order, weight = given.take(*params, "order"), given.take(*params, "weight")
    found.order = order if isinstance(order, int) else None
    if isinstance(weight, int) and weight > 0:
        found.weight = weight
    elif weight is not None:
        given.note((*params, "weight"), "has to be a whole number here")
    return found


def _provider_and_model(sent: str, named: Any) -> tuple[str, str]:
    """The provider's name in the table or outside it, and the model's name there."""
    prefix, slash, rest = sent.partition("/")
    if isinstance(named, str) and (not slash or prefix not in PROVIDERS):
        return named, sent
    return (prefix, rest.removeprefix("models/")) if slash else (provider_without_prefix(sent), sent)


def _refusal(name: str, prefix: str, model: str, mode: Any) -> str | None:
    """The reason that an entry cannot be converted, and the remedy; None: it can."""
    if prefix not in PROVIDERS:
        return (
            f"{printable(prefix)} is not converted: write its upstream by hand, or keep LiteLLM as an upstream for it"
        )
    is_named_otherwise = "*" in model and name != "*" and not name.endswith(model)
    if is_named_otherwise or ("*" in name and "*" not in model):
        return "this pattern does not name the model at the provider; write a model for each name"
    if mode is not None and mode not in MODES:
        return f"the gateway has no endpoint for {printable(str(mode))}; keep LiteLLM as an upstream for it"
    if mode == "rerank" and prefix in OTHER_RERANKS:
        return f"reranks of {prefix} have a form of their own; keep LiteLLM as an upstream for it"
    return None


def _credential(given: Given, params: Place) -> tuple[Place, Mapping[str, Any]]:
    """The values of the credential that an entry names, and their place."""
    name = given.take(*params, "litellm_credential_name")
    listed = given.values.get("credential_list")
    for index, each in enumerate(listed if isinstance(listed, list) else []):
        if name is not None and section_of(each).get("credential_name") == name:
            given.take("credential_list", index)
            return ("credential_list", index, "credential_values"), section_of(each, "credential_values")
    if name is not None:
        given.note(
            (*params, "litellm_credential_name"),
            "is not in credential_list: it is in LiteLLM's database; write its key here",
        )
    return (), {}


def _settings(
    given: Given, params: Place, provider: Provider, credential: tuple[Place, Mapping[str, Any]]
) -> dict[str, Any] | None:
    base = given.take(*params, "api_base") or given.take(*params, "base_url") or credential[1].get("api_base")
    base = given.plain(base) or provider.base_url
    if base is None:
        return None
    base = str(base).rstrip("/")
    if provider.suffix and not base.endswith(provider.suffix):
        base = re.sub(r"/openai(/deployments/.*)?$|/v1$", "", base) + provider.suffix
    settings: dict[str, Any] = {"base_url": base, **provider.settings}
    if provider.base_url is not None and base != provider.base_url:
        settings.pop("provider", None)  # another server, with prices of its own
    if (organization := given.take(*params, "organization")) is not None:
        settings["headers"] = {"OpenAI-Organization": given.plain(organization)}
    headers = given.take(*params, "extra_headers")
    for header, value in headers.items() if isinstance(headers, dict) else ():
        variable = re.sub(r"\W", "_", f"{_name_of(base, given.done.values['upstreams'])}_{header}").upper()
        settings["headers"] = {
            **settings.get("headers", {}),
            str(header): given.reference((*params, "extra_headers", header), value, variable),
        }
    if (timeout := given.take(*params, "timeout")) is not None:
        settings["timeouts"] = {"total_s": given.plain(timeout)}
    return settings


def _key(
    given: Given, params: Place, provider: Provider, settings: Mapping[str, Any],
    credential: tuple[Place, Mapping[str, Any]],
) -> str | None:  # fmt: skip
    own, (place, values) = given.take(*params, "api_key"), credential
    variable = re.sub(r"\W", "_", f"{_name_of(settings['base_url'], given.done.values['upstreams'])}_API_KEY").upper()
    if own is not None:
        return given.reference((*params, "api_key"), own, variable)
    if values.get("api_key") is not None:
        return given.reference((*place, "api_key"), values["api_key"], variable)
    if provider.key_variable and (settings["base_url"] == provider.base_url or provider.table == "azure"):
        return given.variable(provider.key_variable)
    return None


def _endpoints(prefix: str, provider: Provider, model: str, mode: Any) -> Sequence[str]:
    """The endpoints of an entry. A pattern of every model of OpenAI has all of them."""
    if mode is None and model == "*" and prefix == "openai":
        return OF_OPENAI
    if mode is None and "*" in model:
        embeds = provider.settings.get("capabilities", {}).get("embeddings", True)
        return (*provider.chats, *(["embeddings"] if embeds else []))
    if mode in (None, OF_CHATS):
        return provider.chats
    return MODES[mode]


# ------------------------------------------------------------------------------------------------- into the result


def _add(
    given: Given, each: Deployment, sent: Sequence[tuple[str, str]], made: _Upstreams, find_price: FindPrice
) -> None:
    """Add the routes of an entry, by its upstreams and its names there, and its settings; or share another's."""
    model = given.done.values["models"].setdefault(each.name, {"routes": []})
    for upstream, name in sent:
        route: dict[str, Any] = {"upstream": upstream}
        if "*" not in name and name != each.name:
            route["model"] = name
        if each.order is not None:
            route["priority"] = each.order
        if each.weight is not None:
            route["weight"] = each.weight
        if not any(_leads_alike(route, known) for known in model["routes"]):
            model["routes"].append(route)
    if "*" in each.model and each.name != each.model and each.name.endswith(each.model) and each.name != "*":
        model["strip_prefix"] = each.name.removesuffix(each.model)
    model["endpoints"] = list(dict.fromkeys([*model.get("endpoints", []), *each.endpoints]))
    params = (*each.place, "litellm_params")
    limit = given.take(*each.place, "model_info", "max_output_tokens") or given.take(*params, "max_tokens")
    if isinstance(limit, int) and limit > 0:
        model["max_output_tokens"] = limit
    _price(given, each, model, find_price)
    for wing in parts(SimpleNamespace, "from_litellm"):
        if (amend := getattr(wing, "amend", None)) is not None:
            amend(given, each.place, each.name, each.endpoints)
    _limits(given, params, made.settings[model["routes"][-1]["upstream"] if not sent else sent[0][0]], each.model)


def _leads_alike(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return all(one.get(part) == other.get(part) for part in ("upstream", "model"))


def _price(given: Given, each: Deployment, model: dict[str, Any], find_price: FindPrice) -> None:
    price: dict[str, Any] = {}
    for section in ("litellm_params", "model_info"):
        for name, (ours, factor) in COSTS.items():
            if (cost := number_of(given.take(*each.place, section, name))) is not None:
                price[ours] = plain(round(cost * factor, 9))
    base = given.take(*each.place, "model_info", "base_model")
    if "price" in model:
        return
    is_of_text = bool(OF_TEXT.intersection(each.endpoints))
    if price and is_of_text and not {"input", "output"} <= price.keys():
        given.note(each.place, "has a price for input or output alone; write the other one into models.NAME.price")
    elif price and (is_of_text or "input" in price or not {"output", "cached_input"} & price.keys()):
        model["price"] = price
    elif not price and isinstance(base, str) and each.provider.table:
        _table_price(given, each, model, base.rpartition("/")[2], find_price)
    elif not price and each.provider is PROVIDERS["openai"] and [*each.endpoints] == ["moderations"]:
        model["price"] = {"input": 0, "output": 0}  # "free to use" (OpenAI's guide "Moderation")
    elif not price and each.provider.is_own:
        model["price"] = {"input": 0, "output": 0}
        why = "is a server of your own, which costs nothing, as for LiteLLM; write models.NAME.price if it does"
        given.note(each.place, why)


def _table_price(given: Given, each: Deployment, model: dict[str, Any], base: str, find_price: FindPrice) -> None:
    """The price of the model that a deployment with another name is of."""
    place = (*each.place, "model_info", "base_model")
    if find_price(each.provider.table, each.model) is not None:
        return
    found = find_price(each.provider.table, base)
    if found is None:
        given.note(place, "is not in the price table either; write models.NAME.price")
        return
    model["price"] = _as_written(found)
    given.note(place, "has the price of the price table, as of today, in models.NAME.price")


def _as_written(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _as_written(item) for name, item in value.items() if name != "source"}
    if isinstance(value, list | tuple):
        return [_as_written(item) for item in value]
    number = number_of(value)
    return value if number is None else plain(number)


def _limits(given: Given, params: Place, settings: dict[str, Any], model: str) -> None:
    """Rates of an entry as limits of the upstream; those of several keys of one account are added."""
    for name, ours in (("rpm", "requests"), ("tpm", "tokens")):
        value = given.take(*params, name)
        if isinstance(value, int) and value > 0:
            limits = settings.setdefault("limits", {}).setdefault("per_model", {}).setdefault(model, {})
            before = int(str(limits.get(ours, "0/min")).partition("/")[0]) if "api_keys" in settings else 0
            if before or ours not in limits:
                limits[ours] = f"{before + value}/min"


def _name_of(base_url: str, taken: Mapping[str, Any]) -> str:
    host = "" if "${" in base_url else urlsplit(base_url).hostname or ""
    host = next((name for part, name in CLOUD_HOSTS.items() if part in base_url), host)
    labels = [label for label in host.split(".") if label not in ("api", "www")]
    plain_host = not labels or not labels[0] or re.fullmatch(r"[\d.]+", host)
    name = "upstream" if plain_host else labels[0 if len(labels) < 3 or host.endswith(".azure.com") else -2]
    name = re.sub(r"[^\w-]", "-", name)
    number, found = 2, name
    while found in taken:
        found, number = f"{name}-{number}", number + 1
    return found


def unpriced(values: Mapping[str, Any]) -> Iterator[str]:
    """The names of models that have no price, after those of the table were filled in."""
    for name, model in values["models"].items():
        if model.get("price") is None and not model.get("table_prices"):
            yield name
