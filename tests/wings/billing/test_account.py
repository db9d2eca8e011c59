"""Bills of vendors, read over HTTP: pages, keys of others, refusals and faults."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from aiohttp import web

from gateway.config import Upstream
from gateway.wings.billing.account import read_bill
from gateway.wings.billing.bill import Bill, BillFault, money_of, read, written
from gateway.wings.billing.openai import SERVICES, USAGE, item_of
from gateway.wings.billing.settings import BillSource
from tests.fakes.scripted import Scripted, ok_json

from .vendors import ADMIN, DAY_S, Call, Vendor

NOW = 1_764_417_600.0  # 2025-11-29 12:00 UTC
TODAY = int(NOW // DAY_S * DAY_S)
UPSTREAM = Upstream(base_url="http://127.0.0.1:9/v1")

CALLS = [
    Call(TODAY - day * DAY_S, model, 1000 + day, 200, 300, key)
    for day in range(8)
    for model in ("gpt-4o-mini-2024-07-18", "gpt-4.1")
    for key in ("key_gateway", "key_other")
]


async def bill_of(vendor: Vendor, provider: str = "openai", days: int = 10, **more: Any) -> Bill:
    server = await vendor.start()
    try:
        base_url = f"{server.make_url('/')}v1"
        source = BillSource.model_validate({"provider": provider, "api_key": ADMIN, "base_url": base_url, **more})
        return await read_bill(source, UPSTREAM, NOW, days, waits=(0.0,))
    finally:
        await server.close()


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
async def test_all_pages_are_read_and_other_keys_are_set_apart(provider: str) -> None:
    bill = await bill_of(Vendor(CALLS), provider, key_ids=("key_gateway",))
    assert len(bill.rows) == 16
    assert (bill.since, min(bill.rows)[0], max(bill.rows)[0]) == ("2025-11-20", "2025-11-22", "2025-11-29")
    for (_, model), billed in bill.rows.items():
        assert model in ("gpt-4o-mini-2024-07-18", "gpt-4.1")
        assert billed.ours.tokens == billed.others.tokens
        assert billed.ours.tokens[1:] == (200, 300, 0)
        fresh, cached, output, other = billed.ours.nusd
        assert (fresh, cached, output, other) == (billed.ours.tokens[0] * 150, 200 * 75, 300 * 600, 0)
        assert billed.others.nusd == billed.ours.nusd


async def test_without_names_all_keys_are_the_gateways() -> None:
    bill = await bill_of(Vendor(CALLS))
    assert {billed.others.requests for billed in bill.rows.values()} == {0}
    assert {billed.ours.requests for billed in bill.rows.values()} == {2}


async def test_days_before_the_reading_are_left_out() -> None:
    assert {day for day, _ in (await bill_of(Vendor(CALLS), days=2)).rows} == {"2025-11-28", "2025-11-29"}


async def test_openai_is_asked_as_its_reference_says() -> None:
    vendor = Vendor(CALLS[:1])
    await bill_of(vendor)
    asked = {path.partition("?")[0] for path in vendor.asked}
    kinds = [*USAGE, *SERVICES]
    paths = [*[f"/organization/usage/{kind}" for kind in kinds], "/organization/costs", "/organization/spend_limit"]
    assert asked == {f"/v1{path}" for path in paths}
    completions = next(path for path in vendor.asked if "completions" in path)
    for part in ("bucket_width=1d", "limit=31", "group_by=model&group_by=api_key_id", f"end_time={TODAY + DAY_S}"):
        assert part in completions


@pytest.mark.parametrize(
    ("line_item", "found"),
    [
        ("gpt-4o-mini-2024-07-18, input", ("gpt-4o-mini-2024-07-18", "input")),
        ("gpt-4o-mini-2024-07-18, cached input", ("gpt-4o-mini-2024-07-18", "cached_input")),
        ("gpt-6-astra, input_tokens", ("gpt-6-astra", "input")),  # the example of the reference of `line_items`
        ("gpt-4o-realtime, audio output", ("gpt-4o-realtime", "output")),
        ("gpt-4o-mini, web search", ("gpt-4o-mini", "other")),
        ("Image models", ("Image models", "other")),
        ("", ("other", "other")),
    ],
)
def test_line_items(line_item: str, found: tuple[str, str]) -> None:
    assert item_of(line_item) == found


async def test_a_tier_has_a_count_of_its_own() -> None:
    bill = await bill_of(Vendor([Call(TODAY, "m", 100, 0, 10, tier="flex"), Call(TODAY, "m", 100, 0, 10)]))
    assert [billed.ours.special_tokens for billed in bill.rows.values()] == [110]


Answer = Callable[[int], web.Response | None]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda _: web.Response(status=403, text=f"key {ADMIN} is not allowed"), "expected an admin key"),
        (lambda _: web.Response(status=404), "is base_url right?"),
        (lambda _: web.Response(text="<html>"), "answers no JSON object"),
        (lambda _: web.json_response([]), "answers no JSON object"),
        (lambda _: web.json_response({"data": [{"results": [1]}]}), "another form than expected"),
        (lambda _: web.json_response({"data": [7]}), "another form than expected"),
        (lambda _: web.Response(text="[" * 100_000), "answers no JSON object"),
        (lambda _: web.Response(status=500), "answers 500"),
        (lambda _: web.json_response({"data": [], "has_more": True, "next_page": "again"}), "more than 500 pages"),
    ],
)
@pytest.mark.parametrize("provider", ["openai", "anthropic"])
async def test_faults_say_what_to_do_and_no_secret(provider: str, answer: Answer, words: str) -> None:
    with pytest.raises(BillFault) as caught:
        await bill_of(Vendor([], refuses=answer), provider)
    assert words in str(caught.value)
    assert ADMIN not in str(caught.value)


DAY = "2025-11-29"
USED: dict[str, Any] = {
    "openai": {"input_tokens": 1, "output_tokens": 1, "input_cached_tokens": 1, "num_model_requests": 1, "model": "m",
               "api_key_id": "k", "project_id": "p", "service_tier": "batch", "line_item": "m, input",
               "amount": {"value": 0.5, "currency": "usd"}, "usage_bytes": 1, "num_sessions": 1},
    "anthropic": {"uncached_input_tokens": 1, "output_tokens": 1, "model": "m", "api_key_id": "k", "workspace_id": "p",
                  "amount": "0.5", "currency": "USD", "cost_type": "tokens", "token_type": "output_tokens"},
}  # fmt: skip
"""What results of these providers have, of usage and of costs together."""
STRANGE = ["free", "5", [], {}, {"value": "free"}, 10**30, 10**400, float("nan"), float("inf"), 1e300, ["x"], {"x": 1}]
TEXTS = frozenset({"model", "api_key_id", "project_id", "workspace_id", "line_item", "token_type"})
ANYTHING = frozenset({"service_tier", "cost_type"})


def is_read(provider: str, name: str, strange: Any) -> bool:
    """Whether a bill may have this value: what is empty is missing."""
    if name == "start" or name in ANYTHING:
        return name in ANYTHING
    if strange in ("free", "5"):
        return name in TEXTS or (strange == "5" and (provider, name) == ("anthropic", "amount"))
    return strange in ([], {}) or (provider, name, strange) == ("openai", "amount", {"x": 1})


@pytest.mark.parametrize(
    ("provider", "name"), [(provider, name) for provider, used in USED.items() for name in (*used, "start")]
)
async def test_whatever_has_another_form_is_a_fault_of_the_bill(provider: str, name: str) -> None:
    """Anything else would end the reader of bills of each worker, one after another."""
    said: set[str] = set()
    for strange in STRANGE:
        bucket: dict[str, Any] = {"start_time": TODAY, "starting_at": f"{DAY}T00:00:00Z", "results": [USED[provider]]}
        if name == "start":
            bucket |= {"start_time": strange, "starting_at": strange}
        else:
            bucket["results"] = [USED[provider] | {name: strange}]
        text = json.dumps({"data": [bucket], "has_more": False})
        answers: Answer = lambda _, text=text: web.Response(text=text, content_type="application/json")  # type: ignore[misc] # noqa: E731
        try:
            bill = await bill_of(Vendor([], refuses=answers), provider)
            assert is_read(provider, name, strange), strange
            assert {day for day, _ in bill.rows} <= {DAY}
        except BillFault as fault:
            assert not is_read(provider, name, strange), strange
            said.add(str(fault).partition("(")[0])
    assert said <= {"an answer has another form than expected ", *[each for each in said if "only US dollars" in each]}


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
async def test_a_busy_vendor_is_asked_again(provider: str) -> None:
    refuses: Answer = lambda number: web.Response(status=429) if number % 2 else None  # noqa: E731
    assert len((await bill_of(Vendor(CALLS, refuses=refuses), provider)).rows) == 16


@pytest.mark.parametrize("userinfo", ["", "me:pass%2Fword@"])
async def test_a_bill_is_read_through_the_upstreams_proxy(userinfo: str) -> None:
    page = ok_json({"data": [], "has_more": False})
    async with Scripted(always=page) as proxy:
        way = Upstream.model_validate(
            {"base_url": "http://127.0.0.1:9/v1", "proxy": f"http://{userinfo}127.0.0.1:{proxy.port}"}
        )
        source = {"provider": "openai", "api_key": ADMIN, "base_url": "http://bill.example.com/v1"}
        await read_bill(BillSource.model_validate(source), way, NOW, 2, waits=())
    first = proxy.requests[0]
    assert first.path.startswith("http://bill.example.com/v1/organization/usage/completions?")
    assert first.headers["authorization"] == f"Bearer {ADMIN}"
    assert first.headers.get("proxy-authorization") == ("Basic bWU6cGFzcy93b3Jk" if userinfo else None)


async def test_another_currency_is_refused() -> None:
    bucket = {"start_time": TODAY, "results": [{"amount": {"value": 1, "currency": "eur"}, "line_item": "m, input"}]}
    page = {"data": [bucket], "has_more": False}
    with pytest.raises(BillFault, match="'eur'"):
        await bill_of(Vendor([], refuses=lambda _: web.json_response(page)))


async def test_openrouters_activity_and_credits() -> None:
    """The members are those of its reference, "Get user activity grouped by endpoint" and "Get remaining credits"."""
    entry = {"date": "2025-11-28 00:00:00", "model": "openai/gpt-4.1", "model_permaslug": "openai/gpt-4.1-2025-04-14",
             "endpoint_id": "e", "provider_name": "OpenAI", "usage": 0.015, "byok_usage_inference": 0.012,
             "requests": 5, "prompt_tokens": 50, "completion_tokens": 125, "reasoning_tokens": 25}  # fmt: skip
    answers = {1: {"data": [entry, entry | {"date": "2025-10-01"}]}, 2: {"data": {"total_credits": 100.5,
               "total_usage": 25.75}}}  # fmt: skip
    vendor = Vendor([], refuses=lambda number: web.json_response(answers[number]))
    bill = await bill_of(vendor, "openrouter", days=90)
    assert [(day, model) for day, model in bill.rows] == [("2025-11-28", "openai/gpt-4.1")]
    (billed,) = bill.rows.values()
    assert (billed.ours.requests, billed.ours.tokens, billed.ours.nusd) == (5, (50, 0, 125, 0), (0, 0, 0, 15_000_000))
    assert (bill.since, bill.account.left_usd) == ("2025-10-30", 74.75), "it has 30 days, and nothing of this one"


async def test_a_bill_is_the_same_after_it_was_posted() -> None:
    bill = await bill_of(Vendor(CALLS), key_ids=("key_gateway",))
    assert read(written(bill)) == bill
    assert "\n" not in written(bill)


@pytest.mark.parametrize(
    ("amount", "half_nusd"),
    [("0.06", 5_000_000), ("0.1", 5_000_000), ("12", 5_000_000), ("1E+2", 5_000_000), ("0.1234", 50_000),
     ("0.130804383403075", 0), ("0", 0)],
)  # fmt: skip
def test_an_amount_may_be_rounded_by_half_of_its_last_place_and_no_more_than_half_a_cent(
    amount: str, half_nusd: int
) -> None:
    assert money_of("input", Decimal(amount))[1] == half_nusd


def test_money_is_exact_to_a_billionth() -> None:
    call = Call(0, "m", 1, 1, 1)
    assert sum(call.usd) == Decimal("0.000000825")
