"""The operations of the admin API on people: they show their windows, and change the quotas and the access of one."""

from __future__ import annotations

from collections.abc import Iterable

from aiohttp import web

from gateway.config.sections import MAX_PERSON
from gateway.keys.manage_people import BY_OPERATOR
from gateway.web.admin.common import AdminAccess, actor, changed, page_limit_of, paged, read, shown
from gateway.web.admin.operations import MAX_ROWS, PAGE_ROWS, PEOPLE
from gateway.web.admin.permissions import read_permissions
from gateway.web.admin.request_bodies import Quotas, RequestBody
from gateway.web.openapi.operation import JSON, WARNINGS, Operation, Schema, in_path, in_query, named
from gateway.web.wings import WingEndpoints

from .people import limits_of

ONE = f"{PEOPLE}/{{person}}"
END, GIVE = f"{ONE}/end_access", f"{ONE}/give_access"


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
        yield self._access.change("POST", END, self.end_access)
        yield self._access.change("POST", GIVE, self.give_access)

    async def list_people(self, request: web.Request) -> web.StreamResponse:
        """Owners of keys and people of the file: `limit=100&after=NAME`."""
        query = request.query
        return await paged(
            await limits_of(self._access.registry).list_people(query.get("after", ""), page_limit_of(query))
        )

    async def show_person(self, request: web.Request) -> web.StreamResponse:
        return shown(await limits_of(self._access.registry).show_person(request.match_info["person"]))

    async def update_person(self, request: web.Request) -> web.StreamResponse:
        """Give her quotas of her own."""
        changes = await read(request, UpdatePerson)
        limits = limits_of(self._access.changing(request))
        return changed(request, await limits.update_person(request.match_info["person"], changes, actor(request)))

    async def end_access(self, request: web.Request) -> web.StreamResponse:
        """Refuse all keys, tokens and sessions of a person."""
        return await self._set_access(request, BY_OPERATOR)

    async def give_access(self, request: web.Request) -> web.StreamResponse:
        """Give her access back, whatever has ended it."""
        return await self._set_access(request, None)

    async def _set_access(self, request: web.Request, cause: str | None) -> web.StreamResponse:
        limits, person = limits_of(self._access.changing(request)), request.match_info["person"]
        await limits.set_access(person, cause, actor(request))
        return changed(request, await limits.show_person(person))


_PEOPLE: Schema = {
    "type": "object",
    "properties": {"data": {"type": "array", "items": named("Person")}, "next": {"type": ["string", "null"]}},
    "required": ["data", "next"],
    "additionalProperties": False,
}
_LIMITED: Schema = {
    "type": "object",
    "properties": {
        "object": {"const": "person"}, "name": {"type": "string"}, "role": {"type": ["string", "null"]},
        "keys": {"type": "array", "items": {"type": "string"}}, "access_ended_by": {"type": ["string", "null"]},
        "quotas": {"type": "array", "items": named("QuotaOf")}, "max_parallel": {"type": ["integer", "null"]},
        "on_exceeded": {"enum": ["deny", "shadow"]}, "managed_by": {"enum": ["file", "store", None]},
        "windows": {"type": "array", "items": named("Quota")}, "top_ups": {"type": "array", "items": named("TopUpOf")},
        **WARNINGS,
    },
    "required": [
        "object", "name", "role", "keys", "access_ended_by", "quotas", "max_parallel", "on_exceeded", "managed_by",
        "windows", "top_ups",
    ],
    "additionalProperties": False,
}  # fmt: skip
_PERSON = in_path("person", maxLength=MAX_PERSON)


def _of_access(summary: str) -> Operation:
    answers, person = {JSON: named("Person")}, (in_path("person"),)
    return Operation(summary, "admin", answers, (401, 403, 404, 409, 429), parameters=person)


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
        ("POST", END): _of_access("Refuse all keys, tokens and sessions of a person."),
        ("POST", GIVE): _of_access("Give a person her access back, whatever has ended it."),
    },
    lambda parts: BudgetEndpoints(parts.access).routes(),
    read_permissions("""
                                           operator  lead  member  viewer  key
    GET    /admin/api/people                   all       -     -       all     -
    GET    /admin/api/people/{person}          all       -     -       all     -
    PATCH  /admin/api/people/{person}          all       -     -       -       -
    POST   /admin/api/people/{person}/end_access all     -     -       -       -
    POST   /admin/api/people/{person}/give_access all    -     -       -       -
    """),
    "admin",
    {"Person": _LIMITED},
)
