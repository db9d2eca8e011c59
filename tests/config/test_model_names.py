"""Which model serves a name."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import ConfigError, Model, ModelTable, build
from gateway.config.model_names import may_overlap


def model(number: int = 1, **more: Any) -> Model:
    return Model.model_validate(
        {"routes": [{"upstream": "u", **more.pop("route", {})}], "max_attempts": number, **more}
    )


NAMES = ("gpt-4o", "gpt-4o*", "gpt-*", "*-mini", "*", "openai/*", "a[1]*", "a?*")
TABLE = ModelTable({name: model(number) for number, name in enumerate(NAMES, 1)})


@pytest.mark.parametrize(
    ("asked", "served_by"),
    [
        ("gpt-4o", "gpt-4o"),  # an exact name counts before every pattern
        ("gpt-4o-mini", "gpt-4o*"),
        ("gpt-4o*", "gpt-4o*"),
        ("gpt-4", "gpt-*"),
        ("gpt-4-mini", "*-mini"),  # the most characters, wherever they stand
        ("gpt-", "gpt-*"),  # * stands for nothing, too
        ("Gpt-4", "*"),
        ("openai/gpt-4o", "openai/*"),
        ("a[1]", "a[1]*"),  # [ and ? stand for themselves
        ("a1", "*"),
        ("a?b", "a?*"),
        ("ab", "*"),
        ("x\ny", "*"),
    ],
)
def test_the_most_specific_name_counts(asked: str, served_by: str) -> None:
    found = TABLE.find(asked)
    assert found is not None
    assert (found.name, found.model.max_attempts) == (asked, NAMES.index(served_by) + 1)
    assert found.is_configured == (asked == "gpt-4o")


@pytest.mark.parametrize(
    ("names", "first"),
    [(("ab*", "a*b"), "ab*"), (("a*b", "ab*"), "ab*"), (("*ab", "a*b"), "a*b"), (("a*b*", "a**b"), "a*b*")],
)
def test_of_equals_the_longer_beginning_counts(names: tuple[str, ...], first: str) -> None:
    found = ModelTable({name: model(number) for number, name in enumerate(names, 1)}).find("abab")
    assert found is not None
    assert names[found.model.max_attempts - 1] == first


def test_without_a_match_nothing_serves() -> None:
    table = ModelTable({"gpt-4o": model(), "openai/*": model(strip_prefix="openai/")})
    assert [table.find(name) for name in ("gpt-4", "openai/", "", "*")] == [None] * 4


def test_a_prefix_is_not_sent_to_a_route_without_a_model_of_its_own() -> None:
    routes = [{"upstream": "u"}, {"upstream": "v", "model": "own"}]
    table = ModelTable({"openai/*": Model(routes=routes, strip_prefix="openai/")})  # type: ignore[arg-type]
    found = table.find("openai/gpt-4o")
    assert found is not None
    assert [route.model for route in found.model.routes] == ["gpt-4o", "own"]
    assert table.find("openai/gpt-4o") is found  # which is kept


def test_many_stars_take_no_time() -> None:
    assert ModelTable({"a*" * 50 + "b": model()}).find("a" * 256) is None


signs = st.text(alphabet="ab*?", max_size=6)


@given(signs.map(lambda text: text.replace("?", "b")), signs, st.text(alphabet="ab", max_size=6))
def test_patterns_overlap_where_a_name_matches_both(pattern: str, glob: str, name: str) -> None:
    if fnmatchcase(name, pattern) and fnmatchcase(name, glob):
        assert may_overlap(pattern, glob)


@pytest.mark.parametrize(
    ("pattern", "glob", "expected"),
    [
        ("gpt-4o*", "gpt-*", True), ("gpt-4o*", "gpt-4o-mini", True), ("gpt-4o*", "gpt-4", False), ("*", "x", True),
        ("gpt-*", "*-mini", True), ("a*b", "b*a", False), ("a*", "[ab]*", True), ("a*", "?", True), ("ab*", "?", False),
        ("*a", "*b", False), ("a*b*c", "ac", False), ("a*b*c", "a?c", True),
    ],
)  # fmt: skip
def test_patterns_that_do_not_overlap(pattern: str, glob: str, expected: bool) -> None:
    assert may_overlap(pattern, glob) is expected


ROUTES = [{"upstream": "u"}]


def faults(models: dict[str, Any], **more: Any) -> list[str]:
    try:
        build({"upstreams": {"u": {"base_url": "http://u/v1"}}, "models": models, **more})
    except ConfigError as error:
        return [str(fault) for fault in error.faults]
    return []


NO_EFFECT = "has no effect, because each route has a model of its own; leave one of the two out"
NO_STAR = (
    "expected a name without *; leave it out to send the name that was asked for, and take a prefix off with "
    "strip_prefix"
)
OUTPUTS = "is required, because quotas[0] counts the tokens of this model's chat calls"


@pytest.mark.parametrize(
    ("models", "more", "expected"),
    [
        ({"*": {"routes": ROUTES}, "gpt-4*": {"routes": ROUTES}}, {}, []),
        ({"a*": {"routes": ROUTES}, "a**": {"routes": ROUTES}}, {},
         ["""models."a**": matches the same names as 'a*'; keep one"""]),
        ({"openai/*": {"routes": ROUTES, "strip_prefix": "openai/"}}, {}, []),
        ({"openai/x": {"routes": ROUTES, "strip_prefix": "openai/"}}, {}, []),
        ({"openai*": {"routes": ROUTES, "strip_prefix": "openai/"}}, {},
         ["""models."openai*".strip_prefix: the names of 'openai*' do not begin with 'openai/'"""]),
        ({"openai/": {"routes": ROUTES, "strip_prefix": "openai/"}}, {},
         ["""models."openai/".strip_prefix: is the whole name: nothing would be sent"""]),
        ({"a*": {"routes": [{"upstream": "u", "model": "b"}], "strip_prefix": "a"}}, {},
         [f"""models."a*".strip_prefix: {NO_EFFECT}"""]),
        ({"a*": {"routes": [{"upstream": "u", "model": "b*"}]}}, {},
         [f"""models."a*".routes[0].model: {NO_STAR}"""]),
        ({"gpt-4*": {"routes": ROUTES}}, {"quotas": [{"tokens": 9, "per": "day", "model": "gpt-4o"}]},
         [f"""models."gpt-4*".max_output_tokens: {OUTPUTS}"""]),
        ({"gpt-4*": {"routes": ROUTES}}, {"quotas": [{"tokens": 9, "per": "day", "model": "gpt-5*"}]}, []),
    ],
)  # fmt: skip
def test_a_pattern_that_cannot_work_is_a_fault(models: dict[str, Any], more: Any, expected: list[str]) -> None:
    assert faults(models, **more) == expected


ALIASES = {"fast": "gpt-4o", "best": "openai/o3"}
MODELS = {"gpt-4o": {"routes": ROUTES}, "openai/*": {"routes": ROUTES, "strip_prefix": "openai/"}}


@pytest.mark.parametrize(
    ("asked", "name", "sent"), [("fast", "gpt-4o", "gpt-4o"), ("best", "openai/o3", "o3"), ("gpt-4o", "gpt-4o", None)]
)
def test_an_alias_leads_to_a_model(asked: str, name: str, sent: str | None) -> None:
    table = ModelTable({name: Model.model_validate(model) for name, model in MODELS.items()}, ALIASES)
    found = table.find(asked)
    assert found is not None
    assert (found.name, found.is_configured, found.alias) == (name, True, asked if asked in ALIASES else None)
    assert [route.model for route in found.model.routes] == [sent]


@pytest.mark.parametrize(
    ("aliases", "expected"),
    [
        (ALIASES, []),
        ({"a": "gpt-4"}, ["aliases.a: there is no model 'gpt-4'; did you mean 'gpt-4o'?"]),
        ({"a": "a"}, ["aliases.a: leads to 'a', which is an alias itself; name the model"]),
        ({"a": "b", "b": "gpt-4o"}, ["aliases.a: leads to 'b', which is an alias itself; name the model"]),
        ({"gpt-4o": "openai/x"},
         ["aliases.gpt-4o: is the name of a model; a call could mean either, so give the alias another name"]),
        ({"a*": "gpt-4o"}, ["""aliases."a*": an alias is one name, without *"""]),
        ({"a": "openai/*"}, ["aliases.a: leads to a pattern; name one model"]),
        ({"a": 5}, ["aliases.a: expected text; put the value in quotes"]),
        ({"": "gpt-4o"}, ["""aliases."": expected a name that is not empty"""]),
    ],
)  # fmt: skip
def test_an_alias_of_an_unknown_model_is_a_fault(aliases: Any, expected: list[str]) -> None:
    assert faults(MODELS, aliases=aliases) == expected


def test_a_quota_of_a_key_that_may_use_an_alias_needs_the_output_limit_of_its_model() -> None:
    quota = {"tokens": 9, "per": "day"}
    keys = [{"id": "k", "secret": "s" * 24, "models": ["fast"], "quotas": [quota]}]
    (fault,) = faults({"gpt-4o": {"routes": ROUTES}}, aliases={"fast": "gpt-4o"}, keys=keys)
    assert fault.startswith("models.gpt-4o.max_output_tokens: is required, because keys[0].quotas[0] counts")
    assert faults({"gpt-4o": {"routes": ROUTES}}, aliases={"slow": "gpt-4o"}, keys=keys) == []


@pytest.mark.parametrize(
    ("fallbacks", "expected"),
    [
        (["gpt-4o", "openai/o3"], []),
        (["m"], ["models.m.fallbacks[0]: is the model itself; name another one"]),
        (["gpt-4o", "gpt-4o"], ["models.m.fallbacks[1]: 'gpt-4o' is named twice; keep one"]),
        (["fast"], ["models.m.fallbacks[0]: 'fast' is an alias; name the model"]),
        (["openai/*"], ["models.m.fallbacks[0]: leads to a pattern; name one model"]),
        (["gpt-4"], ["models.m.fallbacks[0]: there is no model 'gpt-4'; did you mean 'gpt-4o'?"]),
    ],
)
def test_a_fallback_to_an_unknown_model_is_a_fault(fallbacks: list[str], expected: list[str]) -> None:
    assert faults({**MODELS, "m": {"routes": ROUTES, "fallbacks": fallbacks}}, aliases=ALIASES) == expected


def test_a_faulty_model_is_no_unknown_one() -> None:
    models = {"m": {"routes": ROUTES, "fallbacks": ["n"]}, "n": {"routes": []}}
    (fault,) = faults(models, aliases={"a": "n"})
    assert fault.startswith("models.n.routes: ")


def test_fallbacks_are_those_of_the_model_that_was_asked_for() -> None:
    models = {
        "a": model(fallbacks=["b", "x/c"]), "b": model(fallbacks=["a"]),
        "x/*": model(strip_prefix="x/", fallbacks=["x/c"]),
    }  # fmt: skip
    table = ModelTable(models)

    def received(name: str) -> list[tuple[str, str | None]]:
        found = table.find(name)
        assert found is not None
        return [(other.name, other.model.routes[0].model) for other in table.fallbacks(found)]

    assert (received("a"), received("b")) == ([("b", "b"), ("x/c", "c")], [("a", "a")])
    assert (received("x/d"), received("x/c")) == ([("x/c", "c")], [])
