"""Attempts that were billed, failed here and were made again: a bounded guess, behind all other rules."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestServer

from gateway.cli import main
from gateway.records import Fault
from gateway.simulator import Settings
from gateway.simulator.server import ServedCall
from gateway.store.call_filter import CallFilter
from gateway.wings.billing.bill import Billed, Side
from gateway.wings.billing.compare import RecordedUsage
from gateway.wings.billing.explain import Explained, explain
from gateway.wings.billing.repeated import (
    MAY_HAVE_GENERATED,
    MOST_CALLS,
    PAGE,
    FailedAttempts,
    attempts_at,
    most_of,
    with_repeated,
)
from gateway.wings.billing.simulated_vendor import BillingSimulator, key_id
from tests.web.conftest import AUTH, KEY, Inside

from .test_simulated_vendor import RATES
from .vendors import ADMIN

DAY = "2026-11-20"
NOON = 1_795_176_000.0

NOT_SENT = {
    Fault.CONNECT, Fault.BUSY, Fault.LIMIT, Fault.SPENT, Fault.CIRCUIT_OPEN, Fault.RATE_LIMITED, Fault.AUTH,
    Fault.BALANCE, Fault.NO_CHANNEL, Fault.WRONG_URL, Fault.REDIRECT,
}  # fmt: skip
"""Faults behind which nothing is generated."""


def test_each_fault_is_judged() -> None:
    words = {fault.value for fault in Fault if fault not in NOT_SENT}
    assert words | {"hedged"} == MAY_HAVE_GENERATED


# ----------------------------------------------------------------------------------------------- what was recorded


def call(failed: str, **more: Any) -> dict[str, Any]:
    return {
        "time": NOON, "failed": failed, "ended": "done", "upstream": "main", "label_model": "m", "returned_model": None,
        "routed_model": "theirs", "usage": {"prompt_tokens": 100, "completion_tokens": 20}, "position": "1", **more,
    }  # fmt: skip


class Stored:
    """A store with these calls, the newest first."""

    def __init__(self, calls: list[dict[str, Any]]) -> None:
        self._calls = calls
        self.asked: list[CallFilter | None] = []

    async def calls(
        self, limit: int, key: str | None = None, before: str | None = None, only: object = None,
        wanted: CallFilter | None = None,
    ) -> list[Mapping[str, Any]]:  # fmt: skip
        self.asked.append(wanted)
        first = 0 if before is None else int(before)
        return [each | {"position": str(first + at + 1)} for at, each in enumerate(self._calls[first : first + limit])]


async def found(*calls: dict[str, Any]) -> dict[tuple[str, str], FailedAttempts]:
    return await attempts_at(Stored([*calls]), "main", [DAY], {("m", "main"): "theirs"})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("failed", "more", "number"),
    [
        ("main:status", {}, 1), ("main:timeout main:status", {}, 2), ("main:connect_failed", {}, 0),
        ("spare:status", {}, 0), ("main:hedged", {"upstream": "spare"}, 1), ("main:rate_limited", {}, 0),
        ("main:status main:status", {"ended": "error"}, 1), ("main:status", {"ended": "error"}, 0),
        ("main:cut spare:status", {"ended": "error", "upstream": "spare"}, 1),
    ],
)  # fmt: skip
async def test_attempts_that_may_have_been_billed(failed: str, more: dict[str, Any], number: int) -> None:
    expected = {(DAY, "theirs"): FailedAttempts(number, 100 * number, 20 * number)} if number else {}
    assert await found(call(failed, **more)) == expected


async def test_the_newest_calls_are_read_page_by_page() -> None:
    stored = Stored([call("main:status")] * (MOST_CALLS + 7))
    read = await attempts_at(stored, "main", [DAY, "2026-11-18"], {})  # type: ignore[arg-type]
    assert read == {(DAY, "theirs"): FailedAttempts(MOST_CALLS, 100 * MOST_CALLS, 20 * MOST_CALLS)}
    assert len(stored.asked) == MOST_CALLS // PAGE
    (wanted, *_) = stored.asked
    assert wanted is not None
    assert (wanted.failed_at, wanted.until - wanted.since) == ("main", 3 * 86_400)  # type: ignore[operator]


# ------------------------------------------------------------------------------------------------------- the bound

SIDE = Side(12, (1_200, 0, 240, 0), (1_200_000, 0, 480_000, 0))
"""Twelve calls of 100 + 20 tokens, each 140,000 billionths."""
OURS = RecordedUsage(10, 0, 1_000, 200, cost_nusd=1_400_000)


def row(ours: RecordedUsage = OURS, side: Side = SIDE) -> Explained:
    (one,) = explain({(DAY, "m"): ours}, {(DAY, "m"): Billed(side)}, open_from="2027-01-01", knows_keys=True)
    return one


def causes(ours: RecordedUsage, side: Side, failed: FailedAttempts) -> dict[str, int]:
    (one,) = with_repeated([row(ours, side)], {(DAY, "m"): failed})
    assert sum(one.causes.values()) == one.difference_nusd
    return one.causes


def test_two_attempts_are_the_two_calls_that_the_bill_has_more() -> None:
    assert causes(OURS, SIDE, FailedAttempts(2, 200, 40)) == {"repeated": 280_000}


def test_attempts_explain_no_more_than_the_bill_has_requests_more() -> None:
    large = SIDE._replace(requests=11, tokens=(6_000, 0, 240, 0), nusd=(6_000_000, 0, 480_000, 0))
    assert causes(OURS, large, FailedAttempts(9, 900, 180)) == {"repeated": 420_000, "unexplained": 4_660_000}
    assert causes(OURS, large._replace(requests=10), FailedAttempts(9, 900, 180)) == {"unexplained": 5_080_000}


def test_attempts_explain_nothing_where_the_bill_has_less() -> None:
    less = SIDE._replace(requests=8, tokens=(800, 0, 160, 0), nusd=(800_000, 0, 320_000, 0))
    assert causes(OURS, less, FailedAttempts(2, 200, 40)) == {"unexplained": -280_000}


def test_requests_that_failed_are_not_counted_twice() -> None:
    """One call failed and one attempt was repeated; the bill has both, and a third one."""
    ours = RecordedUsage(11, 1, 1_000, 200, cost_nusd=1_400_000)
    side = Side(13, (5_000, 0, 260, 0), (5_000_000, 0, 520_000, 0))
    explained = causes(ours, side, FailedAttempts(5, 500, 100))
    assert explained["not_arrived"] > 0
    assert explained["repeated"] == most_of(FailedAttempts(5, 500, 100), side, 2)


def test_a_bill_without_numbers_of_requests_is_bounded_by_the_attempts() -> None:
    assert most_of(FailedAttempts(4, 400, 80), SIDE, None) == 8 * 140_000
    assert most_of(FailedAttempts(4, 0, 0), SIDE, None) == 8 * 140_000, "of calls without usage, the mean of the bill"
    assert most_of(FailedAttempts(4, 400, 80), Side(), None) == 0


# ----------------------------------------------------------------------------------------------- from call to bill


class Losing(BillingSimulator):
    """Bills each third answer, and sends an error in its place."""

    def is_lost(self, entry: ServedCall) -> bool:
        self.served = getattr(self, "served", 0) + 1
        return self.served % 3 == 0


@pytest.fixture
async def vendors() -> AsyncIterator[dict[str, tuple[BillingSimulator, str]]]:
    made = {
        "main": Losing(Settings(), ADMIN, lambda _, __: RATES),
        "spare": BillingSimulator(Settings(), ADMIN, lambda _, __: RATES),
    }
    servers = {name: TestServer(vendor.app()) for name, vendor in made.items()}
    for server in servers.values():
        await server.start_server()
    yield {name: (made[name], str(server.make_url("/v1"))) for name, server in servers.items()}
    for server in servers.values():
        await server.close()


async def test_an_answer_that_was_billed_lost_and_made_elsewhere_is_repeated(
    vendors: dict[str, tuple[BillingSimulator, str]], inside: Inside, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    addresses = {name: address for name, (_, address) in vendors.items()}
    settings: dict[str, Any] = {
        "store": {"url": f"embedded:{tmp_path}/data", "journal_dir": f"{tmp_path}/journal"},
        "upstreams": {name: {"base_url": address, "api_key": f"sk-{name}"} for name, address in addresses.items()},
        "models": {"gpt-4o-mini": {
            "routes": [{"upstream": name, "priority": at} for at, name in enumerate(addresses)],
            "max_output_tokens": 100, "price": {name: float(rate) for name, rate in RATES.items()},
        }},
        "billing": {"settles_after": 1, "upstreams": {
            name: {"provider": "openai", "api_key": ADMIN, "base_url": address, "key_ids": [key_id(f"sk-{name}")]}
            for name, address in addresses.items()
        }},
    }  # fmt: skip
    client = await inside("http://127.0.0.1:9/v1", **settings)
    for number in range(6):
        body = {"model": "gpt-4o-mini", "max_tokens": 20 + number, "messages": [{"role": "user", "content": "Hello"}]}
        async with client.post("/v1/chat/completions", json=body, headers=AUTH) as answer:
            assert answer.status == 200, await answer.text()
    (tmp_path / "gateway.yaml").write_text(json.dumps(settings | {"keys": [{"id": "k", "secret": KEY}]}))
    config = str(tmp_path / "gateway.yaml")
    rows: dict[str, dict[str, Any]] = {}
    async with asyncio.timeout(60):
        while sum(row["recorded_requests"] for row in rows.values()) < 6:  # records are written behind answers
            assert await asyncio.to_thread(main, ["bill", "--config", config, "--json"]) == 0
            rows = {row["upstream"]: row for row in json.loads(capsys.readouterr().out)}
    both = sum(vendor.sold.usd() for vendor, _ in vendors.values())
    assert sum(row["bill_usd"] for row in rows.values()) == pytest.approx(float(both))
    assert rows["main"]["bill_requests"] - rows["main"]["recorded_requests"] == rows["spare"]["recorded_requests"] == 2
    assert rows["main"]["repeated_usd"] == rows["main"]["difference_usd"] > 0
    assert rows["main"]["unexplained_usd"] == rows["spare"]["difference_usd"] == 0
