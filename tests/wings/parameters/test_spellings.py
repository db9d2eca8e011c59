"""A rule of `parameters` holds for every spelling of a member that an upstream may take: it is changed, or refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from gateway.errors import InvalidRequest
from gateway.spelling import folded
from gateway.wings.parameters.policy import IN_TWO, as_spelled, changes_of, steps_of
from gateway.wings.parameters.settings import ParameterRule

RULES: list[dict[str, Any]] = [
    {"remove": ["thinking_config"]},
    {"remove": ["outer.thinking_config"]},
    {"remove": ["thinkingConfig"]},
    {"remove": ["generationConfig.thinkingConfig"]},
    {"set": {"thinking_config": 1}},
    {"set": {"generationConfig.thinkingConfig": 1}},
    {"default": {"outer.thinking_config": 1}},
]
SPELLINGS: dict[str, Callable[[str], str]] = {
    "other case": str.upper,
    "snake": lambda name: "".join(f"_{sign.lower()}" if sign.isupper() else sign for sign in name),
    "camel": lambda name: "".join(part if not at else part.capitalize() for at, part in enumerate(name.split("_"))),
    "wide": lambda name: "\uff54" + name[1:] if name.startswith("t") else name.replace("o", "\uff4f"),
    "blank": lambda name: f"{name} ",
}


def nested(path: str, value: Any) -> dict[str, Any]:
    name, _, below = path.partition(".")
    return {name: nested(below, value) if below else value}


def found(members: Any, path: str) -> list[Any]:
    """The values at a path, in every spelling."""
    name, _, below = path.partition(".")
    here = [each for key, each in members.items() if folded(key) == folded(name)] if isinstance(members, dict) else []
    return [value for each in here for value in found(each, below)] if below else here


def sent(rule: dict[str, Any], members: Mapping[str, Any], endpoint: str) -> dict[str, Any]:
    steps = as_spelled(steps_of([ParameterRule.model_validate(rule)]), members, in_two=endpoint in IN_TWO)
    changes = changes_of(steps, members)
    if changes is None:
        return dict(members)
    return {**{name: each for name, each in members.items() if name not in changes.removed}, **changes.values}


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("endpoint", ["chat", "generate_content"])
def test_no_spelling_goes_around_a_rule(endpoint: str, rule: dict[str, Any], spelling: str) -> None:
    ((verb, given),) = rule.items()
    (path,) = given
    spelled = ".".join(map(SPELLINGS[spelling], path.split(".")))
    for place in (spelled, ".".join([*path.split(".")[:-1], spelled.rpartition(".")[2]])):
        try:
            body = sent(rule, nested(place, 9), endpoint)
        except InvalidRequest:
            assert place != path
        else:
            assert found(body, path) == {"remove": [], "set": [1], "default": [9]}[verb]


@pytest.mark.parametrize("name", ["generation_config", "generationConfig"])
def test_googles_two_spellings_are_changed(name: str) -> None:
    body = sent({"set": {"generationConfig.topK": 1}}, {name: {"top_k": 9}}, "generate_content")
    assert body == {name: {"top_k": 1}}
