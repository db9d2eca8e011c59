"""A gateway inside the test's own process, in front of a scripted upstream."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client import generate_latest

from gateway.config import build
from gateway.observe.metrics import Telemetry
from gateway.web import app

KEY = "sk-test-0123456789abcdefghijkl"
AUTH = {"Authorization": f"Bearer {KEY}"}
ADMIN_TOKEN = "admin-token-0123456789"

Inside = Callable[..., Awaitable[TestClient[Any, Any]]]


@pytest.fixture
async def inside(tmp_path: Path) -> AsyncIterator[Inside]:
    """Start a gateway with these upstream and other settings; returns aiohttp's test client of it."""
    async with AsyncExitStack() as stack:

        async def start(base_url: str, **settings: Any) -> TestClient[Any, Any]:
            values = {
                "server": {"access_log": "off"},
                "store": {"url": f"embedded:{tmp_path}"},
                "admin": {"token": ADMIN_TOKEN},
                "upstreams": {"up": {"base_url": base_url, "api_key": "upstream-secret-key"}},
                "models": {"m": {"routes": [{"upstream": "up"}], "max_output_tokens": 100}},
                "keys": [{"id": "k", "secret": KEY}],
                **settings,
            }
            config = build(values)
            telemetry = Telemetry((key.id for key in config.keys), config.metrics.max_keys)

            async def scrape() -> bytes:
                return generate_latest(telemetry.registry)

            worker = await stack.enter_async_context(app.build(config, telemetry, scrape))
            server = TestServer(worker.app)
            await server.start_server(auto_decompress=False)
            return await stack.enter_async_context(TestClient(server))

        yield start


async def models(client: TestClient[Any, Any], token: str) -> int:
    """The status of a request with this key or token, as soon as the worker has heard of all changes."""
    async with client.get("/v1/models", headers={"Authorization": f"Bearer {token}"}) as answer:
        return answer.status


async def until(client: TestClient[Any, Any], token: str, status: int) -> None:
    while await models(client, token) != status:
        pass
