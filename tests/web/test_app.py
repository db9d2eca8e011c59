"""The web floor, in one process: what every answer has in common."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from gateway.config import build
from gateway.observe.metrics import Telemetry
from gateway.web import app
from tests.fakes.scripted import Scripted, after, error_json, ok_json

from .conftest import ADMIN_TOKEN, AUTH, KEY, Inside

CALL = {"model": "m", "prompt": "Say hello", "max_tokens": 5}
NOWHERE = "http://127.0.0.1:9/v1"


@pytest.mark.parametrize(
    ("method", "path", "status", "message"),
    [
        ("GET", "/v1/foo", 404, "Invalid URL (GET /v1/foo)"),
        ("POST", "/v1/edits", 404, "Invalid URL (POST /v1/edits). The gateway does not have this endpoint: use"),
        ("POST", "/v1/uploads", 404, "Invalid URL (POST /v1/uploads). The gateway does not have this endpoint: send"),
        ("POST", "/v1/evals", 404, "Invalid URL (POST /v1/evals). The gateway does not have this endpoint: docs"),
        ("GET", "/v1/completions", 405, "Not allowed to GET on /v1/completions. (HINT: Perhaps you meant to use"),
        ("DELETE", "/v1/models", 405, "Not allowed to DELETE on /v1/models."),
        ("GET", "/v1/models/no-such", 404, "The model `no-such` does not exist or you do not have access to it."),
        ("GET", "/admin/api/usage?group_by=colour", 400, "Invalid 'group_by'"),
        ("GET", "/no/such", 404, "Invalid URL (GET /no/such)"),
    ],
)
async def test_refusals_are_worded_as_openai_words_them(
    inside: Inside, method: str, path: str, status: int, message: str
) -> None:
    client = await inside(NOWHERE)
    answer = await client.request(method, path, headers=AUTH)
    error = (await answer.json())["error"]
    assert answer.status == status
    assert error["message"].startswith(message)
    assert set(error) == {"message", "type", "param", "code"}
    assert re.fullmatch(r"req_[0-9a-f]{32}", answer.headers["x-request-id"])


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/api/chat"), ("POST", "/api/generate"), ("GET", "/api/tags"), ("POST", "/api/embed")]
)
async def test_a_client_of_ollamas_own_api_learns_the_right_setting(inside: Inside, method: str, path: str) -> None:
    """Its clients show `error` as a text (ollama-js, `checkOk`): of an object they would show `[object Object]`."""
    answer = await (await inside(NOWHERE)).request(method, path)
    error = (await answer.json())["error"]
    assert answer.status == 404
    assert error.startswith(f"Invalid URL ({method} {path}). The gateway does not have this endpoint: it belongs to")
    assert "OpenAI-compatible" in error
    assert "/v1" in error


async def test_call_is_answered_counted_and_seen(inside: Inside) -> None:
    async with Scripted(ok_json()) as upstream:
        client = await inside(upstream.url)
        answer = await client.post("/v1/completions", json=CALL, headers={**AUTH, "X-Client-Request-Id": "mine"})
        assert answer.status == 200
        assert answer.headers["x-gateway-upstream"] == "up"
        assert answer.headers["x-gateway-attempts"] == "1"
        admin = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
        (row,) = (await (await client.get("/admin/api/usage?group_by=key,model", headers=admin)).json())["data"]
        assert (row["key"], row["model"], row["requests"], row["total_tokens"]) == ("k", "m", 1, 2)
        (call,) = (await (await client.get("/admin/api/calls?key=k", headers=admin)).json())["data"]
        assert call["id"] == answer.headers["x-request-id"]
        assert call["client_request_id"] == "mine"
        assert call["usage_source"] == "reported"
        text = await (await client.get("/metrics")).text()
        assert 'gateway_requests_total{endpoint="completions",key="k",model="m",status="200",upstream="up"} 1.0' in text
    assert json.loads(upstream.requests[0].body) == CALL


async def test_our_own_bug_shows_nothing_of_the_inside(
    inside: Inside, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*_: Any) -> None:
        raise ZeroDivisionError(f"inner detail {KEY}")

    client = await inside(NOWHERE)
    monkeypatch.setattr("gateway.pipeline.serve", fail)
    answer = await client.post("/v1/completions", json=CALL, headers=AUTH)
    error = (await answer.json())["error"]
    assert (answer.status, error["type"]) == (500, "server_error")
    assert "inner detail" not in error["message"]
    assert answer.headers["x-request-id"] in error["message"]
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("query", ["group_by=colour", "since=yesterday", "format=xml", "limit=0", "limit=all"])
async def test_admin_says_which_parameter_is_wrong(inside: Inside, query: str) -> None:
    client = await inside(NOWHERE)
    answer = await client.get(f"/admin/api/usage?{query}", headers={"Authorization": f"Bearer {ADMIN_TOKEN}"})
    assert (answer.status, (await answer.json())["error"]["param"]) == (400, query.partition("=")[0])


async def test_a_key_reads_its_own_limits(inside: Inside) -> None:
    quotas = [{"requests": 10, "per": "day"}, {"tokens": 500, "per": 864000, "model": "m*"}]
    key = {"id": "k", "secret": KEY, "team": "t", "quotas": quotas, "max_parallel": 2, "limits": {"n": 3}}
    async with Scripted(ok_json()) as upstream:
        client = await inside(upstream.url, keys=[key], teams={"t": {"quotas": [{"requests": 100, "per": "month"}]}})
        await client.post("/v1/completions", json=CALL, headers=AUTH)
        received = await (await client.get("/v1/key", headers=AUTH)).json()
    assert (received["id"], received["team"], received["limits"]) == ("k", "t", {"n": 3})
    assert [(q["scope"], q["unit"], q["per"], q["limit"], q["used"], q["reserved"]) for q in received["quotas"]] == [
        ("key:k", "requests", "day", 10, 1, 0),
        ("key:k", "tokens", "864000", 500, 2, 0),
        ("team:t", "requests", "month", 100, 1, 0),
        ("key:k", "parallel", None, 2, 0, 0),
    ]


async def test_what_is_ours_in_an_upstream_error_stays_ours(inside: Inside) -> None:
    leak = "upstream-secret-key and header-secret-value"
    refusal = error_json(400, message=leak, type="invalid_request_error", param="")
    async with Scripted(refusal) as upstream:
        up = {"base_url": upstream.url, "api_key": "upstream-secret-key", "headers": {"X-Org": "header-secret-value"}}
        client = await inside(upstream.url, upstreams={"up": up})
        answer = await client.post("/v1/completions", json=CALL, headers=AUTH)
    error = (await answer.json())["error"]
    assert (answer.status, error["message"], error["param"]) == (400, "*** and ***", None)


async def test_workers_together_never_open_more_than_max_connections(inside: Inside) -> None:
    """One of three workers may have a third of five, which is one."""
    async with Scripted(always=after(0.02, ok_json())) as upstream:
        up = {"base_url": upstream.url, "max_connections": 5}
        client = await inside(upstream.url, upstreams={"up": up}, server={"workers": 3, "access_log": "off"})
        answers = await asyncio.gather(*(client.post("/v1/completions", json=CALL, headers=AUTH) for _ in range(4)))
        assert {answer.status for answer in answers} == {200}
        assert upstream.most_open == 1


async def test_a_prompt_that_never_fits_gets_an_error_that_says_so(inside: Inside) -> None:
    client = await inside(NOWHERE, keys=[{"id": "k", "secret": KEY, "quotas": [{"tokens": 10, "per": "day"}]}])
    body = {"model": "m", "prompt": [1] * 20, "max_tokens": 1}
    answer = await client.post("/v1/completions", json=body, headers=AUTH)
    error = (await answer.json())["error"]
    assert (answer.status, error["param"], error["code"]) == (400, "prompt", "quota_too_small")


async def test_a_drain_waits_for_nothing_where_no_call_is_under_way(tmp_path: Path) -> None:
    """An endless task among those of calls would hold up every stop for the whole of `drain_timeout_s`."""
    values = {
        "store": {"url": f"embedded:{tmp_path}"},
        "upstreams": {"up": {"base_url": "http://127.0.0.1:9/v1"}},
        "models": {"m": {"routes": [{"upstream": "up"}]}},
    }

    async def scrape() -> bytes:
        return b""

    async with app.build(build(values), Telemetry([], 0), scrape) as worker:
        assert await worker.parts.tasks.wait_until_idle(0.0)


async def test_metrics_keep_the_quotas_of_upstreams_where_people_have_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "MAX_SHARED_WINDOWS", 3)
    daily = [{"tokens": 5, "per": "day"}]
    keys = [
        {"id": f"key-{name}", "secret": f"sk-{name}-0123456789abcdefghij", "owner": name, "team": "red"}
        for name in "ab"
    ]
    values = {
        "store": {"url": f"embedded:{tmp_path}"},
        "upstreams": {"up": {"base_url": "http://127.0.0.1:9/v1", "quotas": daily}},
        "models": {"m": {"routes": [{"upstream": "up"}], "max_output_tokens": 9}},
        "quotas": daily, "teams": {"red": {"quotas": daily, "member_quotas": daily}},
        "people": {"defaults": {"quotas": daily}}, "keys": keys,
    }  # fmt: skip
    config = build(values)

    async def scrape() -> bytes:
        return b""

    async with app.build(config, Telemetry([each.id for each in config.keys], 10), scrape) as worker:
        _, statuses = await app.labelled_keys(worker.parts)
    assert [each.window.scope for each in statuses] == ["upstream:up", "gateway", "team:red"]
