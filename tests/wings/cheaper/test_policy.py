"""Which steps are reached, which calls may change their model, and what a worker knows of its windows."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast, get_args

import pytest

from gateway.config import Price, build
from gateway.quota.windows import Limit
from gateway.records import Document, Endpoint, Key, Params, Window, WindowStatus
from gateway.store import Ledger, StoreUnavailable
from gateway.wings.cheaper.policy import STEERED, can_serve, may_change, reached
from gateway.wings.cheaper.settings import Step, is_cheaper
from gateway.wings.cheaper.shares import FRESH_S, Shares

NOW = 1_795_226_400.0
DAY = 86_400.0
LIMIT = 1000


def window(scope: str, at: float = NOW) -> Window:
    return Limit(scope, "usd", "month", None, LIMIT, is_calendar=True).window(at)


def step(share: float, use: str, **more: Any) -> Step:
    return Step(share=share, use=use, **more)


A, B, GPT = step(0.8, "a"), step(0.95, "b"), step(0.5, "g", model="gpt-*")


@pytest.mark.parametrize(
    ("lists", "shares", "names", "found"),
    [
        ({"key:k": (A, B)}, {"key:k": 0.79}, ["m"], []),
        ({"key:k": (A, B)}, {"key:k": 0.8}, ["m"], ["a"]),
        ({"key:k": (A, B)}, {"key:k": 1.2}, ["m"], ["b", "a"]),
        ({"key:k": (A,), "person:p": (B,)}, {"key:k": 0.9, "person:p": 0.96}, ["m"], ["b", "a"]),
        ({"key:k": (A,), "person:p": (step(0.8, "p"),)}, {"person:p": 0.9, "key:k": 0.9}, ["m"], ["a", "p"]),
        ({"key:k": (GPT,)}, {"key:k": 0.9}, ["m"], []),
        ({"key:k": (GPT,)}, {"key:k": 0.9}, ["best", "gpt-4o"], ["g"]),
    ],
)
def test_the_highest_step_that_is_reached_counts_first(
    lists: dict[str, Sequence[Step]], shares: dict[str, float], names: list[str], found: list[str]
) -> None:
    known = [(window(scope), share) for scope, share in shares.items()]
    assert [each.step.use for each in reached(lists, known, names)] == found


def test_the_reason_names_the_limit_as_headers_do() -> None:
    (one,) = reached({"person:zoë": (A,)}, [(window("person:zoë"), 0.8125)], ["m"])
    assert one.reason == "when_above; limit=person:zo%C3%AB; unit=usd; per=month; above=0.8; share=0.8125"


def test_one_price_is_below_another_in_both_directions() -> None:
    def price(*rows: float) -> Price:
        return Price.model_validate(dict(zip(("input", "output"), rows, strict=False)))

    assert is_cheaper(price(1, 2), price(1, 3))
    assert not is_cheaper(price(1, 3), price(2, 2))
    assert not is_cheaper(price(1, 2), price(1, 2))
    assert not is_cheaper(None, price(1, 2))
    assert not is_cheaper(price(1, 2), None)
    assert is_cheaper(price(1), price(2))


def params(text: str = "{}", **more: Any) -> Params:
    return Params(Document(text, more.pop("members", {})), "dear", **more)


@pytest.mark.parametrize("endpoint", get_args(Endpoint))
def test_calls_of_text_alone_may_change_their_model(endpoint: Endpoint) -> None:
    assert may_change(endpoint, params()) == (endpoint in STEERED)


@pytest.mark.parametrize(
    "asked",
    [
        params(is_kept=True), params(is_deferred=True), params(members={"store": True}), params(refers_to="resp_1"),
        params(other_models=("next",)), params(lines=3),
        params('{"file_id": "file-1"}', members={"messages": [{"content": [{"file": {"file_id": "file-1"}}]}]}),
    ],
)  # fmt: skip
def test_what_an_upstream_keeps_binds_the_model(asked: Params) -> None:
    assert not may_change("chat", asked)


def test_what_is_encrypted_needs_the_same_single_upstream() -> None:
    def model(name: str, price: float, *upstreams: str) -> dict[str, Any]:
        routes = [{"upstream": each} for each in upstreams]
        return {name: {"routes": routes, "endpoints": ["responses"], "price": {"input": price, "output": price}}}

    base = {"base_url": "http://127.0.0.1:9/v1", "capabilities": {"responses": True}}
    made = build({
        "upstreams": {"up": base, "other": base},
        "models": {
            **model("dear", 9, "up"), **model("same", 1, "up"), **model("moved", 1, "other"),
            **model("both", 9, "up", "other"), **model("both-too", 1, "up", "other"),
        },
    })  # fmt: skip

    def serves(use: str, asked: str, **more: Any) -> bool:
        one, other = made.model(asked), made.model_table.instead(use, asked)
        assert one is not None
        assert other is not None
        return can_serve(step(0.5, use), other, one, Key("k"), "responses", params(**more), made.upstreams)

    assert serves("same", "dear", account_bound_by="x")
    assert serves("moved", "dear")
    assert not serves("moved", "dear", account_bound_by="x")
    assert serves("both-too", "both")
    assert not serves("both-too", "both", account_bound_by="x")


class StoredWindows:
    """The part of a ledger that reads windows."""

    def __init__(self, used: int) -> None:
        self.used = used
        self.asked = 0

    async def window_statuses(self, windows: Sequence[Window], now: float) -> list[WindowStatus]:
        self.asked += 1
        if self.used < 0:
            raise StoreUnavailable("away")
        return [WindowStatus(each, self.used, 100, 0) for each in windows]


def share_of(shares: Shares, store: StoredWindows, of: Window) -> list[float]:
    return [share for _, share in asyncio.run(shares.of([of], cast(Ledger, store), NOW))]


def test_a_worker_asks_for_a_window_that_it_has_not_heard_of_lately() -> None:
    now = 0.0
    shares, store, month = Shares(lambda: now), StoredWindows(400), window("key:k")
    assert (share_of(shares, store, month), store.asked) == ([0.5], 1)
    shares.note([WindowStatus(month, 700, 100, 0)])
    assert (share_of(shares, store, month), store.asked) == ([0.8], 1)
    now += FRESH_S
    assert (share_of(shares, store, month), store.asked) == ([0.5], 2)


def test_a_new_window_begins_with_what_the_store_has_of_it() -> None:
    shares, store = Shares(lambda: 0.0), StoredWindows(900)
    assert share_of(shares, store, window("key:k")) == [1.0]
    store.used = 0
    assert share_of(shares, store, window("key:k", NOW + 31 * DAY)) == [0.1]


def test_a_raised_limit_lowers_the_share_at_once() -> None:
    shares, store = Shares(lambda: 0.0), StoredWindows(900)
    assert share_of(shares, store, window("key:k")) == [1.0]
    assert share_of(shares, store, window("key:k")._replace(limit=2000)) == [0.5]


def test_nothing_is_known_while_the_store_is_away() -> None:
    assert share_of(Shares(lambda: 0.0), StoredWindows(-1), window("key:k")) == []
