"""Bills that differ, cannot be read, or whose account ends soon."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gateway.wings.answers import bills
from gateway.wings.answers.bills import FINDING, of_bills, of_posts
from gateway.wings.billing import findings
from gateway.wings.billing.bill import Account, Bill, Billed, Side
from gateway.wings.billing.compare import RecordedUsage
from gateway.wings.billing.explain import Explained
from gateway.wings.billing.recorded import ComparedBill

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
AT = NOW.timestamp()


def finding(**more: Any) -> dict[str, Any]:
    nothing: dict[str, Any] = {"unexplained": {}, "prices": {}, "spent": {}, "left_usd": None, "limit_usd": None}
    return {"upstream": "openai", "failed": None, "read_at": AT - 60, "bound_usd": 1.0, **nothing, **more}


def spent(usd: float, days: int = 30) -> dict[str, float]:
    return {(NOW - timedelta(days=ago)).date().isoformat(): usd for ago in range(1, days + 1)}


def texts(**more: Any) -> list[str]:
    return [each.text for each in of_bills([finding(**more)], AT)]


def test_a_bill_that_agrees_is_no_problem() -> None:
    assert texts(spent=spent(5.0)) == []


def test_a_difference_above_the_bound_since_its_first_day() -> None:
    assert texts(unexplained={"2026-11-10": 0.6, "2026-11-12": 0.4}) == []
    (found,) = of_bills([finding(unexplained={"2026-11-10": 3.0, "2026-11-12": -0.5})], AT)
    assert (found.kind, found.subject, found.number) == ("bill", "openai", 2)
    assert datetime.fromtimestamp(found.since, UTC).date().isoformat() == "2026-11-10"
    assert found.text == "the bill has $2.50 more than the records, without an explanation"
    assert "$3.00 less than" in texts(unexplained={"2026-11-10": -3.0})[0]


def test_a_price_that_the_bill_contradicts() -> None:
    (found,) = of_bills([finding(prices={"m": "2026-11-10", "k": "2026-11-08"})], AT)
    assert (found.kind, found.number, found.text) == (
        "bill", 2, "the bill has another price than the configuration for k, m"
    )  # fmt: skip
    assert datetime.fromtimestamp(found.since, UTC).date().isoformat() == "2026-11-08"


def test_a_bill_that_cannot_be_read() -> None:
    (found,) = of_bills([finding(failed="it answers 401", read_at=AT - 7200)], AT)
    assert (found.kind, found.since, found.number) == ("reading", AT - 7200, 2)
    (never,) = of_bills([finding(failed="it answers 401", read_at=None)], AT)
    assert (never.since, never.number) == (AT, 0)


def test_an_account_that_ends_within_two_weeks() -> None:
    assert texts(spent=spent(5.0), left_usd=100.0) == []
    (found,) = of_bills([finding(spent=spent(5.0), left_usd=20.0)], AT)
    assert (found.kind, found.number) == ("account", 4)
    assert found.text == (
        "$20.00 are left of the balance of the account: at the pace of the last 7 days it ends 2026-11-24"
    )
    uneven = spent(5.0) | dict.fromkeys(list(spent(0.0))[21:28], 1.0)
    assert "(2026-11-24 to 2026-12-10, by the dearest" in texts(spent=uneven, left_usd=20.0)[0]
    assert texts(left_usd=0.0) == ["the balance of the account is spent"]
    assert texts(left_usd=20.0) == [], "nothing is spent, so it does not end"


@pytest.mark.parametrize(("limit", "is_told"), [(96.0, True), (160.0, False)])
def test_a_limit_of_the_month_that_ends_before_the_month(limit: float, is_told: bool) -> None:
    assert bool(texts(spent=spent(5.0), limit_usd=limit)) is is_told  # 95 of it are spent, and about 52 will be


def test_posts_of_other_versions_are_left_out() -> None:
    assert of_posts({"a": "", "b": "[1]", "c": '[{"upstream": "x"}]', "d": "{}"}, AT) == []


def test_a_finding_has_the_form_that_is_posted() -> None:
    """The two wings do not import each other: this holds their forms together."""
    side = Side(1, (1_000_000, 0, 0, 0), (5_000_000_000, 0, 0, 0))
    ours = RecordedUsage(1, prompt_tokens=1_000_000, cost_nusd=2_000_000_000)
    causes = [{"price": 3_000_000_000}] * 3 + [{"unexplained": 2_000_000_000}]
    rows = [Explained(f"2026-11-{12 + at}", "m", ours, Billed(side), each) for at, each in enumerate(causes)]
    bill = Bill(AT - 60, "2026-11-01", {}, Account(left_usd=1.0))
    made = findings.finding_of(ComparedBill("openai", bill, "2026-11-19", rows), None, 1.0)
    assert {*made} == {*findings.unread("openai", "x")} == {*FINDING}
    assert findings.PLACE == bills.PLACE
    found = of_posts({findings.HOLDER: findings.written([made])}, AT)
    assert [each.kind for each in found] == ["bill", "bill", "account"]
