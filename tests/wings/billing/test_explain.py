"""The causes of a difference: they add up exactly, and each that is injected is found."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wings.billing.bill import Bill, Billed, Side
from gateway.wings.billing.compare import RecordedUsage
from gateway.wings.billing.explain import CAUSES, Explained, explain, prices, proposals, total
from gateway.wings.billing.recorded import ComparedBill
from gateway.wings.billing.repeated import FailedAttempts, with_repeated
from gateway.wings.billing.statement import COLUMNS, format_csv, format_table, notes, rows_of, summary_of
from tests.reports.test_csv_text import NAMES, has_no_formula

from .test_account import NOW, TODAY, bill_of
from .vendors import DAY_S, Call, Vendor

Records = dict[tuple[str, str], RecordedUsage]

numbers = st.integers(0, 2_000)
money = st.integers(0, 10_000_000)
sides = st.builds(
    Side, numbers, st.tuples(numbers, numbers, numbers, st.just(0)), st.tuples(money, money, money, money),
    st.integers(0, 100), numbers,
)  # fmt: skip
used = st.builds(RecordedUsage, numbers, numbers, numbers, numbers, numbers, numbers, money, numbers)
some = st.integers(-2_000, 2_000)
changes = st.builds(RecordedUsage, st.just(0), some, some, some, some, some, some.map(lambda part: 5_000 * part), some)
names = st.tuples(st.sampled_from([f"2026-11-{day:02}" for day in range(1, 8)]), st.sampled_from(["a", "b"]))


@given(
    st.dictionaries(names, used), st.dictionaries(names, st.builds(Billed, sides, sides)),
    st.sampled_from(["2026-11-01", "2026-11-05", "2026-12-01"]), st.booleans(), st.dictionaries(names, changes),
)  # fmt: skip
def test_the_causes_add_up_to_the_difference(
    records: Records, bill: dict[tuple[str, str], Billed], open_from: str, knows_keys: bool, corrections: Records
) -> None:
    rows = explain(records, bill, open_from=open_from, knows_keys=knows_keys, corrections=corrections)
    assert {(row.day, row.model) for row in rows} == {*records, *bill}
    for row in rows:
        assert sum(row.causes.values()) == row.difference_nusd
        assert {*row.causes} <= {*CAUSES}
    assert sum(total(rows).values()) == sum(row.difference_nusd for row in rows)


@given(
    st.dictionaries(names, used), st.dictionaries(names, st.builds(Billed, sides, sides)),
    st.dictionaries(names, st.builds(FailedAttempts, st.integers(1, 50), numbers, numbers)),
)  # fmt: skip
def test_a_guess_of_repeated_attempts_takes_from_what_is_unexplained_alone(
    records: Records, bill: dict[tuple[str, str], Billed], attempts: dict[tuple[str, str], FailedAttempts]
) -> None:
    before = explain(records, bill, open_from="2026-12-01", knows_keys=True)
    for old, new in zip(before, with_repeated(before, attempts), strict=True):
        guessed, left = new.causes.get("repeated", 0), old.causes.get("unexplained", 0)
        assert 0 <= guessed <= max(0, left)
        assert guessed + new.causes.get("unexplained", 0) == left
        assert guessed == 0 or (old.day, old.model) in attempts
        assert sum(new.causes.values()) == new.difference_nusd


# ------------------------------------------------------------------------------------------------------------- a month

OUR_PRICE = (Decimal("0.15"), Decimal("0.075"), Decimal("0.6"))


def month(seed: int = 7, calls: int = 4_000) -> list[Call]:
    """The calls of 28 days before today, through the gateway."""
    dice = random.Random(seed)
    return [
        Call(
            TODAY - dice.randint(2, 29) * DAY_S, dice.choice(["gpt-4o-mini-2024-07-18", "gpt-4.1", "o4-mini"]),
            dice.randint(10, 5_000), dice.choice([0, 0, 1_024]), dice.randint(1, 2_000),
        )
        for _ in range(calls)
    ]  # fmt: skip


def recorded(calls: Iterable[Call], **more: Callable[[Call], int]) -> Records:
    """The records of these calls at the gateway's own prices."""
    found: defaultdict[tuple[str, str], RecordedUsage] = defaultdict(RecordedUsage)
    for call in calls:
        cost = sum(round(usd * 10**9) for usd in call._replace(price=OUR_PRICE).usd)
        one = RecordedUsage(1, 0, call.input + call.cached, call.output, call.cached, 0, cost, 0)
        one = one._replace(**{name: of(call) for name, of in more.items()})
        name = datetime.fromtimestamp(call.day, UTC).date().isoformat(), call.model
        found[name] = found[name].plus(one)
    return dict(found)


