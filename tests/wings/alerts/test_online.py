"""`gateway check --online`: the webhook."""

from __future__ import annotations

from tests.commands.test_online import AWAY, MODELS, asked, values
from tests.fakes.scripted import Scripted


async def test_a_webhook_gets_a_connection_and_no_event() -> None:
    async with Scripted(always=MODELS) as hook:
        address = f"{hook.url}/a-secret-of-ours"
        found = (await asked(values(AWAY, alerts={"webhook": address})))[-1]
        assert (found.came, found.is_good) == ("connected; no event was sent", True)
        assert hook.hits == 0


async def test_a_webhook_that_is_away_has_failed() -> None:
    found = (await asked(values(AWAY, alerts={"webhook": AWAY})))[-1]
    assert found.what == "alerts.webhook, a connection to http://127.0.0.1:9"
    assert not found.is_good


async def test_no_webhook_is_not_asked() -> None:
    assert not [each for each in await asked(values(AWAY)) if "webhook" in each.what]
