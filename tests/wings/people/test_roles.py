"""Every operation of the admin API with every role, through a whole gateway on both stores: who may use it, and that
nothing of another team or person comes back or is changed."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient

from gateway.config import StoreSettings, build
from gateway.store.opening import open_store
from gateway.web.admin.operations import ADMIN_OPERATIONS as TRUNK
from gateway.web.admin.operations import OF_PERSON
from gateway.web.admin.permissions import ROLES, KeyFacts, Principal, Scope
from gateway.web.wings import admin_operations, permissions, wing_endpoints
from gateway.wings import WINGS
from gateway.wings.people.sessions import Session
from gateway.wings.people.settings import OidcSettings
from tests.browser.stores import days, filled
from tests.flows.gateway_process import key, secret
from tests.flows.planted import plant, record
from tests.store.test_contract_refusals import entry
from tests.web.conftest import ADMIN_TOKEN, Inside

ADMIN_OPERATIONS, PERMISSIONS = admin_operations(), permissions()
"""The tables of the trunk and of all wings."""

OF_WINGS = [import_module(f"tests.wings.{wing}.roles") for wing in WINGS if find_spec(f"tests.wings.{wing}.roles")]
"""What the tests of wings with operations of the admin API add: `MAY`, the operations of each role, and `BODIES`."""

NOWHERE = "http://127.0.0.1:9/v1"
QUOTAS = [{"requests": 60, "per": "minute"}, {"tokens": 1000, "per": "day"}]
TOKENS: Mapping[str, Mapping[str, Any]] = {
    "ci": {"token": "operator-token-0123456789", "role": "operator"},
    "head": {"token": "lead-token-0123456789", "role": "lead", "team": "ours"},
    "reader": {"token": "viewer-named-0123456789", "role": "viewer"},
}
SECRETS = {
    "admin.token": ADMIN_TOKEN, "admin.viewer_token": "viewer-token-0123456789", "key": secret("alice"),
    **{name: each["token"] for name, each in TOKENS.items()},
}  # fmt: skip
ROLE_OF = {"admin.token": "operator", "ci": "operator", "admin.viewer_token": "viewer", "reader": "viewer",
           "head": "lead", "key": "key", "member": "member"}  # fmt: skip

REPORTS = {
    ("GET", f"/admin/api/{name}") for name in ("usage", "latency", "calls", "refusals", "quotas", "session", "keys")
} | {
    ("GET", "/admin/api/keys/{id}"),
    ("GET", "/admin/api/requests/{request}"),
}
READING = {each for each in TRUNK if each[0] == "GET"}
MAY: Mapping[str, set[tuple[str, str]]] = {
    "operator": set(TRUNK),
    "viewer": READING - {("GET", "/admin/api/audit"), ("GET", "/admin/api/reload")},
    "lead": {
        *REPORTS, ("GET", "/admin/api/teams"), ("GET", "/admin/api/teams/{name}"), ("POST", "/admin/api/keys"),
        *((method, "/admin/api/keys/{id}") for method in ("PATCH", "DELETE")),
        *(("POST", f"/admin/api/keys/{{id}}/{what}") for what in ("rotate", "reset", "top_up")),
        *(("POST", f"/admin/api/keys/{{id}}/{what}") for what in ("pause", "resume", "delete")),
    },
    "key": set(REPORTS),
    "member": {
        *REPORTS, ("POST", "/admin/api/keys"), ("DELETE", "/admin/api/keys/{id}"),
        *(("POST", f"/admin/api/keys/{{id}}/{what}") for what in ("rotate", "pause", "resume")),
    },
}  # fmt: skip
"""Written out a second time, so that a wrong cell of the table is found."""
for _wing in OF_WINGS:
    for _role, _places in _wing.MAY.items():
        MAY[_role].update(_places)

LEFT_TO_KEYS = {("POST", f"/admin/api/keys/{{id}}/{what}") for what in ("rotate", "pause")}
"""What a key may do to itself where its team says so, which no team does here: see test_own_key.py."""

BODIES: Mapping[tuple[str, str], Mapping[str, Any]] = {
    **{place: body for wing in OF_WINGS for place, body in wing.BODIES.items()},
    ("POST", "/admin/api/keys"): {"id": "made"},
    ("PATCH", "/admin/api/keys/{id}"): {"note": "changed"},
    ("POST", "/admin/api/keys/{id}/top_up"): {"tokens": 5, "per": "day"},
    ("POST", "/admin/api/teams"): {"name": "new-team"},
    ("PATCH", "/admin/api/teams/{name}"): {"quotas": QUOTAS},
    ("POST", "/admin/api/teams/{name}/top_up"): {"tokens": 5, "per": "day"},
    ("POST", "/admin/api/teams/{name}/members/{person}/top_up"): {"tokens": 5, "per": "day"},
    ("POST", "/admin/api/people/{person}/top_up"): {"tokens": 5, "per": "day"},
    ("POST", "/admin/api/quotas/top_up"): {"tokens": 5, "per": "day"},
}

ALICE = "alice@example.org"
SESSION_KEY = "0123456789abcdef0123456789abcdef"
OIDC = {
    "issuer": "http://127.0.0.1:9", "client_id": "gateway", "session_key": SESSION_KEY,
    "redirect_url": "http://127.0.0.1/admin/sign-in/callback",
}  # fmt: skip
MINIMUM = {
    "upstreams": {"up": {"base_url": NOWHERE, "api_key": "k"}},
    "models": {"m": {"routes": [{"upstream": "up"}], "max_output_tokens": 1}},
}


def signed_in(role: str = "member", team: str | None = None) -> dict[str, str]:
    """The headers of Alice's session, as test_sign_in.py gets it from a provider."""
    rules = build({**MINIMUM, "oidc": OIDC}).section(OidcSettings).rules
    session = Session("a-session", ALICE, role, team, rules, time.time() + 1000)  # type: ignore[arg-type]
    key = SESSION_KEY.encode()
    return {"Cookie": f"gateway-session={session.encode(key)}", "X-CSRF-Token": session.csrf_token(key)}


