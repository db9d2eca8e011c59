"""The question of `gateway check --online` to billing APIs."""

from __future__ import annotations

import time
from collections.abc import Sequence

from gateway.commands.online import Asked, WingQuestion
from gateway.config import Config

from .account import PROVIDERS, read_bill
from .bill import BillFault
from .settings import BillingSettings

DAYS = 2


async def ask(config: Config) -> Sequence[Asked]:
    """The bill of the last two days, which spends nothing."""
    asked = []
    for name, source in config.section(BillingSettings).upstreams.items():
        address = source.base_url or PROVIDERS[source.provider].BASE_URL
        what = f"billing.upstreams.{name}, the bill at {address}"
        if name not in config.upstreams:
            continue
        try:
            bill = await read_bill(source, config.upstreams[name], time.time(), DAYS, waits=())
        except BillFault as error:
            asked.append(Asked(what, str(error), is_good=False))
            continue
        asked.append(Asked(what, f"read, with {len({model for _, model in bill.rows})} models since {bill.since}"))
    return asked


QUESTION = WingQuestion(ask)
