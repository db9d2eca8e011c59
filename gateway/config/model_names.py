"""Which model serves a name that a client asks for: the one of this very name, else the most specific pattern.

A name of the section `models` that holds `*` is a pattern: `*` matches any characters, also none. Every other
character matches itself, because names of models hold `?` and `[`. The most specific pattern has the most characters
beside `*`; of equals, the longer text before its first `*`; then the first in the file.

An alias is a further name of one model. It counts before every pattern and leads to a model, never to another alias.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase, translate
from functools import lru_cache
from glob import escape
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from .sections import Model

WILDCARD = "*"

MAX_KEPT_NAMES = 1024
"""Names under patterns whose settings are kept ready."""


class NamedModel(NamedTuple):
    """The model that serves a name."""

    name: str
    """The model's real name."""
    model: Model
    """Its settings; routes have the name that is sent, where it is not this one."""
    is_configured: bool
    """The name is in the configuration. Any other one may have been invented by a client."""
    alias: str | None = None
    """The name that was asked for, where it is an alias; of a fallback, the name of the model that it replaces."""


class ModelTable:
    """The models of a configuration, by the names that clients ask for."""

    def __init__(self, models: Mapping[str, Model], aliases: Mapping[str, str] = {}) -> None:
        self._configured = {
            name: NamedModel(name, served_as(model, name), True)
            for name, model in models.items()
            if not is_pattern(name)
        }
        self._patterns = [(compiled(name), models[name]) for name in most_specific_first(models)]
        self._under_pattern = lru_cache(MAX_KEPT_NAMES)(self._look_up)
        self._fallback = lru_cache(MAX_KEPT_NAMES)(self._look_up_fallback)
        self._configured |= {
            alias: _by_alias(found, alias)
            for alias, name in aliases.items()
            if (found := self.find(name)) is not None and alias not in self._configured
        }

    def find(self, name: str) -> NamedModel | None:
        """The model that serves this name; None: none does."""
        return self._configured.get(name) or self._under_pattern(name)

    def fallbacks(self, found: NamedModel) -> list[NamedModel]:
        """The models that serve a call instead of this one, in this order. Their own fallbacks do not count."""
        others = [self._fallback(name, found.name) for name in found.model.fallbacks if name != found.name]
        return [other for other in others if other is not None]

    def _look_up_fallback(self, name: str, instead_of: str) -> NamedModel | None:
        found = self.find(name)
        return None if found is None else _by_alias(found, instead_of)

    def _look_up(self, name: str) -> NamedModel | None:
        for pattern, model in self._patterns:
            if pattern.match(name) and name != model.strip_prefix:
                return NamedModel(name, served_as(model, name), False)
        return None


def _by_alias(found: NamedModel, alias: str) -> NamedModel:
    return NamedModel(found.name, _with_sent_name(found.model, found.name), True, alias)


def is_pattern(name: str) -> bool:
    """Whether a name of the section `models` matches many."""
    return WILDCARD in name


def most_specific_first(names: Iterable[str]) -> list[str]:
    """The patterns among these names; the first one that matches counts."""
    patterns = [name for name in names if is_pattern(name)]
    return sorted(patterns, key=lambda name: (-len(name.replace(WILDCARD, "")), -name.index(WILDCARD)))


def compiled(pattern: str) -> re.Pattern[str]:
    """The expression that matches the pattern's names, in linear time."""
    return re.compile(translate(re.sub(r"[\[?]", r"[\g<0>]", pattern)))


def served_as(model: Model, name: str) -> Model:
    """The settings for one name: `strip_prefix` is taken off what is sent to routes without a name of their own."""
    if model.price is None and (price := model.table_prices.get(name)) is not None:
        model = model.model_copy(update={"price": price})
    if model.strip_prefix is None:
        return model
    return _with_sent_name(model, name.removeprefix(model.strip_prefix))


def _with_sent_name(model: Model, sent: str) -> Model:
    """The same, where each route has a name."""
    routes = tuple(
        route if route.model is not None else route.model_copy(update={"model": sent}) for route in model.routes
    )
    return model.model_copy(update={"routes": routes})


def with_targets(globs: Iterable[str], aliases: Mapping[str, str]) -> tuple[str, ...]:
    """Patterns of a key, and the models that it may use through aliases that they match."""
    given = tuple(globs)
    targets = [name for alias, name in aliases.items() if any(fnmatchcase(alias, glob) for glob in given)]
    return (*given, *(escape(name) for name in targets))


def may_overlap(pattern: str, glob: str) -> bool:
    """Whether some name matches both: a pattern of models, and one of keys or quotas (`fnmatch`).

    A set such as `[ab]` counts as any character, so the answer may be yes where it should be no.
    """
    one, other = pattern, re.sub(r"\[.[^]]*\]", "?", glob)
    # reachable[j]: some text matches the part of `one` that was read, and the first j characters of `other`
    reachable = _skip_stars({0}, other)
    for sign in one:
        if sign == WILDCARD:
            reachable = set(range(min(reachable), len(other) + 1)) if reachable else set()
            continue
        step = {j + 1 for j in reachable if j < len(other) and other[j] in (sign, "?")}
        step |= {j for j in reachable if j < len(other) and other[j] == WILDCARD}
        reachable = _skip_stars(step, other)
    return len(other) in reachable


def _skip_stars(places: set[int], text: str) -> set[int]:
    found = set(places)
    for place in sorted(places):
        stars = len(text) - place - len(text[place:].lstrip(WILDCARD))
        found.update(range(place, place + stars + 1))
    return found
