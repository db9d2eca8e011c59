"""How Azure, Bedrock and Vertex AI deviate, as people reported it (docs/field.md, "Clouds")."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.errors import UpstreamRefused
from gateway.records import Failure, Fault
from gateway.upstream.ask import Fetched, fetch
from gateway.upstream.connection import Head
from gateway.upstream.provider_errors import judge, judge_in_band
from gateway.wings.clouds.addresses import ADDRESS
from gateway.wings.clouds.betas import KNOWN, OTHER_NAMES, taken
from gateway.wings.clouds.event_stream import EventStreamReader
from gateway.wings.clouds.vertex_stream import VertexEvents
from tests.fakes.scripted import CHUNKED, Behaviour, Scripted, answer, chunk

from .fakes import exception_of
from .test_pool import pool


@pytest.fixture
def cloud() -> Iterator[Scripted]:
    with Scripted(prefix="") as server:
        yield server


FILTERED = {"hate": {"filtered": True, "severity": "high"}, "jailbreak": {"filtered": False, "detected": False}}
POLICY = {
    "error": {
        "message": "The response was filtered due to the prompt triggering Azure OpenAI's content management policy.",
        "type": None, "param": "prompt", "code": "content_filter", "status": 400,
        "innererror": {"code": "ResponsibleAIPolicyViolation", "content_filter_result": FILTERED},
    }
}  # fmt: skip


@pytest.mark.parametrize(
    ("source", "status", "body", "found"),
    [
        ("rashadphz/farfalle#79, Azure/api-management-policy-snippets#110", 404,
         {"error": {"code": "DeploymentNotFound", "message": "The API deployment for this resource does not exist."}},
         Fault.NO_CHANNEL),
        ("pydantic/pydantic-ai#5002, QuantumNous/new-api#3053", 404,
         {"error": {"code": 404, "message": "Publisher Model `projects/p/locations/global/publishers/google/models/x` "
                    "was not found or your project does not have access to it.", "status": "NOT_FOUND"}},
         Fault.NO_CHANNEL),
        ("danny-avila/LibreChat#4570, BerriAI/litellm#7181", 400,
         {"message": "Invocation of model ID anthropic.claude-3-5-sonnet-20241022-v2:0 with on-demand throughput isn't "
                     "supported. Retry your request with the ID or ARN of an inference profile"}, Fault.NO_CHANNEL),
        ("botocore", 400, {"message": "The provided model identifier is invalid."}, Fault.NO_CHANNEL),
        ("googleapis/python-aiplatform#5010, google-gemini/gemini-cli#15498", 429,
         [{"error": {"code": 429, "message": "Resource exhausted. Please try again later.",
                     "status": "RESOURCE_EXHAUSTED"}}], Fault.RATE_LIMITED),
        ("BerriAI/litellm#16231, compl-ai/compl-ai#20", 400, POLICY, None),
        ("a client's words further back decide nothing", 400,
         {"error": {"message": "Bad value: Publisher Model `x` was not found", "code": "invalid"}}, None),
    ],
)  # fmt: skip
def test_an_error_of_a_cloud(source: str, status: int, body: Any, found: Fault | None) -> None:
    judged = judge("up", Head(status, ()), json.dumps(body).encode(), now=0, hide=())
    assert (judged.fault if isinstance(judged, Failure) else None) is found
    if body is POLICY:
        assert isinstance(judged, UpstreamRefused)
        assert str(judged).endswith("content management policy. (filtered: hate)")


def test_a_filter_inside_a_stream_is_the_clients_error() -> None:
    """Oaklight/argo-proxy#91: Codex repeats the same refused prompt five times, if it looks like a fault."""
    assert isinstance(judge_in_band("up", POLICY["error"], hide=()), UpstreamRefused)


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ("throttlingException", Fault.RATE_LIMITED), ("serviceUnavailableException", Fault.STATUS),
        ("internalServerException", Fault.IN_BAND), ("modelStreamErrorException", Fault.IN_BAND),
    ],
)  # fmt: skip
def test_an_exception_in_a_stream_of_bedrock_is_a_fault_that_another_route_may_mend(kind: str, found: Fault) -> None:
    """maximhq/bifrost#2480, manaflow-ai/subrouter#68: they come behind a 200, often as the first message."""
    event = json.loads(EventStreamReader().read(exception_of(kind, "Too many requests")).partition(b"data: ")[2])
    judged = judge_in_band("up", event["error"], hide=())
    assert isinstance(judged, Failure)
    assert judged.fault is found


# ------------------------------------------------------------------------------------------------ betas of Claude Code


OF_CLAUDE_CODE = (
    "claude-code-20250219,interleaved-thinking-2025-05-14,context-management-2025-06-27,"
    "prompt-caching-scope-2026-01-05,advanced-tool-use-2025-11-20,oauth-2025-04-20,mcp-servers-2025-12-04"
)
LEFT = "interleaved-thinking-2025-05-14,context-management-2025-06-27,tool-search-tool-2025-10-19"


