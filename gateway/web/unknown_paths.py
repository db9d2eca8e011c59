"""Paths that the gateway does not serve: what the client meant, and what it should do instead."""

from __future__ import annotations

import re
from collections.abc import Mapping

from gateway.formats import FORMATS

_OF_GOOGLE = (
    "of Google's API it has generateContent, streamGenerateContent, countTokens, embedContent and batchEmbedContents, "
    "and the list of models"
)
GOOGLE = f"The gateway does not have this endpoint: {_OF_GOOGLE}."

_ELSEWHERE: Mapping[str, str] = {
    "/v1/responses": "docs/formats.md lists what is served of a stored response",
    "/v1/conversations": "docs/formats.md lists what is served of a conversation",
    "/v1/realtime": "it has GET /v1/realtime, a WebSocket",
    "/v1/edits": "use POST /v1/chat/completions",
    "/v1/engines": "use POST /v1/completions with the model in the body",
    "/v1/complete": "use POST /v1/messages",
    "/v1beta": _OF_GOOGLE,
    "/v1/uploads": "send the whole file with POST /v1/files",
    "/v1/skills": "send messages that need none to POST /v1/messages",
} | dict.fromkeys(
    (
        "/v1/assistants", "/v1/audio", "/v1/containers", "/v1/evals",
        "/v1/fine_tuning", "/v1/images", "/v1/moderations", "/v1/threads", "/v1/vector_stores",
        "/v1/videos",
    ),
    "docs/formats.md lists the endpoints that it has",
)  # fmt: skip
"""Endpoints of the APIs that the gateway does not have, and what to do instead."""

_DOUBLED = "/v1/v1/"
_SLASHES = re.compile("/{2,}")
_MODELS = "/v1/models"


def _served() -> list[str]:
    return [_MODELS, *[path for spec in FORMATS.values() for path in (spec.path, *spec.more_paths)]]


def meant(path: str) -> str:
    """The path that a client with a wrong base URL meant, or the same path."""
    path = _SLASHES.sub("/", path)
    if path in _served():
        return path
    if path.startswith(_DOUBLED):
        path = path.removeprefix("/v1")
    elif path.rstrip("/") in {served.removeprefix("/v1") for served in _served()}:
        path = f"/v1{path}"
    elif (appended := _appended(path.rstrip("/"))) is not None:
        path = appended
    return path


def _appended(path: str) -> str | None:
    """The path that was appended to another one: a client whose base URL is the address of an endpoint."""
    served = _served()
    rests = [path.removeprefix(base) for base in served if path.startswith(f"{base}/")]
    return next((each for each in served for rest in rests if rest in (each, each.removeprefix("/v1"))), None)


def advice(path: str) -> str | None:
    """Advice for a client of this path, as the end of a sentence in brackets or behind a full stop; None: there is
    none."""
    wanted = meant(path)
    if (single := _SLASHES.sub("/", path)) != path:
        further = advice(single) or f"Did you mean {single}?"
        return f"{further} Leave out the slash at the end of the base URL."
    if path.startswith(_DOUBLED):
        return (
            f"Did you mean {wanted}? This client adds /v1 itself: leave it out of its base URL (ANTHROPIC_BASE_URL "
            "for Anthropic's clients)."
        )
    if wanted != path:
        return f"Did you mean {wanted.rstrip('/')}? The base URL of this client has to end in /v1."
    if path.endswith("/") and path.rstrip("/") in _served():
        return f"Did you mean {path.rstrip('/')}? Leave out the slash at the end."
    hint = next((hint for start, hint in _ELSEWHERE.items() if path == start or path.startswith(f"{start}/")), None)
    return f"The gateway does not have this endpoint: {hint}." if hint else None
