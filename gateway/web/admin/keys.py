"""Keys, teams, their windows and the audit log: the same as `gateway keys`, `teams` and `audit`, over HTTP.

Resets and top-ups are the same operations for each kind of owner: `/admin/api/keys/{id}/...`,
`/admin/api/teams/{name}/...`, and `/admin/api/quotas/...` for the windows of the whole gateway. Each answers with the
new state of the owner's windows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from aiohttp import hdrs, web

from gateway.config import KeySettings
from gateway.config.quantities import read_duration_s
from gateway.keys.manage_keys import ChecksChange, permits_any

from . import request_bodies
from .common import SCOPE, VISITOR, AdminAccess, actor, changed, page_limit_of, paged, parts_of, read, shown
from .operations import ANY
from .permissions import Scope, may_resume, raised, role_refused

OWN_ROTATION_S = 3600
"""Minimum time between a rotation and one by the key itself, so that a leaked key cannot fill the audit log."""


class KeyEndpoints:
    """`/admin/api/keys`. A secret is shown once, in the answer that created it."""

    def __init__(self, access: AdminAccess) -> None:
        self._access = access
        self._registry = access.registry
        self._lock = asyncio.Lock()

    def routes(self) -> list[web.RouteDef]:
        all_keys, one = "/admin/api/keys", "/admin/api/keys/{id}"
        return [
            self._access.get(all_keys, self.list_keys),
            self._access.change(hdrs.METH_POST, all_keys, self.create_key),
            self._access.get(one, self.show_key),
            self._access.change(hdrs.METH_PATCH, one, self.update_key),
            self._access.change(hdrs.METH_DELETE, one, self.revoke_key),
            self._access.change(hdrs.METH_POST, f"{one}/rotate", self.rotate_key),
            self._access.change(hdrs.METH_POST, f"{one}/pause", self.pause_key),
            self._access.change(hdrs.METH_POST, f"{one}/resume", self.resume_key),
            self._access.change(hdrs.METH_POST, f"{one}/delete", self.delete_key),
        ]

    async def list_keys(self, request: web.Request) -> web.StreamResponse:
        """Keys of file and store: `limit=100&after=ID&team=NAME`."""
        query, scope = request.query, request[SCOPE]
        after, limit, team = query.get("after", ""), page_limit_of(query), query.get("team")
        return await paged(await self._registry.list_keys(after, limit, team, scope.covers, scope.groups))

    async def create_key(self, request: web.Request) -> web.StreamResponse:
        """201, with the secret beside what the key may do."""
        body, scope = await read(request, request_bodies.CreateKey), request[SCOPE]
        async with self._lock:  # one after the other: each counts the keys that there are
            if scope.reach == "own":
                body = await request[VISITOR].with_member_settings(body)
            else:
                check_settings(body, scope, is_new=True)
                await self._check_owner(body, scope)
            made = await self._access.changing(request).create_key(
                body, actor(request), raises_nothing(request), sees_all=scope.is_all
            )
        shown_once = made.key | {"secret": made.secret} | ({"warnings": made.warnings} if made.warnings else {})
        return changed(request, shown_once, 201)

    async def _check_owner(self, body: Mapping[str, Any], scope: Scope) -> None:
        """Raises `Forbidden` for a lead who names a person of another team, whose quotas such a key would spend."""
        owner, team = body.get("owner"), scope.principal.team
        if scope.is_all or not isinstance(owner, str) or not await self._registry.is_bound_elsewhere(owner, team):
            return
        raise role_refused(
            f"Only an operator can give a first key in the team '{team}' to a person with keys elsewhere: her quotas "
            "bind them all.",
            "owner",
        )

    async def show_key(self, request: web.Request) -> web.StreamResponse:
        return shown(await self._registry.show_key(request.match_info["id"]))

    async def update_key(self, request: web.Request) -> web.StreamResponse:
        """Replace the settings that are named."""
        changes = await read(request, request_bodies.UpdateKey)
        check_settings(changes, request[SCOPE])
        await self._check_owner(changes, request[SCOPE])
        name, check = request.match_info["id"], raises_nothing(request)
        registry, sees_all = self._access.changing(request), request[SCOPE].is_all
        return changed(request, await registry.update_key(name, changes, actor(request), check, sees_all=sees_all))

    async def rotate_key(self, request: web.Request) -> web.StreamResponse:
        """A new secret: `{"overlap_s": 3600}`; without an overlap the one before is dead at once."""
        overlap_s = (await read(request, request_bodies.RotateKey)).get("overlap_s", 0)
        overlap_s = read_duration_s(overlap_s) if isinstance(overlap_s, str) else overlap_s
        if request[SCOPE].principal.role == "key":
            await self._check_rotation_by_key(request, overlap_s)
        registry = self._access.changing(request)
        rotated = await registry.rotate_key(request.match_info["id"], overlap_s, actor(request))
        return changed(request, rotated.key | {"secret": rotated.secret})

    async def _check_rotation_by_key(self, request: web.Request, overlap_s: float) -> None:
        """Raises `Forbidden` where the key would have two secrets or a third one within an hour."""
        if overlap_s:
            raise role_refused("A key that rotates itself has one secret. Leave out 'overlap_s'.", "overlap_s")
        key, now = await self._registry.show_key(request.match_info["id"]), parts_of(request).clock.now()
        rotated = [made for each in key["secrets"] if (made := each["created_at"]) not in (None, key["created_at"])]
        if rotated and now - datetime.fromisoformat(max(rotated)).timestamp() < OWN_ROTATION_S:
            raise role_refused("A key rotates itself once an hour. Ask a lead or an operator.", None)

    async def pause_key(self, request: web.Request) -> web.StreamResponse:
        """Refuse it until it is resumed."""
        role = request[SCOPE].principal.role

        def takes_over(paused_by: str) -> bool:
            return paused_by != role and may_resume(role, paused_by)

        registry = self._access.changing(request)
        return changed(request, await registry.pause_key(request.match_info["id"], role, takes_over, actor(request)))

    async def resume_key(self, request: web.Request) -> web.StreamResponse:
        role = request[SCOPE].principal.role

        def check(paused_by: str) -> None:
            if not may_resume(role, paused_by):
                raise role_refused(f"This key was paused by the role {paused_by}, which has to resume it.", None)

        registry = self._access.changing(request)
        return changed(request, await registry.resume_key(request.match_info["id"], check, actor(request)))

    async def delete_key(self, request: web.Request) -> web.StreamResponse:
        """Take it away, if it was never used."""
        name = request.match_info["id"]
        await self._access.changing(request).delete_key(name, actor(request))
        return changed(request, {"object": "key", "id": name, "deleted": True})

    async def revoke_key(self, request: web.Request) -> web.StreamResponse:
        registry = self._access.changing(request)
        return changed(request, await registry.revoke_key(request.match_info["id"], actor(request)))


def check_settings(body: dict[str, Any], scope: Scope, *, is_new: bool = False) -> None:
    """Fill in the team of a lead's new key. Raises `Forbidden` for settings that lead out of the limits of her team:
    another team or none, and `shadow`, for which no limit is enforced, the team's neither."""
    if scope.is_all:
        return
    if is_new:
        body.setdefault("team", scope.principal.team)
    if body.get("team", scope.principal.team) != scope.principal.team:
        raise role_refused(f"Your keys belong to the team '{scope.principal.team}'. Leave out 'team'.", "team")
    if body.get("on_exceeded") == "shadow":
        raise role_refused("Only an operator can take a key out of all limits (on_exceeded: shadow).", "on_exceeded")