async def rows_with(
    records: Records, calls: Iterable[Call], open_from: str = "2025-11-29", **more: Any
) -> list[Explained]:
    bill = await bill_of(Vendor(calls, page=31), days=35, **more)
    return explain(records, bill.rows, open_from=open_from, knows_keys=bool(more))


def usd_of(calls: Iterable[Call]) -> float:
    return float(sum(sum(call.usd) for call in calls))


def in_usd(rows: list[Explained]) -> dict[str, float]:
    return {cause: amount / 1e9 for cause, amount in total(rows).items()}


async def test_a_month_that_agrees_has_no_difference_but_rounding() -> None:
    calls = month()
    found = in_usd(await rows_with(recorded(calls), calls))
    assert {*found} <= {"rounding"}
    assert abs(found.get("rounding", 0)) < 1e-4


async def test_other_keys_are_named() -> None:
    calls = month()
    others = [call._replace(key="key_other") for call in month(8, 600)]
    found = in_usd(await rows_with(recorded(calls), calls + others, key_ids=("key_gateway",)))
    assert found["other_users"] == pytest.approx(usd_of(others), rel=1e-6)
    assert {*found} <= {"other_users", "rounding"}


async def test_a_model_that_the_gateway_never_called_is_another_users() -> None:
    calls = month(calls=2_000)
    others = [call._replace(model="gpt-image-1") for call in month(8, 100)]
    found = in_usd(await rows_with(recorded(calls), calls + others))
    assert found["other_users"] == pytest.approx(usd_of(others), rel=1e-6)
    named = in_usd(await rows_with(recorded(calls), calls + others, key_ids=("key_gateway",)))
    assert named["unexplained"] == pytest.approx(usd_of(others), rel=1e-6), "with its own key it is a question"


async def test_another_price_is_found_and_proposed() -> None:
    calls = month()
    dearer = (Decimal("0.20"), Decimal("0.075"), Decimal("0.6"))
    billed = [call._replace(price=dearer) if call.model == "gpt-4.1" else call for call in calls]
    rows = await rows_with(recorded(calls), billed)
    found = in_usd(rows)
    assert found["price"] == pytest.approx(usd_of(billed) - usd_of(calls), rel=1e-3)
    assert {*found} <= {"price", "rounding"}
    ((model, proposed),) = proposals(rows).items()
    assert model == "gpt-4.1"
    assert [float(price or 0) * 1e-3 for price in proposed] == pytest.approx([0.20, 0.075, 0.6], rel=1e-3)


async def test_a_price_that_changed_at_noon_is_no_proposal_yet() -> None:
    calls = month()
    day = TODAY - 2 * DAY_S
    dearer = (Decimal("0.20"), Decimal("0.1"), Decimal("0.8"))
    half = [
        call._replace(price=dearer) if call.day == day and number % 2 else call for number, call in enumerate(calls)
    ]
    rows = await rows_with(recorded(calls), half)
    assert in_usd(rows)["price"] == pytest.approx(usd_of(half) - usd_of(calls), rel=0.02)
    assert not proposals(rows)


async def test_a_tier_is_a_cause_of_its_own() -> None:
    calls = month()
    half = (Decimal("0.075"), Decimal("0.0375"), Decimal("0.3"))
    billed = [call._replace(price=half, tier="batch") if call.model == "o4-mini" else call for call in calls]
    found = in_usd(await rows_with(recorded(calls), billed))
    assert found["tier"] == pytest.approx(usd_of(billed) - usd_of(calls), rel=1e-3)
    assert {*found} <= {"tier", "rounding"}


