"""What rules make of members, and of the bytes of a body."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.api import json_document, large_body
from gateway.records import Document
from gateway.wings.parameters.body import rewritten
from gateway.wings.parameters.policy import changes_of, headers_of, rules_of, steps_of
from gateway.wings.parameters.settings import ParameterRule
from tests.test_floors import complaints_of, impure


def rule(**given: Any) -> ParameterRule:
    return ParameterRule.model_validate(given)


@pytest.mark.parametrize(
    ("given", "members", "values", "removed", "words"),
    [
        ({"set": {"a": 1}}, {}, {"a": 1}, set(), "parameters set a"),
        ({"set": {"a": 1}}, {"a": 2}, {"a": 1}, set(), "parameters set a"),
        ({"set": {"a": 1}}, {"a": True}, {"a": 1}, set(), "parameters set a"),
        ({"default": {"a": 1}}, {}, {"a": 1}, set(), "parameters added a"),
        ({"default": {"a": 1}}, {"a": None}, {"a": 1}, set(), "parameters added a"),
        ({"remove": ["a"]}, {"a": None}, {}, {"a"}, "parameters removed a"),
        ({"set": {"r.effort": "high"}}, {}, {"r": {"effort": "high"}}, set(), "parameters set r.effort"),
        ({"set": {"r.e": 1}}, {"r": {"e": 2, "s": 3}}, {"r": {"e": 1, "s": 3}}, set(), "parameters set r.e"),
        ({"set": {"r.e": 1}}, {"r": "text"}, {"r": {"e": 1}}, set(), "parameters set r.e"),
        ({"set": {"r.e": 1, "r.s": 2}}, {}, {"r": {"e": 1, "s": 2}}, set(), "parameters set r.e, set r.s"),
        ({"default": {"r.e": 1}}, {"r": {"s": 3}}, {"r": {"e": 1, "s": 3}}, set(), "parameters added r.e"),
        ({"remove": ["r.e"]}, {"r": {"e": 1, "s": 3}}, {"r": {"s": 3}}, set(), "parameters removed r.e"),
    ],
)
def test_what_a_rule_changes(
    given: dict[str, Any], members: dict[str, Any], values: dict[str, Any], removed: set[str], words: str
) -> None:
    before = json.dumps(members)
    changes = changes_of(steps_of([rule(**given)]), members)
    assert changes is not None
    assert (changes.values, changes.removed, changes.words) == (values, removed, words)
    assert json.dumps(members) == before  # the client's own members stay


@pytest.mark.parametrize(
    ("given", "members"),
    [
        ({"set": {"a": 1}}, {"a": 1}),
        ({"default": {"a": 1}}, {"a": 0}),
        ({"default": {"r.e": 1}}, {"r": "text"}),
        ({"default": {"r.e": 1}}, {"r": {"e": False}}),
        ({"remove": ["a"]}, {"b": 1}),
        ({"remove": ["r.e"]}, {"r": "text"}),
        ({"remove": ["r.e"]}, {"r": {}}),
    ],
)
def test_what_is_so_already_stays(given: dict[str, Any], members: dict[str, Any]) -> None:
    assert changes_of(steps_of([rule(**given)]), members) is None


def test_the_most_particular_rule_counts() -> None:
    rules = {
        "high": (rule(set={"a": 3}, remove=["c"]),),
        "*": (rule(set={"a": 1, "b": 1, "c": 1}, headers={"X-One": "1", "x-two": "2"}),),
        "m": (rule(set={"a": 2, "b": 2}, headers={"x-one": "m"}),),
    }
    found = rules_of(rules, "chat", "m", "high")
    changes = changes_of(steps_of(found), {"c": 5})
    assert changes is not None
    assert (changes.values, changes.removed) == ({"a": 3, "b": 2}, {"c"})
    assert headers_of(found) == {"x-one": "m", "x-two": "2"}


@pytest.mark.parametrize(
    ("endpoints", "endpoint", "holds"),
    [
        ([], "chat", True), ([], "count_tokens", False), (["chat"], "chat", True), (["chat"], "responses", False),
    ],
)  # fmt: skip
def test_a_rule_holds_at_its_endpoints(endpoints: list[str], endpoint: str, *, holds: bool) -> None:
    rules = {"m": (rule(endpoints=endpoints, set={"a": 1}),)}
    assert bool(rules_of(rules, endpoint, "m")) == holds


@pytest.mark.parametrize(("inner", "holds"), [("chat", True), ("responses", False), ("", False)])
def test_a_rule_of_an_endpoint_holds_for_batches_of_its_requests(inner: str, *, holds: bool) -> None:
    rules = {"m": (rule(endpoints=["chat"], set={"a": 1}),)}
    assert bool(rules_of(rules, "batches", "m", inner=inner)) == holds


# ----------------------------------------------------------------------------------------------------------- the bytes

TEXTS = [
    '{"a":1,"b":[2,3],"c":"é, {"}', ' { "a" : 1 ,\n "b" : [2, 3] , "c" : "é, {" } ', '{"c":"x"}',
    '{"a" :null, "\\u0062": 1.50, "d":{"a":1}}',
]  # fmt: skip


def small(text: str) -> Document:
    return json_document.parse(text.encode())


def large(text: str) -> Document:
    """The same, as another process reads a long one: in pieces of a few bytes."""
    plain = json_document.parse(text.encode())
    raw = text.encode()
    places = {
        name: (len(text[:start].encode()), len(text[:end].encode()))
        for name, (start, end) in json_document.spans(plain).items()
    }
    pieces = [raw[at : at + 5] for at in range(0, len(raw), 5)]
    known = {"members": plain.members, "places": places, "opening": text.index("{") + 1}
    return large_body.from_written(known, pieces)


@pytest.mark.parametrize("read", [small, large])
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("removed", [set(), {"a"}, {"b"}, {"c"}, {"a", "b"}, {"a", "b", "c", "d"}])
@pytest.mark.parametrize("values", [{}, {"a": "new"}, {"z": {"y": 1}, "b": True}])
def test_a_rewritten_body(read: Any, text: str, removed: set[str], values: dict[str, Any]) -> None:
    removed -= values.keys()
    document = read(text)
    expected = {name: value for name, value in {**document.members, **values}.items() if name not in removed}
    made = b"".join(rewritten(document, values, removed))
    assert json.loads(made) == expected
    if "d" in expected and "d" not in removed:
        assert b'"d":{"a":1}' in made  # bytes of the client
    if "b" in expected and text is TEXTS[3] and "b" not in values:
        assert b'"\\u0062": 1.50' in made


def test_the_policy_is_pure() -> None:
    assert complaints_of(impure, ["gateway.wings.parameters.policy", "gateway.wings.parameters.body"]) == ""
