"""Bodies of the admin API: their shape, strictly."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.config import KeySettings, Limits, Quota, Team
from gateway.errors import InvalidRequest
from gateway.web.admin import request_bodies
from gateway.web.admin.request_bodies import CreateKey, UpdateKey


def spelt(value: Any) -> bytes:
    return json.dumps(value).encode()


def refused(value: Any, kind: type[request_bodies.RequestBody]) -> tuple[str | None, str | None]:
    with pytest.raises(InvalidRequest) as refusal:
        request_bodies.read(value if isinstance(value, bytes) else spelt(value), kind)
    return refusal.value.param, refusal.value.code


def test_what_was_sent_is_what_is_read() -> None:
    body = {"id": "alice", "quotas": [{"usd": 0.5, "per": 90}], "expires": None, "limits": {"n": 4, "deny": ["user"]}}
    assert request_bodies.read(spelt(body), CreateKey) == body


@pytest.mark.parametrize("kind", [request_bodies.RotateKey, request_bodies.ResetQuotas, UpdateKey])
def test_no_body_is_an_empty_one(kind: type[request_bodies.RequestBody]) -> None:
    assert request_bodies.read(b"", kind) == request_bodies.read(b" \n", kind) == request_bodies.read(b"{}", kind) == {}


@pytest.mark.parametrize(
    ("kind", "body", "received"),
    [
        (CreateKey, {}, ("id", "missing_required_parameter")),
        (CreateKey, {"id": 5}, ("id", "invalid_type")),
        (CreateKey, {"id": "a", "max_parallel": "few"}, ("max_parallel", "invalid_value")),
        (CreateKey, {"id": "a", "max_parallel": True}, ("max_parallel", "invalid_type")),
        (CreateKey, {"id": "a", "max_parallel": 2.0}, ("max_parallel", "invalid_type")),
        (CreateKey, {"id": "a", "max_parallel": 0}, ("max_parallel", "integer_below_min_value")),
        (CreateKey, {"id": "a", "models": "gpt-4*"}, ("models", "invalid_type")),
        (CreateKey, {"id": "a", "models": None}, ("models", "invalid_type")),
        (CreateKey, {"id": "a", "expires": 1893456000}, ("expires", "invalid_type")),
        (CreateKey, {"id": "a", "quotas": [{"tokens": "5x", "per": "day"}]}, ("quotas[0].tokens", "invalid_value")),
        (CreateKey, {"id": "a", "quotas": [{"tokens": 5}]}, ("quotas[0].per", "missing_required_parameter")),
        (CreateKey, {"id": "a", "quotas": [{"tokens": 5, "per": "fortnight"}]}, ("quotas[0].per", "invalid_value")),
        (CreateKey, {"id": "a", "quotas": [{"tokens": 5, "per": 1.5}]}, ("quotas[0].per", "invalid_type")),
        (CreateKey, {"id": "a", "on_exceeded": "ask"}, ("on_exceeded", "invalid_value")),
        (CreateKey, {"id": "a", "secret": "sk-mine-0123456789abcdefghij"}, ("secret", "unknown_parameter")),
        (UpdateKey, {"teem": "crew"}, ("teem", "unknown_parameter")),
        (UpdateKey, {"x" * 65: 1}, (None, "unknown_parameter")),
        (UpdateKey, {"id": "bob"}, ("id", "unknown_parameter")),
        (request_bodies.CreateTeam, {"name": ""}, ("name", "empty_string")),
        (request_bodies.RotateKey, {"overlap_s": "long"}, ("overlap_s", "invalid_value")),
        (request_bodies.RotateKey, {"overlap_s": -1}, ("overlap_s", "decimal_below_min_value")),
        (request_bodies.ResetQuotas, {"unit": "parallel"}, ("unit", "invalid_value")),
        (request_bodies.GrantTopUp, {"tokens": 5, "per": "minute"}, ("per", "invalid_value")),
        (request_bodies.GrantTopUp, b'{"tokens": 5, "tokens": 6, "per": "day"}', ("tokens", "duplicate_parameter")),
        (request_bodies.GrantTopUp, {"tokens": "5/minute"}, ("per", "invalid_value")),
        (request_bodies.GrantTopUp, {"tokens": "5/day", "per": "day"}, (None, "invalid_value")),
        (CreateKey, {"id": "a", "quotas": ["1M/day"]}, ("quotas[0]", "invalid_value")),
        (CreateKey, {"id": "a", "quotas": [5]}, ("quotas[0]", "invalid_type")),
        (request_bodies.GrantTopUp, b'{"tokens": NaN, "per": "day"}', (None, None)),
        (request_bodies.GrantTopUp, b"[1]", (None, None)),
        (request_bodies.GrantTopUp, b"tokens=5", (None, None)),
    ],
)  # fmt: skip
def test_body_of_another_shape(
    kind: type[request_bodies.RequestBody], body: Any, received: tuple[str | None, str | None]
) -> None:
    assert refused(body, kind) == received


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (CreateKey, {"id": "a", "quotas": ["1M tokens/day", "20 USD/month:gpt-4*"], "max_parallel": "1k"}),
        (CreateKey, {"id": "a", "quotas": [{"tokens": "1M/day"}, {"usd": "0.5", "per": "90s"}], "limits": {"n": "4"}}),
        (UpdateKey, {"quotas": [{"requests": 5, "per": "week"}], "expires": "30d"}),
        (request_bodies.RotateKey, {"overlap_s": "1h30m"}),
        (request_bodies.ResetQuotas, {"per": "15m"}),
        (request_bodies.GrantTopUp, {"tokens": "100k/week"}),
    ],
)
def test_quantities_may_be_text(kind: type[request_bodies.RequestBody], body: dict[str, Any]) -> None:
    assert request_bodies.read(json.dumps(body).encode(), kind) == body


def test_an_unknown_name_gets_a_suggestion() -> None:
    with pytest.raises(InvalidRequest, match=r"Unknown parameter: 'teem'\. Did you mean 'team'\?"):
        request_bodies.read(b'{"teem": 1}', UpdateKey)


def test_every_setting_of_a_key_can_be_wished_for() -> None:
    assert set(CreateKey.model_fields) - {"quota_changes"} == set(KeySettings.model_fields)
    assert set(UpdateKey.model_fields) == set(KeySettings.model_fields) - {"id"}
    assert set(request_bodies.LimitsBody.model_fields) == set(Limits.model_fields)
    assert (
        set(request_bodies.QuotaBody.model_fields)
        == {*request_bodies.GrantTopUp.model_fields, "label"}
        == set(Quota.model_fields)
    )
    assert (
        set(request_bodies.CreateTeam.model_fields) - {"name"}
        == set(request_bodies.UpdateTeam.model_fields)
        == set(Team.model_fields)
    )
