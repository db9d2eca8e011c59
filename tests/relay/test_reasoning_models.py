"""Which calls may have had more generated than anybody has seen."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.config import Model, Route
from gateway.records import Call, Document, Endpoint, Key, Params
from gateway.relay.charge import may_be_hidden


def a_call(endpoint: Endpoint = "chat", n: int = 1, best_of: int = 1, **members: Any) -> Call:
    params = Params(Document("", members), "m", n=n, best_of=best_of)
    return Call(
        "r", 0.0, Key("k"), endpoint, params, Model(routes=(Route(upstream="u"),)), label_model="m", arrived=0.0
    )


def hides(call: Call, *models: str | None, has_reasoned: bool = False, is_whole: bool = False) -> bool:
    return may_be_hidden(call, models, has_reasoned=has_reasoned, is_whole=is_whole)


@pytest.mark.parametrize(
    "name",
    [
        "o1", "o1-mini", "o3", "o3-pro", "o4-mini-2025-04-16", "gpt-5", "gpt-5-nano", "gpt-5.1", "openai/o3-mini",
        "ft:o4-mini:acme", "deepseek-reasoner", "deepseek/deepseek-r1:free", "Qwen/QwQ-32B", "GPT-5", "gpt-oss-120b",
        "qwen3-30b-a3b-thinking-2507", "grok-4-fast-reasoning", "gemini-2.5-flash", "gemini-flash-latest",
        "openai/o3:nitro", "sonar-deep-research", "gpt-realtime-2",
    ],
)  # fmt: skip
def test_models_that_think(name: str) -> None:
    assert hides(a_call(), name)
    assert hides(a_call(), "alias", None, name)
    assert not hides(a_call(reasoning_effort="none"), name)
    assert not hides(a_call("completions"), name)


@pytest.mark.parametrize(
    "name",
    [
        "claude-fable-5", "claude-opus-5", "anthropic/claude-opus-5.5", "us.anthropic.claude-sonnet-5-v1:0",
        "claude-haiku-5-5", "claude-mythos-preview", "~anthropic/claude-opus-latest",
    ],
)  # fmt: skip
def test_claude_thinks_by_default_since_its_fifth_generation(name: str) -> None:
    assert hides(a_call(), name)
    assert hides(a_call(reasoning_effort="none"), name)  # which Anthropic's own chat ignores
    assert not hides(a_call("messages", thinking={"type": "disabled"}), name)


@pytest.mark.parametrize(
    "members",
    [
        {"enable_thinking": False},
        {"thinking": {"type": "disabled"}},
        {"chat_template_kwargs": {"enable_thinking": False}},
    ],
)
def test_a_switch_of_another_provider_turns_nothing_off(members: dict[str, Any]) -> None:
    for name in ("gpt-5", "openai/o3:nitro", "gemini-2.5-pro", "grok-4"):
        assert hides(a_call(**members), name)
    for name in ("deepseek-r1", "qwq-32b", "kimi-k2-thinking"):
        assert not hides(a_call(**members), name)


def test_one_that_asks_for_it_counts_beside_one_that_does_not() -> None:
    assert hides(a_call(reasoning_effort="none", reasoning={"effort": "high"}), "gpt-5")
    assert hides(a_call(reasoning_effort="none", extra_body={"thinking": {"type": "adaptive"}}), "gpt-4o")


@pytest.mark.parametrize(
    "name",
    [
        "gpt-4o", "gpt-4.1-mini", "gpt-3.5-turbo", "gpt-5-chat-latest", "gpt-5.1-chat-latest", "o", "opus", "o11y",
        "deepseek-chat", "llama-3.1-8b", "qwen3-non-thinking", "grok-4-fast-non-reasoning", "codex", "",
        "claude-opus-4-5", "claude-sonnet-4-20250514", "claude-3-5-sonnet-latest", "gpt-realtime-2025-08-28",
    ],
)  # fmt: skip
def test_models_that_do_not_unless_they_are_asked(name: str) -> None:
    assert not hides(a_call(), name)
    assert hides(a_call(reasoning_effort="low"), name)


@pytest.mark.parametrize(
    ("members", "thinks"),
    [
        ({}, False),
        ({"reasoning_effort": None}, False),
        ({"reasoning_effort": "minimal"}, True),
        ({"reasoning_effort": "high"}, True),
        ({"reasoning_effort": "none"}, False),
        ({"reasoning": {"effort": "high"}}, True),
        ({"reasoning": {"max_tokens": 2000}}, True),
        ({"reasoning": {"enabled": False}}, False),
        ({"reasoning": {}}, False),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, True),
        ({"thinking": {"type": "disabled"}}, False),
        ({"enable_thinking": True}, True),
        ({"enable_thinking": False}, False),
        ({"chat_template_kwargs": {"enable_thinking": True}}, True),
        ({"chat_template_kwargs": {"thinking": False}}, False),
        ({"chat_template_kwargs": "odd"}, False),
        ({"reasoning_effort": ["odd"]}, True),
    ],
)
def test_ways_to_ask_for_it(members: dict[str, Any], thinks: bool) -> None:
    assert hides(a_call(**members), "m") == thinks


def test_reasoning_that_is_shown_is_all_of_it_once_the_answer_is_whole() -> None:
    assert hides(a_call(), "m", has_reasoned=True)
    assert not hides(a_call(), "o3", has_reasoned=True, is_whole=True)
    assert hides(a_call(), "o3", is_whole=True)


def test_candidates_that_lost_are_hidden() -> None:
    assert hides(a_call("completions", n=2, best_of=3), "m", is_whole=True)
    assert not hides(a_call("completions", n=3, best_of=3), "m")
    assert not hides(a_call("completions", n=3, best_of=1), "m")
