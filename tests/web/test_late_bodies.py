"""Requests whose body is still on its way when their author loses what permitted them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp.test_utils import TestClient

from gateway.web import endpoints
from gateway.wings.stored import kept
from gateway.wings.tasks import endpoints as tasks
from tests.fakes import forms
from tests.fakes.scripted import Scripted, ok_json
from tests.wings.tasks.test_rows import GOOD

from .conftest import ADMIN_TOKEN, Inside, until

LEAD = "lead-token-0123456789"
SETTINGS: dict[str, Any] = {
    "admin": {"token": ADMIN_TOKEN, "tokens": {"head": {"token": LEAD, "role": "lead", "team": "ours"}}},
    "teams": {"ours": {}, "rival": {}},
}
Client = TestClient[Any, Any]


async def late(
    client: Client, method: str, path: str, token: str, body: Any, meanwhile: Callable[[], Awaitable[Any]]
) -> tuple[int, Any]:
    """The answer to a request whose body is sent once the gateway has asked for it and `meanwhile` has happened."""

    async def pieces() -> AsyncIterator[bytes]:
        await meanwhile()
        yield body if isinstance(body, bytes) else json.dumps(body).encode()

    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    if isinstance(body, bytes):
        headers |= forms.TYPE
    async with client.request(method, path, headers=headers, data=pieces(), expect100=True) as answer:
        return answer.status, json.loads(await answer.text())


async def ask(client: Client, method: str, path: str, body: Any = None) -> Any:
    headers = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
    async with client.request(method, f"/admin/api/{path}", headers=headers, json=body) as answer:
        found = json.loads(await answer.text())
        assert answer.status in (200, 201), found
        return found


@pytest.mark.parametrize(("method", "action", "body"), [("POST", "/rotate", {}), ("PATCH", "", {"note": "x"})])
async def test_a_lead_changes_no_key_that_has_gone_to_another_team(
    inside: Inside, method: str, action: str, body: Any
) -> None:
    """Otherwise its new secret would be hers."""
    client = await inside("http://127.0.0.1:9/v1", **SETTINGS)
    made = await ask(client, "POST", "keys", {"id": "moved", "team": "ours"})

    async def move() -> None:
        await ask(client, "PATCH", "keys/moved", {"team": "rival"})

    status, answer = await late(client, method, f"/admin/api/keys/moved{action}", LEAD, body, move)
    assert (status, answer["error"]["code"]) == (404, "key_not_found")
    assert (await ask(client, "GET", "keys/moved"))["secrets"] == made["secrets"]
    await until(client, made["secret"], 200)


async def test_a_key_does_not_rotate_itself_once_it_is_paused(inside: Inside) -> None:
    teams = {**SETTINGS["teams"], "ours": {"members": {"by_key": ["rotate"]}}}
    client = await inside("http://127.0.0.1:9/v1", **{**SETTINGS, "teams": teams})
    made = await ask(client, "POST", "keys", {"id": "own", "team": "ours"})

    async def pause() -> None:
        await ask(client, "POST", "keys/own/pause")
        await until(client, made["secret"], 401)

    status, _ = await late(client, "POST", "/admin/api/keys/own/rotate", made["secret"], {}, pause)
    assert status == 401


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"model": "m", "prompt": "Hello"}),
        ("/p/v1/films", {"model": "m", "prompt": "Hello"}),
        ("/p/v1/films/t1/cancel", {"reason": "x"}),
        ("/v1/conversations", {"metadata": {"topic": "x"}}),
        ("/v1/files", forms.form(("purpose", "user_data"), ("file", b"Hello"))),
    ],
)
async def test_a_call_of_a_key_that_is_revoked_meanwhile(
    inside: Inside, monkeypatch: pytest.MonkeyPatch, path: str, body: Any
) -> None:
    for module in (endpoints, kept, tasks):
        monkeypatch.setattr(module, "TRUSTED_S", 0.0)
    row = GOOD | {"read": [*GOOD["read"], "POST /v1/{kind}/{task}/cancel"], "unpriced": "allow"}
    with Scripted(always=ok_json()) as upstream:
        client = await inside(upstream.url, passthrough={"row": row}, files={"upstream": "up"}, **SETTINGS)
        made = await ask(client, "POST", "keys", {"id": "gone", "team": "ours"})

        async def revoke() -> None:
            await ask(client, "DELETE", "keys/gone")
            await until(client, made["secret"], 401)

        status, answer = await late(client, "POST", path, made["secret"], body, revoke)
        assert (status, answer["error"]["code"]) == (401, "invalid_api_key")
        assert upstream.hits == 0


async def test_no_items_are_added_to_a_conversation_of_another_team(
    inside: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "TRUSTED_S", 0.0)
    with Scripted(always=ok_json({"id": "conv_0123456789", "object": "conversation"})) as upstream:
        client = await inside(upstream.url, **SETTINGS)
        made = await ask(client, "POST", "keys", {"id": "moved", "team": "ours"})
        await until(client, made["secret"], 200)
        path = "/v1/conversations"
        headers = {"Authorization": f"Bearer {made['secret']}"}
        async with client.post(path, headers=headers, json={}) as answer:
            assert answer.status == 200

        async def move() -> None:
            await ask(client, "PATCH", "keys/moved", {"team": "rival"})
            while True:
                async with client.get("/v1/key", headers=headers) as answer:
                    if (await answer.json())["team"] == "rival":
                        return

        items: dict[str, Any] = {"items": []}
        path = f"{path}/conv_0123456789/items"
        status, _ = await late(client, "POST", path, made["secret"], items, lambda: asyncio.sleep(0))
        assert (status, upstream.hits) == (200, 2)
        status, _ = await late(client, "POST", path, made["secret"], items, move)
        assert (status, upstream.hits) == (404, 2)


async def test_who_may_still_is_served(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "TRUSTED_S", 0.0)
    with Scripted(always=ok_json()) as upstream:
        client = await inside(upstream.url, **SETTINGS)
        made = await ask(client, "POST", "keys", {"id": "mine", "team": "ours"})
        status, changed = await late(
            client, "PATCH", "/admin/api/keys/mine", LEAD, {"note": "x"}, lambda: asyncio.sleep(0)
        )
        assert (status, changed["note"]) == (200, "x")
        call = {"model": "m", "prompt": "Hello"}
        status, _ = await late(client, "POST", "/v1/completions", made["secret"], call, lambda: asyncio.sleep(0))
        assert status == 200
