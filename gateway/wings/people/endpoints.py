"""These routes sign people in and out, and end the sessions of a person, as `gateway people end-sessions` does."""

from __future__ import annotations

from collections.abc import Iterator

from aiohttp import hdrs, web

from gateway.config.sections import MAX_PERSON
from gateway.web.admin.common import AdminAccess, actor, changed
from gateway.web.openapi.operation import JSON, WARNINGS, Operation, Schema, in_path, named
from gateway.web.wings import WebParts, WingEndpoints

from .callers import People

END_SESSIONS = "/admin/api/people/{person}/end_sessions"


class SessionEndpoints:
    """The handlers of one worker."""

    def __init__(self, access: AdminAccess) -> None:
        self._access = access

    def routes(self) -> Iterator[web.RouteDef]:
        yield self._access.change(hdrs.METH_POST, END_SESSIONS, self.end_sessions)
        for each in self._access.callers:
            if isinstance(each, People):
                yield from each.sign_in.routes()

    async def end_sessions(self, request: web.Request) -> web.StreamResponse:
        """End every session that this person has."""
        registry = self._access.changing(request)
        return changed(request, await registry.end_sessions(request.match_info["person"], actor(request)))


def _routes(parts: WebParts) -> Iterator[web.RouteDef]:
    return SessionEndpoints(parts.access).routes()


_ENDED: Schema = {
    "type": "object",
    "properties": {
        "object": {"const": "person"}, "name": {"type": "string"},
        "sessions_ended_at": {"type": "string", "format": "date-time"},
        **WARNINGS,
    },
    "required": ["object", "name", "sessions_ended_at"],
    "additionalProperties": False,
}  # fmt: skip
_SIGNED_OUT: Schema = {
    "type": "object",
    "properties": {"object": {"const": "sign_out"}, "provider_url": {"type": ["string", "null"]}},
    "required": ["object", "provider_url"],
    "additionalProperties": False,
}

ENDPOINTS = WingEndpoints(
    {
        ("GET", "/admin/sign-in"): Operation("To the identity provider.", "public", {}, (404,), status=302),
        ("GET", "/admin/sign-in/callback"): Operation(
            "Back from the identity provider: the session begins.", "public", {}, (401, 403, 404), status=302
        ),
        ("POST", "/admin/sign-out"): Operation(
            "The session is over, everywhere.", "public", {JSON: named("SignOut")}, (401, 403, 404)
        ),
        ("POST", END_SESSIONS): Operation(
            "End every session that a person has.", "admin", {JSON: named("SessionsEnded")},
            (401, 403, 404, 408, 409, 413, 429), parameters=(in_path("person", maxLength=MAX_PERSON),),
        ),
    },
    _routes,
    {("POST", END_SESSIONS): {"operator": "all"}},
    "admin",
    {"SessionsEnded": _ENDED, "SignOut": _SIGNED_OUT},
)  # fmt: skip
