"""Operations of the admin API by which an operator ends the access of a person, or gives it back."""

from __future__ import annotations

from collections.abc import Iterable

from aiohttp import web

from gateway.keys.manage_people import BY_OPERATOR
from gateway.web.admin.common import AdminAccess, actor, changed
from gateway.web.openapi.operation import JSON, Operation, in_path, named
from gateway.web.wings import WingEndpoints

END, GIVE = "/admin/api/people/{person}/end_access", "/admin/api/people/{person}/give_access"


class AccessEndpoints:
    """The handlers of one worker."""

    def __init__(self, access: AdminAccess) -> None:
        self._access = access

    def routes(self) -> Iterable[web.RouteDef]:
        yield self._access.change("POST", END, self.end)
        yield self._access.change("POST", GIVE, self.give)

    async def end(self, request: web.Request) -> web.StreamResponse:
        """Refuse all keys, tokens and sessions of a person."""
        return await self._set(request, BY_OPERATOR)

    async def give(self, request: web.Request) -> web.StreamResponse:
        """Give her access back, whatever has ended it."""
        return await self._set(request, None)

    async def _set(self, request: web.Request, cause: str | None) -> web.StreamResponse:
        registry, person = self._access.changing(request), request.match_info["person"]
        await registry.set_access(person, cause, actor(request))
        return changed(request, await registry.show_person(person))


def _operation(summary: str) -> Operation:
    answers, person = {JSON: named("Person")}, (in_path("person"),)
    return Operation(summary, "admin", answers, (401, 403, 404, 409, 429), parameters=person)


ENDPOINTS = WingEndpoints(
    {
        ("POST", END): _operation("Refuse all keys, tokens and sessions of a person."),
        ("POST", GIVE): _operation("Give a person her access back, whatever has ended it."),
    },
    lambda parts: AccessEndpoints(parts.access).routes(),
    {("POST", END): {"operator": "all"}, ("POST", GIVE): {"operator": "all"}},
    "admin",
)
