"""Calls that wait for room at an upstream, or for a hook, when their key loses what permits them."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest
from aiohttp.test_utils import TestClient

from gateway.accounting import admission
from gateway.keys import cache
from gateway.web import endpoints
from tests.fakes.scripted import Behaviour, Scripted, Wire, error_json, ok_json
from tests.wings.tasks.test_rows import GOOD

from .conftest import ADMIN_TOKEN, AUTH, Inside, until
from .test_late_bodies import ask

Client = TestClient[Any, Any]

SETTINGS: dict[str, Any] = {
    "admin": {"token": ADMIN_TOKEN},
    "teams": {"ours": {}, "rival": {}},
    "queue": {"max_wait_s": 60},
}
FILMS = "/p/v1/films"
CALL = {"model": "m", "prompt": "Hello"}
CHANGES = {
    "revoked": ("DELETE", "keys/dora", None, (401, "invalid_api_key")),
    "paused": ("POST", "keys/dora/pause", {}, (401, "invalid_api_key")),
    "left": ("POST", "people/dora@example.org/end_access", {}, (401, "invalid_api_key")),
    "expired": ("PATCH", "keys/dora", {"expires": "2020-01-01T00:00:00Z"}, (401, "invalid_api_key")),
    "moved": ("PATCH", "keys/dora", {"team": "rival"}, (503, "key_changed")),
    "models": ("PATCH", "keys/dora", {"models": ["other"]}, (503, "key_changed")),
    "limits": ("PATCH", "keys/dora", {"limits": {"max_tokens": 5}}, (503, "key_changed")),
    "note": ("PATCH", "keys/dora", {"note": "x"}, (200, None)),
}
"""What is done to the key, and what its call gets that waits."""


class Held:
    """Answers a request on command."""

    def __init__(self, answer: Behaviour) -> None:
        self.answer = answer
        self.begun, self.turn = threading.Event(), threading.Event()

    async def __call__(self, wire: Wire) -> None:
        self.begun.set()
        assert await asyncio.to_thread(self.turn.wait, 30)
        await self.answer(wire)


async def post(client: Client, path: str, headers: dict[str, str]) -> tuple[int, str | None]:
    async with client.post(path, headers=headers, json=CALL) as answer:
        read = json.loads(await answer.text())
        return answer.status, read["error"]["code"] if "error" in read else None


async def waiting(client: Client, number: int) -> None:
    while sum(row["waiting"] for row in (await ask(client, "GET", "upstreams"))["data"]) != number:
        pass


def limited(upstream: Scripted) -> dict[str, Any]:
    return {"up": {"base_url": upstream.url, "api_key": "upstream-secret-key", "limits": {"parallel": 1}}}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "TRUSTED_S", 0.0)
    monkeypatch.setattr(cache, "CHANGES_EVERY_S", 0.01)


@pytest.mark.parametrize(
    ("change", "path"), [*[(each, "/v1/completions") for each in CHANGES], ("revoked", FILMS), ("note", FILMS)]
)
async def test_the_key_of_a_call_that_waited_is_checked_again(inside: Inside, change: str, path: str) -> None:
    method, place, body, expected = CHANGES[change]
    held = Held(ok_json())
    with Scripted(held, always=ok_json()) as upstream:
        row = GOOD | {"unpriced": "allow"}
        client = await inside(upstream.url, **SETTINGS, upstreams=limited(upstream), passthrough={"row": row})
        made = await ask(client, "POST", "keys", {"id": "dora", "team": "ours", "owner": "dora@example.org"})
        async with asyncio.TaskGroup() as group:
            first = group.create_task(post(client, "/v1/completions", AUTH))
            await asyncio.to_thread(held.begun.wait, 30)
            waits = group.create_task(post(client, path, {"Authorization": f"Bearer {made['secret']}"}))
            await waiting(client, 1)
            await ask(client, method, place, body)
            await heard(client)
            held.turn.set()
        assert (first.result(), waits.result()) == ((200, None), expected)
        assert upstream.hits == 1 + (expected[0] == 200)
        assert (await ask(client, "GET", "calls?key=dora"))["data"] == [] or expected[0] == 200


async def heard(client: Client) -> None:
    """The worker has heard of all changes so far."""
    made = await ask(client, "POST", "keys", {"id": "later"})
    await until(client, made["secret"], 200)
    await ask(client, "DELETE", "keys/later")
    await until(client, made["secret"], 401)


async def test_so_is_that_of_a_call_that_waited_for_a_hook(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "TRUSTED_S", 0.0)
    held = Held(ok_json({"action": "allow"}))
    with Scripted(always=ok_json()) as upstream, Scripted(held) as hook:
        client = await inside(
            upstream.url, admin=SETTINGS["admin"], hooks={"before_call": {"guard": {"url": hook.url}}}
        )
        made = await ask(client, "POST", "keys", {"id": "dora"})
        async with asyncio.TaskGroup() as group:
            waits = group.create_task(post(client, "/v1/completions", {"Authorization": f"Bearer {made['secret']}"}))
            await asyncio.to_thread(held.begun.wait, 30)
            await ask(client, "DELETE", "keys/dora")
            await heard(client)
            held.turn.set()
        assert (waits.result(), upstream.hits) == ((401, "invalid_api_key"), 0)


async def test_so_is_that_of_a_call_whose_upstream_had_no_room(inside: Inside) -> None:
    later = error_json(429, headers=[("retry-after-ms", "3000")])
    with Scripted(later, always=ok_json()) as upstream:
        client = await inside(upstream.url, **SETTINGS)
        made = await ask(client, "POST", "keys", {"id": "dora"})
        async with asyncio.TaskGroup() as group:
            waits = group.create_task(post(client, "/v1/completions", {"Authorization": f"Bearer {made['secret']}"}))
            await waiting(client, 1)
            await ask(client, "DELETE", "keys/dora")
        assert (waits.result(), upstream.hits) == ((401, "invalid_api_key"), 1)
        (record,) = (await ask(client, "GET", "calls?key=dora"))["data"]
        assert (record["status"], record["attempts"], record["prompt_tokens"]) == (401, 1, 0)
