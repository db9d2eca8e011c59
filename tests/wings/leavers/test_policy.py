"""When someone who was not seen is warned of, and when her access ends."""

from __future__ import annotations

import pytest

from gateway.wings.leavers.policy import Seen, due, is_exempt
from gateway.wings.leavers.settings import DAY_S, LeaverSettings

SETTINGS = LeaverSettings.model_validate({"inactive_after": "30d", "warn_before": "7d", "exempt": ["ci-*", "batch"]})


@pytest.mark.parametrize(
    ("seen", "days", "what"),
    [
        (Seen(None), 0, "begin"),
        (Seen(0), 22.9, None),
        (Seen(0), 23, "warn"),
        (Seen(0, 23 * DAY_S), 29.9, None),
        (Seen(0, 23 * DAY_S), 30, "end"),
        (Seen(0), 300, "warn"),  # no gateway ran for long, so that there was no warning
        (Seen(0, 300 * DAY_S), 303, None),
        (Seen(0, 300 * DAY_S), 304, "end"),
        (Seen(29 * DAY_S), 31, None),
    ],
)
def test_what_is_due(seen: Seen, days: float, what: str | None) -> None:
    assert due(seen, SETTINGS, days * DAY_S) == what


def test_without_the_setting_nothing_is_due() -> None:
    assert due(Seen(0, 1), LeaverSettings(), 1e9) is None


def test_owners_that_are_no_people_are_exempt() -> None:
    assert [name for name in ("ci-main", "batch", "ann") if is_exempt(name, SETTINGS)] == ["ci-main", "batch"]
