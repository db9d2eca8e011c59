"""A configuration out of that of LiteLLM's proxy: what can be converted, and a note for each thing that cannot.

The meaning of its settings is that of its public documentation (https://docs.litellm.ai/docs/proxy/configs and
/docs/proxy/config_settings, as of October 2026). Keys and teams are in its database and not in the file. A secret that
is in the file is not copied: the result names a variable for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from .faults import ConfigError, ConfigFault, format_faults, printable
from .include import Assembled, Place
from .references import load
from .sections import Model


class Provider(NamedTuple):
    """A provider with OpenAI's API."""

    base_url: str | None
    """None: each entry has its own in `api_base`."""
    key_variable: str | None
    """Where LiteLLM finds the key of an entry that has none."""
    suffix: str = ""
    """The path of its OpenAI-compatible API below `api_base`."""


PROVIDERS: Mapping[str, Provider] = {
    "openai": Provider("https://api.openai.com/v1", "OPENAI_API_KEY"),
    "text-completion-openai": Provider("https://api.openai.com/v1", "OPENAI_API_KEY"),
    "openrouter": Provider("https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
    "groq": Provider("https://api.groq.com/openai/v1", "GROQ_API_KEY"),
    "mistral": Provider("https://api.mistral.ai/v1", "MISTRAL_API_KEY"),
    "together_ai": Provider("https://api.together.xyz/v1", "TOGETHERAI_API_KEY"),
    "deepseek": Provider("https://api.deepseek.com/v1", "DEEPSEEK_API_KEY"),
    "xai": Provider("https://api.x.ai/v1", "XAI_API_KEY"),
    "fireworks_ai": Provider("https://api.fireworks.ai/inference/v1", "FIREWORKS_AI_API_KEY"),
    "hosted_vllm": Provider(None, None),
    "custom_openai": Provider(None, None),
    "openai_like": Provider(None, None),
    "lm_studio": Provider(None, None),
    "litellm_proxy": Provider(None, None),
    "ollama": Provider("http://localhost:11434", None, "/v1"),
    "ollama_chat": Provider("http://localhost:11434", None, "/v1"),
}

ENDPOINTS: Mapping[str, str] = {"chat": "chat", "completion": "completions", "embedding": "embeddings"}
"""Endpoints by `model_info.mode`."""

PERIODS: Mapping[str, str] = {
    "1d": "day", "24h": "day", "daily": "day", "7d": "week", "1w": "week", "weekly": "week", "30d": "month",
    "1mo": "month", "monthly": "month",
}  # fmt: skip
"""Periods of quotas by `budget_duration`."""

MAX_OUTPUT_TOKENS = 4096
MAX_ATTEMPTS = 10

WHY: Mapping[str, str] = {
    "database_url": "keys and spend are in the store of this gateway (store.url); see docs/from-litellm.md#keys",
    "routing_strategy": "routes go by priority, then weight, then the fewest calls under way",
    "allowed_fails": "each upstream and model has a circuit breaker with fixed rules",
    "cooldown_time": "each upstream and model has a circuit breaker with fixed rules",
    "success_callback": "metrics for Prometheus are always there; for traces see tracing.endpoint",
    "failure_callback": "metrics for Prometheus are always there; for traces see tracing.endpoint",
    "callbacks": "metrics for Prometheus are always there; for traces see tracing.endpoint",
    "cache": "answers are not cached",
    "cache_params": "answers are not cached",
    "drop_params": "nothing is dropped: a call goes where it can be served (upstreams.NAME.capabilities)",
    "alerting": "see alerts.webhook",
    "enable_pre_call_checks": "every parameter is checked before money is spent",
    "environment_variables": "set them in the environment of the gateway",
    "default_fallbacks": "name fallbacks for each model",
    "stream_timeout": "see upstreams.NAME.timeouts.idle_s",
    "max_parallel_requests": "see upstreams.NAME.limits.parallel, and max_parallel of a key",
    "api_version": "the gateway sends no api-version",
    "include": "convert each file; the gateway has include: as well",
}
NO_COUNTERPART = "has no counterpart"

_VARIABLE = re.compile(r"os\.environ/(\w+)")


@dataclass(slots=True)
class Converted:
    """The result of converting a file."""

    values: dict[str, Any] = field(default_factory=dict)
    notes: list[ConfigFault] = field(default_factory=list)
    """Settings that could not be converted, or mean something else here, with their lines; in the order of the file."""
    variables: dict[str, None] = field(default_factory=dict)
    """The environment variables that the result names, in order."""


def convert(text: str, file: str) -> Converted:
    """Convert a file of LiteLLM's proxy. Raises `ConfigError` where it is no such file or nothing can be served."""
    values = load(text)
    if not isinstance(values.get("model_list"), list):
        raise ConfigError([ConfigFault("model_list", "is not there: expected a configuration of LiteLLM's proxy")])
    converter = _Converter(values, Assembled(texts={file: text}), file)
    converter.convert()
    converter.done.notes.sort(key=lambda note: note.line)
    if not converter.done.values.get("models"):
        raise ConfigError([*converter.done.notes, ConfigFault("model_list", "holds no model that can be converted")])
    return converter.done


class _Converter:
    def __init__(self, given: Mapping[Any, Any], whole: Assembled, file: str) -> None:
        self._given = given
        self._whole = whole
        self._file = file
        self._named = set(_VARIABLE.findall(whole.texts[file]))
        """The variables that the file names."""
        self._invented: dict[str, str] = {}
        """Variables for secrets of the file, by the secret."""
        self._used: set[Place] = set()
        self._upstreams: dict[tuple[Any, ...], str] = {}
        """The names of upstreams by address, headers and keys."""
        self.done = Converted({"upstreams": {}, "models": {}})

    def convert(self) -> None:
        for index, entry in enumerate(self._given["model_list"]):
            self._model(index, entry if isinstance(entry, dict) else {})
        if not self.done.values["models"]:
            self._note_the_rest()
            return
        self._settings()
        self._note_the_rest()

    # ----------------------------------------------------------------------------------------------------- helpers

    def _note(self, place: Place, why: str) -> None:
        line = self._whole.line_of(self._file, place)
        self.done.notes.append(ConfigFault(format_faults(place), why, self._file, line))

    def _take(self, *place: str | int) -> Any:
        """A value, which counts as converted."""
        value: Any = self._given
        for part in place:
            if not isinstance(value, dict | list) or (isinstance(value, dict) and part not in value):
                return None
            value = value[part]  # type: ignore[index]
        self._used.add(place)
        return value

    def _reference(self, place: Place, value: Any, variable: str) -> str:
        """`${NAME}` for a value that is a secret or may be one."""
        if isinstance(value, str) and (found := _VARIABLE.fullmatch(value.strip())):
            variable = found[1]
        else:
            variable = self._invented.setdefault(str(value), self._unused(variable))
            self._note(place, f"a secret in the file is not copied: put it into the environment variable {variable}")
        self.done.variables.setdefault(variable)
        return f"${{{variable}}}"

    def _unused(self, variable: str) -> str:
        """The name, with a number behind it where the file names such a variable or another secret has it."""
        number, found = 2, variable
        while found in self._named or found in self._invented.values():
            found, number = f"{variable}_{number}", number + 1
        return found

    def _plain(self, value: Any) -> Any:
        """A value that is no secret; it may come from the environment."""
        if isinstance(value, str) and (found := _VARIABLE.fullmatch(value.strip())):
            self.done.variables.setdefault(found[1])
            return f"${{{found[1]}}}"
        return value

    # ------------------------------------------------------------------------------------------------------ models

    def _model(self, index: int, entry: Mapping[str, Any]) -> None:
        place: Place = ("model_list", index)
        name = self._take(*place, "model_name")
        sent = self._take(*place, "litellm_params", "model")
        if not isinstance(name, str) or not isinstance(sent, str):
            self._skip(place, "has no model_name or no litellm_params.model")
            return
        mode = self._take(*place, "model_info", "mode")
        if mode is not None and mode not in ENDPOINTS:
            self._skip(place, f"{printable(name)}: the gateway serves completions, chat and embeddings, and no {mode}")
            return
        prefix, slash, rest = sent.partition("/")
        provider = PROVIDERS.get(prefix) if slash else PROVIDERS["openai"]
        if (
            provider is None
            and self._given["model_list"][index]["litellm_params"].get("custom_llm_provider") == "openai"
        ):
            self._take(*place, "litellm_params", "custom_llm_provider")
            provider, rest = PROVIDERS["openai"], sent
        if provider is None:
            self._skip(
                place,
                f"{printable(name)}: {printable(prefix)} is not OpenAI-compatible; keep LiteLLM as an upstream for it",
            )
            return
        upstream = self._upstream(place, provider)
        if upstream is None:
            return
        self._add_route(place, name, upstream, rest if slash else sent, mode)

    def _skip(self, place: Place, why: str) -> None:
        self._note(place, why)
        self._used.add(place)

    def _upstream(self, place: Place, provider: Provider) -> str | None:
        base = self._take(*place, "litellm_params", "api_base") or self._take(*place, "litellm_params", "base_url")
        base = self._plain(base) or provider.base_url
        if base is None:
            self._skip(place, "has no api_base")
            return None
        base = str(base).rstrip("/")
        if provider.suffix and not base.endswith(provider.suffix):
            base += provider.suffix
        name = _name_of(base, set(self.done.values["upstreams"]))
        settings: dict[str, Any] = {"base_url": base}
        given = self._take(*place, "litellm_params", "api_key")
        if given is not None:
            variable = re.sub(r"\W", "_", f"{name}_API_KEY").upper()
            settings["api_key"] = self._reference((*place, "litellm_params", "api_key"), given, variable)
        elif provider.key_variable and base == provider.base_url:
            self.done.variables.setdefault(provider.key_variable)
            settings["api_key"] = f"${{{provider.key_variable}}}"
        if (organization := self._take(*place, "litellm_params", "organization")) is not None:
            settings["headers"] = {"OpenAI-Organization": self._plain(organization)}
        if (headers := self._take(*place, "litellm_params", "extra_headers")) is not None and isinstance(headers, dict):
            for header, value in headers.items():
                where = (*place, "litellm_params", "extra_headers", header)
                variable = re.sub(r"\W", "_", f"{name}_{header}").upper()
                settings.setdefault("headers", {})[str(header)] = self._reference(where, value, variable)
        if provider.suffix:
            settings["capabilities"] = {"max_tokens_field": "max_tokens"}
        if (timeout := self._take(*place, "litellm_params", "timeout")) is not None:
            settings["timeouts"] = {"total_s": self._plain(timeout)}
        identity = repr(settings)
        if (known := self._upstreams.get((identity,))) is not None:
            return known
        self._upstreams[identity,] = name
        self.done.values["upstreams"][name] = settings
        return name

    def _add_route(self, place: Place, name: str, upstream: str, sent: str, mode: Any) -> None:
        params = (*place, "litellm_params")
        model = self.done.values["models"].setdefault(name, {"routes": []})
        route: dict[str, Any] = {"upstream": upstream}
        if "*" not in sent and sent != name:
            route["model"] = sent
        if (order := self._take(*params, "order")) is not None:
            route["priority"] = order
        if (weight := self._take(*params, "weight")) is not None:
            if isinstance(weight, int) and weight > 0:
                route["weight"] = weight
            else:
                self._note((*params, "weight"), "has to be a whole number here")
        if {key: route.get(key) for key in ("upstream", "model")} in [
            {key: known.get(key) for key in ("upstream", "model")} for known in model["routes"]
        ]:
            self._note(place, f"{printable(name)} leads to the same place as another entry; it is there once")
        else:
            model["routes"].append(route)
        if name.endswith("/*") and sent == "*":
            model["strip_prefix"] = name[:-1]
        if mode is not None:
            model["endpoints"] = list(dict.fromkeys([*model.get("endpoints", []), ENDPOINTS[mode]]))
        limit = self._take(*place, "model_info", "max_output_tokens") or self._take(*params, "max_tokens")
        if isinstance(limit, int):
            model["max_output_tokens"] = limit
        self._price(place, model, mode)
        self._limits(params, upstream, sent)

    def _price(self, place: Place, model: dict[str, Any], mode: Any) -> None:
        price: dict[str, Any] = {}
        for section in ("litellm_params", "model_info"):
            for name, ours in (
                ("input_cost_per_token", "input"), ("output_cost_per_token", "output"),
                ("cache_read_input_token_cost", "cached_input"),
            ):  # fmt: skip
                if (cost := self._take(*place, section, name)) is not None and (usd := _per_million(cost)) is not None:
                    price[ours] = usd
        if not price or "price" in model:
            return
        if "input" not in price or ("output" not in price and mode != "embedding"):
            self._note(place, "has a price for input or output alone; write the other one into models.NAME.price")
            return
        model["price"] = price

    def _limits(self, params: Place, upstream: str, sent: str) -> None:
        limits: dict[str, Any] = {}
        for name, ours in (("rpm", "requests"), ("tpm", "tokens")):
            value = self._take(*params, name)
            if isinstance(value, int) and value > 0:
                limits[ours] = f"{value}/min"
        if limits:
            settings = self.done.values["upstreams"][upstream]
            per_model = settings.setdefault("limits", {}).setdefault("per_model", {})
            per_model.setdefault(sent, limits)

    # ---------------------------------------------------------------------------------------------- other sections

    def _settings(self) -> None:
        values = self.done.values
        defaults: dict[str, Any] = {"max_output_tokens": MAX_OUTPUT_TOKENS}
        if (master := self._take("general_settings", "master_key")) is not None:
            token = self._reference(("general_settings", "master_key"), master, "LITELLM_MASTER_KEY")
            values["admin"] = {"token": token}
            self._note(("general_settings", "master_key"), "opens the admin API here, and no model")
        if isinstance(size := self._take("general_settings", "max_request_size_mb"), int | float):
            values.setdefault("server", {})["max_request_bytes"] = f"{size:g}MB"
        if isinstance(number := self._take("general_settings", "global_max_parallel_requests"), int):
            values.setdefault("server", {})["max_in_flight"] = number
        for section in ("litellm_settings", "router_settings"):
            if isinstance(retries := self._take(section, "num_retries"), int):
                defaults["max_attempts"] = min(MAX_ATTEMPTS, retries + 1)
            seconds = self._take(section, "timeout" if section == "router_settings" else "request_timeout")
            if isinstance(seconds, int | float) and seconds > 0:
                for upstream in values["upstreams"].values():
                    upstream.setdefault("timeouts", {}).setdefault("total_s", seconds)
            self._fallbacks(section)
        self._budget()
        if "quotas" in values:
            defaults["unpriced"] = "allow"
        self._aliases()
        self._store()
        # The defaults come first: they are about every model.
        values["defaults"] = {"models": defaults}
        values["models"] = values.pop("models")

    def _fallbacks(self, section: str) -> None:
        for kind in ("fallbacks", "context_window_fallbacks"):
            entries = self._take(section, kind)
            for index, entry in enumerate(entries if isinstance(entries, list) else []):
                for name, others in entry.items() if isinstance(entry, dict) else ():
                    place: Place = (section, kind, index)
                    model = self.done.values["models"].get(name)
                    found = (
                        [each for each in others if each in self.done.values["models"]]
                        if isinstance(others, list)
                        else []
                    )
                    if model is None or len(found) != len(others) or "fallbacks" not in Model.model_fields:
                        self._note(
                            place,
                            f"{printable(str(name))}: a model of it is not there, or fallbacks have no counterpart",
                        )
                    if model is not None and found and "fallbacks" in Model.model_fields:
                        model["fallbacks"] = list(dict.fromkeys([*model.get("fallbacks", []), *found]))

    def _budget(self) -> None:
        budget = self._take("litellm_settings", "max_budget")
        duration = self._take("litellm_settings", "budget_duration")
        if not isinstance(budget, int | float) or budget <= 0:
            return
        per = PERIODS.get(str(duration), duration or "month")
        self.done.values["quotas"] = [{"usd": budget, "per": per}]
        if any("price" not in model for model in self.done.values["models"].values()):
            self._note(
                ("litellm_settings", "max_budget"),
                "calls of models without a price are allowed and not counted (defaults.models.unpriced)",
            )
        place: Place = ("litellm_settings", "budget_duration" if duration else "max_budget")
        self._note(
            place, f"is per {per} here" + (", by the calendar in UTC" if per in ("day", "week", "month") else "")
        )

    def _aliases(self) -> None:
        aliases = self._take("router_settings", "model_group_alias")
        for name, given in aliases.items() if isinstance(aliases, dict) else ():
            place: Place = ("router_settings", "model_group_alias", name)
            target = given.get("model") if isinstance(given, dict) else given
            if target in self.done.values["models"] and name not in self.done.values["models"]:
                self.done.values.setdefault("aliases", {})[name] = target
            else:
                self._note(place, f"leads to {printable(str(target))}, which is no model here, or is a model itself")

    def _store(self) -> None:
        given = {
            name: self._take("router_settings", f"redis_{name}")
            for name in ("url", "host", "port", "password", "username")
        }
        if given["url"] is not None:
            self.done.values["store"] = {
                "url": self._reference(("router_settings", "redis_url"), given["url"], "REDIS_URL")
            }
        elif given["host"] is not None:
            login = ""
            if given["password"] is not None:
                word = self._reference(("router_settings", "redis_password"), given["password"], "REDIS_PASSWORD")
                login = f"{self._plain(given['username']) or ''}:{word}@"
            url = f"redis://{login}{self._plain(given['host'])}:{self._plain(given['port']) or 6379}/0"
            self.done.values["store"] = {"url": url}
        if "store" in self.done.values:
            place: Place = ("router_settings", "redis_url" if given["url"] is not None else "redis_host")
            self._note(place, "holds keys, quotas and usage here, not only a cache: it needs an append-only file")

    # ---------------------------------------------------------------------------------------------------- the rest

    def _note_the_rest(self) -> None:
        for place, _ in _leaves(self._given, ()):
            if not any(place[:length] in self._used for length in range(1, len(place) + 1)):
                why = next((WHY[str(part)] for part in reversed(place) if str(part) in WHY), NO_COUNTERPART)
                self._note(place, why)


def _leaves(value: Any, place: Place) -> Iterator[tuple[Place, Any]]:
    """The settings of the sections, and of the entries of `model_list`, two levels deeper."""
    depth = 4 if place[:1] == ("model_list",) else 2
    if isinstance(value, dict) and value and len(place) < depth:
        for name, item in value.items():
            yield from _leaves(item, (*place, str(name)))
    elif isinstance(value, list) and place == ("model_list",):
        for index, item in enumerate(value):
            yield from _leaves(item, (*place, index))
    elif value not in (None, {}, []):
        yield place, value


def _per_million(cost: Any) -> Any:
    """USD per million tokens from USD per token; exact."""
    try:
        usd = Decimal(str(cost)) * 1_000_000
    except InvalidOperation:
        return None
    return int(usd) if usd == int(usd) else float(usd)


def _name_of(base_url: str, taken: set[str]) -> str:
    host = "" if "${" in base_url else urlsplit(base_url).hostname or ""
    labels = [label for label in host.split(".") if label not in ("api", "www")]
    name = (
        "upstream"
        if not labels or not labels[0] or re.fullmatch(r"[\d.]+", host)
        else labels[0 if len(labels) < 3 else -2]
    )
    name = re.sub(r"[^\w-]", "-", name)
    number = 2
    found = name
    while found in taken:
        found, number = f"{name}-{number}", number + 1
    return found
