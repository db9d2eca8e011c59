"""`/dashboard`: the page over the admin API. Files as they lie beside this module, nothing made up per request.

The files hold no data, so they need no token; the page asks for one. What browsers are told with them keeps the page to
this gateway alone: no script, style or request from or to anywhere else, no frame around it, and no way to turn text
into markup.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from aiohttp import hdrs, web

from gateway.errors import NotFound
from gateway.web.middleware import CONTEXT
from gateway.web.responses import Whole

FOLDER = Path(__file__).parent
INDEX = "index.html"

CONTENT_TYPES: Mapping[str, str] = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'"
)
"""Where browsers know trusted types, no text becomes markup or a script at all."""

HEADERS = (
    ("Content-Security-Policy", POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cache-Control", "no-cache"),  # it may be kept, but has to be asked for: another version may run by then
)

OFF = "This gateway has no dashboard: set admin.token in its configuration, and reload it."


class File(NamedTuple):
    """A file and its mark."""

    headers: tuple[tuple[str, str], ...]
    etag: str
    content: bytes


def _read(path: Path) -> File:
    content = path.read_bytes()
    etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    return File(((hdrs.CONTENT_TYPE, CONTENT_TYPES[path.suffix]), *HEADERS, (hdrs.ETAG, etag)), etag, content)


class Dashboard:
    """The page and its files, which are read once."""

    def __init__(self) -> None:
        self._files = {path.name: _read(path) for path in sorted(FOLDER.iterdir()) if path.suffix in CONTENT_TYPES}

    def routes(self) -> list[web.RouteDef]:
        """Every route."""
        return [web.get("/dashboard", self.show_page), web.get("/dashboard/{file:.*}", self.show_file)]

    async def show_page(self, request: web.Request) -> web.StreamResponse:
        """The page itself."""
        return self._show(request, INDEX)

    async def show_file(self, request: web.Request) -> web.StreamResponse:
        """What the page is made of."""
        name = request.match_info["file"]
        if not name:  # the page's links are relative, so that it may stand behind a prefix
            return Whole(308, [(hdrs.LOCATION, "../dashboard")], b"")
        return self._show(request, name)

    def _show(self, request: web.Request, name: str) -> Whole:
        visit = request[CONTEXT]
        if visit.parts.config.admin.token is None:
            raise NotFound(OFF)
        if (file := self._files.get(name)) is None:
            raise NotFound(f"The dashboard has no such file ({request.rel_url.raw_path[:200]}).")
        visit.is_quiet = True
        known = request.headers.get(hdrs.IF_NONE_MATCH, "")
        if file.etag in [each.strip().removeprefix("W/") for each in known.split(",")]:
            return Whole(304, file.headers, b"")
        return Whole(200, file.headers, file.content)
