"""The paths of Vertex AI for its clients: google-genai with `vertexai=True`, and Anthropic's AnthropicVertex.

The gateway's own keys are their credentials. Project and location are not read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial

from aiohttp import web

from gateway.formats import FORMATS
from gateway.formats.format import Format
from gateway.web.openapi.document import OPERATIONS
from gateway.web.openapi.operation import Operation, in_path
from gateway.web.wings import WebParts, WingEndpoints

GEMINI = "/v1beta/models/"
PROJECT = "/projects/{project}/locations/{location}"
VERSIONS = ("/v1", "/v1beta1")
METHODS: Mapping[str, bool] = {"generateContent": False, "streamGenerateContent": True, "countTokens": False}
"""The methods of Gemini that Vertex AI has, too, and whether their answer is a stream."""


def _paths() -> Iterator[tuple[str, Format, bool | None]]:
    """Each path with its format, and whether it is one of streams; None: the body decides."""
    for spec in FORMATS.values():
        for path in (spec.path, *spec.stream_paths) if spec.has_model_in_path else ():
            model, _, method = path.removeprefix(GEMINI).partition(":")
            if path.startswith(GEMINI) and method in METHODS:
                for root in (*[f"{version}{PROJECT}" for version in VERSIONS], *VERSIONS):
                    yield f"{root}/publishers/google/models/{model}:{method}", spec, METHODS[method]
    for version in VERSIONS:
        for method in ("rawPredict", "streamRawPredict"):
            yield f"{version}{PROJECT}/publishers/anthropic/models/{{model}}:{method}", FORMATS["messages"], None


PATHS: Mapping[str, tuple[Format, bool | None]] = {path: (spec, streams) for path, spec, streams in _paths()}


def _routes(parts: WebParts) -> Iterable[web.RouteDef]:
    for path, (spec, streams) in PATHS.items():
        handler = partial(parts.plane.carry_named, spec=spec, is_stream=streams)
        yield web.post(path.replace("{model}", "{model:.+}"), handler)


def _operation(path: str, spec: Format) -> Operation:
    method = path.rpartition(":")[2]
    known = OPERATIONS["POST", next((each for each in spec.stream_paths if each.endswith(f":{method}")), spec.path)]
    names = {each["name"] for each in known.parameters}
    more = [name for name in ("project", "location", "model") if f"{{{name}}}" in path and name not in names]
    return known._replace(parameters=(*known.parameters, *map(in_path, more)))


ENDPOINTS = WingEndpoints({("POST", path): _operation(path, spec) for path, (spec, _) in PATHS.items()}, _routes)
