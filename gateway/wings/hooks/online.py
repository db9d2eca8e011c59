"""The question of `gateway check --online` to hooks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from gateway.commands.online import Asked, WingQuestion
from gateway.config import Config, Upstream
from gateway.records import Failure
from gateway.upstream.pool import Pool

from .settings import HookReceiver, HookSettings, all_of


async def ask(config: Config) -> Sequence[Asked]:
    """A connection to each, TLS included; nothing is posted."""
    hooks = all_of(config.section(HookSettings))
    return await asyncio.gather(*[_connect(f"hooks.{'.'.join(place)}", hook) for place, hook in hooks])


async def _connect(place: str, hook: HookReceiver) -> Asked:
    pool = Pool("hook", Upstream.model_validate({"base_url": hook.shown, "proxy": hook.proxy}), 1)
    what = f"{place}, a connection to {hook.shown}"
    try:
        got = await pool.acquire()
        if isinstance(got, Failure):
            return Asked(what, got.detail, is_good=False)
        got.abort()
        return Asked(what, "connected; nothing was posted")
    finally:
        await pool.close()


QUESTION = WingQuestion(ask)
