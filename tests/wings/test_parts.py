"""A wing that is written here adds a command, routes and operations to the gateway by its folder and its name alone."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway import cli, wings
from gateway.web.admin.operations import ADMIN_OPERATIONS
from gateway.web.wings import admin_operations
from tests.web.conftest import ADMIN_TOKEN, AUTH, Inside

FILES = {
    "__init__": '"""A sample."""',
    "command": """
from gateway.cli import Command

SAMPLE = Command("greet", "say hello", module="wings.sample.run")
""",
    "run": """
def add_arguments(parser):
    parser.add_argument("name")


def run(args):
    print(f"hello {args.name}")
    return 0
""",
    "endpoints": """
from functools import partial

from aiohttp import web

from gateway.web.admin.permissions import read_permissions
from gateway.web.admin.common import actor, changed, read, shown
from gateway.web.admin.request_bodies import RequestBody
from gateway.web.middleware import CONTEXT
from gateway.web.openapi.operation import JSON, Operation
from gateway.web.wings import WingEndpoints

NOTES = "/admin/api/notes"
OBJECT = {JSON: {"type": "object"}}


class NewNote(RequestBody):
    text: str


async def whose(plane, request):
    key = await plane.caller(request, request[CONTEXT])
    return web.json_response({"key": key.id})


async def show(request):
    return shown({"notes": []})


async def make(request):
    return changed(request, {**await read(request, NewNote), "by": actor(request)}, 201)


CALLS = WingEndpoints(
    {("GET", "/v1/whose"): Operation("The key of the caller.", "key", OBJECT, (401,))},
    lambda parts: [web.get("/v1/whose", partial(whose, parts.plane))],
)
NOTES_API = WingEndpoints(
    {
        ("GET", NOTES): Operation("The notes.", "viewer", OBJECT, (401, 429)),
        ("POST", NOTES): Operation("Make a note.", "admin", OBJECT, (401, 403, 429), NewNote, status=201),
    },
    lambda parts: [parts.access.get(NOTES, show), parts.access.change("POST", NOTES, make)],
    read_permissions('''
                              operator  lead  member  viewer  key
    GET    /admin/api/notes   all       -     -       all     -
    POST   /admin/api/notes   all       -     -       -       -
    '''),
    "admin",
)
""",
}


@pytest.fixture(autouse=True)
def _sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    folder = tmp_path / "wings" / "sample"
    folder.mkdir(parents=True)
    for name, text in FILES.items():
        (folder / f"{name}.py").write_text(text)
    monkeypatch.setattr(wings, "WINGS", (*wings.WINGS, "sample"))
    monkeypatch.setattr(wings, "__path__", [*wings.__path__, str(folder.parent)])
    yield
    for name in [name for name in sys.modules if name.startswith("gateway.wings.sample")]:
        del sys.modules[name]
    vars(wings).pop("sample", None)


def test_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["greet", "you"]) == 0
    assert capsys.readouterr().out == "hello you\n"
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    assert "say hello" in capsys.readouterr().out


async def test_a_route_of_the_data_plane(inside: Inside) -> None:
    client = await inside("http://127.0.0.1:9/v1")
    async with client.get("/v1/whose") as answer:
        assert (answer.status, (await answer.json())["error"]["type"]) == (401, "invalid_request_error")
        assert answer.headers["x-request-id"].startswith("req_")
    async with client.get("/v1/whose", headers=AUTH) as answer:
        assert (answer.status, await answer.json()) == (200, {"key": "k"})


VIEWER = "viewer-token-0123456789"


async def test_operations_of_the_admin_api(inside: Inside) -> None:
    client = await inside("http://127.0.0.1:9/v1", admin={"token": ADMIN_TOKEN, "viewer_token": VIEWER})

    async def ask(method: str, token: str, query: str = "", **more: Any) -> tuple[int, dict[str, Any]]:
        headers = {"Authorization": f"Bearer {token}"}
        async with client.request(method, f"/admin/api/notes{query}", headers=headers, **more) as answer:
            return answer.status, await answer.json()

    assert await ask("GET", VIEWER) == (200, {"notes": []})
    assert (await ask("GET", "wrong-token-0123456789"))[0] == 401
    assert (await ask("GET", AUTH["Authorization"].partition(" ")[2]))[0] == 403
    assert (await ask("GET", VIEWER, "?colour=red"))[0] == 400
    assert (await ask("POST", VIEWER, json={"text": "x"}))[0] == 403
    assert (await ask("POST", ADMIN_TOKEN, json={"txt": "x"}))[0] == 400
    made = {"text": "x", "by": "admin.token from 127.0.0.1"}
    assert await ask("POST", ADMIN_TOKEN, json={"text": "x"}) == (201, made)
    async with client.get("/admin/api/session", headers={"Authorization": f"Bearer {VIEWER}"}) as answer:
        operations = (await answer.json())["operations"]
    assert [each for each in operations if each.endswith("/notes")] == ["GET /admin/api/notes"]


async def test_the_document_has_their_rows(inside: Inside) -> None:
    client = await inside("http://127.0.0.1:9/v1")
    async with client.get("/openapi.json") as answer:
        document = await answer.json()
    assert document["paths"]["/v1/whose"]["get"]["security"] == [{"key": []}]
    assert document["paths"]["/admin/api/notes"]["post"]["x-roles"] == {"operator": "all"}
    assert "NewNote" in document["components"]["schemas"]


def test_only_operations_with_roles_are_of_the_admin_api() -> None:
    added = admin_operations().keys() - ADMIN_OPERATIONS.keys()
    assert {("GET", "/admin/api/notes"), ("POST", "/admin/api/notes")} <= added
    assert ("GET", "/v1/whose") not in added
