"""The operations of the admin API that show people with their windows, and give one of them quotas of her own."""

from __future__ import annotations

from collections.abc import Iterable

from aiohttp import web

from gateway.config.sections import MAX_PERSON
from gateway.identity.permissions import read_permissions
from gateway.web.admin.common import AdminAccess, actor, changed, page_limit_of, paged, read, shown
from gateway.web.admin.operations import MAX_ROWS, PAGE_ROWS, PEOPLE
from gateway.web.admin.request_bodies import Quotas, RequestBody
from gateway.web.openapi.operation import JSON, Operation, Schema, in_path, in_query, named
from gateway.web.wings import WingEndpoints

ONE = f"{PEOPLE}/{{person}}"


class UpdatePerson(RequestBody):
    """Quotas of a person over all her keys; null: those of her role or of everyone."""

    quotas: Quotas | None


class BudgetEndpoints:
    """The handlers of one worker."""

    def __init__(self, access: AdminAccess) -> None:
        self._access = access

    def routes(self) -> Iterable[web.RouteDef]:
        yield self._access.get(PEOPLE, self.list_people)
        yield self._access.get(ONE, self.show_person)
        yield self._access.change("PATCH", ONE, self.update_person)

    async def list_people(self, request: web.Request) -> web.StreamResponse:
        """Owners of keys and people of the file: `limit=100&after=NAME`."""
        query = request.query
        return await paged(await self._access.registry.list_people(query.get("after", ""), page_limit_of(query)))

    async def show_person(self, request: web.Request) -> web.StreamResponse:
        return shown(await self._access.registry.show_person(request.match_info["person"]))

    async def update_person(self, request: web.Request) -> web.StreamResponse:
        """Give her quotas of her own."""
        changes = await read(request, UpdatePerson)
        registry = self._access.changing(request)
        return changed(request, await registry.update_person(request.match_info["person"], changes, actor(request)))


_PEOPLE: Schema = {
    "type": "object",
    "properties": {"data": {"type": "array", "items": named("Person")}, "next": {"type": ["string", "null"]}},
    "required": ["data", "next"],
    "additionalProperties": False,
}
_PERSON = in_path("person", maxLength=MAX_PERSON)

ENDPOINTS = WingEndpoints(
    {
        ("GET", PEOPLE): Operation(
            "The owners of keys and the people of the file, by name, with their windows.",
            "viewer",
            {JSON: _PEOPLE},
            (401, 429),
            parameters=(
                in_query(
                    "limit", "The most rows of a page.", type="integer", minimum=1, maximum=MAX_ROWS, default=PAGE_ROWS
                ),
                in_query("after", "Only behind this name: `next` of the page before.", type="string"),
            ),
        ),
        ("GET", ONE): Operation(
            "One person.", "viewer", {JSON: named("Person")}, (401, 404, 429), parameters=(_PERSON,)
        ),
        ("PATCH", ONE): Operation(
            "Give a person quotas of her own; null: those of her role or of everyone.",
            "admin",
            {JSON: named("Person")},
            (401, 403, 404, 408, 409, 413, 429),
            UpdatePerson,
            (_PERSON,),
        ),
    },
    lambda parts: BudgetEndpoints(parts.access).routes(),
    read_permissions("""
                                           operator  lead  member  viewer  key
    GET    /admin/api/people                   all       -     -       all     -
    GET    /admin/api/people/{person}          all       -     -       all     -
    PATCH  /admin/api/people/{person}          all       -     -       -       -
    """),
    "admin",
)
