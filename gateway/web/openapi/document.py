"""`GET /openapi.json`: the operations of one listener, as an OpenAPI 3.1 document.

1. It needs no token: it repeats the gateway's sources, and of the configuration only whether there is an admin API.
2. Bodies are described by the models that check them (`api/schema.py`), rows by the fields that they are made of.
3. An operation is described only if the listener has its route.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from http import HTTPStatus
from typing import Any

from aiohttp import hdrs, web
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue, models_json_schema

from gateway import __version__
from gateway.api.schema import (
    Chat,
    Completion,
    CountTokens,
    Embedding,
    Messages,
    Part,
    Response,
)
from gateway.formats.anthropic.messages import OVERLOADED
from gateway.formats.format import Format
from gateway.formats.gemini.embeddings import BatchEmbedContents, EmbedContent
from gateway.formats.gemini.request import CountContentTokens, GenerateContent
from gateway.formats.openai.moderations import Moderation
from gateway.formats.table import FORMATS, azure_paths, without_deployment
from gateway.web.admin.operations import ADMIN_OPERATIONS
from gateway.web.middleware import CONTEXT
from gateway.web.responses import Whole, json_response
from gateway.web.wings import operations_of_wings, permissions, schemas_of_wings

from .operation import JSON, SCHEMES, SECURITY, Operation, Schema, in_path, in_query, named

PATH = "/openapi.json"

FORM = "multipart/form-data"
_CALL_ERRORS = (401, 403, 404, 408, 413, 422, 429, 502, 504)
_STREAMED = "With `stream: true`: events of JSON, then `[DONE]`."


def call_operation(summary: str, body: type[Part], answer: str, *, streamed: str | None = _STREAMED) -> Operation:
    answers: dict[str, Schema] = {JSON: named(answer)}
    if streamed is not None:
        answers["text/event-stream"] = {"description": streamed}
    return Operation(summary, "key", answers, _CALL_ERRORS, body)


def _of_anthropic(
    summary: str, body: type[Part], answer: str, events: str | None = None, errors: tuple[int, ...] = ()
) -> Operation:
    operation = call_operation(summary, body, answer, streamed=events)
    return operation._replace(errors=(*_CALL_ERRORS, *errors), error=named("AnthropicError"))


_MODEL = in_path("model")


def _of_google(
    summary: str, answer: str, body: type[Part] | None = None, *, parameters: tuple[Mapping[str, Any], ...] = (_MODEL,)
) -> Operation:
    errors = _CALL_ERRORS if body is not None else (401, 404)
    return Operation(
        summary, "key", {JSON: named(answer)}, errors, body, parameters=parameters, error=named("GoogleError")
    )


_ALT = in_query("alt", "`sse`: events; else one JSON array.", enum=["sse", "json"])
_STREAMED_CONTENT: Mapping[str, Schema] = {
    JSON: {"type": "array", "items": named("ContentGenerated")},
    "text/event-stream": {"description": "With `alt=sse`: chunks, each an answer of its own."},
}


def _google_methods(version: str) -> Mapping[tuple[str, str], Operation]:
    """The calls of Gemini's native API below this version."""
    model = f"/{version}/models/{{model}}"
    stream = _of_google("The same, in pieces.", "ContentGenerated", GenerateContent, parameters=(_MODEL, _ALT))
    return {
        ("POST", f"{model}:generateContent"): _of_google(
            "Go on with a conversation, in Gemini's native API.", "ContentGenerated", GenerateContent
        ),
        ("POST", f"{model}:streamGenerateContent"): stream._replace(answers=_STREAMED_CONTENT),
        ("POST", f"{model}:countTokens"): _of_google(
            "Count tokens, in Gemini's native API.", "ContentTokens", CountContentTokens
        ),
        ("POST", f"{model}:embedContent"): _of_google(
            "Embed one content, in Gemini's native API.", "ContentEmbedded", EmbedContent
        ),
        ("POST", f"{model}:batchEmbedContents"): _of_google(
            "Embed several contents, in Gemini's native API.", "ContentsEmbedded", BatchEmbedContents
        ),
    }


_PAGE = (
    in_query("pageSize", "Models of a page.", type="integer", minimum=0, maximum=1000),
    in_query("pageToken", "`nextPageToken` of the page before.", type="string", pattern="^[0-9]{0,7}$"),
)

