"""Matching the gateway's usage with the rows of a provider's usage file."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wings.billing.compare import Pair, RecordedUsage, base_name, by_upstream_name, compare, total
from gateway.wings.billing.invoice import Tally
from tests.test_floors import complaints_of, impure

DAY = "2026-11-20"


def row(model: str, requests: int = 1, **more: Any) -> dict[str, Any]:
    """A usage row of this many calls with 10 + 5 tokens each."""
    return {
        "day": DAY, "model": model, "upstream": "main", "requests": requests, "errors": 0,
        "prompt_tokens": 10 * requests, "completion_tokens": 5 * requests, "cached_tokens": 0, "estimated_tokens": 0,
        "cost_usd": 0.25 * requests, "unpriced": 0,
    } | more  # fmt: skip


def ours(requests: int = 1, **more: int) -> RecordedUsage:
    plain = {"prompt_tokens": 10 * requests, "completion_tokens": 5 * requests, "cost_nusd": 250_000_000 * requests}
    return RecordedUsage(requests, **(plain | more))


@pytest.mark.parametrize(
    ("model", "base"),
    [
        ("gpt-4o", "gpt-4o"),
        ("gpt-4o-2024-08-06", "gpt-4o"),
        ("gpt-4o-mini-2024-07-18", "gpt-4o-mini"),
        ("claude-3-5-sonnet-20241022", "claude-3-5-sonnet"),
        ("gpt-4-0613", "gpt-4"),
        ("gpt-3.5-turbo-0125", "gpt-3.5-turbo"),
        ("gpt-3.5-turbo-instruct", "gpt-3.5-turbo-instruct"),
        ("gpt-4-1106-preview", "gpt-4-1106-preview"),
        ("gpt-4-32k", "gpt-4-32k"),
        ("model-1399", "model-1399"),  # not a date
        ("model-2024-13-01", "model-2024-13-01"),
        ("ft:gpt-4o-2024-08-06:org::id", "ft:gpt-4o-2024-08-06:org::id"),
        ("-0613", "-0613"),
        ("", ""),
    ],
)
def test_snapshots(model: str, base: str) -> None:
    assert base_name(model) == base


# ---------------------------------------------------------------------------------------------------- what we call it


@pytest.mark.parametrize(
    ("sums", "recorded", "routes", "found"),
    [
        pytest.param([], [], {}, {}, id="nothing"),
        pytest.param([row("gpt-4o", 2)], [], {}, {"gpt-4o": ours(2)}, id="no record is left"),
        pytest.param(
            [row("gpt-4o", 3)],
            [row("gpt-4o", 3, returned_model="gpt-4o-2024-08-06")],
            {},
            {"gpt-4o-2024-08-06": ours(3)},
            id="the answer says which snapshot it was",
        ),
        pytest.param(
            [row("gpt-4o", 3)],
            [row("gpt-4o", 2, returned_model="gpt-4o-2024-08-06")],
            {},
            {"gpt-4o-2024-08-06": ours(2), "gpt-4o": ours(1)},
            id="of some the record is gone",
        ),
        pytest.param(
            [row("other", 5)],
            [row("other", 2, returned_model="a"), row("other", 3, returned_model="b")],
            {},
            {"a": ours(2), "b": ours(3)},
            id="what a wildcard served has names of its own",
        ),
        pytest.param(
            [row("fast", 1), row("fast", 2, upstream="second")],
            [],
            {("fast", "main"): "gpt-4o-mini"},
            {"gpt-4o-mini": ours(1), "fast": ours(2)},
            id="a name of ours is its route's at that upstream",
        ),
        pytest.param(
            [row("a", 1), row("b", 2)],
            [row("a", 1, returned_model="m"), row("b", 2, returned_model="m")],
            {},
            {"m": ours(3)},
            id="two names of ours for one of theirs",
        ),
        pytest.param([row("m", 4, upstream="")], [], {}, {}, id="it never came to an upstream"),
        pytest.param(
            [row("m", 2)],
            [row("m", 2, returned_model="m"), row("gone", 1, returned_model="gone")],
            {},
            {"m": ours(2)},
            id="a record whose day has just ended",
        ),
        pytest.param(
            [row("m", 2, cost_usd=None, unpriced=2)],
            [],
            {},
            {"m": ours(2, cost_nusd=0, unpriced=2)},
            id="nobody knows what it cost",
        ),
    ],
)  # fmt: skip
def test_our_calls_by_their_names(
    sums: list[dict[str, Any]],
    recorded: list[dict[str, Any]],
    routes: dict[tuple[str, str], str],
    found: dict[str, RecordedUsage],
) -> None:
    assert by_upstream_name(sums, recorded, routes) == {(DAY, name): entry for name, entry in found.items()}


# ----------------------------------------------------------------------------------------------------- what meets what


def paired(our: list[str], their: list[str]) -> list[tuple[str, str, int | None, int | None]]:
    """Which names stand in one row, in which rows one call of each of ours and of theirs is."""
    pairs = compare({(DAY, model): RecordedUsage(1) for model in our}, {(DAY, model): Tally(1) for model in their})
    return [
        (pair.model, " ".join(pair.names), pair.ours and pair.ours.requests, pair.theirs and pair.theirs.requests)
        for pair in pairs
    ]


@pytest.mark.parametrize(
    ("our", "their", "pairs"),
    [
        ([], [], []),
        (["m"], ["m"], [("m", "", 1, 1)]),
        (["a"], ["b"], [("a", "", 1, None), ("b", "", None, 1)]),
        (["gpt-4o"], ["gpt-4o-2024-08-06"], [("gpt-4o", "gpt-4o gpt-4o-2024-08-06", 1, 1)]),
        (["gpt-4o-2024-08-06"], ["gpt-4o"], [("gpt-4o", "gpt-4o gpt-4o-2024-08-06", 1, 1)]),
        # Both sides have the same snapshots: one row each.
        (
            ["gpt-4o-2024-05-13", "gpt-4o-2024-08-06"],
            ["gpt-4o-2024-08-06", "gpt-4o-2024-05-13"],
            [("gpt-4o-2024-05-13", "", 1, 1), ("gpt-4o-2024-08-06", "", 1, 1)],
        ),
        # Our model may be either of their snapshots: only the sum can be compared.
        (
            ["gpt-4o", "gpt-4o-2024-05-13"],
            ["gpt-4o-2024-05-13", "gpt-4o-2024-08-06"],
            [("gpt-4o", "gpt-4o gpt-4o-2024-05-13 gpt-4o-2024-08-06", 2, 2)],
        ),
        (["gpt-4o-2024-08-06"], [], [("gpt-4o-2024-08-06", "", 1, None)]),
        ([], ["gpt-4-0613", "gpt-4-0314"], [("gpt-4-0314", "", None, 1), ("gpt-4-0613", "", None, 1)]),
        (["gpt-4o", "gpt-4o-mini"], ["gpt-4o", "gpt-4o-mini"], [("gpt-4o", "", 1, 1), ("gpt-4o-mini", "", 1, 1)]),
    ],
)
def test_what_stands_in_one_row(
    our: list[str], their: list[str], pairs: list[tuple[str, str, int | None, int | None]]
) -> None:
    assert paired(our, their) == pairs


def test_rows_are_alike_on_every_day() -> None:
    """A snapshot that is listed on one day only is merged on every day."""
    our = {(DAY, "m-0613"): RecordedUsage(1), ("2026-11-21", "m"): RecordedUsage(2)}
    their = {(DAY, "m-0613"): Tally(1), ("2026-11-21", "m-0613"): Tally(2)}
    assert compare(our, their) == [
        Pair(DAY, "m", ("m-0613",), RecordedUsage(1), Tally(1)),
        Pair("2026-11-21", "m", ("m", "m-0613"), RecordedUsage(2), Tally(2)),
    ]


def test_total_of_what_one_side_lacks() -> None:
    pairs = compare({(DAY, "a"): ours(2)}, {(DAY, "b"): Tally(3, cost_nusd=5), (DAY, "c"): Tally(4, cost_nusd=6)})
    assert total(pairs) == Pair("total", "", (), ours(2), Tally(7, cost_nusd=11))
    assert total([]) == Pair("total", "", (), None, None)


def test_a_cost_without_any_price_is_unknown() -> None:
    assert RecordedUsage(2, cost_nusd=0, unpriced=2).tally.cost_nusd is None
    assert RecordedUsage(2, cost_nusd=7, unpriced=1).tally.cost_nusd == 7
    assert RecordedUsage().tally == Tally(0, 0, 0, 0, 0, 0)


models = st.sampled_from(["gpt-4", "gpt-4-0613", "gpt-4-0314", "gpt-4o", "gpt-4o-2024-08-06", "m", "n-20240101"])
days = st.sampled_from([DAY, "2026-11-21"])
our_books = st.dictionaries(st.tuples(days, models), st.builds(RecordedUsage, st.integers(1, 99), st.integers(0, 99)))
their_books = st.dictionaries(st.tuples(days, models), st.builds(Tally, st.integers(0, 99)))


@given(our_books, their_books)
def test_nothing_is_lost_and_nothing_is_counted_twice(
    our: dict[tuple[str, str], RecordedUsage], their: dict[tuple[str, str], Tally]
) -> None:
    pairs = compare(our, their)
    whole = total(pairs)
    assert (
        (whole.ours or RecordedUsage()) == RecordedUsage(*map(sum, zip(*our.values(), strict=True)))
        if our
        else whole.ours is None
    )
    assert sum(tally.requests or 0 for tally in their.values()) == ((whole.theirs or Tally(0)).requests or 0)
    assert len({(pair.day, pair.model) for pair in pairs}) == len(pairs)
    assert pairs == sorted(pairs, key=lambda pair: (pair.day, pair.model))


def test_what_compares_is_pure() -> None:
    assert complaints_of(impure, ["gateway.wings.billing.compare", "gateway.wings.billing.invoice"]) == ""
