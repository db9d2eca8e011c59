"""The served models: each model of the configuration in use with its routes, price and settings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from aiohttp import web

from gateway.config import Model, is_pattern
from gateway.quota.pricing import current_rows

from .common import AdminAccess, listed, parts_of

SHOWN_APART = {"routes", "endpoints", "price", "table_prices"}


class ModelEndpoints:
    """Serves the list of models at `/admin/api/models`."""

    def __init__(self, access: AdminAccess) -> None:
        self._access = access

    def routes(self) -> list[web.RouteDef]:
        return [self._access.get("/admin/api/models", self.list_models)]

    async def list_models(self, request: web.Request) -> web.StreamResponse:
        """Every model and pattern, those that upstreams list among them, in the order of the configuration."""
        parts = parts_of(request)
        config, now = parts.config, parts.clock.now()
        names: dict[str, list[str]] = {}
        for alias, name in config.aliases.items():
            names.setdefault(name, []).append(alias)
        # A generator: `listed` formats in a thread, and discovered models may be thousands.
        return await listed(_row(name, model, names.get(name, ()), now) for name, model in config.models.items())


def _row(name: str, model: Model, aliases: Iterable[str], now: float) -> dict[str, Any]:
    return {
        "name": name,
        "is_pattern": is_pattern(name),
        "aliases": [*aliases],
        "endpoints": [*model.endpoints],
        "routes": [route.model_dump() for route in model.routes],
        **_price(model, now),
        "settings": model.model_dump(mode="json", exclude=SHOWN_APART, exclude_defaults=True),
    }


def _price(model: Model, now: float) -> dict[str, Any]:
    """The rates in US dollars that hold now, and their source. A pattern may have prices by name instead;
    `priced_names` is their number."""
    price = model.price
    return {
        "price": current_rows(price, now),
        "price_source": None if price is None else price.source or "configured",
        "priced_names": len(model.table_prices),
    }