_OPERATIONS: Mapping[tuple[str, str], Operation] = {
    ("POST", "/v1/completions"): call_operation("Complete a text.", Completion, "Completed"),
    ("POST", "/v1/chat/completions"): call_operation("Go on with a conversation.", Chat, "ChatCompleted"),
    ("POST", "/v1/embeddings"): call_operation("Turn texts into vectors.", Embedding, "Embedded", streamed=None),
    ("POST", "/v1/messages"): _of_anthropic(
        "Go on with a conversation, in Anthropic's Messages API.", Messages, "MessageCreated",
        "With `stream: true`: events from `message_start` to `message_stop`.", (OVERLOADED,),
    ),
    ("POST", "/v1/messages/count_tokens"): _of_anthropic(
        "Count the tokens of a message, in Anthropic's Messages API.", CountTokens, "TokenCount", None, (OVERLOADED,)
    ),
    **_google_methods("v1beta"),
    **_google_methods("v1"),
    ("GET", "/v1beta/models"): _of_google(
        "The models of this key that have Gemini's native API.", "GoogleModels", parameters=_PAGE
    ),
    ("GET", "/v1beta/models/{model}"): _of_google("One model, if this key may use it.", "GoogleModel"),
    ("POST", "/v1/moderations"): call_operation("Judge texts.", Moderation, "Ranked", streamed=None),
    ("POST", "/v1/responses"): call_operation(
        "Create a response, in OpenAI's Responses API.", Response, "Responded",
        streamed="With `stream: true`: events from `response.created` to `response.completed`.",
    ),
    ("POST", "/v1/responses/input_tokens"): call_operation(
        "Count the tokens of a response's input.", Response, "InputTokens", streamed=None
    ),
    ("POST", "/v1/responses/compact"): call_operation("Compact a conversation.", Response, "Responded", streamed=None),
    ("GET", "/v1/responses"): Operation(
        "Refused: 426 for a WebSocket, else 405.", "public", {JSON: named("Error")}, (426,), status=405
    ),
    ("GET", "/v1/models"): Operation("The models that this key may use.", "key", {JSON: named("Models")}, (401,)),
    ("GET", "/v1/models/{model}"): Operation(
        "One model, if this key may use it.", "key", {JSON: named("Model")}, (401, 404), parameters=(_MODEL,)
    ),
    ("GET", "/v1/key"): Operation("The caller's own limits and usage.", "key", {JSON: named("Key")}, (401,)),
    ("GET", "/healthz"): Operation("Whether the process answers.", "public", {JSON: named("Health")}),
    ("GET", "/readyz"): Operation("Whether calls would be served now.", "public", {JSON: named("Health")}),
    ("GET", "/metrics"): Operation(
        "Metrics in the Prometheus text format.", "metrics", {"text/plain": {"type": "string"}}, (401, 429)
    ),
    ("GET", PATH): Operation("This document.", "public", {JSON: {"type": "object"}}),
    ("GET", "/docs"): Operation("The API reference.", "public", {"text/html": {"type": "string"}}),
    ("GET", "/docs/{file}"): Operation(
        "A file of the API reference.", "public",
        {media: {"type": "string"} for media in ("text/html", "text/css", "text/javascript")},
        (404,), parameters=(in_path("file"),),
    ),
    ("GET", "/"): Operation("To the dashboard, or to the API reference.", "public", {}, status=302),
    ("GET", "/dashboard"): Operation(
        "The page over the admin API.", "public", {"text/html": {"type": "string"}}, (404,)
    ),
    ("GET", "/dashboard/{file}"): Operation(
        "A file of the page.", "public",
        {media: {"type": "string"} for media in ("text/html", "text/css", "text/javascript", "image/svg+xml")},
        (404,), parameters=(in_path("file"),),
    ),
    **ADMIN_OPERATIONS,
}  # fmt: skip
"""Operations by method and path, without Azure's forms of paths."""


def more_forms(spec: Format, operation: Operation) -> Iterator[tuple[tuple[str, str], Operation]]:
    """The rows of a format's other path forms, given the operation of its path."""
    for path in azure_paths(spec):
        model = (_MODEL,) if "{model}" in path else ()
        yield ("POST", path), operation._replace(parameters=(*operation.parameters, *model))


def _of_azure() -> Iterator[tuple[tuple[str, str], Operation]]:
    for spec in FORMATS.values():
        if (operation := _OPERATIONS.get(("POST", spec.path))) is not None:  # else it is of a wing
            yield from more_forms(spec, operation)
    calls = {path for spec in FORMATS.values() for path in (spec.path, *spec.more_paths, *spec.stream_paths)}
    for (method, path), operation in _OPERATIONS.items():
        if method != "POST" or path not in calls:
            yield from (((method, form), operation) for form in without_deployment(path))


OPERATIONS: Mapping[tuple[str, str], Operation] = {**_OPERATIONS, **dict(_of_azure())}
"""Operations of the trunk by method and path, with Azure's forms of paths."""


def every_operation() -> Mapping[tuple[str, str], Operation]:
    """Operations of the trunk and of all wings."""
    return {**OPERATIONS, **operations_of_wings()}


