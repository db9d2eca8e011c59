"""A list of the newest rows asks a store no oftener than it has to: a turn without hits may read a million records."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.commands.common import PAGE, newest_stored


@pytest.mark.parametrize(
    ("stored", "limit", "asked"),
    [
        (0, 100, [(100, None)]),
        (7, 100, [(100, None)]),
        (100, 100, [(100, None)]),
        (PAGE, 3 * PAGE, [(PAGE, None), (PAGE, "0")]),
        (PAGE + 5, 3 * PAGE, [(PAGE, None), (PAGE, "5")]),
        (9 * PAGE, PAGE + 3, [(PAGE, None), (3, str(8 * PAGE))]),
    ],
)
async def test_a_short_turn_is_the_last_one(stored: int, limit: int, asked: list[Any]) -> None:
    turns: list[Any] = []

    async def read(size: int, before: str | None) -> list[int]:
        turns.append((size, before))
        end = stored if before is None else int(before)
        return [*range(end - 1, max(end - size, 0) - 1, -1)]

    assert await newest_stored(limit, read, str) == [*range(stored - 1, max(stored - limit, 0) - 1, -1)]
    assert turns == asked
