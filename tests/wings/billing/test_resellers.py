"""Bills of resellers: new-api, one-api and LiteLLM, with answers as their source code makes them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from pydantic import ValidationError

from gateway.wings.billing import oneapi
from gateway.wings.billing.account import read_bill
from gateway.wings.billing.bill import Bill, BillFault, Side
from gateway.wings.billing.invoice import read_export
from gateway.wings.billing.settings import BillSource

from .test_account import NOW, TODAY, UPSTREAM, Answer, bill_of
from .vendors import ADMIN, DAY_S, Vendor


async def test_a_new_api_has_hours_and_quota() -> None:
    """As `QuotaData` of its `model/usedata.go`."""
    hour = {"id": 1, "user_id": 7, "username": "u", "model_name": "gpt-4o-mini", "created_at": TODAY + 3600,
            "token_used": 700, "count": 3, "quota": 250_000}  # fmt: skip
    answers = {1: {"success": True, "message": "", "data": [hour, hour | {"created_at": TODAY + 7200}]},
               2: {"success": True, "data": {"id": 7, "quota": 5_000_000}}}  # fmt: skip
    bill = await bill_of(Vendor([], refuses=lambda number: web.json_response(answers[number])), "newapi", user="7")
    (billed,) = bill.rows.values()
    assert (billed.ours.requests, billed.ours.tokens, billed.ours.nusd) == (6, (1400, 0, 0, 0), (0, 0, 0, 10**9))
    assert bill.account.left_usd == 10
    refused: Answer = lambda _: web.json_response({"success": False, "message": "no access"})  # noqa: E731
    with pytest.raises(BillFault, match="no access"):
        await bill_of(Vendor([], refuses=refused), "newapi", user="7")


# ---------------------------------------------------------------------------------------------------------- one-api


def entry(time: int, token: str = "gateway", **more: Any) -> dict[str, Any]:
    """As `Log` of its `model/log.go`, without the id, which a user does not get."""
    return {
        "id": 0, "user_id": 7, "created_at": time, "type": 2, "content": "倍率", "username": "team",
        "token_name": token, "model_name": "gpt-4o-mini", "quota": 13, "prompt_tokens": 100, "completion_tokens": 15,
        "channel": 1, "request_id": "2025112911595912345678", "elapsed_time": 812, "is_stream": True,
        "system_prompt_reset": False,
    } | more  # fmt: skip


class OneAPI:
    """A reseller with a log, which it pages as `GetUserLogs` does."""

    def __init__(self, entries: list[dict[str, Any]]) -> None:
        self._entries = sorted(entries, key=lambda each: -each["created_at"])
        self.asked: list[Mapping[str, str]] = []

    async def bill(self, **more: Any) -> Bill:
        app = web.Application()
        app.router.add_get("/api/log/self", self._log)
        app.router.add_get("/api/user/self", self._user)
        async with TestServer(app) as server:
            fields = {"provider": "oneapi", "api_key": ADMIN, "base_url": str(server.make_url("")), **more}
            return await read_bill(BillSource.model_validate(fields), UPSTREAM, NOW, 10, waits=())

    async def _log(self, request: web.Request) -> web.Response:
        query = request.query
        self.asked.append(query)
        assert request.headers["Authorization"] == f"Bearer {ADMIN}"
        start, end = int(query["start_timestamp"]), int(query["end_timestamp"])
        kind, first = int(query["type"]), 10 * int(query["p"])
        some = [each for each in self._entries if start <= each["created_at"] <= end and each["type"] == kind]
        return web.json_response({"success": True, "message": "", "data": some[first : first + 10]})

    async def _user(self, _: web.Request) -> web.Response:
        return web.json_response({"success": True, "message": "", "data": {"id": 7, "quota": 5_000_000}})


async def test_a_one_api_has_a_log_in_pages_of_ten() -> None:
    noon = TODAY - 2 * DAY_S + DAY_S // 2
    log = [entry(noon + each) for each in range(20)] + [entry(noon, "other") for _ in range(3)]
    paid = entry(noon, type=1, quota=500_000, model_name="")
    bill = await OneAPI([*log, paid, entry(TODAY + 60), entry(TODAY - 1)]).bill(key_ids=("gateway",))
    assert {day: (billed.ours.requests, billed.others.requests) for (day, _), billed in bill.rows.items()} == {
        "2025-11-27": (20, 3), "2025-11-28": (1, 0), "2025-11-29": (1, 0),
    }  # fmt: skip
    ours = bill.rows["2025-11-27", "gpt-4o-mini"].ours
    assert (ours.tokens, ours.nusd) == ((2_000, 0, 300, 0), (0, 0, 0, 20 * 13 * 2_000))
    assert ours.rounding_nusd == 20 * 2_000, "each call is rounded up to a whole quota"
    assert (bill.since, bill.account.left_usd) == ("2025-11-20", 10)


async def test_what_its_log_has_beyond_the_most_pages_is_before_the_bill(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oneapi, "PAGES", 5)
    log = [entry(TODAY - day * DAY_S + each) for day in range(3) for each in range(12)]
    reseller = OneAPI(log)
    bill = await reseller.bill()
    assert (bill.since, {day for day, _ in bill.rows}) == ("2025-11-28", {"2025-11-28", "2025-11-29"})
    assert len(reseller.asked) == 5
    with pytest.raises(BillFault, match="more than 50 calls of today"):
        await OneAPI([entry(TODAY + each) for each in range(60)]).bill()


async def test_a_call_that_is_logged_while_pages_are_read_moves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is newer than what is asked for."""
    monkeypatch.setattr(
        oneapi, "datetime", type("Clock", (datetime,), {"now": lambda _: datetime.fromtimestamp(NOW, UTC)})
    )
    reseller = OneAPI([])
    await reseller.bill()
    assert max(int(query["end_timestamp"]) for query in reseller.asked) == NOW - 2


