"""The provider of a run: it keeps each sale by the number of its call, and can bill an answer that it does not send."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping
from decimal import Decimal

from aiohttp import web

from gateway.simulator import Settings
from gateway.simulator.requests import SimulatedCall
from gateway.simulator.server import CALL_ID, ServedCall
from gateway.wings.billing.simulated_vendor import BillingSimulator, Rates, Sale, key_id, usd_of

from .plan import DEARER, DEARER_BY_PERCENT, ENDPOINTS, PRICES

ADMIN = "sk-admin-of-the-provider-of-a-run"
NUMBER = re.compile(rb"call (\d{6}) ")


def list_rates(model: str) -> Rates:
    """The rates before noon, which are those of the gateway, too."""
    return {name: Decimal(str(price)) for name, price in PRICES[model].items()}


class Provider(BillingSimulator):
    """`noon` is the Unix time from which one model is dearer; `unpaid` are the numbers of calls that are billed and
    answered with an error."""

    def __init__(self, unpaid: Collection[int]) -> None:
        models = {model: ENDPOINTS.get(model, "chat").replace("responses", "chat") for model in PRICES}
        super().__init__(Settings(models=models), ADMIN, self._at)
        self.noon = float("inf")
        self.sales: defaultdict[int, list[Sale]] = defaultdict(list)
        """The sales by the number of the call."""
        self._unpaid = frozenset(unpaid)
        self._numbers: dict[str, int] = {}

    def _at(self, model: str, time: float) -> Rates:
        rates = list_rates(model)
        if model != DEARER or time < self.noon:
            return rates
        return {name: price * (100 + DEARER_BY_PERCENT) / 100 for name, price in rates.items()}

    async def read(self, request: web.Request, endpoint: str) -> SimulatedCall:
        """The body of a call. Raises `APIError`."""
        found = NUMBER.search(await request.read())
        assert found is not None
        self._numbers[request[CALL_ID]] = int(found[1])
        return await super().read(request, endpoint)

    def is_lost(self, entry: ServedCall) -> bool:
        """Whether the answer to a call is made and billed, and an error in place of it."""
        return self._numbers[entry.id] in self._unpaid

    def sale_of(self, entry: ServedCall) -> Sale | None:
        """The sale of an ended call; None: it has no usage."""
        number, sale = self._numbers.pop(entry.id, None), super().sale_of(entry)
        if number is not None and sale is not None:
            self.sales[number].append(sale)
        return sale


def sold_usd(sales: Mapping[int, list[Sale]], number: int) -> Decimal:
    """The money that a call was billed at."""
    return sum((sum(sale.usd, Decimal(0)) for sale in sales.get(number, ())), Decimal(0))


def at_list_price(sales: Mapping[int, list[Sale]], number: int) -> Decimal:
    """The same at the prices before noon."""
    priced = [usd_of(list_rates(sale.model), sale.tokens) for sale in sales.get(number, ())]
    return sum((sum(usd, Decimal(0)) for usd in priced), Decimal(0))


def is_of(sales: Mapping[int, list[Sale]], number: int, secret: str) -> bool:
    """Whether all sales of a call are to the key with this secret."""
    return {sale.key for sale in sales.get(number, ())} == {key_id(secret)}
