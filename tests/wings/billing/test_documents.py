"""The answers that the providers' own documents print are read, in their form with all of their members.

OpenAI: API reference, "Usage" and "Costs" (openai/openai-openapi, `x-oaiMeta` of each).
Anthropic: reference of the Admin API, "Get Messages Usage Report" and "Get Cost Report" (platform.claude.com).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from gateway.config import Upstream
from gateway.wings.billing.account import read_bill
from gateway.wings.billing.bill import Bill
from gateway.wings.billing.settings import BillSource

from .vendors import ADMIN

OPENAI_USAGE = """
{"object": "page", "has_more": true, "next_page": "page_AAAAAGdGxdEiJdKOAAAAAGcqsYA=",
 "data": [{"object": "bucket", "start_time": 1730419200, "end_time": 1730505600,
   "results": [{"object": "organization.usage.completions.result", "input_tokens": 1000, "output_tokens": 500,
     "input_cached_tokens": 800, "input_audio_tokens": 0, "output_audio_tokens": 0, "num_model_requests": 5,
     "project_id": null, "user_id": null, "api_key_id": null, "model": null, "batch": null, "service_tier": null}]}]}
"""
OPENAI_COSTS = """
{"object": "page", "has_more": false, "next_page": null,
 "data": [{"object": "bucket", "start_time": 1730419200, "end_time": 1730505600,
   "results": [{"object": "organization.costs.result", "amount": {"value": 0.06, "currency": "usd"},
     "line_item": null, "project_id": null}]}]}
"""
OPENAI_VECTOR_STORES = """
{"object": "page", "has_more": false, "next_page": null,
 "data": [{"object": "bucket", "start_time": 1730419200, "end_time": 1730505600,
   "results": [{"object": "organization.usage.vector_stores.result", "usage_bytes": 1024, "project_id": null}]}]}
"""
OPENAI_SESSIONS = """
{"object": "page", "has_more": false, "next_page": null,
 "data": [{"object": "bucket", "start_time": 1730419200, "end_time": 1730505600,
   "results": [{"object": "organization.usage.code_interpreter_sessions.result", "num_sessions": 1,
     "project_id": null}]}]}
"""
ANTHROPIC_USAGE = """
{"data": [{"starting_at": "2025-08-01T00:00:00Z", "ending_at": "2025-08-02T00:00:00Z",
   "results": [{"uncached_input_tokens": 1500,
     "cache_creation": {"ephemeral_1h_input_tokens": 1000, "ephemeral_5m_input_tokens": 500},
     "cache_read_input_tokens": 200, "output_tokens": 500, "server_tool_use": {"web_search_requests": 10},
     "account_id": "user_01WCz1FkmYMm4gnmykNKUu3Q", "api_key_id": "apikey_01Rj2N8SVvo6BePZj99NhmiT",
     "service_account_id": "svac_01Hk3R9TWxq7CfQak00OiVw4", "workspace_id": "wrkspc_01JwQvzr7rXLA5AGx3HKfFUJ",
     "model": "claude-opus-5", "service_tier": "standard", "context_window": "0-200k", "inference_geo": "global"}]}],
 "has_more": true, "next_page": "page_MjAyNS0wNS0xNFQwMDowMDowMFo="}
"""
ANTHROPIC_COSTS = """
{"data": [{"starting_at": "2025-08-01T00:00:00Z", "ending_at": "2025-08-02T00:00:00Z",
   "results": [{"amount": "123.78912", "currency": "USD", "cost_type": "tokens", "context_window": "0-200k",
     "description": "Claude Opus 5 Usage - Input Tokens", "inference_geo": "global", "model": "claude-opus-5",
     "service_tier": "standard", "token_type": "uncached_input_tokens",
     "workspace_id": "wrkspc_01JwQvzr7rXLA5AGx3HKfFUJ"}]}],
 "has_more": true, "next_page": "page_MjAyNS0wNS0xNFQwMDowMDowMFo="}
"""
LAST = {"object": "page", "data": [], "has_more": False, "next_page": None}
"""What comes behind a page that names another one."""


async def bill_of(pages: Mapping[str, str], provider: str, now: float, **more: Any) -> tuple[Bill, list[str]]:
    """The bill of a provider that answers so, and the cursors that it was asked for."""
    cursors: list[str] = []

    async def serve(request: web.Request) -> web.Response:
        if request.query.get("page"):
            cursors.append(request.query["page"])
        else:
            for path, text in pages.items():
                if request.path.endswith(path):
                    return web.json_response(json.loads(text))
        return web.json_response(LAST, status=404 if request.path.endswith("spend_limit") else 200)

    app = web.Application()
    app.router.add_get("/{path:.*}", serve)
    async with TestServer(app) as server:
        source = BillSource.model_validate(
            {"provider": provider, "api_key": ADMIN, "base_url": f"{server.make_url('/')}v1", **more}
        )
        upstream = Upstream(base_url="http://127.0.0.1:9/v1")
        return await read_bill(source, upstream, now, 10, waits=(0.0,)), cursors


async def test_openais_documents() -> None:
    pages = {"/organization/usage/completions": OPENAI_USAGE, "/organization/costs": OPENAI_COSTS,
             "/usage/vector_stores": OPENAI_VECTOR_STORES,
             "/usage/code_interpreter_sessions": OPENAI_SESSIONS}  # fmt: skip
    bill, cursors = await bill_of(pages, "openai", 1730600000.0)
    assert cursors == ["page_AAAAAGdGxdEiJdKOAAAAAGcqsYA="]
    assert {day for day, _ in bill.rows} == {"2024-11-01"}
    usage, cost = bill.rows["2024-11-01", ""].ours, bill.rows["2024-11-01", "other"].ours
    assert (usage.requests, usage.tokens, usage.nusd) == (5, (200, 800, 500, 0), (0, 0, 0, 0))
    assert (cost.requests, cost.tokens, cost.nusd) == (0, (0, 0, 0, 0), (0, 0, 0, 60_000_000))
    assert bill.services == {("2024-11-01", "storage_bytes"): 1024, ("2024-11-01", "sessions"): 1}


@pytest.mark.parametrize(
    ("key", "is_ours"), [("apikey_01Rj2N8SVvo6BePZj99NhmiT", True), ("apikey_of_somebody_else", False)]
)
async def test_anthropics_documents(key: str, *, is_ours: bool) -> None:
    pages = {"/usage_report/messages": ANTHROPIC_USAGE, "/cost_report": ANTHROPIC_COSTS}
    bill, cursors = await bill_of(pages, "anthropic", 1754200000.0, key_ids=[key])
    assert cursors == ["page_MjAyNS0wNS0xNFQwMDowMDowMFo="] * 2
    ((name, billed),) = bill.rows.items()
    assert name == ("2025-08-01", "claude-opus-5")
    side = billed.ours if is_ours else billed.others
    assert (side.tokens, side.nusd) == ((3000, 200, 500, 0), (1_237_891_200, 0, 0, 0)), "amounts are in cents"
