"""One worker's side of a reload: what is swapped, what is kept, and that nothing is left behind."""

from __future__ import annotations

import asyncio
import copy
import gc
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client import generate_latest

from gateway.config import ConfigError, build
from gateway.observe.metrics import Telemetry
from gateway.web import app
from tests.fakes.scripted import Scripted, ok_json, until
from tests.patience import at_least

from .conftest import ADMIN_TOKEN, AUTH, KEY

CALL = {"model": "m", "prompt": "Hello", "max_tokens": 5}


@dataclass
class Inside:
    """A worker, and the configuration that it has."""

    worker: app.Worker
    client: TestClient[Any, Any]
    values: dict[str, Any]

    async def change(self, **sections: Any) -> None:
        """Put these in the place of what was there."""
        self.values = {**copy.deepcopy(self.values), **sections}
        await self.worker.changeover.change_to(self.values)

    async def call(self) -> int:
        async with self.client.post("/v1/completions", json=CALL, headers=AUTH) as answer:
            await answer.read()
            return answer.status

    async def status(self, path: str, token: str | None = None) -> int:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        async with self.client.get(path, headers=headers) as answer:
            return answer.status


@asynccontextmanager
async def inside(folder: Path, url: str) -> AsyncIterator[Inside]:
    values = {
        "server": {"access_log": "off"},
        "store": {"url": f"embedded:{folder / 'data'}", "journal_dir": str(folder / "journal")},
        "upstreams": {"up": {"base_url": url, "api_key": "upstream-secret-key"}, "other": {"base_url": url}},
        "models": {"m": {"routes": [{"upstream": "up"}], "max_output_tokens": 100}},
        "keys": [{"id": "k", "secret": KEY}],
    }
    telemetry = Telemetry(["k"], 10)

    async def scrape() -> bytes:
        return generate_latest(telemetry.registry)

    async with (
        app.build(build(values), telemetry, scrape) as worker,
        TestClient(TestServer(worker.app)) as client,
    ):
        yield Inside(worker, client, values)


async def test_tokens_come_and_go(tmp_path: Path) -> None:
    async with Scripted() as upstream, inside(tmp_path, upstream.url) as gateway:
        assert await gateway.status("/admin/api/keys", ADMIN_TOKEN) == 404
        assert await gateway.status("/metrics") == 200
        await gateway.change(admin={"token": ADMIN_TOKEN}, metrics={"token": "token-of-the-metrics"})
        assert await gateway.status("/admin/api/keys", ADMIN_TOKEN) == 200
        assert await gateway.status("/metrics") == 401
        assert await gateway.status("/metrics", "token-of-the-metrics") == 200
        await gateway.change(admin={"token": "another-admin-token"}, metrics={})
        assert await gateway.status("/admin/api/keys", ADMIN_TOKEN) == 401
        assert await gateway.status("/admin/api/keys", "another-admin-token") == 200
        assert await gateway.status("/metrics") == 200
        await gateway.change(admin={})
        assert await gateway.status("/admin/api/keys", "another-admin-token") == 404


async def test_an_unchanged_upstream_keeps_its_connections_and_its_health(tmp_path: Path) -> None:
    async with Scripted(always=ok_json()) as upstream, inside(tmp_path, upstream.url) as gateway:
        assert await gateway.call() == 200
        before = gateway.worker.parts
        models = {"m": {**gateway.values["models"]["m"], "limits": {"max_tokens": 50}}}
        await gateway.change(models=models, server={"max_in_flight": 10, "access_log": "off"})
        after = gateway.worker.parts
        assert after is not before
        assert after.pools["up"] is before.pools["up"]
        assert after.router.health["up"] is before.router.health["up"]
        assert await gateway.call() == 200
        assert upstream.connections == 1
        upstreams = {**gateway.values["upstreams"], "up": {"base_url": upstream.url, "api_key": "another-key-of-ours"}}
        await gateway.change(upstreams=upstreams)
        assert gateway.worker.parts.pools["up"] is not before.pools["up"]
        assert gateway.worker.parts.pools["other"] is before.pools["other"]
        assert await gateway.call() == 200
        assert upstream.connections == 2
        assert upstream.requests[-1].headers["authorization"] == "Bearer another-key-of-ours"
        await until(lambda: upstream.open_now == 1)  # the old pool keeps nothing


async def test_what_cannot_be_used_changes_nothing(tmp_path: Path) -> None:
    async with Scripted(always=ok_json()) as upstream, inside(tmp_path, upstream.url) as gateway:
        before = gateway.worker.parts
        with pytest.raises(ConfigError):
            await gateway.change(models={})
        assert gateway.worker.parts is before
        assert await gateway.call() == 200


async def test_probes_follow_the_configuration(tmp_path: Path) -> None:
    async with Scripted(always=ok_json()) as upstream, inside(tmp_path, upstream.url) as gateway:
        up = gateway.values["upstreams"]["up"]
        await gateway.change(upstreams={"up": {**up, "probe_s": 0.1}, "other": {"base_url": upstream.url}})
        await until(lambda: upstream.hits >= 2)
        await gateway.change(upstreams={"up": up})
        await until(lambda: upstream.open_now == 0)
        hits = upstream.hits
        assert [request.path for request in upstream.requests] == ["/v1/models"] * hits
        await at_least(0.3)
        assert upstream.hits == hits


async def test_many_reloads_leave_nothing_behind(tmp_path: Path) -> None:
    await many_reloads(tmp_path, lambda number: {})


async def many_reloads(tmp_path: Path, sections: Callable[[int | None], dict[str, Any]]) -> None:
    """Reload with these sections for each number, and for None in between."""
    async with Scripted(always=ok_json()) as upstream, inside(tmp_path, upstream.url) as gateway:
        gone: list[weakref.ref[Any]] = []

        async def reload(number: int) -> None:
            up = {"base_url": upstream.url, "headers": {"X-Number": str(number)}, "probe_s": 60}
            await gateway.change(upstreams={"up": up, f"other-{number}": up}, **sections(number))
            assert await gateway.call() == 200
            parts = gateway.worker.parts
            gone.extend(map(weakref.ref, (*parts.pools.values(), *parts.router.health.values(), parts.router)))

        async def rest() -> None:
            await gateway.change(upstreams={"up": {"base_url": upstream.url}}, **sections(None))
            await until(lambda: upstream.open_now == 0)

        await reload(0)
        await rest()
        tasks = len(asyncio.all_tasks())
        for number in range(1, 20):
            await reload(number)
        await rest()
        await until(lambda: len(asyncio.all_tasks()) <= tasks)
        assert await gateway.call() == 200  # a client's connection that rests keeps what its last call was served with

        def is_gone() -> bool:
            gc.collect()
            return not [each() for each in gone if each() is not None]

        await until(is_gone)
