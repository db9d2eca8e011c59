"""The models that upstreams list, as settings: what an operator would have written for each of them.

A name or pattern under `models` is served as it is written there: an exact name keeps its settings, and a name under a
pattern gets those of the pattern. Any other one that an upstream lists gets a route to each upstream that lists it,
and the settings of `defaults.models`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any

from .model_names import compiled, is_pattern, most_specific_first
from .price_table import with_table_prices
from .sections import BAD_SIGNS, Config, Discovery

MAX_NAMES = 2000
"""Names accepted from one upstream; the largest known list has some 600."""
MAX_NAME_CHARS = 256
"""Characters of a model's name, as many as a client may request."""

_RESERVED = frozenset({"other"})
"""The name in sums and metrics for all names that have no row of their own."""


def usable(names: Iterable[Any]) -> tuple[str, ...]:
    """The names of an upstream's list that can be served, sorted, at most `MAX_NAMES`. The list may be hostile."""
    found = {name for name in names if isinstance(name, str) and _is_usable(name)}
    return tuple(sorted(found)[:MAX_NAMES])


def _is_usable(name: str) -> bool:
    is_short = 0 < len(name) <= MAX_NAME_CHARS
    return is_short and not is_pattern(name) and name not in _RESERVED and BAD_SIGNS.search(name) is None


def is_wanted(name: str, settings: Discovery) -> bool:
    """Whether this name is among those to include, and not among those to exclude."""
    return _matches(name, settings.include) and not _matches(name, settings.exclude)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def discovering(config: Config) -> Iterator[tuple[str, Discovery]]:
    for name, upstream in config.upstreams.items():
        if upstream.discover is not None:
            yield name, upstream.discover


def with_discovered(values: Mapping[str, Any], config: Config, found: Mapping[str, Iterable[str]]) -> dict[str, Any]:
    """The plain values that `config` was built from, with the models that upstreams list: `found`, by upstream."""
    models: dict[str, Any] = dict(values.get("models") or {})
    given, patterns = frozenset(models), [(compiled(name), name) for name in most_specific_first(models)]
    for upstream, settings in discovering(config):
        for name in found.get(upstream, ()):
            if name in given or name in config.aliases or not is_wanted(name, settings):
                continue
            pattern = next((pattern for matches, pattern in patterns if matches.match(name)), None)
            if pattern is not None:
                if name == models[pattern].get("strip_prefix"):
                    continue  # nothing would be left of it
                models[name] = _under_pattern(models[pattern], name)
            else:
                known = models.get(name, {"routes": []})
                models[name] = {**known, "routes": [*known["routes"], {"upstream": upstream}]}
    return {**values, "models": models}


def _under_pattern(pattern: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The settings of one name under a pattern, with its own price of the table."""
    model = dict(pattern)
    if "fallbacks" in model:
        model["fallbacks"] = [other for other in model["fallbacks"] if other != name]
    if (prices := model.pop("table_prices", None)) is not None:
        model["price"] = prices.get(name)
    return model


def with_prices(values: Mapping[str, Any], before: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """Plain values, with the table's prices for models that `before` does not have and that have no price. Raises
    `ConfigError`."""
    known = before.get("models") or {}
    added = {name: model for name, model in values["models"].items() if name not in known and "price" not in model}
    priced = with_table_prices({**values, "models": added}, now)
    return {**values, "models": {**values["models"], **priced["models"]}}
