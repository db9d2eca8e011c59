"""Defaults of models and of keys that are made at run time."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.config import Config, ConfigError, build, with_key_defaults

ROUTES = [{"upstream": "u"}]
UPSTREAMS = {"u": {"base_url": "http://u/v1"}}


def config(**more: Any) -> Config:
    return build({"upstreams": UPSTREAMS, "models": {"m": {"routes": ROUTES}}, **more})


def faults(**more: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        config(**more)
    return [str(fault) for fault in caught.value.faults]


OUTPUT = "is required, because this model serves completions"
COUNTED = "is required, because defaults.keys.quotas[0] counts the tokens of this model's chat calls"
PRICE = {"input": 1, "output": 2}


def test_a_model_has_the_defaults_that_it_does_not_replace() -> None:
    given = {
        "plain": {"routes": ROUTES},
        "own": {"routes": ROUTES, "price": {"input": 5, "output": 6}, "max_attempts": 1},
        "free": {"routes": ROUTES, "price": None},
        "lim*": {"routes": ROUTES, "limits": {"n": 1}},
    }
    defaults = {"price": PRICE, "max_attempts": 5, "max_output_tokens": 9, "limits": {"stop": 2}}
    models = config(models=given, defaults={"models": defaults}).models
    assert [model.price and int(model.price.input) for model in models.values()] == [1, 5, None, 1]
    assert [model.max_attempts for model in models.values()] == [5, 1, 5, 5]
    assert {model.max_output_tokens for model in models.values()} == {9}
    assert [(model.limits.n, model.limits.stop) for model in models.values()] == [(None, 2)] * 3 + [(1, None)]


def test_a_default_output_limit_is_enough_for_a_token_quota() -> None:
    quota = {"tokens": 9999, "per": "day"}
    assert config(quotas=[quota], defaults={"models": {"max_output_tokens": 9}}).models["m"].max_output_tokens == 9


@pytest.mark.parametrize(
    ("defaults", "expected"),
    [
        ({"models": {"max_attempts": 0}}, ["defaults.models.max_attempts: expected greater than or equal to 1"]),
        ({"models": {"routes": ROUTES}}, ["defaults.models.routes: there is no such setting"]),
        ({"models": {"max_atempts": 2}},
         ["defaults.models.max_atempts: there is no such setting; did you mean 'max_attempts'?"]),
        ({"models": []}, ["defaults.models: expected settings as 'name: value' lines"]),
        ({"models": {"price": {"input": 1}}}, [f"models.m.price.output: {OUTPUT}"]),
        ({"keys": {"id": "x"}}, ["defaults.keys.id: there is no such setting"]),
        ({"keys": {"quotas": [{"requests": 1, "per": "day"}] * 2}},
         ["defaults.keys.quotas[1]: counts the same as defaults.keys.quotas[0]; keep one"]),
        ({"keys": {"quotas": [{"tokens": 1, "per": "day"}]}},
         [f"models.m.max_output_tokens: {COUNTED}"]),
    ],
)  # fmt: skip
def test_faults_are_reported_with_their_path(defaults: Any, expected: list[str]) -> None:
    assert faults(defaults=defaults) == expected


def test_faults_of_defaults_and_of_models_are_reported_together() -> None:
    found = faults(models={"m": {"routes": ROUTES, "max_attempts": 11}}, defaults={"models": {"max_attempts": "x"}})
    assert {fault.split(":")[0] for fault in found} == {"defaults.models.max_attempts", "models.m.max_attempts"}


QUOTA = {"usd": 20, "per": "month"}
KEYS = {"keys": {"models": ["gpt-*"], "expires_after_s": 3600, "limits": {"n": 2}, "quotas": [QUOTA]}}


def test_a_new_key_has_the_defaults_that_its_maker_does_not_name() -> None:
    made = with_key_defaults({"id": "k"}, config(defaults=KEYS), 1_800_000_000.5)
    assert made == {
        "id": "k", "models": ["gpt-*"], "expires": "2027-01-15T09:00:00+00:00", "limits": {"n": 2}, "quotas": [QUOTA],
    }  # fmt: skip
    wish = {"id": "k", "models": ["*"], "expires": None, "limits": {}, "quotas": []}
    assert with_key_defaults(wish, config(defaults=KEYS), 0) == wish


def test_without_defaults_a_new_key_is_what_was_asked_for() -> None:
    assert with_key_defaults({"id": "k"}, config(), 0) == {"id": "k", "quotas": []}
