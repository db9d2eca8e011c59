"""What of a client's request is forwarded to an upstream."""

from __future__ import annotations

from functools import lru_cache
from urllib.parse import unquote

from aiohttp import web

_FORWARDED = frozenset({"content-type", "accept", "user-agent", "traceparent", "tracestate"})

_NOT_FORWARDED = frozenset({"key", "api_key", "api-key", "access_token", "token", "api-version"})
"""Parameters of a query in which some clients put their key, and Azure's version of the API."""


def forwarded_query(request: web.Request) -> str:
    """The query as the client wrote it, with its question mark, without what is for the gateway alone."""
    parts = [part for part in request.rel_url.raw_query_string.split("&") if part]
    kept = [part for part in parts if unquote(part.partition("=")[0]).lower() not in _NOT_FORWARDED]
    return f"?{'&'.join(kept)}" if kept else ""


def forwarded_headers(request: web.Request, more: frozenset[str]) -> tuple[tuple[str, str], ...]:
    """The request headers that upstreams get, `more` (in lower case) among them."""
    return tuple([(name, value) for name, value in request.headers.items() if _is_forwarded(name, more)])


@lru_cache(maxsize=256)
def _is_forwarded(name: str, more: frozenset[str]) -> bool:
    name = name.lower()
    return name in _FORWARDED or name in more or name.startswith("x-stainless-")
