"""The endpoint with the keys whose content is kept, for their owners."""

from __future__ import annotations

from collections.abc import Iterable

from aiohttp import web

from gateway.pipeline.services import disclosures
from gateway.web.admin.common import SCOPE, AdminAccess, parts_of, shown
from gateway.web.admin.permissions import read_permissions
from gateway.web.openapi.operation import JSON, Operation, Schema, in_query
from gateway.web.wings import WingEndpoints

PATH = "/admin/api/content"

_TEXTS: Schema = {"type": "array", "items": {"type": "string"}}


def _exact(**members: Schema) -> Schema:
    return {"type": "object", "properties": members, "required": list(members), "additionalProperties": False}


_CALLS = _exact(
    models={"anyOf": [_TEXTS, {"type": "null"}], "description": "Patterns of models; null: all models."},
    share={"type": "number", "exclusiveMinimum": 0, "maximum": 1},
)
_ROW = _exact(
    key={"type": "string"},
    to={**_TEXTS, "description": "Where prompts and answers go."},
    calls={"type": "array", "items": _CALLS},
)
_ANSWER = _exact(object={"const": "content"}, data={"type": "array", "items": _ROW})


class ContentEndpoints:
    """Lists the keys whose calls are kept."""

    def __init__(self, access: AdminAccess) -> None:
        self._access = access
        self._disclosures = disclosures()  # now: a request does not look for modules

    def routes(self) -> Iterable[web.RouteDef]:
        yield self._access.get(PATH, self.list_kept)

    async def list_kept(self, request: web.Request) -> web.StreamResponse:
        """The keys within reach whose content leaves the gateway, of all calls or a share, by any wing."""
        scope, config = request[SCOPE], parts_of(request).config
        finds = [find for each in self._disclosures if (find := each.of_keys(config)) is not None]
        rows = []
        if finds:
            async for keys in self._access.registry.every_key(is_meant=scope.covers, groups=scope.groups):
                found = [find(key.id, key.team) for key in keys if scope.covers(key) for find in finds]
                rows += [each for each in found if each is not None]
        return shown({"object": "content", "data": rows})


ENDPOINTS = WingEndpoints(
    {
        ("GET", PATH): Operation(
            "The keys whose prompts and answers are kept in the operator's own store, or go to its programs.",
            "viewer",
            {JSON: _ANSWER},
            (401, 429),
            parameters=(in_query("own", "Only the keys of the person who asks.", type="string", enum=["true"]),),
        )
    },
    lambda parts: ContentEndpoints(parts.access).routes(),
    read_permissions("""
                                operator  lead  member  viewer  key
    GET    /admin/api/content   all       team  own     all     own
    """),
    "admin",
)
