"""`GET /openapi.json`: what this gateway has, as an OpenAPI 3.1 document.

It is open to everybody, as such documents are: it says what the gateway's sources say, and nothing of its
configuration but whether it has an admin API, which is told to whoever asks for one. Bodies are described by the models
that check them (rules/schema.py), rows by the fields that they are made of, so that neither is written twice; an
operation is described only where the application has its route.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any, Literal, NamedTuple

from aiohttp import hdrs, web
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue, models_json_schema

from gateway import __version__
from gateway.rules.schema import Body, Chat, Completion, Embedding

from .openapi_answers import SCHEMAS
from .responses import Whole, json_response

PATH = "/openapi.json"
_JSON = "application/json"

Schema = Mapping[str, Any]


class Operation(NamedTuple):
    """One method of one path."""

    summary: str
    caller: Literal["everybody", "key", "admin", "metrics"]
    """Who may ask: a name of `_SECURITY`."""
    answers: Mapping[str, Schema]
    """What comes with a 200, by media type."""
    errors: tuple[int, ...] = ()
    """Beside 400 and 503, which everything can be answered with."""
    body: type[Body] | None = None
    parameters: tuple[Mapping[str, Any], ...] = ()


def _named(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _query(name: str, description: str, **schema: Any) -> Mapping[str, Any]:
    return {"name": name, "in": "query", "description": description, "schema": schema}


def _call(summary: str, body: type[Body], answer: str, *, is_streamed: bool = True) -> Operation:
    answers: dict[str, Schema] = {_JSON: _named(answer)}
    if is_streamed:
        answers["text/event-stream"] = {"description": "With `stream: true`: events of JSON, then `[DONE]`."}
    return Operation(summary, "key", answers, (401, 403, 404, 408, 413, 422, 429, 502, 504), body)


_DAY = {"type": "string", "format": "date"}
_LIMIT = {"type": "integer", "minimum": 1, "maximum": 999_999_999}
_ROWS = {"type": "string", "description": "The same rows, with a line of names before them."}
_MODEL = {"name": "model", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}

OPERATIONS: Mapping[tuple[str, str], Operation] = {
    ("POST", "/v1/completions"): _call("Complete a text.", Completion, "Completed"),
    ("POST", "/v1/chat/completions"): _call("Go on with a conversation.", Chat, "ChatCompleted"),
    ("POST", "/v1/embeddings"): _call("Turn texts into vectors.", Embedding, "Embedded", is_streamed=False),
    ("GET", "/v1/models"): Operation("The models that this key may use.", "key", {_JSON: _named("Models")}, (401,)),
    ("GET", "/v1/models/{model}"): Operation(
        "One model, if this key may use it.", "key", {_JSON: _named("Model")}, (401, 404), parameters=(_MODEL,)
    ),
    ("GET", "/v1/key"): Operation("The caller's own limits and usage.", "key", {_JSON: _named("Key")}, (401,)),
    ("GET", "/healthz"): Operation("Whether the process answers.", "everybody", {_JSON: _named("Health")}),
    ("GET", "/readyz"): Operation("Whether calls would be served now.", "everybody", {_JSON: _named("Health")}),
    ("GET", "/metrics"): Operation(
        "Metrics in the Prometheus text format.", "metrics", {"text/plain": {"type": "string"}}, (401, 429)
    ),
    ("GET", PATH): Operation("This document.", "everybody", {_JSON: {"type": "object"}}),
    ("GET", "/admin/api/usage"): Operation(
        "What was used, summed by day and grouped.", "admin", {_JSON: _named("Usage"), "text/csv": _ROWS}, (401, 429),
        parameters=(
            _query("group_by", "Names with commas between: key, team, model, upstream, endpoint, day, month.",
                   type="string", default="key"),
            _query("since", "The first day; default: the oldest that is kept.", **_DAY),
            _query("until", "The last day, included.", **_DAY),
            _query("limit", "So many rows at most; default: all of them.", **_LIMIT),
            _query("format", "How the rows are spelt.", type="string", enum=["json", "csv"], default="json"),
        ),
    ),
    ("GET", "/admin/api/calls"): Operation(
        "The newest usage records, the newest first.", "admin", {_JSON: _named("Calls")}, (401, 429),
        parameters=(
            _query("limit", "So many at most.", **_LIMIT, default=100),
            _query("key", "Only those of the key with this id.", type="string"),
        ),
    ),
    ("GET", "/admin/api/quotas"): Operation(
        "Every limit, and what is used of it.", "admin", {_JSON: _named("Quotas")}, (401, 429),
        parameters=(
            _query("key", "Only those of the key with this id.", type="string"),
            _query("team", "Only those of this team and its keys.", type="string"),
        ),
    ),
}  # fmt: skip
"""By method and path."""

_SECURITY: Mapping[str, list[dict[str, list[str]]]] = {
    "everybody": [],
    "key": [{"key": []}],
    "admin": [{"admin": []}],
    "metrics": [{}, {"metrics": []}],  # open, unless metrics.token is set
}
_SCHEMES: Mapping[str, str] = {
    "key": "The key of a client.",
    "admin": "The token of the admin API.",
    "metrics": "The token of the metrics, where the gateway has one.",
}
_HEADERS: Mapping[str, Mapping[str, Any]] = {
    "x-request-id": {"schema": {"type": "string", "pattern": "^req_"}, "required": True},
    "www-authenticate": {"schema": {"const": "Bearer"}, "required": True},
    "retry-after": {"schema": {"type": "string", "pattern": "^[1-9][0-9]*$"}, "description": "In seconds, rounded up."},
    "retry-after-ms": {"schema": {"type": "string", "pattern": "^[1-9][0-9]*$"}, "description": "In milliseconds."},
}
_MORE_HEADERS: Mapping[int, tuple[str, ...]] = {
    401: ("www-authenticate",), 429: ("retry-after", "retry-after-ms"), 503: ("retry-after", "retry-after-ms"),
}  # fmt: skip


class _Spelling(GenerateJsonSchema):
    """Without titles, which repeat the names, and without defaults: what a client leaves out, the upstream decides."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def default_schema(self, schema: Any) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])