@pytest.mark.parametrize(("paths", "version"), [("bedrock", "bedrock-2023-05-31"), ("vertex", "vertex-2023-10-16")])
async def test_betas_that_the_cloud_refuses_do_not_go_there(
    cloud: Scripted, monkeypatch: pytest.MonkeyPatch, paths: str, version: str
) -> None:
    """BerriAI/litellm#16561, QuantumNous/new-api#3041, anthropics/claude-code#56595, #49370, #82549, #21625, #34802,
    #12429, tombii/better-ccflare#47: each a 400 for every request of Claude Code."""
    cloud._always = answer(b"{}")
    body = b'{"model": "m", "stream": true, "context_management": {"edits": []}, "messages": []}'
    async with pool(cloud.url, paths=paths, api_key="k") as made:
        for headers in ([("Anthropic-Beta", OF_CLAUDE_CODE)], [("anthropic-beta", "claude-code-20250219")], []):
            request = made.request("/messages?beta=true", headers, body)
            assert isinstance(await fetch("up", made, request, 30, 10**6), Fetched)
    first, second, third = cloud.requests
    assert [each.headers.get("anthropic-beta") for each in cloud.requests] == [LEFT, None, None]
    assert first.json["context_management"] == {"edits": []}
    assert "context_management" not in second.json | third.json  # Kong/developer.konghq.com#5952
    assert {each.json["anthropic_version"] for each in cloud.requests} == {version}
    expected = [LEFT.split(","), None, None] if paths == "bedrock" else [None] * 3
    assert [each.json.get("anthropic_beta") for each in cloud.requests] == expected


async def test_an_upstream_names_the_betas_of_its_model(cloud: Scripted) -> None:
    """anthropics/claude-code#49370: a model takes fewer than its cloud."""
    cloud._always = answer(b"{}")
    async with pool(cloud.url, paths="bedrock", api_key="k", betas=["interleaved-thinking-2025-05-14"]) as made:
        await fetch("up", made, made.request("/messages", [("anthropic-beta", LEFT)], b"{}"), 30, 10**6)
    assert cloud.requests[0].json["anthropic_beta"] == ["interleaved-thinking-2025-05-14"]


async def test_another_upstream_gets_every_beta(cloud: Scripted) -> None:
    cloud._always = answer(b"{}")
    command = {"type": "command", "command": ["/bin/echo", '{"token": "t"}']}
    async with pool(f"{cloud.url}/anthropic/v1", auth=command) as made:
        await fetch("up", made, made.request("/messages", [("anthropic-beta", OF_CLAUDE_CODE)], b"{}"), 30, 10**6)
    assert cloud.requests[0].headers["anthropic-beta"] == OF_CLAUDE_CODE


def test_each_cloud_that_writes_its_own_paths_for_claude_has_a_list() -> None:
    assert KNOWN.keys() == ADDRESS.keys() - {"azure"}
    assert all(name in known for known in KNOWN.values() for name in OTHER_NAMES.values())
    assert taken(" , ", KNOWN["vertex"]) == []


# ------------------------------------------------------------------------------------------------------- vertex_event


OWN = b'event: vertex_event\ndata: {"type":"vertex_event","usage":{"input_tokens":9}}\n\n'
BEFORE = b'event: message_start\ndata: {"type":"message_start"}\n\n'
BEHIND = b'event: ping\r\ndata: {"type": "ping", "text": "vertex_event"}\r\n\r\n'


@pytest.mark.parametrize("size", [1, 7, 10**6])
@pytest.mark.parametrize("own", [OWN, OWN.replace(b"\n", b"\r\n"), OWN.partition(b"\n")[2]])
def test_events_of_vertex_itself_are_left_out(size: int, own: bytes) -> None:
    """vercel/ai#11309: the AI SDK ends an answer there."""
    whole = BEFORE + own + BEHIND + own + b"data: without an end"
    events = VertexEvents()
    found = [events.read(whole[at : at + size]) for at in range(0, len(whole), size)]
    assert b"".join(found) == BEFORE + BEHIND
    assert (events.rest(), events.rest()) == (b"data: without an end", b"")


@pytest.mark.parametrize("is_own", [False, True])
def test_an_event_of_vertex_is_not_held_until_its_end(is_own: bool) -> None:
    """Else each piece would cost the more the longer its event is, and an event without an end all memory."""
    begin = OWN.partition(b"}")[0] if is_own else b'event: ping\ndata: {"type": "ping", "text": "'
    events, passed, given = VertexEvents(), 0, 0
    for piece in [begin, *[b"y\r" * 5_000] * 20, b"\n", b"\r"]:
        given += len(piece)
        passed += len(events.read(piece))
        assert passed == 0 if is_own else passed > given - 4
    assert events.read(b"\n" + BEHIND) == (b"" if is_own else b"\r\n\r\n") + BEHIND


@pytest.mark.parametrize("text", [b"", b"data: {", b"event: vertex_event\n", OWN[:-1], b"\n", b"x\r\n\r", BEHIND[:-1]])
def test_the_end_of_an_answer_without_the_end_of_its_event(text: bytes) -> None:
    for size in (1, 3, 100):
        events = VertexEvents()
        found = b"".join([events.read(text[at : at + size]) for at in range(0, len(text), size)]) + events.rest()
        assert found == (b"" if text.startswith(b"event: vertex_event\n") else text)


@pytest.mark.parametrize(("paths", "is_left_out"), [("vertex", True), ("openai", False)])
async def test_a_stream_of_vertex_arrives_without_them(cloud: Scripted, paths: str, is_left_out: bool) -> None:
    tail = b"data: half"

    async def behaviour(wire: Any) -> None:
        head = CHUNKED.replace(b"\r\n\r\n", b"\r\nX-A: b\r\n\r\n")
        await wire.write(head + chunk(BEFORE + OWN[:10]) + chunk(OWN[10:] + BEHIND + tail) + b"0\r\n\r\n")

    found: list[Behaviour] = [behaviour]
    cloud._script += found
    command = {"type": "command", "command": ["/bin/echo", '{"token": "t"}']}
    async with pool(cloud.url, paths=paths, auth=command) as made:
        got = await fetch("up", made, made.request("/messages", [], b"{}"), 30, 10**6)
        await asyncio.sleep(0)
        assert made.in_flight == 0
    assert isinstance(got, Fetched)
    assert got.body == BEFORE + (b"" if is_left_out else OWN) + BEHIND + tail
