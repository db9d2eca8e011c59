"""Hooks are asked before calls and get records after; without a valid answer a call does what the setting has."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

import pytest
from aiohttp.test_utils import TestClient

from tests.fakes import scripted
from tests.fakes.collector import Collector
from tests.fakes.scripted import Behaviour, Scripted, dead_port, until
from tests.web.conftest import ADMIN_TOKEN, AUTH, Inside

KEY = b"a key of twenty-four bytes or more"
SECRET = f"whsec_{base64.b64encode(KEY).decode()}"
CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hello, mail ann@example.com"}]}
GOOD = scripted.ok_json(
    {
        "id": "c", "object": "chat.completion", "created": 1, "model": "up",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Hi"}}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4},
    }
)  # fmt: skip
ALLOW = scripted.ok_json({"action": "allow"})
ROWS = {
    "draw": {
        "upstream": "up", "prefix": "/draw", "submit": ["POST /make"], "read": ["GET /made?id={task}"], "task": "/id",
        "done": {"/state": "ready"},
    }
}  # fmt: skip
MODELS = {
    "m": {"routes": [{"upstream": "up"}], "max_output_tokens": 100, "fallbacks": ["other"]},
    "voice": {"routes": [{"upstream": "up"}], "endpoints": ["realtime"]},
    "other": {"routes": [{"upstream": "up"}], "max_output_tokens": 100, "limits": {"max_tokens": 5}},
    "ears": {"routes": [{"upstream": "up"}], "endpoints": ["transcriptions"]},
}


def refuse(**more: Any) -> Behaviour:
    return scripted.ok_json({"action": "refuse", **more})


def replace(**changes: Any) -> Behaviour:
    return scripted.ok_json({"action": "replace", "body": {**CHAT, **changes}})


async def upstream_answers(wire: scripted.Wire) -> None:
    is_task = "/mad" in wire.request.path or "/make" in wire.request.path
    await (scripted.ok_json({"id": "t-1", "state": "ready"}) if is_task else GOOD)(wire)


class Place(NamedTuple):
    """A gateway between an upstream and a hook."""

    client: TestClient[Any, Any]
    upstream: Scripted
    hook: Scripted

    async def post(self, path: str = "/v1/chat/completions", body: Any = CHAT) -> tuple[int, Any]:
        async with self.client.post(path, json=body, headers=AUTH) as answer:
            return answer.status, await answer.json()

    async def records(self, number: int = 1) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        while len(found) < number:
            async with self.client.get(
                f"/admin/api/calls?limit={number + 10}", headers={"Authorization": f"Bearer {ADMIN_TOKEN}"}
            ) as answer:
                found = (await answer.json())["data"]
        return found

    async def metric(self, outcome: str) -> float:
        async with self.client.get("/metrics") as answer:
            text = await answer.text()
        lines = [line for line in text.splitlines() if line.startswith("gateway_hook_calls_total{")]
        return sum(float(line.rpartition(" ")[2]) for line in lines if f'outcome="{outcome}"' in line)


class Places:
    """Starts gateways for one test."""

    def __init__(self, stack: AsyncExitStack, inside: Inside) -> None:
        self._stack = stack
        self._inside = inside

    async def __call__(self, hook: Behaviour | None = None, kind: str = "before_call", **settings: Any) -> Place:
        upstream = await self._stack.enter_async_context(Scripted(always=upstream_answers))
        asked = await self._stack.enter_async_context(Scripted(always=hook or ALLOW))
        own = {"url": f"{asked.url}/ask", "secret": SECRET, **settings}
        able = {"realtime": True, "messages": True}
        upstreams = {"up": {"base_url": upstream.url, "api_key": "upstream-secret-key", "capabilities": able}}
        client = await self._inside(
            upstream.url, models=MODELS, upstreams=upstreams, passthrough=ROWS, hooks={kind: {"guard": own}}
        )
        return Place(client, upstream, asked)


@pytest.fixture
async def place(inside: Inside) -> AsyncIterator[Places]:
    async with AsyncExitStack() as stack:
        yield Places(stack, inside)


# ------------------------------------------------------------------------------------------------------ the question


async def test_a_hook_sees_the_facts_and_a_signature(place: Places) -> None:
    here = await place()
    status, _ = await here.post()
    assert status == 200
    (asked,) = here.hook.requests
    assert asked.json.keys() == {"type", "version", "hook", "call"}
    call = asked.json["call"]
    assert (asked.json["type"], asked.json["hook"]) == ("before_call", "guard")
    assert (call["endpoint"], call["model"], call["key"], call["stream"]) == ("chat", "m", "k", False)
    assert call["prompt_tokens"] > 0
    assert b"ann@example.com" not in asked.body
    signed = f"{asked.headers['webhook-id']}.{asked.headers['webhook-timestamp']}.".encode() + asked.body
    own = base64.b64encode(hmac.new(KEY, signed, hashlib.sha256).digest()).decode()
    assert asked.headers["webhook-signature"] == f"v1,{own}"


async def test_a_hook_sees_the_body_as_the_client_wrote_it(place: Places) -> None:
    here = await place(sees="body")
    assert (await here.post())[0] == 200
    assert here.hook.requests[0].json["body"] == CHAT
    assert here.upstream.requests[0].json["messages"] == CHAT["messages"]


@pytest.mark.parametrize(
    ("filters", "is_asked"),
    [
        ({"keys": ["other-*"]}, False), ({"keys": ["k"]}, True), ({"models": ["gpt-*"]}, False),
        ({"models": ["m"]}, True), ({"models": ["other"]}, True), ({"models": ["voice"]}, False),
        ({"teams": ["red"]}, False), ({"endpoints": ["responses"]}, False),
        ({"endpoints": ["chat"]}, True),
    ],
)  # fmt: skip
async def test_a_hook_is_asked_about_its_calls_alone(place: Places, filters: dict[str, Any], *, is_asked: bool) -> None:
    here = await place(**filters)
    assert (await here.post())[0] == 200
    assert here.hook.hits == is_asked


async def test_the_time_is_in_the_timeline(place: Places) -> None:
    here = await place()
    await here.post()
    (record,) = await here.records()
    assert [(each["upstream"], each["fault"]) for each in record["timeline"]] == [("hook/guard", None), ("up", None)]
    assert record["amended"] == ""


@pytest.mark.parametrize(
    ("answer", "status", "error"), [(ALLOW, 200, None), (refuse(), 403, None), (scripted.ok_json({}), 503, "invalid")]
)
async def test_each_question_is_a_span_of_the_trace(
    inside: Inside, answer: Behaviour, status: int, error: str | None
) -> None:
    async with Scripted(always=GOOD) as upstream, Scripted(always=answer) as hook, Collector() as collector:
        client = await inside(
            upstream.url, models=MODELS, hooks={"before_call": {"guard": {"url": hook.url}}},
            tracing={"endpoint": collector.url},
        )  # fmt: skip
        assert (await Place(client, upstream, hook).post())[0] == status
        await until(lambda: len(collector.spans) == (3 if status == 200 else 2))
    call, asked, *attempts = collector.spans
    assert (asked.name, asked.kind, asked.parent, asked.trace) == ("hook/guard", "client", call.id, call.trace)
    assert (asked.attributes, asked.is_error) == (
        {"gateway.asked": "hook/guard"} | ({"error.type": error} if error else {}),
        error is not None,
    )
    assert all(each.began_s >= asked.began_s + asked.duration_s for each in attempts)


# ------------------------------------------------------------------------------------------------- what it may decide


async def test_a_refusal_is_the_hooks_and_costs_nothing(place: Places) -> None:
    here = await place(refuse(status=451, code="deny_list", message="Not\nthis."))
    status, answer = await here.post()
    assert status == 451
    assert answer["error"] == {
        "message": "Not this.", "type": "invalid_request_error", "param": None, "code": "deny_list",
    }  # fmt: skip
    assert here.upstream.hits == 0
    assert await here.metric("refused") == 1
    async with here.client.get("/v1/key", headers=AUTH) as answer_of_key:
        assert answer_of_key.status == 200


async def test_a_refusal_has_the_form_of_the_clients_api(place: Places) -> None:
    here = await place(refuse())
    body = {"model": "m", "max_tokens": 5, "messages": CHAT["messages"]}
    status, answer = await here.post("/v1/messages", body)
    assert (status, answer["type"], answer["error"]["type"]) == (403, "error", "permission_error")


async def test_a_replaced_body_is_sent_and_the_record_says_so(place: Places) -> None:
    said = [{"role": "user", "content": "Hello, mail [address]"}]
    here = await place(replace(messages=said), sees="body")
    async with here.client.post("/v1/chat/completions", json=CHAT, headers=AUTH) as answer:
        assert answer.status == 200
        assert answer.headers["x-gateway-amended"] == "hook guard replaced the body"
    assert here.upstream.requests[0].json["messages"] == said
    (record,) = await here.records()
    assert record["amended"] == "hook guard replaced the body"


async def test_a_replaced_body_is_checked_by_the_limits_of_its_model(place: Places) -> None:
    here = await place(replace(model="other", max_tokens=50), sees="body")
    status, answer = await here.post()
    assert (status, answer["error"]["param"]) == (400, "max_tokens")
    assert answer["error"]["message"].endswith("(The gateway has changed this request: hook guard replaced the body.)")
    assert here.upstream.hits == 0


async def test_a_replaced_body_may_not_name_a_model_that_is_not_there(place: Places) -> None:
    here = await place(replace(model="secret"), sees="body")
    status, answer = await here.post()
    assert (status, answer["error"]["code"]) == (404, "model_not_found")


async def test_hooks_are_asked_one_after_the_other(inside: Inside) -> None:
    said = [{"role": "user", "content": "changed"}]
    async with (
        Scripted(always=GOOD) as upstream,
        Scripted(always=replace(messages=said)) as first,
        Scripted(always=ALLOW) as second,
    ):
        hooks = {name: {"url": each.url, "sees": "body"} for name, each in (("a", first), ("b", second))}
        client = await inside(upstream.url, models=MODELS, hooks={"before_call": hooks})
        async with client.post("/v1/chat/completions", json=CHAT, headers=AUTH) as answer:
            assert answer.status == 200
    assert second.requests[0].json["body"]["messages"] == said


# ----------------------------------------------------------------------------------------- hooks without a valid answer

TOO_LONG = scripted.answer(b'{"action": "allow", "more": "' + b"x" * 10_000_000 + b'"}')
BAD: dict[str, tuple[Behaviour, str]] = {
    "silent": (scripted.silent, "timeout"),
    "closes": (scripted.close_without_answer, "connection"),
    "resets": (scripted.reset_without_answer, "connection"),
    "is no HTTP": (scripted.not_http, "connection"),
    "is cut": (scripted.cut_mid_body, "connection"),
    "sends 10 MB": (TOO_LONG, "too_long"),
    "fails": (scripted.answer(b"{}", 500), "status"),
    "redirects": (scripted.answer(b"", 302, [("Location", "http://127.0.0.1:1/")]), "status"),
    "is no JSON": (scripted.answer(b"allow"), "invalid"),
    "is a list": (scripted.ok_json([]), "invalid"),
    "says nothing": (scripted.ok_json({}), "invalid"),
    "has an unknown action": (scripted.ok_json({"action": "maybe"}), "invalid"),
    "has a wrong status": (refuse(status=200), "invalid"),
    "has a status as text": (refuse(status="403"), "invalid"),
    "has true for a status": (refuse(status=True), "invalid"),
    "has a wrong code": (refuse(code="NOT A CODE"), "invalid"),
    "has no message": (refuse(message=""), "invalid"),
    "replaces with a list": (scripted.ok_json({"action": "replace", "body": []}), "invalid"),
    "replaces what it has not seen": (replace(), "invalid"),
}


@pytest.mark.parametrize("name", BAD)
async def test_without_a_valid_answer_a_call_is_refused(place: Places, name: str) -> None:
    behaviour, outcome = BAD[name]
    here = await place(behaviour, timeout_ms=300 if outcome == "timeout" else 20_000)
    status, answer = await here.post()
    assert (status, answer["error"]["code"]) == (503, "hook_failed")
    assert here.upstream.hits == 0
    assert await here.metric(outcome) == 1


@pytest.mark.parametrize("name", ["silent", "closes", "sends 10 MB", "has an unknown action"])
async def test_without_a_valid_answer_a_call_goes_on_where_that_is_wanted(place: Places, name: str) -> None:
    behaviour, outcome = BAD[name]
    here = await place(behaviour, timeout_ms=300 if outcome == "timeout" else 20_000, on_failure="allow")
    assert (await here.post())[0] == 200
    (record,) = await here.records()
    assert record["amended"] == f"hook guard failed ({outcome}) and was passed over"
    assert record["timeline"][0]["fault"] == outcome


async def test_a_hook_may_not_change_whether_the_answer_is_a_stream(place: Places) -> None:
    here = await place(replace(stream=True), sees="body")
    assert (await here.post())[0] == 503
    assert await here.metric("invalid") == 1


async def test_a_hook_that_is_not_there_is_not_asked_for_a_while(inside: Inside) -> None:
    async with Scripted(always=GOOD) as upstream:
        hook = {"url": f"http://127.0.0.1:{dead_port()}", "on_failure": "allow"}
        client = await inside(upstream.url, models=MODELS, hooks={"before_call": {"guard": hook}})
        here = Place(client, upstream, upstream)
        for _ in range(12):
            assert (await here.post())[0] == 200
        records = await here.records(12)
        assert await here.metric("connection") >= 5
        assert await here.metric("circuit_open") >= 1
    assert len({record["id"] for record in records}) == 12


@pytest.mark.parametrize("on_failure", ["allow", "refuse"])
async def test_no_record_is_lost_where_a_hook_ends_under_load(inside: Inside, on_failure: str) -> None:
    hook, room, number = Scripted(always=ALLOW), asyncio.Semaphore(20), 120
    async with Scripted(always=GOOD) as upstream:
        async with hook:
            settings = {"url": hook.url, "on_failure": on_failure}
            client = await inside(upstream.url, models=MODELS, hooks={"before_call": {"guard": settings}})
            here = Place(client, upstream, hook)

            async def call() -> int:
                async with room:
                    return (await here.post())[0]

            calls = [asyncio.create_task(call()) for _ in range(number)]
            await until(lambda: hook.hits >= number // 3)
        statuses = await asyncio.gather(*calls)
        assert {*statuses} == ({200} if on_failure == "allow" else {200, 503})
        served = statuses.count(200)
        records = await here.records(served)
    assert len({record["id"] for record in records}) == len(records) == served == upstream.hits


async def test_a_connection_that_the_hook_has_closed_meanwhile_is_no_failure(inside: Inside) -> None:
    async with Scripted(always=GOOD) as upstream, Scripted(ALLOW, scripted.close_without_answer, ALLOW) as hook:
        client = await inside(upstream.url, models=MODELS, hooks={"before_call": {"guard": {"url": hook.url}}})
        here = Place(client, upstream, hook)
        assert [(await here.post())[0] for _ in range(2)] == [200, 200]
        assert hook.hits == 3


# ------------------------------------------------------------------------------------------------------ kinds of calls


async def test_a_long_body_is_shown_and_replaced(place: Places) -> None:
    long = {**CHAT, "messages": [{"role": "user", "content": "x" * 200_000}]}
    here = await place(replace(messages=[{"role": "user", "content": "y" * 150_000}]), sees="body")
    assert (await here.post(body=long))[0] == 200
    assert here.hook.requests[0].json["body"] == long
    assert here.upstream.requests[0].json["messages"][0]["content"] == "y" * 150_000


async def test_a_body_longer_than_it_takes_is_refused(place: Places) -> None:
    here = await place(sees="body", max_bytes=100, on_failure="allow")
    status, answer = await here.post(body={**CHAT, "user": "u" * 200})
    assert (status, answer["error"]["code"]) == (403, "not_seen_by_hook")
    assert (here.hook.hits, here.upstream.hits) == (0, 0)


async def test_all_requests_of_a_message_batch_are_shown(place: Places) -> None:
    here = await place(refuse(), sees="body")
    params = {"model": "m", "max_tokens": 5, "messages": CHAT["messages"]}
    requests = [{"custom_id": name, "params": params} for name in ("a", "b")]
    assert (await here.post("/v1/messages/batches", {"requests": requests}))[0] == 403
    asked = here.hook.requests[0].json
    assert (asked["call"]["requests"], asked["body"]) == (2, {"requests": requests})


@pytest.mark.parametrize(("answer", "status"), [(ALLOW, 200), (refuse(), 403), (replace(), 503)])
async def test_a_submission_of_a_task_is_shown_and_its_reads_are_not(
    place: Places, answer: Behaviour, status: int
) -> None:
    here = await place(answer, sees="body")
    assert (await here.post("/draw/make", {"prompt": "a cat"}))[0] == status
    assert here.hook.requests[0].json["body"] == {"prompt": "a cat"}
    assert here.hook.requests[0].json["call"]["endpoint"] == "draw"
    if status == 200:
        async with here.client.get("/draw/made?id=t-1", headers=AUTH) as read:
            assert read.status == 200
    assert here.hook.hits == 1


@pytest.mark.parametrize(("sees", "code"), [("facts", "refused_by_hook"), ("body", "not_seen_by_hook")])
async def test_a_realtime_session_is_asked_about_before_it_opens(place: Places, sees: str, code: str) -> None:
    here = await place(refuse(), sees=sees)
    upgrade = {
        "Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": base64.b64encode(bytes(16)).decode(),
    }  # fmt: skip
    async with here.client.get("/v1/realtime?model=voice", headers={**AUTH, **upgrade}) as answer:
        assert answer.status == 403
        assert (await answer.json())["error"]["code"] == code
    assert here.hook.hits == (sees == "facts")
    assert here.upstream.hits == 0


# --------------------------------------------------------------------------------------------------------- after calls


async def test_a_hook_gets_the_record(place: Places) -> None:
    here = await place(kind="after_call")
    assert (await here.post())[0] == 200
    await until(lambda: here.hook.hits)
    posted = here.hook.requests[0].json
    (record,) = await here.records()
    assert (posted["type"], posted["call"]["id"], posted["call"]["status"]) == ("after_call", record["id"], 200)
    assert (posted["call"]["prompt_tokens"], posted["call"]["completion_tokens"]) == (3, 1)
    assert "ann@example.com" not in json.dumps(posted)


async def test_no_call_waits_for_a_hook_that_gets_records(place: Places) -> None:
    here = await place(scripted.silent, kind="after_call", max_waiting=4, timeout_ms=30_000)
    for _ in range(8):
        assert (await here.post())[0] == 200
    assert len(await here.records(8)) == 8
    assert await here.metric("dropped") == 2  # four are on their way, and two of one key wait
