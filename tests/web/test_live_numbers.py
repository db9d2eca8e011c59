"""The live numbers: what of a scrape they are, how often it is made, and who may see them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from gateway.observe.live_numbers import summed
from gateway.observe.metrics import Telemetry
from gateway.records import Record, Usage
from gateway.web import app
from gateway.web.admin import whole_gateway
from tests.web.conftest import ADMIN_TOKEN, AUTH, Inside

NOWHERE = "http://127.0.0.1:9/v1"
VIEWER_TOKEN = "viewer-token-0123456789"


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def record(**more: Any) -> Record:
    plain: dict[str, Any] = {
        "id": "req_1", "time": 0.0, "key": "k", "team": None, "endpoint": "chat", "model": "m", "label_model": "m",
        "routed_model": "m", "returned_model": "m", "upstream": "up", "status": 200, "stream": True,
        "usage": Usage(10, 5, 3, 2, "reported"), "ended": "done", "first_byte_s": 0.2, "duration_s": 0.5, "attempts": 1,
        "cost_nusd": 1_500_000_000,
    }  # fmt: skip
    return Record(**(plain | more))


def used() -> Telemetry:
    """Two calls that were carried, one that failed, and what was refused."""
    telemetry = Telemetry(["k", 'odd"\\\nname'], 10, CollectorRegistry())
    for each in (
        record(),
        record(first_byte_s=3.0),
        record(upstream="other", status=502, usage=Usage(), cost_nusd=None),
    ):
        telemetry.recorded(each, estimated_prompt_tokens=10, overhead_s=0.001, is_usage_unknown=False)
    telemetry.answered(key="k", model="m", endpoint="chat", upstream="", status=429)
    telemetry.answered(key='odd"\\\nname', model="other", endpoint="chat", upstream="", status=404)
    telemetry.rejected("rate_limited")
    telemetry.attempted("up", "ok")
    telemetry.attempted("up", "timeout")
    telemetry.attempted("forgotten", "ok")
    telemetry.show_upstream("up", 2)
    telemetry.count_under_way(1)
    return telemetry


def test_numbers_are_those_of_the_scrape() -> None:
    received = summed([used().registry], ["up", "idle"])
    assert (received["requests"], received["by_status"]) == (5, {"200": 2, "502": 1, "429": 1, "404": 1})
    assert received["tokens"] == {"prompt": 20, "completion": 10, "cached": 6, "reasoning": 4}
    assert (received["cost_usd"], received["in_flight"]) == (3.0, 1)
    assert received["rejections"] == {"rate_limited": 1}
    assert received["upstreams"]["up"]["state"] == 2
    assert received["upstreams"]["up"]["attempts"] == {"ok": 1, "timeout": 1}
    assert received["upstreams"]["idle"] == {"state": 0, "attempts": {}, "first_token": {"le": [], "counts": []}}
    assert received["first_token"]["counts"][-1] == 3
    assert received["upstreams"]["up"]["first_token"]["counts"][-1] == 2
    at = received["upstreams"]["up"]["first_token"]["le"].index(0.25)
    assert received["upstreams"]["up"]["first_token"]["counts"][at] == 1


def test_refusals_are_listed_by_key_without_relayed_failures() -> None:
    assert summed([used().registry], ["up"])["refused"] == [
        {"key": "k", "model": "m", "status": 429, "requests": 1},
        {"key": 'odd"\\\nname', "model": "other", "status": 404, "requests": 1},
    ]


def test_a_gateway_that_has_done_nothing_has_numbers() -> None:
    received = summed([CollectorRegistry()], ["up"])
    assert (received["requests"], received["rejections"], received["refused"]) == (0, {}, [])


async def test_many_who_look_cost_one_scrape(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    made = 0
    summed_once = app.summed

    def count(collectors: Any, upstreams: Any) -> dict[str, Any]:
        nonlocal made
        made += 1
        return summed_once(collectors, upstreams)

    monkeypatch.setattr(app, "summed", count)
    monkeypatch.setattr(whole_gateway, "FRESH_S", 3600.0)
    client = await inside(NOWHERE)
    answers = await asyncio.gather(*[client.get("/admin/api/live", headers=bearer(ADMIN_TOKEN)) for _ in range(8)])
    assert [answer.status for answer in answers] == [200] * 8
    assert made == 1
    assert len({await answer.text() for answer in answers}) == 1
    assert answers[0].headers["Cache-Control"] == "no-store"


async def test_an_old_sample_is_made_anew(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_gateway, "FRESH_S", 0.0)
    client = await inside(NOWHERE)
    before = await (await client.get("/admin/api/live", headers=bearer(ADMIN_TOKEN))).json()
    assert (await client.post("/v1/chat/completions", json={"model": "nobody", "messages": []}, headers=AUTH)).status
    after = await (await client.get("/admin/api/live", headers=bearer(ADMIN_TOKEN))).json()
    assert after["requests"] == before["requests"] + 1
    assert (after["time"] >= before["time"], after["instance"] == before["instance"]) == (True, True)


@pytest.mark.parametrize(("token", "role"), [(ADMIN_TOKEN, "admin"), (VIEWER_TOKEN, "viewer")])
async def test_session_says_whose_token_it_is(inside: Inside, token: str, role: str) -> None:
    client = await inside(NOWHERE, admin={"token": ADMIN_TOKEN, "viewer_token": VIEWER_TOKEN})
    answer = await client.get("/admin/api/session", headers=bearer(token))
    assert (await answer.json())["role"] == role
    assert (await client.get("/admin/api/live", headers=bearer(token))).status == 200


@pytest.mark.parametrize("path", ["/admin/api/session", "/admin/api/live"])
async def test_without_the_right_token_there_is_nothing_to_see(inside: Inside, path: str) -> None:
    client = await inside(NOWHERE)
    assert (await client.get(path)).status == 401
    assert (await client.get(path, headers=bearer("not-the-token-at-all"))).status == 401
    own = await client.get(path, headers=AUTH)  # a key sees itself alone, and no counters of the gateway
    assert own.status == (403 if path.endswith("live") else 200)