@pytest.mark.parametrize(
    ("provider", "more", "place"), [("oneapi", {}, "settings"), ("newapi", {"user": "7"}, "console")]
)
async def test_a_refusal_in_a_200_says_which_key_is_expected(provider: str, more: dict[str, str], place: str) -> None:
    refused: Answer = lambda _: web.json_response({"success": False, "message": "access token 无效"})  # noqa: E731
    with pytest.raises(BillFault, match=rf"access token 无效'; expected an access token of the user \({place}"):
        await bill_of(Vendor([], refuses=refused), provider, **more)


# ---------------------------------------------------------------------------------------------------------- LiteLLM


def metrics(spend: float, prompt: int, cached: int, completion: int, good: int, bad: int = 0) -> dict[str, Any]:
    """As `SpendMetrics` of its `types/proxy/management_endpoints/common_daily_activity.py`."""
    return {
        "spend": spend, "flat_cost": 0.0, "prompt_tokens": prompt, "completion_tokens": completion,
        "cache_read_input_tokens": cached, "cache_creation_input_tokens": 0, "compression_saved_tokens": 0,
        "compression_savings_spend": 0.0, "prompt_caching_savings_spend": 0.0,
        "gateway_injected_caching_savings_spend": 0.0, "autorouter_savings_spend": 0.0,
        "total_tokens": prompt + completion, "successful_requests": good, "failed_requests": bad,
        "api_requests": good + bad, "total_response_time_ms": 0, "timed_requests": 0,
    }  # fmt: skip


def activity(has_more: bool, flat: float = 0.0, tools: float = 0.0, **keys: dict[str, Any]) -> dict[str, Any]:
    """A page of `GET /user/daily/activity` with one day and one group of models. `flat`: the cost of its deployment;
    `tools`: that of tools, which have no model."""
    spent = sum(used["spend"] for used in keys.values())
    of_group, whole = metrics(spent + flat, 0, 0, 0, 0), metrics(spent + flat + tools, 0, 0, 0, 0)
    by_key = {
        name: {"metrics": used, "metadata": {"key_alias": name, "team_id": None, "user_id": "u", "user_email": None,
                                             "key_exists": True}}
        for name, used in keys.items()
    }  # fmt: skip
    group = {"metrics": of_group, "metadata": {}, "api_key_breakdown": by_key}
    empty: dict[str, Any] = {name: {} for name in ("mcp_servers", "providers", "endpoints", "api_keys", "entities")}
    breakdown = {**empty, "models": {"openai/gpt-4o-mini": group}, "model_groups": {"gpt-4o-mini": group}}
    return {
        "results": [{"date": "2025-11-28", "metrics": whole, "breakdown": breakdown}],
        "metadata": {"total_spend": 0.0, "page": 1, "total_pages": 2, "has_more": has_more, "api_key_limit": None},
    }  # fmt: skip


