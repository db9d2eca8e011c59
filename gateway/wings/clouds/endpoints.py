"""The paths of clouds for their clients: google-genai with `vertexai=True`, and Anthropic's AnthropicVertex and
AnthropicBedrock.

The gateway's own keys are their credentials. Project and location are not read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from aiohttp import hdrs, web

from gateway.errors import Unauthorized
from gateway.formats.format import Format
from gateway.formats.table import FORMATS
from gateway.web.endpoints import DataPlane
from gateway.web.middleware import CONTEXT
from gateway.web.openapi.document import OPERATIONS
from gateway.web.openapi.operation import JSON, Operation, Schema, in_path
from gateway.web.wings import WebParts, WingEndpoints

from .invoke_model import INVOKE, MEDIA_TYPE, AsMessages

GEMINI = "/v1beta/models/"
PROJECT = "/projects/{project}/locations/{location}"
VERSIONS = ("/v1", "/v1beta1")
METHODS: Mapping[str, bool] = {"generateContent": False, "streamGenerateContent": True, "countTokens": False}
"""The methods of Gemini that Vertex AI has, too, and whether their answer is a stream."""

INVOCATIONS: Mapping[str, bool] = {"invoke": False, "invoke-with-response-stream": True}
"""The methods of Bedrock's InvokeModel, and whether their answer is a stream."""

SIGNED = (
    "The request is signed with credentials of AWS (Signature Version 4), which cannot hold a key of this gateway. "
    "Give the client a key of this gateway in place of them: as api_key of AnthropicBedrock, or in the variable "
    "AWS_BEARER_TOKEN_BEDROCK."
)


class Served(NamedTuple):
    """How the calls of one path are served."""

    spec: Format
    is_stream: bool | None
    """Whether the path is one of streams; None: the body decides."""
    is_of_cloud: bool = False
    """Whether the body is Anthropic's as clouds have it."""


def _paths() -> Iterator[tuple[str, Served]]:
    for spec in FORMATS.values():
        for path in (spec.path, *spec.stream_paths) if spec.has_model_in_path else ():
            model, _, method = path.removeprefix(GEMINI).partition(":")
            if path.startswith(GEMINI) and method in METHODS:
                for root in (*[f"{version}{PROJECT}" for version in VERSIONS], *VERSIONS):
                    yield f"{root}/publishers/google/models/{model}:{method}", Served(spec, METHODS[method])
    messages = Served(FORMATS["messages"], None, is_of_cloud=True)
    for version in VERSIONS:
        for method in ("rawPredict", "streamRawPredict"):
            yield f"{version}{PROJECT}/publishers/anthropic/models/{{model}}:{method}", messages
    for method, is_stream in INVOCATIONS.items():
        yield f"/model/{{model}}/{method}", Served(INVOKE, is_stream, is_of_cloud=True)


PATHS: Mapping[str, Served] = dict(_paths())


async def _refuse_signed(plane: DataPlane, served: Served, request: web.Request) -> web.StreamResponse:
    """Serves a call of Bedrock's clients. Raises `Unauthorized` for one that is signed."""
    context = request[CONTEXT]
    context.endpoint, context.spoken = served.spec.name, served.spec
    if any(each.startswith("AWS4-") for each in request.headers.getall(hdrs.AUTHORIZATION, ())):
        raise Unauthorized(SIGNED)
    return await _carry(plane, served, request)


async def _carry(plane: DataPlane, served: Served, request: web.Request) -> web.StreamResponse:
    own = (AsMessages(is_stream=served.is_stream),) if served.is_of_cloud else ()
    return await plane.carry_named(request, served.spec, served.is_stream, *own)


def _routes(parts: WebParts) -> Iterable[web.RouteDef]:
    for path, served in PATHS.items():
        carry = _refuse_signed if served.spec is INVOKE else _carry
        yield web.post(path.replace("{model}", "{model:.+}"), partial(carry, parts.plane, served))


_ERROR: Schema = {
    "type": "object", "required": ["message"], "additionalProperties": False,
    "properties": {"message": {"type": "string", "minLength": 1}},
}  # fmt: skip
_MESSAGES: Mapping[str, Schema] = {MEDIA_TYPE: {"type": "string", "format": "binary"}}


def _operation(path: str, served: Served) -> Operation:
    spec, method = served.spec, path.rpartition(":")[2]
    known = OPERATIONS["POST", next((each for each in spec.stream_paths if each.endswith(f":{method}")), spec.path)]
    names = {each["name"] for each in known.parameters}
    more = [name for name in ("project", "location", "model") if f"{{{name}}}" in path and name not in names]
    found = known._replace(parameters=(*known.parameters, *map(in_path, more)))
    if spec is not INVOKE:
        return found
    return found._replace(answers=_MESSAGES if served.is_stream else {JSON: known.answers[JSON]}, error=_ERROR)


ENDPOINTS = WingEndpoints({("POST", path): _operation(path, each) for path, each in PATHS.items()}, _routes)
