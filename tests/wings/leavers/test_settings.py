"""Warnings of `gateway check`: absences that are not noted, and named admin tokens that end."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gateway.config import build
from gateway.config.probable_mistakes import warnings_of
from gateway.wings.leavers.check import describe

TOKEN, OTHER = "f3a91c7be2d84056", "65048d2eb7c19a3f"


def in_days(days: float) -> str:
    return (datetime.now(UTC) + timedelta(days=days)).isoformat()


def values(**more: Any) -> dict[str, Any]:
    return {
        "upstreams": {"up": {"base_url": "https://api.openai.com/v1", "api_key": "sk-1"}},
        "models": {"m": {"routes": [{"upstream": "up"}], "max_output_tokens": 9, "price": {"input": 2, "output": 8}}},
        **more,
    }


def warned(**more: Any) -> list[str]:
    return [str(each) for each in warnings_of(build(values(**more)), datetime.now(UTC))]


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"expires": in_days(-1)}, "admin.tokens.ci.expires: is in the past, and this token is refused"),
        ({"expires": in_days(8.5)}, "admin.tokens.ci.expires: is in 8 days"),
        ({"expires": in_days(30)}, None),
        ({"previous_token": OTHER, "previous_until": in_days(-1)}, "admin.tokens.ci.previous_until: is in the past"),
        ({"previous_token": OTHER, "previous_until": in_days(60)}, None),
    ],
)
def test_a_named_token_that_ends_has_a_warning(settings: dict[str, Any], found: str | None) -> None:
    warnings = warned(admin={"tokens": {"ci": {"token": TOKEN, "role": "viewer", **settings}}})
    assert [found is not None and warning.startswith(found) for warning in warnings] == [True] * (found is not None)


def test_an_absence_that_is_not_noted_has_a_warning() -> None:
    (absence, length) = warned(leavers={"inactive_after": "7d", "warn_before": "8d"})
    assert absence == "leavers.inactive_after: no person can sign in: neither oidc nor jwt is set"
    assert length.startswith("leavers.warn_before: is not shorter")


@pytest.mark.parametrize(
    ("leavers", "text"),
    [
        ({}, "access ends by operators alone"),
        ({"inactive_after": "30d"}, "access ends after 30 days without a sign-in"),
        ({"inactive_after": "30d", "by_groups": True},
         "access ends after 30 days without a sign-in, and at a sign-in without a group that gives a role"),
    ],
)  # fmt: skip
def test_check_names_when_access_ends(leavers: dict[str, Any], text: str) -> None:
    assert describe(build(values(leavers=leavers))) == text
