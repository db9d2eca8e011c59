"""The gateway's own OpenAPI document: valid, complete, public, and without parts of the configuration."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema_rs
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient
from pydantic.json_schema import models_json_schema

from gateway.api.schema import Body, Chat, Completion, CountTokens, Embedding, Messages, Response
from gateway.web.openapi import document as openapi
from gateway.web.openapi.schemas import SCHEMAS

from .conftest import ADMIN_TOKEN, KEY, Inside

NOWHERE = "http://upstream-of-ours.example/v1"

Received = dict[str, Any]


async def document(client: TestClient[Any, Any]) -> Received:
    answer = await client.get("/openapi.json")
    assert (answer.status, answer.content_type) == (200, "application/json")
    received: Received = await answer.json()
    return received


def described(received: Received) -> set[tuple[str, str]]:
    return {(method.upper(), path) for path, methods in received["paths"].items() for method in methods}


async def test_document_is_valid_openapi(inside: Inside) -> None:
    import schemathesis  # imported here: slow, and collection imports this module

    received = await document(await inside(NOWHERE))
    assert received["openapi"].startswith("3.1.")
    schemathesis.openapi.from_dict(received).validate()


def test_a_document_that_is_not_valid_would_be_found() -> None:
    import schemathesis

    received = json.loads(json.dumps(openapi.describe(openapi.every_operation())))
    received["paths"]["/v1/key"]["get"]["responses"]["200"]["content"] = []
    with pytest.raises(ValueError, match="is not of type"):
        schemathesis.openapi.from_dict(received).validate()


def test_every_name_that_the_document_refers_to_is_there() -> None:
    received = openapi.describe(openapi.every_operation())
    text = json.dumps(received)
    for part, names in received["components"].items():
        for name in names:
            assert f'"#/components/{part}/{name}"' in text or part == "securitySchemes", f"nobody refers to {name}"
    referred = {piece.partition('"')[0] for piece in text.split('"$ref": "#/components/')[1:]}
    assert referred == {
        f"{part}/{name}"
        for part, names in received["components"].items()
        for name in names
        if part != "securitySchemes"
    }


def test_names_of_bodies_and_answers_do_not_clash() -> None:
    bodies = [operation.body for operation in openapi.every_operation().values() if operation.body is not None]
    _, received = models_json_schema([(body, "validation") for body in bodies])
    assert set(received["$defs"]).isdisjoint(SCHEMAS)


async def test_every_route_is_described_and_every_description_has_its_route(inside: Inside) -> None:
    client = await inside(NOWHERE)
    assert isinstance(client.app, web.Application)
    assert described(await document(client)) == set(openapi.routes_of(client.app)) == set(openapi.every_operation())


async def test_a_gateway_without_an_admin_api_describes_none(inside: Inside) -> None:
    client = await inside(NOWHERE, admin={})
    received = described(await document(client))
    assert received == {(method, path) for method, path in openapi.every_operation() if not path.startswith("/admin")}


def test_a_route_without_a_description_would_be_found() -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.Response()

    app = web.Application()
    app.add_routes([web.get("/healthz", handler), web.post("/v1/new/{name:.+}", handler)])
    routes = openapi.routes_of(app)
    assert routes == [("GET", "/healthz"), ("POST", "/v1/new/{name}")]
    assert described(openapi.describe(routes)) == {("GET", "/healthz")}


def wrong_errors(
    received: Received, path: str, method: str, status: int, body: bytes, media_type: str = "application/json"
) -> list[str]:
    """What is wrong with an error, beside what the document says of its path."""
    described_as = received["paths"][path][method]["responses"].get(str(status))
    if described_as is None:
        return [f"{method} {path}: {status} is not described"]
    if media_type not in described_as["content"]:
        return [f"{method} {path}: {status} as {media_type} is not described"]
    described_form = described_as["content"][media_type]["schema"]
    schema = jsonschema_rs.validator_for({**described_form, "components": received["components"]})
    return [f"{method} {path}: {status} {fault.message}" for fault in schema.iter_errors(json.loads(body))]


async def test_the_refusal_of_every_path_has_the_form_that_the_document_says(inside: Inside) -> None:
    """Whichever client calls a path reads the errors of its own API: without a key, each path says so in its words."""
    client = await inside(NOWHERE)
    received, faults, refused = await document(client), [], 0
    for path, methods in received["paths"].items():
        for method in methods:
            answer = await client.request(method, re.sub(r"\{\w+\}", "x", path), json={}, allow_redirects=False)
            if answer.status >= 400:
                refused += 1
                body, media_type = await answer.read(), answer.content_type
                faults += wrong_errors(received, path, method, answer.status, body, media_type)
    assert faults == []
    assert refused > 80


def test_an_error_in_another_form_would_be_found() -> None:
    received = openapi.describe(openapi.every_operation())
    error = {"message": "No", "type": "invalid_request_error", "param": None, "code": None}
    assert wrong_errors(received, "/v1/completions", "post", 401, json.dumps({"error": error}).encode()) == []
    assert wrong_errors(received, "/v1/messages", "post", 401, json.dumps({"error": error}).encode())
    assert wrong_errors(received, "/v1/messages", "post", 418, b"{}")
    assert wrong_errors(received, "/v1/completions", "post", 401, json.dumps({"error": error}).encode(), "text/plain")


async def test_document_says_nothing_of_the_configuration(inside: Inside) -> None:
    secret_team = {"teams": {"hush-team": {"quotas": [{"requests": 7654321, "per": "day"}]}}}
    models = {"hush-model": {"routes": [{"upstream": "up"}], "max_output_tokens": 100}}
    keys = [{"id": "hush-key", "secret": KEY, "team": "hush-team"}]
    one = await document(await inside(NOWHERE))
    received = await document(
        await inside(NOWHERE, models=models, keys=keys, **secret_team, metrics={"token": ADMIN_TOKEN})
    )
    assert received == one
    assert not [word for word in ("hush", KEY, ADMIN_TOKEN, "upstream-of-ours") if word in json.dumps(received)]


@pytest.mark.parametrize("body", [Completion, Chat, Embedding, Messages, CountTokens, Response])
def test_bodies_are_described_by_what_checks_them(body: type[Body]) -> None:
    shown = openapi.describe([])["components"]["schemas"][body.__name__]
    assert list(shown["properties"]) == list(body.model_fields)
    assert shown["required"] == [name for name, field in body.model_fields.items() if field.is_required()]


async def test_the_document_is_made_once_and_not_at_the_start(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    describe = openapi.describe

    def counted(routes: Any) -> Received:
        made.append(1)
        return describe(routes)

    monkeypatch.setattr(openapi, "describe", counted)
    client = await inside(NOWHERE)
    assert made == []
    assert await document(client) == await document(client)
    assert made == [1]


async def test_what_is_no_get_of_the_document_is_refused(inside: Inside) -> None:
    client = await inside(NOWHERE)
    answer = await client.post("/openapi.json", json={})
    assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD")
