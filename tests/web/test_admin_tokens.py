"""Named tokens of the admin API: they end, and a rotation leaves the one before for a while."""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from aiohttp.test_utils import TestClient

from .conftest import ADMIN_TOKEN, Inside

NOWHERE = "http://127.0.0.1:9/v1"
NEW, OLD = "ci-token-of-this-month-01", "ci-token-of-last-month-01"


def at(days: float) -> str:
    return (datetime.fromtimestamp(time.time(), UTC) + timedelta(days=days)).isoformat()


def admin(**settings: Any) -> dict[str, Any]:
    return {"token": ADMIN_TOKEN, "tokens": {"ci": {"token": NEW, "role": "operator", **settings}}}


async def pause(client: TestClient[Any, Any], token: str) -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {token}"}
    async with client.post("/admin/api/keys/k/pause", headers=headers, json={}) as answer:
        return answer.status, await answer.json()


async def actors(client: TestClient[Any, Any]) -> list[str]:
    async with client.get("/admin/api/audit", headers={"Authorization": f"Bearer {ADMIN_TOKEN}"}) as answer:
        return [row["actor"].partition(" from ")[0] for row in (await answer.json())["data"]]


async def test_a_token_ceases_to_work_at_its_end(inside: Inside) -> None:
    client = await inside(NOWHERE, admin=admin(expires=at(-0.01)))
    status, answer = await pause(client, NEW)
    assert (status, answer["error"]["code"]) == (401, "invalid_api_key")
    assert answer["error"]["message"] == "This token has expired. Ask an operator for a new one."


async def test_a_token_works_until_its_end(inside: Inside) -> None:
    client = await inside(NOWHERE, admin=admin(expires=at(1)))
    assert (await pause(client, NEW))[0] == 200
    assert await actors(client) == ["token ci"]


async def test_the_token_before_the_rotation_works_on_and_the_audit_log_names_it(inside: Inside) -> None:
    client = await inside(NOWHERE, admin=admin(expires=at(90), previous_token=OLD, previous_until=at(1)))
    assert (await pause(client, OLD))[0] == 200
    assert await actors(client) == ["token ci, previous"]
    assert (await pause(client, NEW))[0] == 200


async def test_the_overlap_of_a_rotation_ends(inside: Inside) -> None:
    client = await inside(NOWHERE, admin=admin(previous_token=OLD, previous_until=at(-0.01)))
    assert (await pause(client, OLD))[0] == 401
    assert (await pause(client, NEW))[0] == 200


async def test_a_token_is_in_no_log_and_no_metric(inside: Inside, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    client = await inside(NOWHERE, admin=admin(expires=at(-1), previous_token=OLD, previous_until=at(1)))
    for token in (NEW, OLD):
        await pause(client, token)
    async with client.get("/metrics", headers={"Authorization": f"Bearer {ADMIN_TOKEN}"}) as answer:
        metrics = await answer.text()
    assert not [token for token in (NEW, OLD) if token in caplog.text or token in metrics]
