"""The admin API of a running gateway, with the methods of a registry and a store that commands use."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import aiohttp

from gateway import untrusted_json
from gateway.config.sections import is_safe_url
from gateway.errors import GatewayError, InvalidRequest
from gateway.keys.registry import CreatedKey, Page, Shown

from .common import PAGE, newest_rows, warn

T = TypeVar("T")

WITHIN_S = 60.0


class RemoteRefused(GatewayError):
    """The gateway refused the request, or did not answer as one does."""


def on_gateway(url: str, token: str, work: Callable[[RemoteRegistry], Awaitable[T]]) -> T:
    """The result of `work` on a running gateway. Raises `GatewayError`."""
    if not is_safe_url(url):
        print(f"gateway: {url} is not encrypted, and the token travels readable", file=sys.stderr)

    async def run() -> T:
        async with aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {token}"}, timeout=aiohttp.ClientTimeout(total=WITHIN_S),
            trust_env=True, cookie_jar=aiohttp.DummyCookieJar(),
        ) as session:  # fmt: skip
            return await work(RemoteRegistry(url, session))

    return asyncio.run(run())


class RemoteRegistry:
    """Answers like `Registry`, for the operations of commands. `actor` is not sent: the token names the author."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self._url = url
        self._session = session

    # ------------------------------------------------------------------------------------------------------------ keys

    async def create_key(self, body: Mapping[str, Any], actor: str) -> CreatedKey:
        return _created(await self.ask("POST", "keys", body))

    async def list_keys(self, after: str = "", limit: int = 100, team: str | None = None) -> Page:
        return await self._page("keys", after=after, limit=limit, team=team)

    async def show_key(self, name: str) -> Shown:
        return await self.ask("GET", _at("keys", name))

    async def update_key(self, name: str, changes: Mapping[str, Any], actor: str) -> Shown:
        return await self.change("PATCH", _at("keys", name), changes)

    async def rotate_key(self, name: str, overlap_s: float, actor: str) -> CreatedKey:
        return _created(await self.ask("POST", f"{_at('keys', name)}/rotate", {"overlap_s": overlap_s}))

    async def pause_key(self, name: str, role: str, takes_over: Callable[[str], bool], actor: str) -> Shown:
        """The gateway uses the role of the token instead of `role`."""
        return await self.change("POST", f"{_at('keys', name)}/pause")

    async def resume_key(self, name: str, check: Callable[[str], None], actor: str) -> Shown:
        """The gateway checks the role of the token; `check` is not called."""
        return await self.change("POST", f"{_at('keys', name)}/resume")

    async def revoke_key(self, name: str, actor: str) -> Shown:
        return await self.change("DELETE", _at("keys", name))

    async def delete_key(self, name: str, actor: str) -> None:
        await self.change("POST", f"{_at('keys', name)}/delete")

    # ----------------------------------------------------------------------------------------------------------- teams

    async def create_team(self, body: Mapping[str, Any], actor: str) -> Shown:
        return await self.change("POST", "teams", body)

    async def list_teams(self, after: str = "", limit: int = 100) -> Page:
        return await self._page("teams", after=after, limit=limit)

    async def show_team(self, name: str) -> Shown:
        return await self.ask("GET", _at("teams", name))

    async def update_team(self, name: str, changes: Mapping[str, Any], actor: str) -> Shown:
        return await self.change("PATCH", _at("teams", name), changes)

    async def delete_team(self, name: str, actor: str) -> None:
        await self.change("DELETE", _at("teams", name))

    # --------------------------------------------------------------------------------------------- windows and reports

    async def reset_quotas(self, scope: str, which: Mapping[str, Any], actor: str) -> list[Shown]:
        return _rows(await self.change("POST", *_of_owner(scope, "reset", which)))

    async def top_up(self, scope: str, grant: Mapping[str, Any], actor: str) -> list[Shown]:
        return _rows(await self.change("POST", *_of_owner(scope, "top_up", grant)))

    async def audit(self, limit: int = 100, before: str | None = None) -> Page:
        return await self._page("audit", limit=limit, before=before)

    async def usage(
        self, groups: Sequence[str], since: str | None, until: str | None, **filters: str | None
    ) -> AsyncIterator[list[Shown]]:
        """Every row of a usage report, page by page."""
        after: str | None = None
        while True:
            query = {"group_by": ",".join(groups), "since": since, "until": until, "limit": PAGE, "after": after}
            page = await self._page("usage", **query, **filters)
            yield page.rows
            if (after := page.next) is None:
                return

    async def newest(self, path: str, limit: int, **filters: str | None) -> list[Shown]:
        """The newest `limit` rows of a list that is read backwards."""

        async def turn(size: int, before: str | None) -> tuple[list[Shown], str | None]:
            page = await self._page(path, limit=size, before=before, **filters)
            return page.rows, page.next

        return await newest_rows(limit, turn)

    async def upstreams(self) -> list[Shown]:
        return _rows(await self.ask("GET", "upstreams"))

    async def request(self, name: str) -> Shown:
        """The call or the refusal with this id, as the API shows it."""
        return await self.ask("GET", f"requests/{quote(name, safe='')}")

    # -------------------------------------------------------------------------------------------------------- requests

    async def _page(self, path: str, **query: Any) -> Page:
        found = await self.ask("GET", path + _query(**query))
        return Page(_rows(found), found.get("next"))

    async def change(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Shown:
        """Writes the warnings of a change to standard error. Raises `GatewayError`."""
        found = await self.ask(method, path, body)
        for warning in found.pop("warnings", ()):
            warn(str(warning))
        return found

    async def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Shown:
        """The JSON of a good answer. Raises `GatewayError`."""
        data = None if body is None else json.dumps(body, default=_plain)
        headers = {} if data is None else {"Content-Type": "application/json"}
        host = urlsplit(self._url).netloc.rpartition("@")[2]
        try:
            async with self._session.request(
                method, f"{self._url}/admin/api/{path}", data=data, headers=headers, allow_redirects=False
            ) as answer:
                text = await answer.text()
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise RemoteRefused(f"{host} does not answer ({type(error).__name__})") from None
        try:
            found = untrusted_json.parse(text)
            refusal = found["error"]["message"] if answer.status >= 400 else None
        except (ValueError, LookupError, TypeError):
            raise RemoteRefused(f"{host} answers with status {answer.status}, and not as a gateway does") from None
        if not isinstance(found, dict) or answer.status not in (200, 201, 400, 401, 403, 404, 409, 413, 429, 503):
            raise RemoteRefused(f"{host} answers with status {answer.status}")
        if refusal is not None:
            raise (InvalidRequest if answer.status == 400 else RemoteRefused)(str(refusal))
        return found


def _plain(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


def _created(found: Shown) -> CreatedKey:
    secret, warnings = found.pop("secret"), found.pop("warnings", ())
    return CreatedKey(found, secret, tuple(warnings))


def _rows(found: Shown) -> list[Shown]:
    return list(found["data"])


def _query(**values: Any) -> str:
    given = {name: value for name, value in values.items() if value is not None and (value != "" or name == "group_by")}
    return f"?{urlencode(given)}" if given else ""


def _at(kind: str, name: str) -> str:
    return f"{kind}/{quote(name, safe='')}"


def _member(name: str) -> str:
    team, _, person = name.partition("/")
    return f"{_at('teams', team)}/members/{quote(person, safe='')}"


def _of_owner(scope: str, change: str, body: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """The path and the body of a change of windows; scopes without a path of their own are in the body."""
    kind, _, name = scope.partition(":")
    if kind == "member":
        return f"{_member(name)}/{change}", body
    if (kinds := {"key": "keys", "team": "teams", "person": "people"}.get(kind)) is not None:
        return f"{_at(kinds, name)}/{change}", body
    return f"quotas/{change}", body if scope == "gateway" else {**body, "scope": scope}