def raises_nothing(request: web.Request) -> ChecksChange:
    """The check of a change of settings that operators alone may raise."""
    config = parts_of(request).config
    labels = [quota.label for quota in config.quotas if quota.label is not None]
    queue = parts_of(request).waiting
    longest_s = queue.longest_of_models_s(config)

    def check(before: KeySettings, after: KeySettings) -> None:
        for label in labels:
            if before.labels.get(label) != after.labels.get(label):
                raise role_refused(
                    f"Only an operator can change the label '{label}': its values have quotas of the whole gateway.",
                    "labels",
                )
        if before.owner not in (None, after.owner):
            raise role_refused(
                f"Only an operator can take this key from its owner, {before.owner}: her quotas bind it.", "owner"
            )
        if (name := raised(before, after, queue.usual_wait_s(), longest_s)) is not None:
            raise role_refused(
                f"Only an operator can raise '{name}': it puts the key before keys of other teams. You may lower it.",
                name,
            )

    return permits_any if request[SCOPE].is_all else check


class TeamEndpoints:
    """Serves `/admin/api/teams` and the paths below it."""

    def __init__(self, access: AdminAccess) -> None:
        self._access = access
        self._registry = access.registry

    def routes(self) -> list[web.RouteDef]:
        all_teams, one = "/admin/api/teams", "/admin/api/teams/{name}"
        return [
            self._access.get(all_teams, self.list_teams),
            self._access.change(hdrs.METH_POST, all_teams, self.create_team),
            self._access.get(one, self.show_team),
            self._access.change(hdrs.METH_PATCH, one, self.update_team),
            self._access.change(hdrs.METH_DELETE, one, self.delete_team),
        ]

    async def list_teams(self, request: web.Request) -> web.StreamResponse:
        """Teams of file and store: `limit=100&after=NAME`."""
        query, scope = request.query, request[SCOPE]
        after, limit = query.get("after", ""), page_limit_of(query)
        return await paged(await self._registry.list_teams(after, limit, scope.covers_team))

    async def create_team(self, request: web.Request) -> web.StreamResponse:
        body = await read(request, request_bodies.CreateTeam)
        return changed(request, await self._access.changing(request).create_team(body, actor(request)), 201)

    async def show_team(self, request: web.Request) -> web.StreamResponse:
        return shown(await self._registry.show_team(request.match_info["name"]))

    async def update_team(self, request: web.Request) -> web.StreamResponse:
        changes = await read(request, request_bodies.UpdateTeam)
        registry = self._access.changing(request)
        return changed(request, await registry.update_team(request.match_info["name"], changes, actor(request)))

    async def delete_team(self, request: web.Request) -> web.StreamResponse:
        """Take it away, if no key belongs to it."""
        name = request.match_info["name"]
        await self._access.changing(request).delete_team(name, actor(request))
        return changed(request, {"object": "team", "name": name, "deleted": True})