async def test_estimated_tokens_explain_no_more_than_they_are_worth() -> None:
    """Each tenth call was estimated at twice its output."""
    calls = month()
    wrong = {id(call) for call in calls[::10]}
    ours = [call._replace(output=2 * call.output) if id(call) in wrong else call for call in calls]
    are_estimated = {id(mine) for mine, call in zip(ours, calls, strict=True) if id(call) in wrong}
    records = recorded(ours, estimated_tokens=lambda call: call.output if id(call) in are_estimated else 0)
    found = in_usd(await rows_with(records, calls))
    assert found["estimated"] == pytest.approx(usd_of(calls) - usd_of(ours), rel=0.02)
    assert abs(found.get("unexplained", 0)) < 0.001 * usd_of(calls)


async def test_answers_that_did_not_arrive_are_failed_calls_here() -> None:
    """Each twentieth call was cut, counted as failed and charged nothing."""
    calls = month()
    cut = calls[::20]
    lost = {id(call) for call in cut}
    arrived = recorded([call for call in calls if id(call) not in lost])
    failed = recorded(cut, errors=lambda _: 1, prompt_tokens=lambda _: 0, completion_tokens=lambda _: 0,
                      cached_tokens=lambda _: 0, cost_nusd=lambda _: 0)  # fmt: skip
    records = {name: arrived.get(name, RecordedUsage()).plus(failed.get(name, RecordedUsage()))
             for name in {*arrived, *failed}}  # fmt: skip
    found = in_usd(await rows_with(records, calls))
    assert found["not_arrived"] + found.get("unexplained", 0) == pytest.approx(usd_of(cut), rel=1e-3)
    assert found["not_arrived"] == pytest.approx(usd_of(cut), rel=0.02)


