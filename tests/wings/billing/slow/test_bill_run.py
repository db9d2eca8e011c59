"""A gateway before a provider that bills by its own rules, with kills, cuts, clients that leave, other users of the
account and a price that changed: `python -m bench.bill`, with fewer calls."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.bill.plan import Kind
from bench.bill.run import run

CALLS = 1_500

pytestmark = pytest.mark.timeout(300)


async def test_each_difference_is_explained_as_it_was_injected(tmp_path: Path) -> None:
    verdict = await run(CALLS, 43, tmp_path, print)
    assert verdict.complaints == []
    assert all(verdict.calls[kind] for kind in Kind)
    injected = {cause for cause, amount in verdict.injected.items() if amount}
    assert injected == {"other_users", "price", "estimated", "not_arrived", "repeated"}