def _response(status: int, content: Mapping[str, Schema]) -> dict[str, Any]:
    return {
        "description": HTTPStatus(status).phrase,
        "headers": {
            name: {"$ref": f"#/components/headers/{name}"}
            for name in ("x-request-id", *_MORE_HEADERS.get(status, ()))
        },
        "content": {media: {"schema": schema} for media, schema in content.items()},
    }  # fmt: skip


def _spell(operation: Operation) -> dict[str, Any]:
    spelt: dict[str, Any] = {"summary": operation.summary, "security": _SECURITY[operation.caller]}
    if operation.parameters:
        spelt["parameters"] = operation.parameters
    if operation.body is not None:
        spelt["requestBody"] = {"required": True, "content": {_JSON: {"schema": _named(operation.body.__name__)}}}
    errors = {status: {_JSON: _named("Error")} for status in sorted({400, 503, *operation.errors})}
    spelt["responses"] = {
        str(status): _response(status, content) for status, content in {200: operation.answers, **errors}.items()
    }
    return spelt


def describe(routes: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """The document of an application that has these methods of these paths."""
    bodies = [operation.body for operation in OPERATIONS.values() if operation.body is not None]
    _, told = models_json_schema(
        [(body, "validation") for body in bodies],
        ref_template="#/components/schemas/{model}",
        schema_generator=_Spelling,
    )
    paths: dict[str, dict[str, Any]] = {}
    for method, path in routes:
        if (operation := OPERATIONS.get((method, path))) is not None:
            paths.setdefault(path, {})[method.lower()] = _spell(operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Completions gateway", "version": __version__},
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": {**told["$defs"], **SCHEMAS},
            "headers": _HEADERS,
            "securitySchemes": {
                name: {"type": "http", "scheme": "bearer", "description": what} for name, what in _SCHEMES.items()
            },
        },
    }


def routes_of(app: web.Application) -> list[tuple[str, str]]:
    """Methods and paths of an application, without the HEAD that comes with every GET."""
    found = [(route.method, route.resource.canonical) for route in app.router.routes() if route.resource is not None]
    return [(method, path) for method, path in found if method != hdrs.METH_HEAD]


def route_to_document(app: web.Application) -> web.RouteDef:
    """The route to the document of this application and itself. Made last: it knows what is there by then."""
    body = json.dumps(describe([*routes_of(app), (hdrs.METH_GET, PATH)])).encode()

    async def show(request: web.Request) -> Whole:
        return json_response(body)

    return web.get(PATH, show)
