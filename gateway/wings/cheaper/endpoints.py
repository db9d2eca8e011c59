"""These operations of the admin API show and give the steps of a key, a team or a person."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from aiohttp import hdrs, web
from pydantic import Field

from gateway.config.sections import MAX_PERSON
from gateway.web.admin.common import AdminAccess, actor, changed, read, shown
from gateway.web.admin.permissions import read_permissions
from gateway.web.admin.request_bodies import Positive, RequestBody
from gateway.web.openapi.operation import JSON, Operation, Schema, in_path
from gateway.web.wings import WingEndpoints

from .steps import StepManager

OF_KEY = "/admin/api/keys/{id}/when_above"
OF_TEAM = "/admin/api/teams/{name}/when_above"
OF_PERSON = "/admin/api/people/{person}/when_above"
SCOPES: Mapping[str, str] = {OF_KEY: "key:{id}", OF_TEAM: "team:{name}", OF_PERSON: "person:{person}"}


class StepBody(RequestBody):
    """A body has one step: the share of a quota of money from which on another model serves."""

    share: float | str
    use: Annotated[str, Field(min_length=1)]
    model: Annotated[str, Field(min_length=1)] = "*"
    max_prompt_tokens: Positive | None = None


class PutSteps(RequestBody):
    """The steps are its own; an empty list has none; null takes those of the role or of all others."""

    steps: Annotated[list[StepBody], Field(max_length=100)] | None


class StepEndpoints:
    """The handlers of one worker."""

    def __init__(self, access: AdminAccess) -> None:
        self._access = access

    def routes(self) -> Iterable[web.RouteDef]:
        for path in SCOPES:
            yield self._access.get(path, self.show)
            yield self._access.change(hdrs.METH_PUT, path, self.put)

    async def show(self, request: web.Request) -> web.StreamResponse:
        manager: StepManager = self._access.registry.viewed_as(StepManager)
        return shown(await manager.show_steps(_scope(request)))

    async def put(self, request: web.Request) -> web.StreamResponse:
        """Give steps, or take them away."""
        body = await read(request, PutSteps)
        registry = self._access.changing(request)
        manager: StepManager = registry.viewed_as(StepManager).warning(registry.warn)
        return changed(request, await manager.set_steps(_scope(request), body["steps"], actor(request)))


def _scope(request: web.Request) -> str:
    route = request.match_info.route.resource
    assert route is not None
    return SCOPES[route.canonical].format(**request.match_info)


_STEP: Schema = {
    "type": "object",
    "properties": {
        "share": {"type": "number"}, "use": {"type": "string"}, "model": {"type": "string"},
        "max_prompt_tokens": {"type": "integer"},
    },
    "required": ["share", "use"],
    "additionalProperties": False,
}  # fmt: skip
_ANSWER: Mapping[str, Schema] = {
    JSON: {
        "type": "object",
        "properties": {
            "object": {"const": "when_above"}, "scope": {"type": "string"},
            "steps": {"type": "array", "items": _STEP}, "managed_by": {"enum": ["file", "store", None]},
            "warnings": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["object", "scope", "steps", "managed_by"],
        "additionalProperties": False,
    },
}  # fmt: skip


def _operations(path: str, whose: str, parameter: Any) -> Mapping[tuple[str, str], Operation]:
    return {
        ("GET", path): Operation(
            f"The steps to a cheaper model of {whose}.", "viewer", _ANSWER, (401, 403, 404, 429),
            parameters=(parameter,),
        ),
        ("PUT", path): Operation(
            f"Give {whose} steps to a cheaper model of its own; null: those of all others.", "admin", _ANSWER,
            (401, 403, 404, 408, 409, 413, 429), PutSteps, (parameter,),
        ),
    }  # fmt: skip


ENDPOINTS = WingEndpoints(
    {
        **_operations(OF_KEY, "a key", in_path("id")),
        **_operations(OF_TEAM, "a team", in_path("name")),
        **_operations(OF_PERSON, "a person", in_path("person", maxLength=MAX_PERSON)),
    },
    lambda parts: StepEndpoints(parts.access).routes(),
    read_permissions("""
                                                 operator  lead  member  viewer  key
    GET    /admin/api/keys/{id}/when_above       all       team  own     all     own
    PUT    /admin/api/keys/{id}/when_above       all       team  -       -       -
    GET    /admin/api/teams/{name}/when_above    all       team  -       all     -
    PUT    /admin/api/teams/{name}/when_above    all       -     -       -       -
    GET    /admin/api/people/{person}/when_above all       -     -       all     -
    PUT    /admin/api/people/{person}/when_above all       -     -       -       -
    """),
    "admin",
)
