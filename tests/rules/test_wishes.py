"""Bodies of the admin API: their shape, strictly."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.config import KeySettings, Limits, Quota, Team
from gateway.errors import InvalidRequest
from gateway.rules import wishes


def spelt(value: Any) -> bytes:
    return json.dumps(value).encode()


def refused(value: Any, kind: type[wishes.Wish]) -> tuple[str | None, str | None]:
    with pytest.raises(InvalidRequest) as refusal:
        wishes.read(value if isinstance(value, bytes) else spelt(value), kind)
    return refusal.value.param, refusal.value.code


def test_what_was_sent_is_what_is_read() -> None:
    body = {"id": "alice", "quotas": [{"usd": 0.5, "per": 90}], "expires": None, "limits": {"n": 4, "deny": ["user"]}}
    assert wishes.read(spelt(body), wishes.KeyWish) == body


@pytest.mark.parametrize("kind", [wishes.Rotation, wishes.Reset, wishes.KeyChanges])
def test_no_body_is_an_empty_one(kind: type[wishes.Wish]) -> None:
    assert wishes.read(b"", kind) == wishes.read(b" \n", kind) == wishes.read(b"{}", kind) == {}


@pytest.mark.parametrize(
    ("kind", "body", "told"),
    [
        (wishes.KeyWish, {}, ("id", "missing_required_parameter")),
        (wishes.KeyWish, {"id": 5}, ("id", "invalid_type")),
        (wishes.KeyWish, {"id": "a", "max_parallel": "20"}, ("max_parallel", "invalid_type")),
        (wishes.KeyWish, {"id": "a", "max_parallel": True}, ("max_parallel", "invalid_type")),
        (wishes.KeyWish, {"id": "a", "max_parallel": 2.0}, ("max_parallel", "invalid_type")),
        (wishes.KeyWish, {"id": "a", "max_parallel": 0}, ("max_parallel", "integer_below_min_value")),
        (wishes.KeyWish, {"id": "a", "models": "gpt-4*"}, ("models", "invalid_type")),
        (wishes.KeyWish, {"id": "a", "models": None}, ("models", "invalid_type")),
        (wishes.KeyWish, {"id": "a", "expires": 1893456000}, ("expires", "invalid_type")),
        (wishes.KeyWish, {"id": "a", "quotas": [{"tokens": "5", "per": "day"}]}, ("quotas[0].tokens", "invalid_type")),
        (wishes.KeyWish, {"id": "a", "quotas": [{"tokens": 5}]}, ("quotas[0].per", "missing_required_parameter")),
        (wishes.KeyWish, {"id": "a", "quotas": [{"tokens": 5, "per": "week"}]}, ("quotas[0].per", "invalid_value")),
        (wishes.KeyWish, {"id": "a", "quotas": [{"tokens": 5, "per": 1.5}]}, ("quotas[0].per", "invalid_type")),
        (wishes.KeyWish, {"id": "a", "on_exceeded": "ask"}, ("on_exceeded", "invalid_value")),
        (wishes.KeyWish, {"id": "a", "secret": "sk-mine-0123456789abcdefghij"}, ("secret", "unknown_parameter")),
        (wishes.KeyChanges, {"teem": "crew"}, ("teem", "unknown_parameter")),
        (wishes.KeyChanges, {"x" * 65: 1}, (None, "unknown_parameter")),
        (wishes.KeyChanges, {"id": "bob"}, ("id", "unknown_parameter")),
        (wishes.TeamWish, {"name": ""}, ("name", "empty_string")),
        (wishes.Rotation, {"overlap_s": "1h"}, ("overlap_s", "invalid_type")),
        (wishes.Rotation, {"overlap_s": -1}, ("overlap_s", "decimal_below_min_value")),
        (wishes.Reset, {"unit": "parallel"}, ("unit", "invalid_value")),
        (wishes.TopUp, {"tokens": 5, "per": "minute"}, ("per", "invalid_value")),
        (wishes.TopUp, b'{"tokens": 5, "tokens": 6, "per": "day"}', ("tokens", "duplicate_parameter")),
        (wishes.TopUp, b'{"tokens": NaN, "per": "day"}', (None, None)),
        (wishes.TopUp, b"[1]", (None, None)),
        (wishes.TopUp, b"tokens=5", (None, None)),
    ],
)  # fmt: skip
def test_body_of_another_shape(kind: type[wishes.Wish], body: Any, told: tuple[str | None, str | None]) -> None:
    assert refused(body, kind) == told


def test_unknown_name_is_told_what_it_was_meant_to_be() -> None:
    with pytest.raises(InvalidRequest, match=r"Unknown parameter: 'teem'\. Did you mean 'team'\?"):
        wishes.read(b'{"teem": 1}', wishes.KeyChanges)


def test_every_setting_of_a_key_can_be_wished_for() -> None:
    assert set(wishes.KeyWish.model_fields) == set(KeySettings.model_fields)
    assert set(wishes.KeyChanges.model_fields) == set(KeySettings.model_fields) - {"id"}
    assert set(wishes.LimitsWish.model_fields) == set(Limits.model_fields)
    assert set(wishes.QuotaWish.model_fields) == set(wishes.TopUp.model_fields) == set(Quota.model_fields)
    assert (
        set(wishes.TeamWish.model_fields) - {"name"} == set(wishes.TeamChanges.model_fields) == set(Team.model_fields)
    )