OWNERS: Mapping[str, str] = {
    "/admin/api/keys/{id}": "key:{id}",
    "/admin/api/teams/{name}": "team:{name}",
    "/admin/api/teams/{name}/members/{person}": "member:{name}/{person}",
    "/admin/api/people/{person}": "person:{person}",
    ANY: "gateway",
}
"""The owner of the windows, as a scope."""


class QuotaEndpoints:
    """Serves `.../reset` and `.../top_up` of each owner of windows."""

    def __init__(self, access: AdminAccess) -> None:
        self._access = access

    def routes(self) -> list[web.RouteDef]:
        change, ways = self._access.change, {"reset": self.reset, "top_up": self.top_up}
        return [change(hdrs.METH_POST, f"{path}/{way}", ways[way]) for path in OWNERS for way in ways]

    async def reset(self, request: web.Request) -> web.StreamResponse:
        """Count nothing as used at present: `{"unit": "tokens", "per": "day", "model": "gpt-4*"}`, or all of them."""
        kind = request_bodies.ResetAnyQuotas if _path(request) == ANY else request_bodies.ResetQuotas
        which = await read(request, kind)
        scope = _scope(request, which)
        rows = await self._access.changing(request).reset_quotas(scope, which, actor(request))
        return changed(request, {"data": rows})

    async def top_up(self, request: web.Request) -> web.StreamResponse:
        """More in the running day, week or month: `{"tokens": 100000, "per": "day"}`."""
        kind = request_bodies.GrantAnyTopUp if _path(request) == ANY else request_bodies.GrantTopUp
        grant = await read(request, kind)
        rows = await self._access.changing(request).top_up(_scope(request, grant), grant, actor(request))
        return changed(request, {"data": rows})


def _path(request: web.Request) -> str:
    route = request.match_info.route.resource
    return "" if route is None else route.canonical.rpartition("/")[0]


def _scope(request: web.Request, body: dict[str, Any]) -> str:
    """The scope of the path, or the one that the body names, which is taken out."""
    scope = OWNERS[_path(request)].format(**request.match_info)
    return str(body.pop("scope", scope))


class AuditEndpoints:
    """Serves the audit log at `/admin/api/audit`."""

    def __init__(self, access: AdminAccess) -> None:
        self._access = access

    def routes(self) -> list[web.RouteDef]:
        return [self._access.get("/admin/api/audit", self.list_changes)]

    async def list_changes(self, request: web.Request) -> web.StreamResponse:
        """The newest changes first: `limit=100&before=ID`."""
        query = request.query
        return await paged(await self._access.registry.audit(page_limit_of(query), query.get("before")))
