"""The models that upstreams list, as settings."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from gateway.config import Config, ConfigError, build
from gateway.config.discovered import MAX_NAMES, usable, with_discovered, with_prices
from gateway.config.price_table import with_table_prices


def values(u: Any = True, v: Any = None, **more: Any) -> dict[str, Any]:
    upstreams = {"u": {"base_url": "http://u/v1", "discover": u}, "v": {"base_url": "http://v/v1", "discover": v}}
    return {"upstreams": upstreams, **more}


def extended(given: dict[str, Any], **found: list[str]) -> Config:
    return build(with_discovered(given, build(given), found))


def routes(config: Config) -> dict[str, list[tuple[str, str | None]]]:
    return {name: [(route.upstream, route.model) for route in model.routes] for name, model in config.models.items()}


ROUTES = [{"upstream": "v"}]


def test_each_listed_name_gets_a_route_to_each_upstream_that_lists_it() -> None:
    found = extended(values(True, True), u=["a", "b"], v=["b", "c"])
    assert routes(found) == {"a": [("u", None)], "b": [("u", None), ("v", None)], "c": [("v", None)]}
    assert routes(extended(values(True, False), u=["a"], v=["b"])) == {"a": [("u", None)]}


@pytest.mark.parametrize(
    ("discover", "expected"),
    [
        (True, ["gpt-4o", "gpt-4o-audio", "o3"]),
        ({"include": ["gpt-*"]}, ["gpt-4o", "gpt-4o-audio"]),
        ({"exclude": ["*audio*", "o?"]}, ["gpt-4o"]),
        ({"include": ["x"]}, []),
    ],
)
def test_names_are_included_and_excluded(discover: Any, expected: list[str]) -> None:
    assert list(extended(values(discover), u=["gpt-4o", "gpt-4o-audio", "o3"]).models) == expected


def test_what_the_file_says_of_a_name_counts() -> None:
    models = {
        "a": {"routes": ROUTES, "max_attempts": 1},
        "x/*": {"routes": ROUTES, "strip_prefix": "x/", "max_attempts": 2, "fallbacks": ["x/b", "a"]},
    }
    given = values(models=models, aliases={"fast": "a"}, defaults={"models": {"max_attempts": 9}})
    found = extended(given, u=["a", "x/b", "x/", "new", "fast"])
    assert routes(found) == {
        "a": [("v", None)], "x/*": [("v", None)], "x/b": [("v", None)], "new": [("u", None)],
    }  # fmt: skip
    assert [model.max_attempts for model in found.models.values()] == [1, 2, 2, 9]
    assert found.models["x/b"].fallbacks == ("a",)
    served = found.model("x/b")
    assert served is not None
    assert (served.is_configured, served.model.routes[0].model) == (True, "b")


def test_a_list_that_is_hostile() -> None:
    names = ["ok", "", "a*", "other", "x" * 257, "tab\t", "line\n", "\ud800", 5, None, {}, [], "ok", "\x1f"]
    assert usable(names) == ("ok",)
    assert len(usable(f"m{n}" for n in range(10_000))) == MAX_NAMES


NO_MODEL = "models: is required: name at least one model, or serve those that an upstream lists with discover: true"
EMPTY = "Tuple should have at least 1 item after validation, not 0"
NO_LIMIT = (
    "defaults.models.max_output_tokens: is required, because quotas[0] counts the tokens of chat calls, and the models "
    "that the upstream 'u' lists have no settings but the default ones"
)


@pytest.mark.parametrize(
    ("discover", "more", "expected"),
    [
        (False, {}, [NO_MODEL]),
        (True, {"aliases": {"fast": "listed"}}, []),
        ({"include": ["gpt-*"]}, {"aliases": {"fast": "listed"}}, ["aliases.fast: there is no model 'listed'"]),
        (True, {"quotas": [{"tokens": 9, "per": "day"}]}, [NO_LIMIT]),
        (True, {"quotas": [{"tokens": 9, "per": "day"}], "defaults": {"models": {"max_output_tokens": 5}}}, []),
        ({"include": []}, {}, [f"upstreams.u.discover.include: {EMPTY}"]),
        ({"every_s": 0.5}, {}, ["upstreams.u.discover.every_s: expected at least 1"]),
        ("yes", {}, ["upstreams.u.discover: expected settings as 'name: value' lines"]),
        ({"includes": ["x"]}, {}, ["upstreams.u.discover.includes: there is no such setting; did you mean 'include'?"]),
    ],
)  # fmt: skip
def test_faults(discover: Any, more: dict[str, Any], expected: list[str]) -> None:
    try:
        build(values(discover, **more))
        found = []
    except ConfigError as error:
        found = [str(fault) for fault in error.faults]
    assert found == expected


def test_durations_have_units() -> None:
    discover = build(values({"every_s": "1h"})).upstreams["u"].discover
    assert discover is not None
    assert discover.every_s == 3600


NOW = datetime(2026, 11, 20, tzinfo=UTC)


def test_listed_models_have_the_prices_of_the_table() -> None:
    models = {"gpt-4o*": {"routes": [{"upstream": "u"}]}, "own": {"routes": [{"upstream": "u"}]}}
    given = with_table_prices(values(True, True, models=models), NOW)
    given["upstreams"]["u"] |= {"provider": "openai"}
    given = with_table_prices({**given, "models": models}, NOW)
    listed = {"u": ["gpt-4o-mini", "gpt-3.5-turbo", "never-heard-of", "own"], "v": ["v-only"]}
    found = with_prices(with_discovered(given, build(given), listed), given, NOW)
    prices = {name: model.price and str(model.price.input) for name, model in build(found).models.items()}
    assert prices["gpt-3.5-turbo"] is not None
    assert (prices["never-heard-of"], prices["v-only"]) == (None, None)
    served = build(found).model("gpt-4o-mini")
    assert served is not None
    assert served.model.price is not None
    assert "table_prices" not in found["models"]["gpt-4o-mini"]
