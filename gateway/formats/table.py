"""The table of all formats, those of wings among them, and which format a path or a client speaks.

The package's `__init__` does not hold it, because a wing's formats import modules of the package first.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from types import ModuleType

from gateway.api.prompt_tokens import FindsCounter, no_counter
from gateway.records import Endpoint, Params

from .anthropic import messages
from .format import Format, formats_of_wings
from .gemini import embeddings, generate
from .openai import completions, moderations, responses

_MODULES = (completions, messages, responses, moderations)
_FURTHER = (generate, embeddings)
"""Each value of `Format` in these modules is served. Those of wings stand between, also in the OpenAPI document."""


def _of(modules: tuple[ModuleType, ...]) -> list[Format]:
    return [each for module in modules for each in vars(module).values() if isinstance(each, Format)]


_ALL = (*_of(_MODULES), *formats_of_wings(), *_of(_FURTHER))

ADDED = next((each for each in _ALL if not each.path), None)
"""The format of the APIs that a configuration adds; None: no wing adds any."""


class _Table(dict[Endpoint, Format]):
    """Maps names to formats; a name that is no format's is that of an added API."""

    def __missing__(self, name: Endpoint) -> Format:
        if ADDED is None:
            raise KeyError(name)
        return ADDED


FORMATS: Mapping[Endpoint, Format] = _Table({each.name: each for each in _ALL if each.path})
"""Every format by its name, and the one of added APIs by every other name."""

AZURE = "/openai"

_OF_DEPLOYMENTS: tuple[Endpoint, ...] = (
    "completions", "chat", "embeddings", "images", "image_edits", "speech", "transcriptions", "translations"
)  # fmt: skip
"""Endpoints that Azure has below a deployment (openai-python, lib/azure.py, `_deployments_endpoints`)."""
_BELOW_AZURE = (
    "/v1/responses", "/v1/moderations", "/v1/images/variations", "/v1/files", "/v1/batches", "/v1/conversations",
    "/v1/realtime", "/v1/models",
)  # fmt: skip
"""Paths of openai-python's AzureOpenAI, at `/openai/...` with `api-version`, and of Azure's v1 API, without."""


def azure_paths(spec: Format) -> tuple[str, ...]:
    """Azure's path forms of a format: with the model as a deployment, and without."""
    if spec.name not in _OF_DEPLOYMENTS:
        return without_deployment(spec.path)
    below = spec.path.removeprefix("/v1")
    return f"{AZURE}/deployments/{{model}}{below}", f"{AZURE}{below}", f"{AZURE}/v1{below}"


def without_deployment(path: str) -> tuple[str, ...]:
    """Azure's forms of a path of OpenAI's API; none if Azure has nothing like it."""
    below = path.removeprefix("/v1")
    is_there = any(path == each or path.startswith(f"{each}/") for each in _BELOW_AZURE)
    return (f"{AZURE}{below}", f"{AZURE}/v1{below}") if is_there else ()


def of_path(path: str) -> Format | None:
    """The format that a path belongs to, whether it is served or not: in whose words an error on it is written."""
    found = [
        (len(known), each)
        for each in FORMATS.values()
        for known in (each.path, *each.more_paths, *each.unserved_paths)
        if path == known or path.startswith(known + "/")
    ]
    return max(found, key=lambda pair: pair[0])[1] if found else None


def of_client(headers: Container[str]) -> Format | None:
    """The format whose clients send one of these request headers, if any. Ignores case if `headers` does."""
    found = (each for each in FORMATS.values() if each.client_header is not None and each.client_header in headers)
    return next(found, None)


def read(endpoint: Endpoint, raw: bytes, find_counter: FindsCounter = no_counter) -> Params:
    """The checked parameters of a body. Raises `InvalidRequest` for the first fault."""
    return FORMATS[endpoint].read(raw, find_counter)
