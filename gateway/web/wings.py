"""The endpoints of wings: their routes, and their rows in the tables of operations and permissions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Literal, NamedTuple

from aiohttp import web

from gateway.config import Config
from gateway.formats.format import TaskEnd
from gateway.store import Store
from gateway.web.admin.permissions import PERMISSIONS, Reach, Role
from gateway.wings import parts

from .admin.common import AdminAccess
from .admin.operations import ADMIN_OPERATIONS
from .admin.whole_gateway import Ask
from .capacity import Capacity
from .endpoints import DataPlane
from .large_bodies import LargeBodies
from .middleware import FindsWords, Handler
from .openapi.operation import Operation, Schema
from .status import Status

Place = tuple[str, str]
"""Method and path of an operation."""

Listener = Literal["calls", "admin"]


class WebParts(NamedTuple):
    """The parts of one worker that endpoints of wings use."""

    plane: DataPlane
    """`plane.caller` finds the key of a request."""
    status: Status
    capacity: Capacity
    access: AdminAccess
    """`access.get` and `access.change` make the routes of the admin API; `access.gate` checks other tokens."""
    store: Store
    ask: Ask
    """Asks all workers of this gateway."""
    large_bodies: LargeBodies
    task_ended: Callable[[str, TaskEnd], Awaitable[None]]
    """Settles the lease of a task that has ended."""


class WingEndpoints(NamedTuple):
    """The endpoints of a wing at one listener."""

    operations: Mapping[Place, Operation]
    """Every route has its row here, from which the OpenAPI document is made."""
    routes: Callable[[WebParts], Iterable[web.RouteDef]] = lambda parts: ()
    """Those beside the paths of the wing's formats, which the data plane serves."""
    permissions: Mapping[Place, Mapping[Role, Reach]] = {}
    """The roles of operations of the admin API, as `read_permissions` reads them; without a row, a route checks its
    callers itself."""
    listener: Listener = "calls"
    """`admin`: beside the admin API, which may have a listener of its own."""
    schemas: Mapping[str, Schema] = {}
    """Schemas that operations refer to by these names."""


FindsHandler = Callable[[Config, web.Request], Handler | None]
"""Finds the handler of a request that matches no route; None: it is not one of those that are asked."""


class WingApis(NamedTuple):
    """APIs that a configuration adds to the data plane, with paths that it names."""

    finder: Callable[[WebParts], FindsHandler]
    words: FindsWords


def wing_apis() -> list[WingApis]:
    return parts(WingApis, "endpoints")


def wing_endpoints() -> list[WingEndpoints]:
    return parts(WingEndpoints, "endpoints")


def routes_of_wings(made_of: WebParts, listener: Listener) -> list[web.RouteDef]:
    return [route for each in wing_endpoints() if each.listener == listener for route in each.routes(made_of)]


def permissions() -> Mapping[Place, Mapping[Role, Reach]]:
    """The permissions of the trunk and of all wings."""
    of_wings = {place: roles for each in wing_endpoints() for place, roles in each.permissions.items()}
    return {**PERMISSIONS, **of_wings}


def operations_of_wings() -> Mapping[Place, Operation]:
    """The operations of all wings, at both listeners."""
    return {place: operation for each in wing_endpoints() for place, operation in each.operations.items()}


def admin_operations() -> Mapping[Place, Operation]:
    """The operations of the admin API, those of wings among them."""
    every, allowed = {**ADMIN_OPERATIONS, **operations_of_wings()}, permissions()
    return {place: operation for place, operation in every.items() if place in allowed}


def schemas_of_wings() -> Mapping[str, Schema]:
    return {name: schema for each in wing_endpoints() for name, schema in each.schemas.items()}
