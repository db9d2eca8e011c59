"""Keys: handed out, shown, changed, given another secret, revoked. The same as `gateway keys`, over HTTP."""

from __future__ import annotations

from aiohttp import hdrs, web

from gateway.keys.registry import CreatedKey
from gateway.web.responses import Whole

from . import request_bodies
from .common import AdminAccess, actor, page_limit_of, paged, read, shown


class KeyEndpoints:
    """`/admin/api/keys`. A secret is shown once, in the answer that created it."""

    def __init__(self, office: AdminAccess) -> None:
        self._office = office
        self._registry = office.registry

    def routes(self) -> list[web.RouteDef]:
        """Every route."""
        all_keys, one = "/admin/api/keys", "/admin/api/keys/{id}"
        return [
            self._office.get(all_keys, self.list_keys),
            self._office.change(hdrs.METH_POST, all_keys, self.create_key),
            self._office.get(one, self.show_key),
            self._office.change(hdrs.METH_PATCH, one, self.update_key),
            self._office.change(hdrs.METH_DELETE, one, self.revoke_key),
            self._office.change(hdrs.METH_POST, f"{one}/rotate", self.rotate_key),
        ]

    async def list_keys(self, request: web.Request) -> web.StreamResponse:
        """Keys of file and store: `limit=100&after=ID&team=NAME`."""
        query = request.query
        return await paged(
            await self._registry.list_keys(query.get("after", ""), page_limit_of(query), query.get("team"))
        )

    async def create_key(self, request: web.Request) -> web.StreamResponse:
        """201, with the secret beside what the key may do."""
        wish = await read(request, request_bodies.CreateKey)
        return _issued(await self._registry.create_key(wish, actor(request)), 201)

    async def show_key(self, request: web.Request) -> web.StreamResponse:
        """One key."""
        return shown(await self._registry.show_key(request.match_info["id"]))

    async def update_key(self, request: web.Request) -> web.StreamResponse:
        """Replace the settings that are named."""
        changes = await read(request, request_bodies.UpdateKey)
        return shown(await self._registry.update_key(request.match_info["id"], changes, actor(request)))

    async def rotate_key(self, request: web.Request) -> web.StreamResponse:
        """A new secret: `{"overlap_s": 3600}`; without an overlap the one before is dead at once."""
        overlap_s = (await read(request, request_bodies.RotateKey)).get("overlap_s", 0)
        return _issued(await self._registry.rotate_key(request.match_info["id"], overlap_s, actor(request)))

    async def revoke_key(self, request: web.Request) -> web.StreamResponse:
        """Refuse it for ever."""
        return shown(await self._registry.revoke_key(request.match_info["id"], actor(request)))


def _issued(issued: CreatedKey, status: int = 200) -> Whole:
    return shown(issued.key | {"secret": issued.secret}, status)