def test_failed_calls_explain_no_more_than_some_long_ones_cost() -> None:
    """99 answered calls of a cent each and one that failed: with what the bill has of it, three cents are explained."""
    name = ("2026-11-01", "m")
    ours = RecordedUsage(100, 1, 990, cost_nusd=990_000_000)
    for billed, explained in ((1_020_000_000, 30_000_000), (1_090_000_000, 32_700_000)):
        side = Side(100, (billed // 1_000_000, 0, 0, 0), (billed, 0, 0, 0))
        (row,) = explain({name: ours}, {name: Billed(side)}, open_from="2026-12-01", knows_keys=True)
        assert row.causes.get("not_arrived") == explained
        assert row.causes.get("unexplained", 0) == billed - 990_000_000 - explained


async def test_calls_of_unknown_cost_are_named() -> None:
    calls = month()
    records = recorded(calls, cost_nusd=lambda call: 0, unpriced=lambda _: 1)
    found = in_usd(await rows_with(records, calls))
    assert found["unpriced"] == pytest.approx(usd_of(calls), rel=1e-6)
    assert {*found} <= {"unpriced", "rounding"}


async def test_a_day_border_moves_usage_and_loses_none() -> None:
    calls = month(calls=4_000)
    moved = TODAY - 10 * DAY_S
    late = [call._replace(day=call.day + DAY_S) if call.day == moved and n % 5 == 0 else call
            for n, call in enumerate(calls)]  # fmt: skip
    rows = await rows_with(recorded(calls), late)
    found = in_usd(rows)
    assert abs(found.get("day_border", 0)) < 1e-6, "it is back on the next day"
    assert {cause for row in rows for cause in row.causes} <= {"day_border", "unexplained", "rounding"}
    assert sum(abs(row.causes.get("day_border", 0)) for row in rows) / 2e9 == pytest.approx(
        usd_of(call for call, after in zip(calls, late, strict=True) if call.day != after.day), rel=0.02
    )


async def test_a_day_that_is_not_billed_wholly_is_late() -> None:
    calls = [call._replace(day=TODAY) for call in month(calls=500)]
    found = in_usd(await rows_with(recorded(calls), calls[:300]))
    assert found == {"late": pytest.approx(-usd_of(calls[300:]), rel=1e-6)}


async def test_all_of_it_at_once() -> None:
    """Other users, a price that changed, a tier and failed calls: the explanation adds up, little is unexplained."""
    calls = month(calls=20_000)
    others = [call._replace(key="key_other") for call in month(9, 2_000)]
    dearer = (Decimal("0.20"), Decimal("0.1"), Decimal("0.8"))
    half = (Decimal("0.075"), Decimal("0.0375"), Decimal("0.3"))
    price: dict[str, dict[str, Any]] = {"gpt-4.1": {"price": dearer}, "o4-mini": {"price": half, "tier": "flex"}}
    billed = [call._replace(**price.get(call.model, {})) for call in calls]
    rows = await rows_with(recorded(calls), billed + others, key_ids=("key_gateway",))
    found = in_usd(rows)
    of = {model: [call for call in billed if call.model == model] for model in price}
    before = {model: [call for call in calls if call.model == model] for model in price}
    assert found["other_users"] == pytest.approx(usd_of(others), rel=1e-6)
    assert found["price"] == pytest.approx(usd_of(of["gpt-4.1"]) - usd_of(before["gpt-4.1"]), rel=0.02)
    assert found["tier"] == pytest.approx(usd_of(of["o4-mini"]) - usd_of(before["o4-mini"]), rel=0.02)
    assert abs(found.get("unexplained", 0)) < 0.001 * usd_of(billed + others)
    assert sum(total(rows).values()) == sum(row.difference_nusd for row in rows)


# ---------------------------------------------------------------------------------------------------------- statements


def compared(rows: list[Explained]) -> ComparedBill:
    return ComparedBill("openai", Bill(NOW, "2025-10-26", {}), "2025-11-28", rows)


@pytest.mark.parametrize("name", NAMES)
def test_no_cell_of_a_statement_begins_like_a_formula(name: str) -> None:
    row = Explained("2026-11-01", name, RecordedUsage(1, cost_nusd=1), Billed(Side(1, nusd=(1, 0, 0, 0))), {})
    has_no_formula(format_csv(rows_of([compared([row])])), name)


def test_rows_and_summary_of_a_statement() -> None:
    side = Side(2, (100, 0, 10, 0), (20_000, 0, 5_000, 0))
    row = Explained("2026-11-01", "m", RecordedUsage(2, 0, 100, 10, cost_nusd=15_000), Billed(side), {"price": 10_000})
    (shown,) = rows_of([compared([row])])
    assert {*shown} == {*COLUMNS, "models"}
    assert (shown["bill_usd"], shown["recorded_usd"], shown["price_usd"]) == (2.5e-5, 1.5e-5, 1e-5)
    summary = summary_of(compared([row] * 3))
    assert summary["causes"] == {"price": 3e-5}
    assert summary["prices"][0]["model"] == "m"
    text = format_table([compared([row] * 3)])
    assert text.splitlines()[-1].split() == ["total", "0.0001", "0.0000", "0.0000", "0.0000"]
    assert summary["prices"][0]["configured"] == {}
    here = compared([row] * 3)._replace(here={"m": ["mine"]}, configured={"mine": (0.15, None, 0.6)})
    assert summary_of(here)["prices"][0]["configured"] == {
        "mine": {"input_usd_per_million": 0.15, "cached_input_usd_per_million": None, "output_usd_per_million": 0.6}
    }
    assert notes([here])[-2:] == [
        "openai bills m at {input: 0.2, output: 0.5} USD per million tokens.",
        "They can be models.mine.price, which is {input: 0.15, output: 0.6}.",
    ]
    assert notes([compared([row] * 3)])[-1] == "They can be models.m.price."


def test_money_in_one_number_has_one_price() -> None:
    assert len({*prices(Side(1, (70, 0, 30, 0), (0, 0, 0, 1_000)))}) == 1


def test_every_cause_has_a_sentence() -> None:
    causes: Mapping[str, str] = CAUSES
    assert all(text for text in causes.values())
    assert [*causes][-1] == "unexplained"
