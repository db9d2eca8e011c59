"""The doors of the admin API, in one process: who comes in, what a body may be, and a store that is away."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp.test_utils import TestClient

from gateway.keys.registry import Registry
from gateway.store import StoreUnavailable
from gateway.web.admin import request_bodies
from gateway.web.wings import admin_operations

from .conftest import ADMIN_TOKEN, Inside

NOWHERE = "http://127.0.0.1:9/v1"
VIEWER_TOKEN = "viewer-token-0123456789"
ADMIN = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
VIEWER = {"Authorization": f"Bearer {VIEWER_TOKEN}"}
BOTH = {"token": ADMIN_TOKEN, "viewer_token": VIEWER_TOKEN}
ADMIN_OPERATIONS = admin_operations()
DOORS = [(method, path.format(id="k", name="t", request="req_x", person="p")) for method, path in ADMIN_OPERATIONS]
READING = {
    each.format(id="k", name="t", request="req_x", person="p")
    for _, each in ADMIN_OPERATIONS
    if ADMIN_OPERATIONS[_, each].caller == "viewer"
}


async def received(client: TestClient[Any, Any], method: str, path: str, **more: Any) -> tuple[int, dict[str, Any]]:
    async with client.request(method, path, **more) as answer:
        return answer.status, (await answer.json()).get("error", {})


async def test_every_door_opens_to_those_of_whom_the_document_says_so(inside: Inside) -> None:
    client = await inside(NOWHERE, admin=BOTH)
    for method, path in DOORS:
        status, error = await received(client, method, path)
        assert (status, error["code"]) == (401, None), (method, path)
        status, error = await received(client, method, path, headers=VIEWER, json={} if method != "GET" else None)
        is_open = method == "GET" and path in READING
        assert (status != 403) is is_open, (method, path)
        assert is_open or error["code"] == "read_only_token"


async def test_changes_to_the_default_quotas_of_a_new_key(inside: Inside) -> None:
    quotas = [{"requests": 5, "per": "day"}, {"usd": 20, "per": "month"}, {"tokens": 9, "per": "day"}]
    client = await inside(NOWHERE, admin=BOTH, defaults={"keys": {"quotas": quotas}})
    body = {"id": "x", "quota_changes": {"requests": ["7/day"], "usd": ["none/month"]}}
    async with client.post("/admin/api/keys", json=body, headers=ADMIN) as answer:
        assert (await answer.json())["quotas"] == [{"requests": 7, "per": "day"}, quotas[2]]
    status, error = await received(
        client, "POST", "/admin/api/keys", headers=ADMIN, json={**body, "id": "y", "quotas": []}
    )
    assert (status, error["param"]) == (400, "quota_changes")


async def test_without_a_token_there_is_no_admin_api(inside: Inside) -> None:
    client = await inside(NOWHERE, admin={})
    for method, path in DOORS:
        status, error = await received(client, method, path, headers=ADMIN)
        assert status == 404
        assert error["message"].endswith("This gateway has no admin API: admin.token is not set.")


async def test_a_store_that_is_away_says_whether_something_may_have_changed(
    inside: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: Any, **__: Any) -> None:
        raise StoreUnavailable("redis://secret-host cannot be reached")

    for name in ("list_keys", "create_key", "reset_quotas"):
        monkeypatch.setattr(Registry, name, away)
    client = await inside(NOWHERE)
    for method, path, words in [
        ("GET", "/admin/api/keys", "The store does not answer."),
        ("POST", "/admin/api/keys", "Whether the change was made is not known"),
        ("POST", "/admin/api/quotas/reset", "Whether the change was made is not known"),
    ]:
        body = {"json": {"id": "x"} if path.endswith("keys") else {}} if method == "POST" else {}
        status, error = await received(client, method, path, headers=ADMIN, **body)
        assert (status, error["code"]) == (503, "store_unavailable")
        assert words in error["message"]
        assert "secret-host" not in error["message"]


async def test_a_body_is_bounded_whether_its_length_is_announced_or_not(inside: Inside) -> None:
    client = await inside(NOWHERE)
    whole = b'{"id": "' + b"x" * request_bodies.MAX_BYTES + b'"}'

    async def pieces() -> Any:
        for start in range(0, len(whole), 10_000):
            yield whole[start : start + 10_000]

    for body in (whole, pieces()):
        given = ADMIN | {"Content-Type": "application/json"}
        status, error = await received(client, "POST", "/admin/api/keys", headers=given, data=body)
        assert (status, error["type"]) == (413, "server_error")


async def test_no_body_at_all_means_all_defaults(inside: Inside) -> None:
    client = await inside(NOWHERE, quotas=[{"requests": 5, "per": "day"}])
    async with client.post("/admin/api/quotas/reset", headers=ADMIN) as answer:
        assert (answer.status, [row["used"] for row in (await answer.json())["data"]]) == (200, [0])
    async with client.post("/admin/api/keys", headers=ADMIN, json={"id": "new"}) as answer:
        assert (answer.status, answer.headers["Cache-Control"]) == (201, "no-store")
    async with client.post("/admin/api/keys/new/rotate", headers=ADMIN) as answer:
        assert (answer.status, (await answer.json())["secret"][:10]) == (200, "sk-gw-new-")


async def test_names_in_paths_are_read_as_they_were_meant(inside: Inside) -> None:
    client = await inside(NOWHERE, teams={"R&D / lab": {"quotas": [{"requests": 5, "per": "day"}]}})
    async with client.get("/admin/api/teams/R%26D%20%2F%20lab", headers=ADMIN) as answer:
        assert (answer.status, (await answer.json())["name"]) == (200, "R&D / lab")
    async with client.post("/admin/api/teams/R%26D%20%2F%20lab/reset", headers=ADMIN) as answer:
        assert [row["scope"] for row in (await answer.json())["data"]] == ["team:R&D / lab"]
    status, error = await received(client, "GET", "/admin/api/keys/%0A%22", headers=ADMIN)
    assert (status, error["code"]) == (404, "key_not_found")


LISTS = ("usage", "calls", "quotas", "keys", "teams", "audit", "refusals")


async def test_a_page_has_a_stated_maximum(inside: Inside) -> None:
    client = await inside(NOWHERE)
    for path in [f"/admin/api/{name}" for name in LISTS]:
        for limit in ("1001", "999999999", "0"):
            status, error = await received(client, "GET", f"{path}?limit={limit}", headers=ADMIN)
            assert (status, error.get("param")) == (400, "limit"), path
            assert "from 1 to 1000" in error["message"], path
        assert (await received(client, "GET", f"{path}?limit=1000", headers=ADMIN))[0] == 200, path
        (limit,) = [each for each in ADMIN_OPERATIONS["GET", path].parameters if each["name"] == "limit"]
        assert limit["schema"]["maximum"] == 1000, path


async def test_an_unknown_query_parameter_is_refused_and_named(inside: Inside) -> None:
    client = await inside(NOWHERE)
    for method, path in DOORS:
        status, error = await received(
            client, method, f"{path}?limt=5", headers=ADMIN, json={} if method != "GET" else None
        )
        assert (status, error["param"], error["code"]) == (400, "limt", "unknown_parameter"), (method, path)
        assert "'limt'" in error["message"], (method, path)


async def test_the_document_names_the_parameters_that_are_taken(inside: Inside) -> None:
    client = await inside(NOWHERE)
    for (method, path), operation in ADMIN_OPERATIONS.items():
        names = [each["name"] for each in operation.parameters if each["in"] == "query"]
        for name in names:
            _, error = await received(client, method, f"{path}?{name}=%20", headers=ADMIN)
            assert error.get("code") != "unknown_parameter", (path, name)
