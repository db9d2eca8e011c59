"""A reload begins the watcher anew where the section `alerts` changes, and leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

from tests.fakes.scripted import Scripted, ok_json, until
from tests.web.conftest import KEY
from tests.web.test_hot_reload import inside, many_reloads


async def test_alerts_follow_the_configuration(tmp_path: Path) -> None:
    async with Scripted(always=ok_json()) as upstream, inside(tmp_path, upstream.url) as gateway:
        webhook = {"webhook": upstream.url.replace("/v1", "/v1/hook")}
        quotas = [{"requests": 1, "per": "day"}]
        await gateway.change(alerts=webhook, keys=[{"id": "k", "secret": KEY, "quotas": quotas}])
        assert await gateway.call() == 200
        await until(lambda: any(request.path == "/v1/hook" for request in upstream.requests), 20)


async def test_many_reloads_leave_nothing_behind(tmp_path: Path) -> None:
    def sections(number: int | None) -> dict[str, dict[str, str]]:
        return {"alerts": {} if number is None else {"webhook": f"http://127.0.0.1:9/{number}"}}

    await many_reloads(tmp_path, sections)