Client = TestClient[Any, Any]


@pytest.fixture(params=["embedded", "redis"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with filled(request.param, tmp_path, {}) as url:
        yield url


@pytest.fixture
async def client(store_url: str, inside: Inside, tmp_path: Path) -> AsyncIterator[Client]:
    """Two teams. `alice` and `both` are of `ours`, and both are Alice's; so is `rival-two`, of the other team."""
    settings: dict[str, Any] = {
        "keys": [
            key("alice", team="ours", quotas=QUOTAS, owner="alice@example.org"),
            key("bob", team="ours", quotas=QUOTAS, owner="bob@example.org"),
            key("both", team="ours", quotas=QUOTAS, owner="alice@example.org"),
            key("rival-one", team="rival", quotas=QUOTAS, owner="rival@example.org"),
            key("rival-two", team="rival", quotas=QUOTAS, owner="alice@example.org"),
            key("rival-none"),
        ],
        "teams": {
            "ours": {"quotas": QUOTAS, "member_quotas": QUOTAS, "members": {"max_keys": 5, "models": ["m", "small-*"]}},
            "rival": {"quotas": QUOTAS},
        },
        "people": {"defaults": {"quotas": QUOTAS}},
        "quotas": [*QUOTAS, {"requests": 9, "per": "day", "label": "cost-center"}],
        "oidc": OIDC,
        "admin": {"token": ADMIN_TOKEN, "viewer_token": SECRETS["admin.viewer_token"], "tokens": TOKENS},
    }
    day = days(1)[0]
    teams = {"alice": "ours", "bob": "ours", "both": "ours", "rival-one": "rival", "rival-two": "rival"}
    records = [
        record(day, name, team=team, model=f"{team}-{name}-model", id=f"req_of_{name}_{number}")
        for name, team in {**teams, "rival-none": None}.items()
        for number in range(3)
    ]
    await asyncio.to_thread(plant, store_url, records)
    store = {"url": store_url, "journal_dir": str(tmp_path / "journal")}
    inside_client = await inside(NOWHERE, store=store, **settings)
    body = {"id": "stored", "team": "ours", "quotas": QUOTAS, "owner": ALICE}
    for made in (body, {**body, "id": "unused"}, {**body, "id": "rival-stored", "team": "rival", "owner": "x"}):
        assert (await ask(inside_client, "admin.token", "POST", "/admin/api/keys", made))[0] == 201
    spare = {"name": "spare", "quotas": QUOTAS, "member_quotas": QUOTAS}
    assert (await ask(inside_client, "admin.token", "POST", "/admin/api/teams", spare))[0] == 201
    yield inside_client
    await inside_client.close()


async def ask(client: Client, who: str, method: str, path: str, body: Any = None) -> tuple[int, str]:
    headers = signed_in() if who == "member" else {"Authorization": f"Bearer {SECRETS[who]}"}
    async with client.request(method, path, headers=headers, json=body) as answer:
        return answer.status, await answer.text()


def body_of(place: tuple[str, str]) -> Mapping[str, Any] | None:
    return BODIES.get(place) if place[0] != "GET" else None


def path_of(role: str, method: str, path: str) -> str:
    """Of a key and a team that the role reaches, of the file where it is only read."""
    if method == "GET" or "{id}" not in path:
        return path.format(
            id="alice",
            request="req_of_alice_0",
            person="bob@example.org",
            name="spare" if method != "GET" and role == "operator" else "ours",
        )
    return path.format(id="unused" if path.endswith("delete") else "stored")


def test_the_table_is_what_is_written_here() -> None:
    assert set(PERMISSIONS) == set(ADMIN_OPERATIONS)
    for role, may in MAY.items():
        left = LEFT_TO_KEYS if role == "key" else set()
        assert {place for place, roles in PERMISSIONS.items() if role in roles} == may | left, role
    for place, operation in ADMIN_OPERATIONS.items():
        assert operation.caller == ("viewer" if "viewer" in PERMISSIONS[place] else "admin"), place
        assert PERMISSIONS[place]["operator"] == "all"
        assert {"team"} >= {PERMISSIONS[place].get("lead", "team")}
        assert {"own"} >= {PERMISSIONS[place].get("member", "own")}
        assert PERMISSIONS[place].get("key", "own") == ("self" if place in LEFT_TO_KEYS else "own")


@pytest.mark.parametrize("who", sorted(ROLE_OF))
async def test_every_operation_with_every_role(client: Client, who: str) -> None:
    role = ROLE_OF[who]
    # What destroys comes last.
    for place in sorted(ADMIN_OPERATIONS, key=lambda place: (place[0] == "DELETE", place[1].endswith("delete"), place)):
        status, text = await ask(client, who, place[0], path_of(role, *place), body_of(place))
        if place in MAY[role]:
            unavailable = place[1] == "/admin/api/reload"  # there is no supervisor in this process
            assert status in ((503,) if unavailable else (200, 201)), (place, text)
        else:
            code = "read_only_token" if role == "viewer" else "role_not_allowed"
            assert (status, json.loads(text)["error"]["code"]) == (403, code), place


@pytest.mark.parametrize("who", ["head", "key"])
async def test_a_request_of_another_team_is_not_found(client: Client, who: str) -> None:
    assert (await ask(client, who, "GET", "/admin/api/requests/req_of_alice_0"))[0] == 200
    assert (await ask(client, who, "GET", "/admin/api/requests/req_of_rival-one_0"))[0] == 404
    assert (await ask(client, "ci", "GET", "/admin/api/requests/req_of_rival-one_0"))[0] == 200


@pytest.mark.parametrize("who", ["head", "key", "member"])
async def test_nothing_of_another_team_comes_back(client: Client, who: str) -> None:
    """However it is asked for: whole lists, pages, CSV, every grouping, and by name."""
    mine = MAY[ROLE_OF[who]]
    queries = {
        "usage": ["", "?group_by=team", "?group_by=key,model,team,day,upstream,endpoint,month", "?format=csv",
                  "?group_by=key&limit=1000", '?group_by=key&after=["a"]', "?group_by=model&format=csv"],
        "latency": ["", "?group_by=model,day", "?group_by=upstream&format=csv"],
        "refusals": ["", "?limit=1000", "?since=1d"],
        "calls": ["", "?limit=1000", "?format=csv", "?format=csv&limit=1000"],
        "quotas": ["", "?limit=1000", "?after=a", "?limit=1&after=both"],
        "keys": ["", "?limit=1000", "?after=a", "?after=c"],
        "teams": ["", "?after=a"],
        "session": [""],
    }  # fmt: skip
    for name, each in queries.items():
        for query in each:
            status, text = await ask(client, who, "GET", f"/admin/api/{name}{query}")
            assert status == (200 if ("GET", f"/admin/api/{name}") in mine else 403), (name, query, text)
            # A person's own keys are hers in every team; a key sees those of its team alone.
            hers = ("rival-rival-two-model", "rival-two", '"rival"', ",rival,") if who == "member" else ()
            for word in hers:
                text = text.replace(word, "")
            assert "rival" not in text, (name, query)
            assert who == "head" or "bob" not in text, (name, query)
    for method, path in ADMIN_OPERATIONS:
        if (method, path) in mine and "{" in path:
            for foreign in ("rival-one", "rival-two", "rival-none", "rival-stored", "rival", "nobody"):
                if (foreign, who) == ("rival-two", "member"):
                    continue  # which is hers
                place = path.format(id=foreign, name=foreign, request=f"req_of_{foreign}_0")
                status, text = await ask(client, who, method, place, body_of((method, path)))
                assert status == 404, (method, place, text)
                # The same answer as for what does not exist.
                assert json.loads(text)["error"]["code"] in ("key_not_found", "team_not_found", "request_not_found")
    for query in (
        "calls?key=rival-one",
        "usage?key=rival-one",
        "usage?team=rival",
        "latency?key=rival-one",
        "latency?team=rival",
        "refusals?key=rival-one",
        "quotas?key=rival-stored",
        "quotas?team=rival",
        "keys?team=rival",
    ):
        assert (await ask(client, who, "GET", f"/admin/api/{query}"))[0] == 404, query


async def test_reports_are_narrowed_to_a_person(client: Client) -> None:
    """To her keys of every team, in any spelling of her name; a lead's to those of her team."""

    async def read(who: str, path: str, person: str) -> list[dict[str, Any]]:
        status, text = await ask(client, who, "GET", f"{path}?person={person}")
        assert status == 200, (path, text)
        rows: list[dict[str, Any]] = json.loads(text)["data"]
        return rows

    narrowed = [path for (_, path), each in ADMIN_OPERATIONS.items() if OF_PERSON in each.parameters]
    assert len(narrowed) >= 4
    for path in narrowed:
        assert await read("admin.token", path, ALICE.upper()) == await read("member", path, ALICE), path
        assert await read("admin.token", path, "nobody@example.org") == [], path
        assert await read("member", path, "bob@example.org") == [], path
    for who, person, keys in (
        ("admin.token", ALICE, {"alice", "both", "rival-two"}),
        ("head", ALICE, {"alice", "both"}),
        ("head", "rival@example.org", set()),
    ):
        assert {row["key"] for row in await read(who, "/admin/api/usage", person)} == keys


@pytest.mark.parametrize(("role", "team"), [("lead", "ours"), ("lead", "rival"), ("operator", None), ("viewer", None)])
async def test_people_with_another_role_read_what_is_their_own(client: Client, role: str, team: str | None) -> None:
    """As a member does: their own keys of every team, and nothing else."""

    async def read(path: str, headers: Mapping[str, str]) -> tuple[int, Any]:
        async with client.get(f"/admin/api/{path}", headers=headers) as answer:
            return answer.status, json.loads(await answer.text())

    hers, member = signed_in(role, team), signed_in()
    for path in (
        "usage?group_by=key,team,user", "usage?group_by=label:x", "usage?group_by=person",
        "latency?group_by=model", "calls?limit=9", "keys",
        "refusals", "usage?group_by=&key=rival-two", "calls?key=both",
    ):  # fmt: skip
        own = f"{path}{'&' if '?' in path else '?'}own=true"
        assert await read(own, hers) == await read(path, member), path
        assert (await read(own, member))[0] == 200
    _, windows = await read("quotas?own=true", hers)
    assert {row["key"] or row["person"] for row in windows["data"]} == {
        ALICE, "alice", "both", "rival-two", "stored", "unused"
    }  # fmt: skip
    status, windows = await read("quotas?key=rival-two&binding=true&own=true", hers)
    assert (status, {row["scope"] for row in windows["data"]}) == (
        200, {"key:rival-two", f"person:{ALICE}", "team:rival", "gateway"}
    )  # fmt: skip
    for path in ("usage", "calls", "refusals", "quotas", "latency", "keys"):
        assert (await read(f"{path}?own=true&key=bob" if path != "keys" else "keys?own=true&team=ours", hers))[0] == 404
        for value, headers in (("false", hers), ("true", {"Authorization": f"Bearer {SECRETS['head']}"})):
            status, received = await read(f"{path}?own={value}", headers)
            assert (status, received["error"]["param"]) == (400, "own")


async def test_reports_of_a_part_have_its_numbers(client: Client) -> None:
    for who, names in (
        ("head", ["alice", "bob", "both"]), ("key", ["alice", "both"]), ("member", ["alice", "both", "rival-two"]),
    ):  # fmt: skip
        _, text = await ask(client, who, "GET", "/admin/api/usage?group_by=key")
        assert [(row["key"], row["requests"]) for row in json.loads(text)["data"]] == [(name, 3) for name in names]
        _, text = await ask(client, who, "GET", "/admin/api/usage?group_by=")
        assert [row["requests"] for row in json.loads(text)["data"]] == [3 * len(names)]
        _, text = await ask(client, who, "GET", "/admin/api/usage?group_by=day")
        assert [row["requests"] for row in json.loads(text)["data"]] == [3 * len(names)]
        _, text = await ask(client, who, "GET", "/admin/api/usage?group_by=&key=both")
        assert [row["requests"] for row in json.loads(text)["data"]] == [3]
        _, text = await ask(client, who, "GET", "/admin/api/latency?group_by=")
        assert [row["duration_count"] for row in json.loads(text)["data"]] == [3 * len(names)]
        _, text = await ask(client, who, "GET", "/admin/api/latency?group_by=model&key=both")
        assert [row["duration_count"] for row in json.loads(text)["data"]] == [3]
        _, text = await ask(client, who, "GET", "/admin/api/calls?limit=1000")
        assert sorted({call["key"] for call in json.loads(text)["data"]}) == names
        _, text = await ask(client, who, "GET", "/admin/api/calls?key=both")
        assert [call["key"] for call in json.loads(text)["data"]] == ["both"] * 3
    _, text = await ask(client, "admin.token", "GET", "/admin/api/usage?group_by=")
    assert [row["requests"] for row in json.loads(text)["data"]] == [18]  # no cache mixes the two


async def test_a_lead_cannot_lead_out_of_the_teams_limits(client: Client) -> None:
    async def refused(method: str, path: str, body: dict[str, Any]) -> str:
        status, text = await ask(client, "head", method, f"/admin/api/keys{path}", body)
        assert status == 403, text
        return str(json.loads(text)["error"]["param"])

    for team in ("rival", None, "nowhere"):
        assert await refused("POST", "", {"id": "climber", "team": team}) == "team"
        assert await refused("PATCH", "/stored", {"team": team}) == "team"
    assert await refused("POST", "", {"id": "climber", "on_exceeded": "shadow"}) == "on_exceeded"
    assert await refused("PATCH", "/stored", {"on_exceeded": "shadow"}) == "on_exceeded"
    # A label with quotas of the whole gateway says whose budget a key spends; another one is hers to set.
    assert await refused("POST", "", {"id": "climber", "labels": {"cost-center": "payroll"}}) == "labels"
    assert (await ask(client, "ci", "PATCH", "/admin/api/keys/stored", {"labels": {"cost-center": "x"}}))[0] == 200
    for labels in ({"cost-center": "payroll"}, {}, {"stage": "test"}):
        assert await refused("PATCH", "/stored", {"labels": labels}) == "labels"
    labels = {"cost-center": "x", "stage": "test"}
    assert (await ask(client, "head", "PATCH", "/admin/api/keys/stored", {"labels": labels}))[0] == 200
    assert (await ask(client, "admin.token", "GET", "/admin/api/keys/climber"))[0] == 404
    status, text = await ask(client, "head", "POST", "/admin/api/keys", {"id": "made"})
    assert (status, json.loads(text)["team"]) == (201, "ours")
    # A key of theirs that an operator moves away is out of reach at once.
    assert (await ask(client, "ci", "PATCH", "/admin/api/keys/made", {"team": "rival"}))[0] == 200
    assert (await ask(client, "head", "POST", "/admin/api/keys/made/rotate"))[0] == 404


async def test_a_lead_lowers_what_operators_raise(client: Client) -> None:
    """The settings by which a key is served before those of other teams."""

    async def change(who: str, body: dict[str, Any]) -> tuple[int, str | None]:
        status, text = await ask(client, who, "PATCH", "/admin/api/keys/stored", body)
        return status, (json.loads(text).get("error") or {}).get("param")

    higher: dict[str, Any] = {"priority": "interactive", "weight": 2, "max_wait_s": 60}
    lower: dict[str, Any] = {"priority": "batch", "weight": 4, "max_wait_s": 1}
    granted: dict[str, Any] = {"priority": "normal", "weight": 5, "max_wait_s": 30}
    for name, value in higher.items():
        assert await change("head", {name: value}) == (403, name)
        status, text = await ask(client, "head", "POST", "/admin/api/keys", {"id": "climber", name: value})
        assert (status, json.loads(text)["error"]["code"]) == (403, "role_not_allowed")
    assert (await ask(client, "admin.token", "GET", "/admin/api/keys/climber"))[0] == 404
    assert await change("ci", granted) == (200, None)
    assert await change("head", {**granted, "note": "as it is"}) == (200, None)
    for name, value in lower.items():
        assert await change("head", {name: value}) == (200, None)
        assert await change("head", {name: granted[name]}) == (403, name)
        assert await change("ci", {name: granted[name]}) == (200, None)
    assert await change("head", {"weight": None}) == (200, None)
    assert await change("head", {"max_wait_s": None}) == (200, None)  # calls of such a key do not wait here
    assert await change("head", {"max_wait_s": 1}) == (403, "max_wait_s")
    status, _ = await ask(client, "head", "POST", "/admin/api/keys", {"id": "slower", "priority": "batch"})
    assert status == 201


async def test_a_lead_gives_a_key_its_owner_once(client: Client) -> None:
    """Another owner, or none, would take the key out of the end of her access and of her quotas."""

    async def change(who: str, key: str, owner: str | None) -> int:
        return (await ask(client, who, "PATCH", f"/admin/api/keys/{key}", {"owner": owner}))[0]

    for owner in (None, "bob@example.org", "Alice@example.org", f"{ALICE}\u200b"):
        status, text = await ask(client, "head", "PATCH", "/admin/api/keys/stored", {"owner": owner, "note": "mine"})
        error = json.loads(text)["error"]
        assert (status, error["param"], error["code"]) == (403, "owner", "role_not_allowed"), owner
        assert "operator" in error["message"]
    shown = json.loads((await ask(client, "head", "GET", "/admin/api/keys/stored"))[1])
    assert (shown["owner"], shown["note"]) == (ALICE, None)
    assert await change("head", "stored", ALICE) == 200  # a form sends back what it shows
    assert (await ask(client, "head", "POST", "/admin/api/keys", {"id": "nobodys"}))[0] == 201
    assert [await change("head", "nobodys", owner) for owner in (None, ALICE, None)] == [200, 200, 403]
    assert [await change("ci", "nobodys", owner) for owner in ("bob@example.org", None)] == [200, 200]


@pytest.mark.parametrize("owner", ["rival@example.org", "RIVAL@example.org"])
async def test_a_lead_does_not_spend_the_quotas_of_a_person_of_another_team(client: Client, owner: str) -> None:
    """Which bind all her keys, and so those of the other team."""

    async def made(who: str, name: str, owner: str | None) -> int:
        body = {"id": name, "team": "ours", "owner": owner}
        return (await ask(client, who, "POST", "/admin/api/keys", body))[0]

    assert [await made("head", "trap", owner), await made("head", "own", None)] == [403, 201]
    status, text = await ask(client, "head", "PATCH", "/admin/api/keys/own", {"owner": owner})
    error = json.loads(text)["error"]
    assert (status, error["param"], error["code"]) == (403, "owner", "role_not_allowed")
    assert [await made("head", "new", "new@example.org"), await made("head", "hers", ALICE)] == [201, 201]
    assert await made("ci", "by-operator", owner) == 201
    assert await made("head", "second", owner) == 201  # she is of the team now


REPORTS_OF_A_KEY = (
    "usage?group_by=team,key,user", "usage?group_by=label:cost-center", "usage?format=csv", "calls", "calls?format=csv",
    "latency", "refusals", "requests/req_before", "keys",
)  # fmt: skip


async def test_a_key_that_is_moved_shows_nothing_of_the_team_before(client: Client, store_url: str) -> None:
    """Neither to the lead, who can rotate it and read with its secret, nor to its owner."""
    made = {"id": "mover", "team": "rival", "owner": "x@example.org"}
    assert (await ask(client, "ci", "POST", "/admin/api/keys", made))[0] == 201
    before = record(days(1)[0], "mover", team="rival", model="rival-model", user="rival-user", id="req_before")
    await asyncio.to_thread(plant, store_url, [before])
    store = await open_store(StoreSettings(url=store_url))
    await store.add_refusals([entry(7, key="mover", team="rival", message="rival-message")], time.time())
    await store.close()
    assert (await ask(client, "ci", "PATCH", "/admin/api/keys/mover", {"team": "ours", "owner": ALICE}))[0] == 200
    status, text = await ask(client, "head", "POST", "/admin/api/keys/mover/rotate")
    assert status == 200
    headers = {"Authorization": f"Bearer {json.loads(text)['secret']}"}
    for path in REPORTS_OF_A_KEY:
        async with client.get(f"/admin/api/{path}", headers=headers) as answer:
            assert (answer.status, "rival" in await answer.text()) == (404 if "req_" in path else 200, False), path
        status, text = await ask(client, "member", "GET", f"/admin/api/{path}")
        assert (status, "rival-user" in text or "rival-m" in text) == (404 if "req_" in path else 200, False), path
    assert (await ask(client, "ci", "GET", "/admin/api/requests/req_before"))[0] == 200
    after = record(days(1)[0], "mover", team="ours", user="our-user", id="req_after")
    await asyncio.to_thread(plant, store_url, [after])
    async with client.get("/admin/api/usage?group_by=team,user", headers=headers) as answer:
        assert ("our-user" in await answer.text(), "rival" in await answer.text()) == (True, False)
    for who in ("head", "member"):
        assert (await ask(client, who, "GET", "/admin/api/requests/req_after"))[0] == 200


async def test_a_lead_does_not_see_in_refusals_what_a_person_uses_elsewhere(client: Client, store_url: str) -> None:
    made = {"id": "shared", "team": "ours", "owner": "two-teams@x.example"}
    assert (await ask(client, "ci", "POST", "/admin/api/keys", made))[0] == 201
    store = await open_store(StoreSettings(url=store_url))
    limits = {"person": "person:two-teams@x.example tokens per day", "key": "tokens per day"}
    planted = [entry(90 + place, key="shared", team="ours", message=f"used-by-{name}", limit=limits[name])
               for place, name in enumerate(limits)]  # fmt: skip
    await store.add_refusals(planted, time.time())
    await store.close()
    for path in ("refusals?key=shared", "requests/req_90"):
        for who, is_shown in (("head", False), ("ci", True)):
            assert ("used-by-person" in (await ask(client, who, "GET", f"/admin/api/{path}"))[1]) is is_shown
    assert "used-by-key" in (await ask(client, "head", "GET", "/admin/api/refusals?key=shared"))[1]


async def test_labels_of_a_key_that_has_left_are_not_shown(client: Client, store_url: str) -> None:
    made = {"id": "leaver", "team": "ours", "labels": {"cost-center": "before"}, "owner": "before@ours.example"}
    assert (await ask(client, "ci", "POST", "/admin/api/keys", made))[0] == 201
    await asyncio.to_thread(plant, store_url, [record(days(1)[0], "leaver", team="ours")])
    by = "/admin/api/usage?group_by="
    for group in ("label:cost-center", "person"):
        assert "before" in (await ask(client, "head", "GET", f"{by}{group}"))[1]
    change = {"team": "rival", "labels": {"cost-center": "RIVAL-LABEL"}, "owner": "RIVAL-LABEL@rival.example"}
    assert (await ask(client, "ci", "PATCH", "/admin/api/keys/leaver", change))[0] == 200
    groups = ("label:cost-center", "person")
    for who, is_shown, group in [("head", False, each) for each in groups] + [("ci", True, each) for each in groups]:
        status, text = await ask(client, who, "GET", f"{by}{group}")
        assert (status, "RIVAL-LABEL" in text) == (200, is_shown)
        total = sum(row["requests"] for row in json.loads(text)["data"])
        assert total == (10 if who == "head" else 19)


async def test_a_lesser_role_does_not_resume_what_a_greater_one_paused(client: Client) -> None:
    ranks = ["ci", "head", "member"]
    for paused_by, who in itertools.product(ranks, ranks):
        assert (await ask(client, paused_by, "POST", "/admin/api/keys/stored/pause"))[0] == 200
        for lesser in ranks[ranks.index(paused_by) :]:  # whose later pause does not take it over
            assert (await ask(client, lesser, "POST", "/admin/api/keys/stored/pause"))[0] == 200
        status, text = await ask(client, who, "POST", "/admin/api/keys/stored/resume")
        is_allowed = ranks.index(who) <= ranks.index(paused_by)
        assert status == (200 if is_allowed else 403), (paused_by, who, text)
        status, text = await ask(client, "ci", "POST", "/admin/api/keys/stored/resume")
        assert (status, json.loads(text)["status"]) == (200, "active")


async def test_a_pause_by_a_greater_role_takes_over(client: Client) -> None:
    for who in ("member", "head", "ci"):
        assert (await ask(client, who, "POST", "/admin/api/keys/stored/pause"))[0] == 200
    for who in ("member", "head"):
        assert (await ask(client, who, "POST", "/admin/api/keys/stored/resume"))[0] == 403
    assert (await ask(client, "ci", "POST", "/admin/api/keys/stored/resume"))[0] == 200


async def test_the_audit_log_names_the_token(client: Client) -> None:
    assert (await ask(client, "member", "POST", "/admin/api/keys/both/pause"))[0] == 200
    for who in ("ci", "head", "admin.token"):
        assert (await ask(client, who, "PATCH", "/admin/api/keys/stored", {"note": who}))[0] == 200
    _, text = await ask(client, "admin.token", "GET", "/admin/api/audit?limit=4")
    actors = [change["actor"] for change in json.loads(text)["data"]]
    assert actors == [f"{name} from 127.0.0.1" for name in ("admin.token", "token head", "token ci", f"person {ALICE}")]


async def test_the_session_lists_the_permitted_operations(client: Client) -> None:
    for who, role in ROLE_OF.items():
        _, text = await ask(client, who, "GET", "/admin/api/session")
        received = json.loads(text)
        assert received["role"] == ("admin" if role == "operator" else role)
        assert {tuple(each.split()) for each in received["operations"]} == MAY[role]
        assert received["team"] == ("ours" if role in ("lead", "key") else None)


async def test_the_document_says_which_roles(client: Client) -> None:
    _, text = await ask(client, "admin.token", "GET", "/openapi.json")
    calls = {path for each in wing_endpoints() if each.listener == "calls" for _, path in each.operations}
    for path, methods in json.loads(text)["paths"].items():
        for method, operation in methods.items():
            roles = PERMISSIONS.get((method.upper(), path))
            assert operation.get("x-roles") == roles
            if path not in calls and not path.startswith(("/v1/", "/v1beta/", "/v2/", "/rerank", "/openai/")):
                assert (roles is not None and "key" in roles) == ({"key": []} in operation["security"])


async def test_a_key_that_is_refused_on_the_data_plane_reads_nothing(client: Client) -> None:
    assert (await ask(client, "key", "GET", "/admin/api/usage"))[0] == 200
    assert (await ask(client, "head", "DELETE", "/admin/api/keys/alice"))[0] == 200

    async def is_refused() -> bool:
        status, text = await ask(client, "key", "GET", "/admin/api/usage")
        return status == 401 and "revoked" in text

    for _ in range(100):
        if await is_refused():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("a revoked key still reads")


class Facts:
    def __init__(self, name: str, team: str | None, owner: str | None) -> None:
        self.id, self.team, self.owner = name, team, owner


@pytest.mark.parametrize(
    ("who", "key", "is_covered"),
    [
        (Principal("x", "lead", "a"), Facts("k", "a", None), True),
        (Principal("x", "lead", "a"), Facts("k", None, None), False),
        (Principal("x", "lead", None), Facts("k", None, None), False),
        (Principal("x", "member", None, "p"), Facts("k", "a", "p"), True),
        (Principal("x", "member", "a", "p"), Facts("k", "a", "q"), False),
        (Principal("x", "member", "a", None), Facts("k", "a", None), False),
        (Principal("x", "key", "a", "p", "k"), Facts("k", "a", "p"), True),
        (Principal("x", "key", "a", "p", "k"), Facts("l", "a", "p"), True),
        (Principal("x", "key", "a", "p", "k"), Facts("l", "b", "p"), False),
        (Principal("x", "key", "a", None, "k"), Facts("l", "a", None), False),
        (Principal("x", "key", None, None, "k"), Facts("k", None, None), True),
    ],
    ids=lambda each: each if isinstance(each, bool) else None,
)
def test_what_a_scope_covers(who: Principal, key: KeyFacts, is_covered: bool) -> None:
    reach = PERMISSIONS["GET", "/admin/api/usage"][who.role]
    assert Scope(reach, who).covers(key) is is_covered
    assert who.role in ROLES


async def test_a_member_makes_keys_within_what_her_team_allows(client: Client) -> None:
    async def make(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        status, text = await ask(client, "member", "POST", "/admin/api/keys", body)
        return status, json.loads(text)

    for param, more in {
        "team": {"team": "rival"}, "owner": {"owner": "bob@example.org"}, "on_exceeded": {"on_exceeded": "shadow"},
        "priority": {"priority": "interactive"}, "weight": {"weight": 9}, "labels": {"labels": {"cost-center": "x"}},
        "models[0]": {"models": ["*"]}, "models[1]": {"models": ["m", "large-one"]},
    }.items():  # fmt: skip
        status, answer = await make({"id": "climber", **more})
        assert (status, answer["error"]["param"], answer["error"]["code"]) == (403, param, "role_not_allowed")
    assert (await ask(client, "admin.token", "GET", "/admin/api/keys/climber"))[0] == 404

    status, made = await make({"id": "hers", "models": ["small-one"], "quotas": [{"usd": 1, "per": "day"}]})
    assert (status, made["team"], made["owner"], made["models"]) == (201, "ours", ALICE, ["small-one"])
    _, text = await ask(client, "admin.token", "GET", "/admin/api/audit?limit=1")
    assert json.loads(text)["data"][0]["actor"] == f"person {ALICE} from 127.0.0.1"
    # She has alice, both, stored, unused and this one in the team: as many as it allows, revoked today or not.
    for _ in range(2):
        status, answer = await make({"id": "one-more"})
        assert (status, "as many keys" in answer["error"]["message"]) == (403, True)
        assert (await ask(client, "member", "DELETE", "/admin/api/keys/hers"))[0] == 200


async def test_a_person_without_an_active_key_in_a_team_makes_none_there(client: Client) -> None:
    for name in ("alice", "both", "stored", "unused"):
        assert (await ask(client, "head", "POST", f"/admin/api/keys/{name}/pause"))[0] == 200
    status, text = await ask(client, "member", "POST", "/admin/api/keys", {"id": "hers"})
    assert (status, "No team of yours" in text) == (403, True)
