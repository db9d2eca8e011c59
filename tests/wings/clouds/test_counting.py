"""What `gateway check --online` asks Vertex AI beside a token, and what each answer means."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.commands.online import Asked, ask_all, lines_of
from gateway.config import build
from gateway.wings.clouds.counting import CAUSES, MAX_ASKED
from tests.fakes.scripted import Behaviour, Scripted, answer, ok_json

TOKEN = "a-token-that-nobody-may-see"
GEMINI, CLAUDE, CHATS = "/publishers/google", "/publishers/anthropic", "/endpoints/openapi"
ROOT = "/v1/projects/p/locations/l"
COUNTED = {
    GEMINI: ok_json({"totalTokens": 1}),
    CLAUDE: ok_json({"input_tokens": 8}),
    CHATS: ok_json({"totalTokens": 1}),
}


def refusal(status: int, reason: str = "", *, is_list: bool = False) -> Behaviour:
    """An error as Google writes it (rhel-lightspeed/linux-mcp-server#450), in a list for some methods."""
    details = [{"@type": "type.googleapis.com/google.rpc.Help"}, {"reason": reason, "domain": "x"}] if reason else []
    error = {"error": {"code": status, "message": f"about {TOKEN}", "status": "X", "details": details}}
    return answer(json.dumps([error] if is_list else error).encode(), status)


async def asked(server: Scripted, below: str, *models: str, **more: Any) -> list[Asked]:
    """Lines about the upstream, without those of the trunk."""
    program = ["printf", json.dumps({"token": TOKEN, "expires_in": 3600})]
    own: dict[str, Any] = {"auth": {"type": "command", "command": program}} | more
    settings = {"base_url": f"{server.url}{ROOT}{below}", **own}
    named = {f"m{at}": {"routes": [{"upstream": "up", "model": model}]} for at, model in enumerate(models)}
    found = await ask_all(build({"upstreams": {"up": settings}, "models": named}), spends=False)
    assert TOKEN not in "".join(lines_of(found))
    return [each for each in found if "counting" in each.what or "auth" in each.what]


@pytest.mark.parametrize(
    ("below", "model", "path", "body"),
    [
        (GEMINI, "gemini-3-flash", f"{ROOT}{GEMINI}/models/gemini-3-flash:countTokens",
         {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}]}),
        (CHATS, "google/gemini-3-flash", f"{ROOT}{GEMINI}/models/gemini-3-flash:countTokens",
         {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}]}),
        (CLAUDE, "claude-sonnet-5@20260101", f"{ROOT}{CLAUDE}/models/count-tokens:rawPredict",
         {"anthropic_version": "vertex-2023-10-16", "model": "claude-sonnet-5@20260101",
          "messages": [{"role": "user", "content": "Hi"}]}),
    ],
)  # fmt: skip
async def test_tokens_are_counted_as_a_call_would_go(below: str, model: str, path: str, body: dict[str, Any]) -> None:
    with Scripted(prefix="") as server:
        server._always = COUNTED[below]
        grant, counted = await asked(server, below, model)
        request = server.requests[-1]
    assert grant.is_good
    assert counted == Asked(f"upstream up, counting tokens of {model}", "counted")
    assert (request.method, request.path, json.loads(request.body)) == ("POST", path, body)
    assert request.headers["authorization"] == f"Bearer {TOKEN}"


async def test_each_key_is_asked() -> None:
    with Scripted(prefix="") as server:
        server._always = COUNTED[GEMINI]
        found = await asked(server, GEMINI, "gemini-3-flash", auth="key", api_keys=["key-one-of-two", "key-two-of-two"])
        keys = [request.headers["authorization"] for request in server.requests]
    assert [each.what for each in found] == [
        f"upstream up, counting tokens with key {number} of 2 of gemini-3-flash" for number in (1, 2)
    ]
    assert keys == ["Bearer key-one-of-two", "Bearer key-two-of-two"]


@pytest.mark.parametrize("reason", CAUSES)
async def test_the_reason_of_a_refusal_is_named(reason: str) -> None:
    with Scripted(prefix="") as server:
        server._always = refusal(403, reason, is_list=True)
        _, counted = await asked(server, GEMINI, "gemini-3-flash")
    assert (counted.came, counted.is_good) == (f"it answered 403 ({reason}): {CAUSES[reason]}", False)


@pytest.mark.parametrize(
    ("below", "behaviour", "says", "is_good"),
    [
        (GEMINI, refusal(401), "the credentials are refused", False),
        (GEMINI, refusal(403), "role Vertex AI User", False),
        (GEMINI, refusal(403, "a reason with blanks"), "it answered 403: ", False),
        (GEMINI, refusal(404), "this location has no such model", False),
        (CLAUDE, refusal(404), "does not count its tokens", True),
        (GEMINI, refusal(429), "the quota is spent for now", True),
        (GEMINI, refusal(500), "it answered 500", False),
        (GEMINI, answer(b"<html>"), "not with a count", False),
    ],
)
async def test_other_answers(below: str, behaviour: Behaviour, says: str, is_good: bool) -> None:
    with Scripted(prefix="") as server:
        server._always = behaviour
        _, counted = await asked(server, below, "claude-5")
    assert says in counted.came
    assert "blanks" not in counted.came
    assert (counted.is_good, counted.is_doubtful) == (is_good, is_good)


async def test_models_with_one_outcome_share_a_line() -> None:
    with Scripted(prefix="") as server:
        server._always = refusal(404)
        _, counted = await asked(server, GEMINI, *[f"g{number}" for number in range(MAX_ASKED + 5)])
        assert len(server.requests) == MAX_ASKED
    assert counted.what == f"upstream up, counting tokens of g0, g1, g2 and {MAX_ASKED - 3} more"


async def test_models_of_others_have_no_free_question() -> None:
    with Scripted(prefix="") as server:
        server._always = COUNTED[CHATS]
        (grant,) = await asked(server, CHATS, "meta/llama-4-maverick")
        assert not [request for request in server.requests if "countTokens" in request.path]
    assert grant.is_good
