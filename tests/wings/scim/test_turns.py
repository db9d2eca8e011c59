"""No request of a provider holds the event loop for long, however large its groups are."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from gateway.config import StoreSettings
from gateway.store import StoreChange
from gateway.store.opening import open_store
from gateway.wings.scim import directory
from gateway.wings.scim.resources import MAX_BYTES, MAX_PARTS
from tests.fakes.turns import MOST_CALLS, counted
from tests.web.conftest import Inside

from .test_endpoints import NOWHERE, TOKEN, Provider

USERS, GROUPS, MEMBERS = 300, 12, 9000
MEMBER = [{"value": f"user-{place:05}", "display": "A member of a large group"} for place in range(MEMBERS)]


async def plant(url: str) -> None:
    store = await open_store(StoreSettings(url=url))
    values: list[tuple[str, dict[str, Any]]] = [
        (f"User:user-{place:05}", {"userName": f"user-{place}@example.org", "externalId": str(place)})
        for place in range(USERS)
    ]
    values += [(f"Group:group-{place}", {"displayName": f"g{place}", "members": MEMBER}) for place in range(GROUPS)]
    for name, each in values:
        assert await store.change(StoreChange("scim", name, None, json.dumps([each, 0, 0]), ""))
    await store.close()


@pytest.fixture
async def provider(inside: Inside, tmp_path: Path) -> Provider:
    url = f"embedded:{tmp_path}"
    await plant(url)
    server = {"access_log": "off", "max_buffered_bytes": 16_000_000}
    return Provider(await inside(NOWHERE, store={"url": url}, server=server, scim={"token": TOKEN}))


OPERATION = {"op": "add", "path": "members", "value": [{"value": "user-99999"}]}
ASKED: dict[str, tuple[str, str, Any]] = {
    "users": ("GET", "Users?count=200", None),
    "one by a filter": ("GET", 'Users?filter=externalId+eq+"7"', None),
    "a user": ("GET", "Users/user-00007", None),
    "a new user": ("POST", "Users", {"userName": "new@example.org"}),
    "a changed user": (
        "PATCH",
        "Users/user-00007",
        {"Operations": [{"op": "replace", "value": {"userName": "x@y.z"}}]},
    ),
    "groups": ("GET", "Groups?count=200", None),
    "a group": ("GET", "Groups/group-3", None),
    "a member more": ("PATCH", "Groups/group-3", {"Operations": [OPERATION]}),
}


@pytest.mark.parametrize("what", ASKED)
async def test_a_request(provider: Provider, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method, path, body = ASKED[what]
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with counted(monkeypatch) as turns:
        async with provider.client.request(method, f"/scim/v2/{path}", headers=headers, json=body) as reply:
            text = await reply.read()
    answer = json.loads(text)
    assert reply.status in (200, 201), answer
    assert turns.most <= MOST_CALLS, turns.by
    assert turns.longest_json <= MAX_BYTES
    if what == "users":
        assert (answer["totalResults"], answer["itemsPerPage"]) == (USERS, 200)
        assert [len(each["groups"]) for each in answer["Resources"]] == [GROUPS] * 200
    assert ("members" in str(answer)) == ("member" in what or "group" in what)


async def test_a_page_of_large_groups_ends_early_and_goes_on(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory, "MAX_ANSWER_BYTES", 1_000_000)
    seen: list[str] = []
    while len(seen) < GROUPS:
        _, page = await provider.ask("GET", f"Groups?count=200&startIndex={len(seen) + 1}")
        assert (page["totalResults"], 0 < page["itemsPerPage"] < GROUPS) == (GROUPS, True)
        seen += [each["id"] for each in page["Resources"]]
    assert seen == sorted({f"group-{place}" for place in range(GROUPS)})


@pytest.mark.parametrize(
    "body",
    [b'{"displayName": "' + b"x" * MAX_BYTES + b'"}', b'{"displayName": "x", "more": [' + b"[]," * MAX_PARTS + b"[]]}"],
    ids=["long", "many"],
)
async def test_a_body_that_takes_too_long_is_not_read(
    provider: Provider, body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with counted(monkeypatch) as turns:
        async with provider.client.post("/scim/v2/Groups", headers=headers, data=io.BytesIO(body)) as answer:
            assert answer.status == 413
    assert turns.longest_json < 1000


MORE = [f"user-{place:05}" for place in range(20, 30)]
FOLLOWED: dict[str, Any] = {
    "all get another group": {"op": "replace", "path": "displayName", "value": "operators"},
    "some leave": {"op": "remove", "path": "members", "value": [{"value": each} for each in MORE]},
}


@pytest.mark.parametrize("what", FOLLOWED)
async def test_roles_that_follow_a_large_group(
    inside: Inside, tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The members of the group are read once, not for each person whose role is looked for."""
    url = f"embedded:{tmp_path}"
    await plant(url)
    oidc = {
        "issuer": NOWHERE, "client_id": "gateway", "session_key": "0123456789abcdef0123456789abcdef",
        "redirect_url": "http://127.0.0.1/admin/sign-in/callback",
        "roles": [{"group": name, "role": "viewer"} for name in ("g3", "operators")],
    }  # fmt: skip
    scim = {"token": TOKEN, "groups_give_roles": True}
    client = await inside(NOWHERE, store={"url": url}, server={"access_log": "off"}, oidc=oidc, scim=scim)
    with counted(monkeypatch) as turns:
        status, answer = await Provider(client).patch("Groups/group-3", FOLLOWED[what])
    assert status == 200, answer
    assert turns.most <= MOST_CALLS, turns.by


@pytest.mark.rest
async def test_operations_on_many_members_are_bounded(provider: Provider) -> None:
    remove = {"op": "remove", "path": 'members[value eq "user-00001"]'}
    status, answer = await provider.patch("Groups/group-1", *[remove] * 100)
    assert (status, answer["status"]) == (413, "413")
    status, _ = await provider.patch("Groups/group-1", *[remove] * 20)
    assert status == 200
