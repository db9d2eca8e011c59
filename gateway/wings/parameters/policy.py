"""Applies rules to the members of a request. Pure."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal, NamedTuple

from gateway.api import validation_errors
from gateway.config.model_names import is_pattern
from gateway.formats.gemini.request import camel
from gateway.spelling import folded

from .settings import ParameterRule

COUNTS = frozenset({"count_tokens", "input_tokens", "count_content_tokens"})
"""Endpoints that count tokens, where members for an answer are refused."""

IN_TWO = frozenset({"generate_content", "count_content_tokens", "embed_content", "batch_embed_contents"})
"""Endpoints of Google's API, which takes each name in camelCase and in snake_case."""


class MemberStep(NamedTuple):
    """One change of a member."""

    verb: Literal["set", "default", "remove"]
    value: Any = None


class BodyChanges(NamedTuple):
    """Top-level members that are changed in a body."""

    values: Mapping[str, Any]
    """Top-level members with their new values."""
    removed: frozenset[str]
    """Top-level members that are taken out."""
    words: str
    """They are for the record."""


def rules_of(
    rules: Mapping[str, Sequence[ParameterRule]], endpoint: str, *names: str, inner: str | None = None
) -> list[ParameterRule]:
    """The rules for a call at this endpoint, the most particular last: those of patterns in the order of the file, then
    those of `names` in theirs. `inner`: the endpoint of the requests that a batch has in it."""
    patterns = [name for name in rules if is_pattern(name) and any(fnmatchcase(each, name) for each in names)]
    found = [rule for name in (*patterns, *dict.fromkeys(names)) for rule in rules.get(name, ())]
    ours = {endpoint, inner}
    return [
        rule for rule in found if (not ours.isdisjoint(rule.endpoints) if rule.endpoints else endpoint not in COUNTS)
    ]


def steps_of(rules: Iterable[ParameterRule]) -> dict[str, MemberStep]:
    """The change of each member: the last rule that names it counts."""
    steps: dict[str, MemberStep] = {}
    for rule in rules:
        steps |= {path: MemberStep("remove") for path in rule.remove}
        steps |= {path: MemberStep("default", value) for path, value in rule.default.items()}
        steps |= {path: MemberStep("set", value) for path, value in rule.set.items()}
    return steps


def as_spelled(steps: Mapping[str, MemberStep], members: Mapping[str, Any], *, in_two: bool) -> dict[str, MemberStep]:
    """The steps by the names that the client used. `in_two`: its API takes names in camelCase and in snake_case. Raises
    `InvalidRequest` for another spelling of a name, which some upstreams take: the rules would not hold for it."""
    known: dict[int, dict[str, set[str]]] = {}
    return {_as_spelled(path, members, known, in_two=in_two): step for path, step in steps.items()}


def _as_spelled(path: str, members: Any, known: dict[int, dict[str, set[str]]], *, in_two: bool) -> str:
    """`known` has the names of each object by their folded form: each is folded once."""
    found = []
    for name in path.split("."):
        given = name
        if isinstance(members, dict):
            if (names := known.get(id(members))) is None:
                names = known[id(members)] = {}
                for each in members:
                    names.setdefault(folded(each), set()).add(each)
            for other in names.get(folded(name), set()) - {name}:
                if name in members or given != name or not in_two or camel(other) != camel(name):
                    raise validation_errors.misspelled(other, name, path)
                given = other
        found.append(given)
        members = members.get(given) if isinstance(members, dict) else None
    return ".".join(found)


def headers_of(rules: Iterable[ParameterRule]) -> dict[str, str]:
    return {name.lower(): value.get_secret_value() for rule in rules for name, value in rule.headers.items()}


def changes_of(steps: Mapping[str, MemberStep], members: Mapping[str, Any]) -> BodyChanges | None:
    """The changes of these members by the steps; None: they have all of them already."""
    values: dict[str, Any] = {}
    removed: set[str] = set()
    done: list[str] = []
    for path, step in steps.items():
        name, _, below = path.partition(".")
        given = values[name] if name in values else None if name in removed else members.get(name)
        changed, is_changed = _changed(given, below, step, is_there=name in values or name in members)
        if not is_changed:
            continue
        done.append(f"{_PAST[step.verb]} {path}")
        if changed is _GONE:
            removed.add(name)
            values.pop(name, None)
        else:
            values[name] = changed
            removed.discard(name)
    return BodyChanges(values, frozenset(removed), f"parameters {', '.join(done)}") if done else None


_GONE: Any = object()
_PAST = {"set": "set", "default": "added", "remove": "removed"}


def _changed(given: Any, below: str, step: MemberStep, *, is_there: bool) -> tuple[Any, bool]:
    """A value behind one step, and whether it is another one; `below` is the rest of the path inside it."""
    if below:
        inner, _, deeper = below.partition(".")
        if not isinstance(given, dict):
            if step.verb == "remove" or (step.verb == "default" and given is not None):
                return given, False
            given = {}
        value, is_changed = _changed(given.get(inner), deeper, step, is_there=inner in given)
        if not is_changed:
            return given, False
        others = {name: copy.deepcopy(each) for name, each in given.items() if name != inner}
        return others if value is _GONE else {**others, inner: value}, True
    if step.verb == "remove":
        return _GONE, is_there
    if step.verb == "default":
        return (step.value, True) if given is None else (given, False)
    return step.value, not is_there or type(given) is not type(step.value) or given != step.value
