"""People as callers: of the admin API by a session, of the data plane by a signed token."""

from __future__ import annotations

from aiohttp import web

from gateway.keys.registry import Registry
from gateway.pipeline import Services
from gateway.records import Key
from gateway.web.callers import Visitor, WingCallers

from .person_tokens import PersonTokens, is_signed_token
from .records import PeopleRecords
from .settings import JwtSettings, settings_of
from .signing_in import SignIn


class People:
    """The people who call one worker."""

    def __init__(self, registry: Registry) -> None:
        records: PeopleRecords = registry.viewed_as(PeopleRecords)
        self.sign_in = SignIn(records)
        self._tokens = PersonTokens(records)

    async def key_of(self, secret: str, services: Services, remote: str | None) -> Key | None:
        settings = settings_of(services.config, JwtSettings)
        if settings is None or not is_signed_token(secret):
            return None
        return await self._tokens.caller(secret, settings, services, remote)

    async def visitor(self, request: web.Request) -> Visitor | None:
        return await self.sign_in.visitor(request)

    async def close(self) -> None:
        await self.sign_in.close()
        await self._tokens.close()


CALLERS = WingCallers(People)
