"""The section `parameters`: members and headers of requests that the gateway sets, adds or removes, by the name of the
model that was asked for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, model_validator

from gateway.config.faults import ConfigFault, format_faults, printable
from gateway.config.model_names import is_pattern
from gateway.config.sections import Config, Section
from gateway.config.sections.values import OWN_HEADERS, plain_headers
from gateway.config.wings import WingSection, endpoint_names

_PATH = re.compile(r"[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+){0,7}")

REFUSED = {
    "model": "aliases give a model another name",
    "stream": "the client would get another kind of answer than it reads",
}
"""Members that have to stay as the client sent them, and why."""

KEYS = frozenset({"x-api-key", "api-key", "x-goog-api-key", "cookie"})
"""Headers with which a request would be another account's."""

UNCHANGED = frozenset({"image_edits", "image_variations", "transcriptions", "translations", "realtime"})
"""Endpoints whose requests are forms or sessions, which keep their members."""


def _is_member(path: str) -> str:
    if _PATH.fullmatch(path) is None:
        raise ValueError("expected the name of a member: temperature, or reasoning.effort for one inside another")
    if (why := REFUSED.get(path.partition(".")[0])) is not None:
        raise ValueError(f"{path} cannot be changed here: {why}")
    return path


def _is_json(value: Any) -> Any:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        raise ValueError("expected a value that JSON has; write a date in quotes") from None
    return value


def _is_endpoint(value: Any) -> Any:
    names = endpoint_names()
    if value not in names:
        raise ValueError(f"expected {', '.join(map(repr, names[:-1]))} or {names[-1]!r}")
    return value


Endpoint = Annotated[str, BeforeValidator(_is_endpoint)]
Member = Annotated[str, AfterValidator(_is_member)]
Members = dict[Member, Annotated[Any, AfterValidator(_is_json)]]


class ParameterRule(Section):
    endpoints: tuple[Endpoint, ...] = ()
    """The endpoints whose requests it changes; empty: all but those that only count tokens."""
    set: Members = Field(default_factory=dict)
    """Members that every request gets, whatever the client sent. reasoning.effort is one inside another."""
    default: Members = Field(default_factory=dict)
    """Members for requests that lack them, or have null."""
    remove: tuple[Member, ...] = ()
    """Members that are taken out."""
    headers: dict[str, SecretStr] = Field(default_factory=dict)
    """Headers for the upstream in place of the client's; an empty one is left out."""

    @property
    def paths(self) -> tuple[str, ...]:
        return (*self.set, *self.default, *self.remove)

    @model_validator(mode="after")
    def _names_each_once(self) -> ParameterRule:
        for number, path in enumerate(self.paths):
            for other in self.paths[:number]:
                if path == other or f"{path}.".startswith(f"{other}.") or f"{other}.".startswith(f"{path}."):
                    raise ValueError(f"{other} and {path} change the same member; name it once in a rule")
        plain_headers(self.headers, OWN_HEADERS | KEYS)
        return self


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, dict) else value


class ParameterSettings(Section):
    models: dict[str, Annotated[tuple[ParameterRule, ...], BeforeValidator(_as_list)]] = Field(default_factory=dict)
    """One rule or several, by the name of a model or an alias, or a pattern of names."""


def known_names(config: Config) -> list[str]:
    return [*config.models, *config.aliases]


def faults_of(config: Config) -> Iterator[ConfigFault]:
    """Rules for a name that no client can ask for."""
    for name in config.section(ParameterSettings).models:
        if not is_pattern(name) and name not in config.aliases and config.model(name) is None:
            yield _fault((name,), f"there is no model or alias {printable(name)!r}")


def warnings_of(config: Config) -> Iterator[ConfigFault]:
    """Rules that do not hold for all calls that a reader may have in mind."""
    names = known_names(config)
    for name, rules in config.section(ParameterSettings).models.items():
        if is_pattern(name) and not any(fnmatchcase(each, name) or is_pattern(each) for each in names):
            yield _fault((name,), "matches no model and no alias")
        for number, rule in enumerate(rules):
            yield from _of_rule(config, (name, number), name, rule)
        yield from _of_endpoints(config, name, rules)
        others = [each for each, model in config.models.items() if name in model.fallbacks]
        if others and any(rule.paths for rule in rules):
            yield _fault(
                (name,), f"holds where {name} is asked for, not where it serves as a fallback of {', '.join(others)}"
            )


def _of_rule(config: Config, place: tuple[str | int, ...], name: str, rule: ParameterRule) -> Iterator[ConfigFault]:
    if not rule.paths and not rule.headers:
        yield _fault(place, "changes nothing")
    unchanged = sorted(UNCHANGED & {*(rule.endpoints or _served(config, name))})
    if rule.paths and unchanged:
        yield _fault(place, f"changes members, so calls at {', '.join(unchanged)} are refused; name other endpoints")
    for endpoint in rule.endpoints:
        if (served := _served(config, name)) and endpoint not in served:
            yield _fault((*place, "endpoints"), f"the model does not serve {endpoint}")


def _of_endpoints(config: Config, name: str, rules: tuple[ParameterRule, ...]) -> Iterator[ConfigFault]:
    held = {endpoint for rule in rules for endpoint in rule.endpoints}
    left = [each for each in _served(config, name) if each not in held]
    if rules and all(rule.endpoints for rule in rules) and left:
        yield _fault((name,), f"has no rule for {', '.join(left)}: those calls are not changed")


def _served(config: Config, name: str) -> tuple[str, ...]:
    found = None if is_pattern(name) else config.model(name)
    return () if found is None else found.model.endpoints


def _fault(place: tuple[str | int, ...], message: str) -> ConfigFault:
    return ConfigFault(format_faults(("parameters", "models", *place)), message)


SECRETS = {"parameters/models/*/headers/*": "", "parameters/models/*/*/headers/*": ""}

SECTION = WingSection("parameters", ParameterSettings, warnings=warnings_of, faults=faults_of, secrets=SECRETS)
