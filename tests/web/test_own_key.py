"""What an API key may do to itself in the admin API: what `members.by_key` of its team permits, and no more."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient

from gateway.web.admin import keys
from tests.browser.stores import filled
from tests.flows.gateway_process import key, secret
from tests.patience import at_least

from .conftest import ADMIN_TOKEN, Inside

NOWHERE = "http://127.0.0.1:9/v1"
OWNER = "ann@example.org"

Client = TestClient[Any, Any]


@pytest.fixture(params=["embedded", "redis"])
async def client(request: pytest.FixtureRequest, inside: Inside, tmp_path: Path) -> AsyncIterator[Client]:
    settings: dict[str, Any] = {
        "keys": [key("of-file", team="free", owner=OWNER), key("of-closed", team="closed")],
        "teams": {
            "free": {"members": {"by_key": ["pause", "rotate"]}},
            "closed": {"members": {}},
            "pausing": {"members": {"by_key": ["pause"]}},
        },
        "admin": {"token": ADMIN_TOKEN},
    }
    with filled(request.param, tmp_path, {}) as url:
        made = await inside(NOWHERE, store={"url": url, "journal_dir": str(tmp_path / "journal")}, **settings)
        yield made
        await made.close()


async def ask(client: Client, token: str, path: str, body: Any = None, method: str = "POST") -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {token}"}
    async with client.request(method, f"/admin/api/{path}", headers=headers, json=body) as answer:
        return answer.status, json.loads(await answer.text())


async def make(client: Client, name: str, team: str | None) -> str:
    """A key of the store; its secret."""
    status, made = await ask(client, ADMIN_TOKEN, "keys", {"id": name, "team": team, "owner": OWNER})
    assert status == 201, made
    return str(made["secret"])


async def until_refused(client: Client, token: str) -> None:
    """Workers read changes of keys once a second."""
    for _ in range(200):
        if (await ask(client, token, "session", method="GET"))[0] == 401:
            return
        await asyncio.sleep(0.05)
    raise AssertionError("the secret still works")


async def test_by_default_it_reads_alone(client: Client) -> None:
    for token, name in (
        (secret("of-closed"), "of-closed"),
        (await make(client, "closed", "closed"), "closed"),
        (await make(client, "none", None), "none"),
    ):
        assert (await ask(client, token, f"keys/{name}", method="GET"))[0] == 200
        for what in ("pause", "rotate"):
            status, answer = await ask(client, token, f"keys/{name}/{what}")
            assert (status, answer["error"]["code"]) == (403, "role_not_allowed")
        _, received = await ask(client, token, "session", method="GET")
        assert all(each.startswith("GET ") for each in received["operations"])


async def test_it_rotates_itself_once_an_hour_to_one_secret(client: Client) -> None:
    first = await make(client, "mine", "free")
    await at_least(1)  # secrets are identified by their second of creation
    _, received = await ask(client, first, "session", method="GET")
    assert [each for each in received["operations"] if not each.startswith("GET ")] == [
        "POST /admin/api/keys/{id}/rotate", "POST /admin/api/keys/{id}/pause",
    ]  # fmt: skip
    status, answer = await ask(client, first, "keys/mine/rotate", {"overlap_s": 60})
    assert (status, answer["error"]["param"]) == (403, "overlap_s")
    status, answer = await ask(client, first, "keys/mine/rotate")
    assert status == 200
    second = answer["secret"]
    await until_refused(client, first)
    assert (await ask(client, second, "session", method="GET"))[0] == 200
    status, answer = await ask(client, second, "keys/mine/rotate")
    assert (status, "once an hour" in answer["error"]["message"]) == (403, True)
    _, log = await ask(client, ADMIN_TOKEN, "audit?limit=1", method="GET")
    assert (log["data"][0]["actor"], log["data"][0]["action"]) == ("key mine from 127.0.0.1", "rotate")


async def test_a_replaced_secret_changes_nothing(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its owner has rotated it because it leaked: it must not undo that within the overlap."""
    old = await make(client, "leaked", "free")
    assert (await ask(client, ADMIN_TOKEN, "keys/leaked/rotate", {"overlap_s": 86_400}))[0] == 200
    monkeypatch.setattr(keys, "OWN_ROTATION_S", 0)
    assert (await ask(client, old, "session", method="GET"))[0] == 200
    for what in ("rotate", "pause"):
        status, answer = await ask(client, old, f"keys/leaked/{what}")
        assert (status, answer["error"]["code"]) == (403, "role_not_allowed")


async def test_it_pauses_itself_and_does_not_resume(client: Client) -> None:
    for name, token in (
        ("of-file", secret("of-file")),
        ("stored", await make(client, "stored", "free")),
        ("pausing", await make(client, "pausing", "pausing")),
    ):
        if name == "pausing":
            assert (await ask(client, token, "keys/pausing/rotate"))[0] == 403
        status, answer = await ask(client, token, f"keys/{name}/pause")
        assert (status, answer["status"]) == (200, "paused")
        await until_refused(client, token)
        for what in ("resume", "rotate", "pause"):
            assert (await ask(client, token, f"keys/{name}/{what}"))[0] == 401
        status, answer = await ask(client, ADMIN_TOKEN, f"keys/{name}/resume")
        assert (status, answer["status"]) == (200, "active")


async def test_it_does_nothing_to_another_key_or_more_to_itself(client: Client) -> None:
    mine = await make(client, "mine", "free")
    await make(client, "sister", "free")
    for what in ("pause", "rotate"):
        for other in ("sister", "of-file", "of-closed", "nobody"):
            status, answer = await ask(client, mine, f"keys/{other}/{what}")
            assert (status, answer["error"]["code"]) == (404, "key_not_found")
    for what in ("reset", "resume", "delete", "top_up"):
        assert (await ask(client, mine, f"keys/mine/{what}", {}))[0] == 403
    assert (await ask(client, mine, "keys/mine", {"note": "x"}, "PATCH"))[0] == 403
    assert (await ask(client, mine, "keys/mine", method="DELETE"))[0] == 403
    assert (await ask(client, mine, "keys", {"id": "more"}))[0] == 403


async def test_a_stored_team_without_it_is_as_before(client: Client) -> None:
    """A gateway of the version before reads its document."""
    for members in ({"max_keys": 2}, {"max_keys": 2, "by_key": ["pause"]}):
        body = {"name": f"t{len(members)}", "members": members}
        status, answer = await ask(client, ADMIN_TOKEN, "teams", body)
        assert (status, answer["members"]["by_key"]) == (201, members.get("by_key", []))
    assert (await ask(client, ADMIN_TOKEN, "teams", {"name": "x", "members": {"by_key": ["make"]}}))[0] == 400
