"""The admin API: what was used, by whom, and what is left; who may use what; and every change of it.

One desk for each kind of thing, behind one door (admin_office). They keep nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiohttp import web

from gateway.registry import Registry

from .admin_audit import Audit
from .admin_gateway import Ask, WholeGateway
from .admin_keys import Keys
from .admin_limits import Limits
from .admin_live import Live
from .admin_office import Office
from .admin_reports import Reports
from .admin_teams import Teams
from .tokens import Gate


class Admin:
    """All desks of one worker."""

    def __init__(self, registry: Registry, gate: Gate, scrape: Callable[[], Awaitable[bytes]], ask: Ask) -> None:
        office = Office(registry, gate)
        self._desks = (
            Reports(office), Live(office, scrape), Keys(office), Teams(office), Limits(office), Audit(office),
            WholeGateway(office, ask),
        )  # fmt: skip

    def routes(self) -> list[web.RouteDef]:
        """Every route."""
        return [route for desk in self._desks for route in desk.routes()]
