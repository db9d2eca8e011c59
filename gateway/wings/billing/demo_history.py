"""The bills of the demo: those of both simulated upstreams agree with the records, but for one day of the first one. On
it another key of the account made calls, and the price of a model was a higher one from noon on."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from decimal import Decimal
from functools import partial
from typing import Any

from aiohttp import web

from gateway import simulator
from gateway.commands.demo import DEMO_MODELS
from gateway.commands.demo_history import SPARE, history
from gateway.commands.simulate import WingDemo
from gateway.config import Config
from gateway.records import Record

from .simulated_vendor import COMPLETIONS, DAY_S, EMBEDDINGS, BillingSimulator, Rates, Sale, key_id, noon, usd_of

ODD_DAY = 4
"""Days since the bill and the records differed."""
DEARER = "claude-sonnet-5"
DEARER_BY = Decimal("1.1")
OTHER_KEY = key_id("a notebook")
OTHER_CALLS = 14
EVERY_S = 60
LIMIT_USD = 60


def _admin_key(upstream_key: str) -> str:
    return f"sk-admin-{upstream_key}"


def _settings(upstreams: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "every": EVERY_S,
        "upstreams": {
            name: {
                "provider": "openai", "base_url": each["base_url"], "api_key": _admin_key(each["api_key"]),
                "key_ids": [key_id(each["api_key"])],
            }
            for name, each in upstreams.items()
        },
    }  # fmt: skip


def _build(upstream: str, config: Config, began: float, settings: simulator.Settings) -> web.Application:
    secret = settings.api_key or ""
    made_before = partial(past, upstream, config, began, key_id(secret))
    return BillingSimulator(settings, _admin_key(secret), _rates, made_before, LIMIT_USD).app()


def past(upstream: str, config: Config, began: float, own: str) -> Iterator[Sale]:
    """The sales of an upstream in the past of the demo, to the key of this id and on the odd day to another one."""
    odd = began // DAY_S * DAY_S - ODD_DAY * DAY_S if upstream != SPARE else None
    for record in history(config, began):
        if record.upstream == upstream and record.usage.prompt_tokens:
            yield _sale(record, own, is_odd=odd is not None and odd <= record.time < odd + DAY_S)
    if odd is not None:
        yield from _others(odd)


def _sale(record: Record, key: str, *, is_odd: bool) -> Sale:
    usage, rates = record.usage, _rates(record.model, record.time)
    tokens = (usage.prompt_tokens - usage.cached_tokens, usage.cached_tokens, usage.completion_tokens)
    if is_odd and record.model == DEARER and record.time >= noon(record.time):
        rates = {name: rate * DEARER_BY for name, rate in rates.items()}
    kind = EMBEDDINGS if record.endpoint == "embeddings" else COMPLETIONS
    return Sale(record.time, record.model, key, tokens, usd_of(rates, tokens), kind)


def _others(day: float) -> Iterator[Sale]:
    chance = random.Random(28)  # noqa: S311 - no secret is made here
    for _ in range(OTHER_CALLS):
        tokens = (chance.randint(2_000, 9_000), 0, chance.randint(500, 2_500))
        yield Sale(day + chance.random() * DAY_S, DEARER, OTHER_KEY, tokens, usd_of(_rates(DEARER, day), tokens))


def _rates(model: str, _: float) -> Rates:
    return {name: Decimal(str(rate)) for name, rate in DEMO_MODELS[model]["price"].items()}


DEMO = WingDemo("billing", _settings, _build)