_HEADERS: Mapping[str, Mapping[str, Any]] = {
    "x-request-id": {"schema": {"type": "string", "pattern": "^req_"}, "required": True},
    "www-authenticate": {"schema": {"const": "Bearer"}, "required": True},
    "retry-after": {"schema": {"type": "string", "pattern": "^[1-9][0-9]*$"}, "description": "In seconds, rounded up."},
    "retry-after-ms": {"schema": {"type": "string", "pattern": "^[1-9][0-9]*$"}, "description": "In milliseconds."},
}
_MORE_HEADERS: Mapping[int, tuple[str, ...]] = {
    401: ("www-authenticate",), 429: ("retry-after", "retry-after-ms"), 503: ("retry-after", "retry-after-ms"),
}  # fmt: skip


class _SchemaGenerator(GenerateJsonSchema):
    """Omits titles, which repeat the names, and defaults, because the upstream decides on the parameters that a client
    omits."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def default_schema(self, schema: Any) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])


def _response(status: int, content: Mapping[str, Schema]) -> dict[str, Any]:
    return {
        "description": "Overloaded" if status == OVERLOADED else HTTPStatus(status).phrase,
        "headers": {
            name: {"$ref": f"#/components/headers/{name}"}
            for name in ("x-request-id", *_MORE_HEADERS.get(status, ()))
        },
        "content": {media: {"schema": schema} for media, schema in content.items()},
    }  # fmt: skip


def _described(place: tuple[str, str], operation: Operation) -> dict[str, Any]:
    described: dict[str, Any] = {"summary": operation.summary, "security": SECURITY[operation.caller]}
    if (roles := permissions().get(place)) is not None:
        described["security"] = [*described["security"], *([{"key": []}] if "key" in roles else [])]
        described["x-roles"] = roles
        described["description"] = f"Roles: {', '.join(f'{role} ({reach})' for role, reach in roles.items())}."
    if operation.parameters:
        described["parameters"] = operation.parameters
    if operation.body is not None:
        described["requestBody"] = {
            "required": operation.is_body_needed,
            "content": {operation.body_type: {"schema": named(operation.body.__name__)}},
        }
    errors = {status: {operation.error_type: operation.error} for status in sorted({400, 503, *operation.errors})}
    described["responses"] = {
        str(status): _response(status, content)
        for status, content in {operation.status: operation.answers, **errors}.items()
    }
    return described


def _as_form(schema: dict[str, Any]) -> None:
    """Changes the schema of an object into that of a form, where the names of lists end in `[]` and there is no
    null."""
    fields = {name: _without_null(field) for name, field in schema["properties"].items()}
    names = {name: f"{name}[]" if "items" in field else name for name, field in fields.items()}
    schema["properties"] = {names[name]: field for name, field in fields.items()}
    schema["required"] = [names[name] for name in schema["required"]]


def _without_null(field: dict[str, Any]) -> dict[str, Any]:
    arms = [arm for arm in field.get("anyOf", ()) if arm != {"type": "null"}]
    rest = {name: value for name, value in field.items() if name != "anyOf"}
    return {**rest, **arms[0]} if len(arms) == 1 else field


def describe(routes: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """The document of an application that has these methods of these paths."""
    from .schemas import SCHEMAS  # imported late: half a megabyte that a gateway does not need until someone asks

    operations = every_operation()
    bodies = [operation.body for operation in operations.values() if operation.body is not None]
    _, definitions = models_json_schema(
        [(body, "validation") for body in bodies],
        ref_template="#/components/schemas/{model}",
        schema_generator=_SchemaGenerator,
    )
    for name in {each.body.__name__ for each in operations.values() if each.body and each.body_type == FORM}:
        _as_form(definitions["$defs"][name])
    paths: dict[str, dict[str, Any]] = {}
    for method, path in routes:
        if (operation := operations.get((method, path))) is not None:
            paths.setdefault(path, {})[method.lower()] = _described((method, path), operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Completions gateway", "version": __version__},
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": {**definitions["$defs"], **SCHEMAS, **schemas_of_wings()},
            "headers": _HEADERS,
            "securitySchemes": {
                name: {"type": "http", "scheme": "bearer", "description": what} for name, what in SCHEMES.items()
            },
        },
    }


def routes_of(app: web.Application) -> list[tuple[str, str]]:
    """Methods and paths of an application, without the HEAD that comes with every GET."""
    found = [(route.method, route.resource.canonical) for route in app.router.routes() if route.resource is not None]
    return [(method, path) for method, path in found if method != hdrs.METH_HEAD]


def route_to_document(app: web.Application) -> web.RouteDef:
    """The route to the document of this application and of itself. To be added last: it describes the routes that the
    application has by then. The document is made at the first request, not at the start of each worker."""
    routes = [*routes_of(app), (hdrs.METH_GET, PATH)]

    @cache
    def document(has_admin: bool) -> bytes:
        return json.dumps(
            describe([each for each in routes if has_admin or not each[1].startswith("/admin/")])
        ).encode()

    async def show(request: web.Request) -> Whole:
        has_admin = request[CONTEXT].parts.config.has_admin_api
        return json_response(await asyncio.to_thread(document, has_admin))

    return web.get(PATH, show)
