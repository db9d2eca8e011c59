"""A page of static files: HTML, scripts, styles and pictures of one folder, read once and never changed per request.

They are read at the first request for one of them: a gateway whose pages no browser opens holds none of them.

The page names its files below a version, a digest of all of them: a browser asks for each once, until one has changed.

The headers restrict the page to this gateway: no script, style or request from or to another origin, no frame around
it, and no text that becomes markup.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path, PurePath
from typing import NamedTuple

from aiohttp import hdrs, web

from gateway.errors import NotFound
from gateway.pipeline import Services
from gateway.web.middleware import CONTEXT
from gateway.web.responses import Whole

INDEX = "index.html"

VERSION = re.compile(r"[0-9a-f]{16}")

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
"""Browsers with trusted types turn no text into markup or a script at all."""

HEADERS = (
    ("Content-Security-Policy", POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Vary", "Accept-Encoding"),
)

REVALIDATED = (hdrs.CACHE_CONTROL, "no-cache")
"""Header of the page and of files that are requested without their version, because the gateway may be a newer one."""

PACKED_FROM_BYTES = 10_000
"""Smaller files are sent as they are."""

KEPT = (hdrs.CACHE_CONTROL, "public, max-age=31536000, immutable")


class File(NamedTuple):
    """A file and its entity tag."""

    headers: tuple[tuple[str, str], ...]
    etag: str
    content: bytes


def _file(name: str, content: bytes) -> File:
    etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    content_type = CONTENT_TYPES[PurePath(name).suffix]
    return File(((hdrs.CONTENT_TYPE, content_type), *HEADERS, (hdrs.ETAG, etag)), etag, content)


def _packed(file: File) -> File:
    etag = f'{file.etag[:-1]}-gzip"'
    headers = [(name, etag if name == hdrs.ETAG else value) for name, value in file.headers]
    return File((*headers, (hdrs.CONTENT_ENCODING, "gzip")), etag, gzip.compress(file.content, 6, mtime=0))


class StaticPage:
    """The page at `path` and its files below. They hold no data, so they need no token."""

    def __init__(self, path: str, folder: Path) -> None:
        self._path = path
        self._folder = folder
        self._packed_files: dict[str, File] = {}
        """Large files that browsers have asked for, compressed."""

    @cached_property
    def _files(self) -> tuple[str, Mapping[str, File]]:
        """The version, and the files by name."""
        files = sorted(self._folder.iterdir())
        contents = {file.name: file.read_bytes() for file in files if file.suffix in CONTENT_TYPES}
        contents |= self.made_from(contents)
        version = hashlib.sha256(b"\0".join(contents.values())).hexdigest()[:16]
        at = self._path.removeprefix("/")
        contents[INDEX] = contents[INDEX].replace(f'="{at}/'.encode(), f'="{at}/{version}/'.encode())
        return version, {name: _file(name, content) for name, content in contents.items()}

    def routes(self) -> list[web.RouteDef]:
        return [web.get(self._path, self.show_page), web.get(f"{self._path}/{{file:.*}}", self.show_file)]

    def made_from(self, contents: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """Further files of the page, made from those of its folder; all by name."""
        return {}

    def why_off(self, services: Services) -> str | None:
        """Why this gateway does not serve the page; None: it does."""
        return None

    async def show_page(self, request: web.Request) -> web.StreamResponse:
        return await self._show(request, INDEX)

    async def show_file(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["file"]
        if not name:  # the page's links are relative, so that it may have a path prefix
            return Whole(308, [(hdrs.LOCATION, f"..{self._path}")], b"")
        version, _, name = name.rpartition("/")
        # Of another version, too: behind one address gateways of two versions may answer while they are replaced.
        if version and not VERSION.fullmatch(version):
            name = ""
        return await self._show(request, name, version)

    async def _show(self, request: web.Request, name: str, version: str = "") -> Whole:
        context = request[CONTEXT]
        if (reason := self.why_off(context.parts)) is not None:
            raise NotFound(reason)
        own_version, files = await asyncio.to_thread(lambda: self._files)
        cache_control = KEPT if version == own_version else REVALIDATED
        if (file := files.get(name)) is None:
            raise NotFound(f"{self._path} has no such file ({request.rel_url.raw_path[:200]}).")
        context.is_quiet = True
        accepted = [each.strip() for each in request.headers.get(hdrs.ACCEPT_ENCODING, "").split(",")]
        if len(file.content) >= PACKED_FROM_BYTES and "gzip" in accepted:
            if name not in self._packed_files:
                self._packed_files[name] = _packed(file)
            file = self._packed_files[name]
        known = request.headers.get(hdrs.IF_NONE_MATCH, "")
        if file.etag in [each.strip().removeprefix("W/") for each in known.split(",")]:
            return Whole(304, (*file.headers, cache_control), b"")
        return Whole(200, (*file.headers, cache_control), file.content)
