"""The pauses of a hook that fails, and its settings."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.config import Config, ConfigError, build
from gateway.formats.table import FORMATS
from gateway.pipeline.services import Amendment
from gateway.upstream.circuit_breaker import CONSECUTIVE_FAILURES, FIRST_COOLDOWN_S, CircuitEvent
from gateway.wings.hooks.amending import make
from gateway.wings.hooks.check import describe
from gateway.wings.hooks.policy import Breaker
from gateway.wings.hooks.reading import READS
from gateway.wings.hooks.settings import IN_BATCHES, UNSEEN, endpoints, warnings_of
from tests.test_floors import complaints_of, impure

from .test_hooks import SECRET

SAFE = {"url": "https://hooks.example.com/a", "secret": SECRET}


def config(after: dict[str, Any] | None = None, **before: Any) -> Config:
    return build({
        "upstreams": {
            "up": {"base_url": "https://api.openai.com/v1", "api_key": "sk-1"},
            "claude": {"base_url": "https://api.anthropic.com/v1", "api_key": "sk-2"},
        },
        "files": {"upstream": "up"},
        "models": {
            "m": {"routes": [{"upstream": "up"}], "max_output_tokens": 9, "endpoints": ["chat"]},
            "m2": {"routes": [{"upstream": "claude"}], "max_output_tokens": 9, "endpoints": ["messages"]},
            "ears": {"routes": [{"upstream": "up"}], "endpoints": ["transcriptions"]},
        },
        "keys": [{"id": "k", "secret": "sk-gw-k-0123456789abcdef"}],
        "hooks": {"before_call": before, "after_call": after or {}},
    })  # fmt: skip


# ---------------------------------------------------------------------------------------------------------- the breaker


def opened(caller: str = "") -> Breaker:
    breaker = Breaker()
    for _ in range(CONSECUTIVE_FAILURES):
        assert breaker.admits(caller, 0.0)
        breaker.note(CircuitEvent.FAILURE, caller, 0.0, 0.0)
    return breaker


def test_failures_in_a_row_stop_the_questions_for_a_while() -> None:
    breaker = opened()
    assert not breaker.admits("k", FIRST_COOLDOWN_S - 0.01)
    assert breaker.admits("k", FIRST_COOLDOWN_S)


def test_after_the_pause_one_call_asks_at_a_time() -> None:
    breaker = opened()
    assert [breaker.admits("k", FIRST_COOLDOWN_S) for _ in range(3)] == [True, False, False]
    breaker.note(CircuitEvent.NEUTRAL, "k", FIRST_COOLDOWN_S, FIRST_COOLDOWN_S)  # its client has left
    assert breaker.admits("k", FIRST_COOLDOWN_S)
    breaker.note(CircuitEvent.SUCCESS, "k", FIRST_COOLDOWN_S, FIRST_COOLDOWN_S)
    assert all(breaker.admits("k", FIRST_COOLDOWN_S) for _ in range(3))


def test_failures_of_one_key_stop_its_own_questions_alone() -> None:
    breaker = opened("alice")
    assert [breaker.admits(name, 0.5) for name in ("alice", "bob")] == [False, True]
    breaker.note(CircuitEvent.FAILURE, "bob", 0.5, 0.5)
    assert [breaker.admits(name, 0.6) for name in ("alice", "bob", "carol")] == [False, False, False]


# --------------------------------------------------------------------------------------------------------- the settings


@pytest.mark.parametrize(
    ("hook", "reason"),
    [
        ({"url": "ftp://a.example"}, "expected an address"),
        ({**SAFE, "secret": "secret"}, "expected whsec_"),
        ({**SAFE, "secret": "whsec_c2hvcnQ="}, "expected whsec_"),
        ({**SAFE, "timeout_ms": 1}, "timeout_ms"),
        ({**SAFE, "max_bytes": "5MiB"}, "max_bytes"),
        ({**SAFE, "on_failure": "ask"}, "on_failure"),
        ({}, "url"),
    ],
)
def test_settings_that_are_refused(hook: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError) as refused:
        config(guard=hook)
    assert reason in str(refused.value)
    assert "c2hvcnQ" not in str(refused.value)


@pytest.mark.parametrize(
    ("hook", "warnings"),
    [
        (SAFE, []),
        ({"url": "http://127.0.0.1:9"}, []),
        ({"url": "https://hooks.example.com"}, ["has no secret"]),
        ({**SAFE, "url": "http://hooks.example.com"}, ["sends in plain text"]),
        ({**SAFE, "teams": ["red", "b*"]}, ["no team in this file is called 'red'"]),
        ({**SAFE, "endpoints": ["chats"]}, ["is no endpoint"]),
        ({**SAFE, "sees": "body"}, ["calls at transcriptions"]),
        ({**SAFE, "sees": "body", "endpoints": ["chat", "batches"]}, []),
        ({**SAFE, "endpoints": ["chat", "embeddings"]}, ["batches of chat pass it: list batches"]),
        ({**SAFE, "endpoints": ["messages"]}, ["batches of messages pass it: list message_batches"]),
        ({**SAFE, "endpoints": ["messages", "message_batches", "transcriptions"]}, []),
    ],
)
def test_what_it_warns_of(hook: dict[str, Any], warnings: list[str]) -> None:
    found = [each.message for each in warnings_of(config(guard=hook))]
    assert len(found) == len(warnings)
    assert all(words in message for words, message in zip(warnings, found, strict=True))


@pytest.mark.parametrize(
    ("other", "route", "more", "key", "passing"),
    [
        ("m-too", {"upstream": "up", "model": "large"}, {}, ["*"], "m-too"),
        ("m-too", {"upstream": "up", "model": "large"}, {}, ["m*"], "m-too"),
        ("large", {"upstream": "up"}, {}, ["*"], "large"),
        ("*", {"upstream": "up"}, {}, ["*"], "large"),
        ("l*", {"upstream": "up"}, {}, ["m", "la*"], "large"),
        ("l*", {"upstream": "up", "model": "large"}, {}, ["m", "la*"], "l*"),
        ("n*", {"upstream": "up"}, {}, ["*"], None),
        ("*", {"upstream": "claude"}, {}, ["*"], None),
        ("m-too", {"upstream": "up", "model": "small"}, {}, ["*"], None),
        ("m-too", {"upstream": "up", "model": "large"}, {}, ["m"], None),
        ("m-too", {"upstream": "up", "model": "large"}, {}, ["m-too"], None),
        ("m-too", {"upstream": "up", "model": "large"}, {"keys": ["other"]}, ["*"], None),
        ("m-too", {"upstream": "up", "model": "large"}, {"models": ["m*"]}, ["*"], None),
        ("m-too", {"upstream": "up", "model": "large"}, {"endpoints": ["messages"]}, ["*"], None),
    ],
)
def test_it_warns_of_other_names_of_its_models(
    other: str, route: dict[str, Any], more: dict[str, Any], key: list[str], passing: str | None
) -> None:
    served = {"max_output_tokens": 9, "endpoints": ["chat"]}
    address = "https://api.openai.com/v1"
    found = warnings_of(
        build({
            "upstreams": {name: {"base_url": address, "api_key": name} for name in ("up", "claude")},
            "models": {
                "m": {"routes": [{"upstream": "up", "model": "large"}], **served}, other: {"routes": [route], **served},
            },
            "keys": [{"id": "k", "secret": "sk-gw-k-0123456789abcdef", "models": key}],
            "hooks": {"before_call": {"guard": {**SAFE, "models": ["m"], **more}}},
        })
    )  # fmt: skip
    expected = f"{passing!r} leads where 'm' does, and passes it: the key 'k' may use both"
    assert [each.message for each in found] == ([] if passing is None else [expected])


def test_the_lists_of_endpoints_are_those_of_the_formats() -> None:
    """A new format is in them, or this fails."""
    assert FORMATS.keys() == endpoints()
    assert {name for name, each in FORMATS.items() if each.read_form is not None} | {"realtime", "batches"} == UNSEEN
    assert {name for name, each in FORMATS.items() if each.gather is not None} == READS.keys()
    assert {name: each.batch.endpoints for name, each in FORMATS.items() if each.batch is not None} == IN_BATCHES


def test_check_shows_hooks_without_their_secrets() -> None:
    shown = describe(
        config({"books": {**SAFE, "answers_of": ["a*"]}}, guard={**SAFE, "url": "https://hooks.example.com/T0KEN"})
    )
    assert shown == (
        "guard before calls (https://hooks.example.com, sees facts, else refuse), "
        "books after calls (https://hooks.example.com, with answers of a*)"
    )
    assert "T0KEN" not in repr(config(guard={**SAFE, "url": "https://hooks.example.com/T0KEN"}))


async def test_a_reload_keeps_hooks_that_are_set_as_before() -> None:
    first = make(config({"books": SAFE}, a=SAFE, b=SAFE), ())
    again: list[Amendment] = make(config({"books": SAFE}, b=SAFE, a={**SAFE, "sees": "body"}), first)
    assert [each in first for each in again] == [True, False, True]
    assert len(make(config(), first)) == 0


def test_the_policy_is_pure() -> None:
    assert complaints_of(impure, ["gateway.wings.hooks.policy", "gateway.wings.hooks.reading"]) == ""
