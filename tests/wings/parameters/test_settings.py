"""The section `parameters`: what is refused, and what it warns of."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.config import ConfigError, build
from gateway.formats.table import FORMATS
from gateway.wings.parameters.amending import WHOLE
from gateway.wings.parameters.check import describe
from gateway.wings.parameters.policy import COUNTS, IN_TWO
from gateway.wings.parameters.settings import UNCHANGED, warnings_of


def config(models: dict[str, Any], **more: Any) -> Any:
    return build({
        "upstreams": {"up": {"base_url": "https://api.openai.com/v1", "api_key": "sk-1"}},
        "models": {
            "m": {"routes": [{"upstream": "up"}], "max_output_tokens": 9, "endpoints": ["chat", "responses"]},
            "main": {"routes": [{"upstream": "up"}], "max_output_tokens": 9, "fallbacks": ["m"]},
            "ears": {"routes": [{"upstream": "up"}], "endpoints": ["transcriptions"]},
        },
        "aliases": {"high": "m"},
        "keys": [{"id": "k", "secret": "sk-gw-k-0123456789abcdef"}],
        "parameters": {"models": models},
        **more,
    })  # fmt: skip


@pytest.mark.parametrize(
    ("models", "place", "said"),
    [
        ({"mm": {"set": {"a": 1}}}, "parameters.models.mm", "there is no model or alias 'mm'"),
        ({"m": {"set": {"model": "x"}}}, "parameters.models.m", "aliases give a model another name"),
        ({"m": {"default": {"stream": True}}}, "parameters.models.m", "another kind of answer"),
        ({"m": {"set": {"a..b": 1}}}, "parameters.models.m", "expected the name of a member"),
        ({"m": {"set": {"a": float("nan")}}}, "parameters.models.m", "expected a value that JSON has"),
        ({"m": {"set": {"a": 1}, "remove": ["a"]}}, "parameters.models.m", "a and a change the same member"),
        ({"m": {"set": {"a.b": 1}, "remove": ["a"]}}, "parameters.models.m", "a.b and a change the same member"),
        ({"m": {"headers": {"Authorization": "x"}}}, "parameters.models.m", "written by the gateway itself"),
        ({"m": {"headers": {"X-Api-Key": "x"}}}, "parameters.models.m", "written by the gateway itself"),
    ],
)
def test_what_is_refused(models: dict[str, Any], place: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        config(models)
    assert place in str(refused.value)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("models", "said"),
    [
        ({"gpt-*": {"set": {"a": 1}}}, ["matches no model and no alias"]),
        ({"main": {}}, ["changes nothing"]),
        ({"high": {"endpoints": ["chat"], "set": {"a": 1}}}, ["has no rule for responses"]),
        ({"high": {"endpoints": ["rerank", "chat", "responses"], "set": {"a": 1}}}, ["does not serve rerank"]),
        ({"m": {"set": {"a": 1}}}, ["not where it serves as a fallback of main"]),
        ({"ears": {"set": {"a": 1}}}, ["calls at transcriptions are refused"]),
        ({"ears": {"headers": {"x-a": "1"}}}, []),
        ({"high": {"set": {"a": 1}}}, []),
    ],
)
def test_what_it_warns_of(models: dict[str, Any], said: list[str]) -> None:
    found = [each.message for each in warnings_of(config(models))]
    assert len(found) == len(said)
    assert all(words in text for words, text in zip(said, found, strict=True))


def test_check_shows_the_rules() -> None:
    shown = describe(config({"high": [{"endpoints": ["chat"], "set": {"a": 1}, "headers": {"X-A": "secret-1"}}]}))
    assert shown == "high: set a=1, header X-A (chat)"


def test_the_lists_of_endpoints_are_those_of_the_formats() -> None:
    """A new format is in them, or this fails."""
    of_operation = {kind: {name for name, each in FORMATS.items() if each.operation == kind} for kind in _KINDS}
    assert of_operation["count_tokens"] == COUNTS
    assert {name for name, spec in FORMATS.items() if "/{model}:" in spec.path} == IN_TWO
    assert of_operation["batch"] | of_operation["realtime"] == WHOLE.keys()
    assert {name for name, each in FORMATS.items() if each.read_form is not None} | of_operation[
        "realtime"
    ] == UNCHANGED


_KINDS = ("count_tokens", "batch", "realtime")