async def test_litellm_has_sums_by_day_model_and_key() -> None:
    ours, other = "88dc28d0f030c55ed4ab77ed8faf098196cb1c05df778539800c9f1243fe6b4b", "b" * 64
    answers = {
        1: activity(True, **{ours: metrics(0.00123456, 1_000, 200, 90, 7, 1), other: metrics(1.5, 1, 0, 1, 1)}),
        2: activity(False, **{ours: metrics(1e-06, 10, 0, 1, 1)}),
        3: {"key": ours, "info": {"spend": 2.5, "max_budget": 10.0, "budget_duration": None}},
    }
    vendor = Vendor([], refuses=lambda number: web.json_response(answers[number]))
    bill = await bill_of(vendor, "litellm", user="u", key_ids=(ours,))
    ((name, billed),) = bill.rows.items()
    assert name == ("2025-11-28", "gpt-4o-mini")
    assert billed.ours == Side(8, (810, 200, 91, 0), (0, 0, 0, 1_235_560), 0, 0)
    assert (billed.others.requests, billed.others.nusd[3]) == (1, 1_500_000_000)
    assert bill.account.left_usd == 7.5
    assert vendor.asked[0] == (
        "/v1/user/daily/activity?start_date=2025-11-20&end_date=2025-11-29&page_size=1000&page=1&user_id=u"
    )
    assert "&page=2&" in vendor.asked[1]


async def test_the_cost_of_tools_and_of_deployments_is_in_the_sums_of_litellm_alone() -> None:
    """As `get_daily_activity` of LiteLLM 1.106.12 made it on 2026-11-30 of rows without a model, and of those with the
    key `__ptu_flat_cost__`."""
    page = activity(False, flat=10.0, tools=0.03125, key=metrics(0.00123456, 1_000, 200, 90, 7))
    answers = {1: page, 2: {"key": "k", "info": {}}}
    bill = await bill_of(Vendor([], refuses=lambda number: web.json_response(answers[number])), "litellm")
    assert {name: sum(billed.ours.nusd) for name, billed in bill.rows.items()} == {
        ("2025-11-28", "gpt-4o-mini"): 10_001_234_560, ("2025-11-28", "other"): 31_250_000,
    }  # fmt: skip


async def test_a_budget_that_begins_anew_is_no_balance() -> None:
    info = {"spend": 2.5, "max_budget": 10.0, "budget_duration": "30d"}
    answers = {1: activity(False), 2: {"key": "k", "info": info}}
    bill = await bill_of(Vendor([], refuses=lambda number: web.json_response(answers[number])), "litellm")
    assert (bill.rows, bill.account.left_usd) == ({}, None)


def spend_log(status: str = "success", spend: float = 0.0003, tokens: int = 30) -> str:
    """A row of `GET /spend/logs?summarize=false`, as `LiteLLM_SpendLogs` of its `schema.prisma`."""
    return f"""{{"request_id": "chatcmpl-1", "call_type": "acompletion", "api_key": "88dc", "spend": {spend},
        "total_tokens": {tokens}, "prompt_tokens": {tokens * 2 // 3}, "completion_tokens": {tokens // 3},
        "startTime": "2026-11-20T23:59:59.123000Z", "endTime": "2026-11-21T00:00:01Z", "request_duration_ms": 1877,
        "model": "openai/gpt-4o-mini", "model_id": "x", "model_group": "gpt-4o-mini", "custom_llm_provider": "openai",
        "user": "u", "metadata": {{"status": "success"}}, "cache_hit": "False", "request_tags": ["a"], "messages": {{}},
        "response": {{}}, "status": "{status}", "team_id": null}}"""


@pytest.mark.parametrize(
    "text",
    [
        f"[{spend_log()}, {spend_log()}, {spend_log('failure', 0, 0)}]",
        f'{{"data": [{spend_log()}, {spend_log()}, {spend_log("failure", 0, 0)}], "total": 3, "page": 1}}',
    ],
)
def test_the_spend_logs_of_litellm_are_a_file(text: str) -> None:
    found = read_export(text.splitlines(keepends=True))
    ((name, tally),) = found.tallies.items()
    assert name == ("2026-11-20", "gpt-4o-mini")
    assert tally[:3] == (2, 40, 20)
    assert (tally.total_tokens, tally.cost_nusd) == (60, 600_000)
    assert found.notes == ("1 of their lines are no consumption and are left out.",)


# --------------------------------------------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"provider": "newapi", "user": "7"}, "needs base_url"),
        ({"provider": "oneapi"}, "needs base_url"),
        ({"provider": "litellm", "user": "u"}, "needs base_url"),
        ({"provider": "newapi", "base_url": "https://reseller.example.com"}, "needs user"),
    ],
)
def test_a_reseller_needs_an_address(fields: dict[str, str], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        BillSource.model_validate({"api_key": ADMIN, **fields})
