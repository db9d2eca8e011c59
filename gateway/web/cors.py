"""Calls from pages of other origins (WHATWG Fetch, "CORS protocol"): openai-node with `dangerouslyAllowBrowser`.

Only paths that clients call are opened: their key is in a header that the page itself has to add, never in a cookie, so
that a foreign page can do nothing here without a key of its own. The admin API and the dashboard stay closed.
"""

from __future__ import annotations

import re

from aiohttp import hdrs, web

from gateway.config import Config
from gateway.config.wings import added_apis
from gateway.formats.table import AZURE, FORMATS

from .responses import CORS, Whole

ANY = "*"
METHODS = "GET, POST, PUT, PATCH, DELETE, OPTIONS"
KEPT_S = 7200
"""How long a browser may keep the answer to a preflight: the most that Chromium keeps it."""
_NAMES = re.compile(r"[A-Za-z0-9_-]{1,64}(?: ?, ?[A-Za-z0-9_-]{1,64}){0,63}", re.ASCII)

_ROOTS = {f"/{path.split('/')[1]}" for each in FORMATS.values() for path in (each.path, *each.more_paths) if path}


def permit(config: Config, request: web.Request) -> list[tuple[str, str]]:
    """Note and return the headers for the answer to a request with an `Origin`; none if its page may not read it."""
    origin, allowed = request.headers[hdrs.ORIGIN], config.server.cors_origins
    if not (ANY in allowed or origin in allowed) or not _is_open(config, request.rel_url.raw_path):
        return []
    request[CORS] = headers = [
        ("Access-Control-Allow-Origin", ANY if ANY in allowed else origin),
        ("Access-Control-Expose-Headers", ANY),  # all of them: no request of a page has credentials of the browser
        *([] if ANY in allowed else [("Vary", "Origin")]),
    ]
    return headers


def is_preflight(config: Config, request: web.Request) -> bool:
    """Whether a browser asks if a page that is allowed may send another request."""
    return (
        request.method == hdrs.METH_OPTIONS
        and hdrs.ACCESS_CONTROL_REQUEST_METHOD in request.headers
        and hdrs.ORIGIN in request.headers
        and bool(permit(config, request))
    )


async def answer_preflight(request: web.Request) -> Whole:
    """It has no key: the browser sends none."""
    asked = request.headers.get(hdrs.ACCESS_CONTROL_REQUEST_HEADERS, "")
    headers = [("Access-Control-Allow-Methods", METHODS), ("Access-Control-Max-Age", str(KEPT_S))]
    if _NAMES.fullmatch(asked):  # all that the page sends, as `authorization`, which a `*` leaves out
        headers.append(("Access-Control-Allow-Headers", asked))
    return Whole(200, headers, b"")


def _is_open(config: Config, path: str) -> bool:
    roots = (*_ROOTS, AZURE, *(api.prefix for api in added_apis(config).values()))
    return any(path.startswith(f"{root}/") or path == root for root in roots)
