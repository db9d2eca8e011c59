"""The list of what is served: routes, prices and settings of the configuration in use."""

from __future__ import annotations

from typing import Any

from aiohttp.test_utils import TestClient

from .conftest import ADMIN_TOKEN, Inside

NOWHERE = "http://127.0.0.1:9/v1"
ADMIN = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
SECRET = "sk-upstream-secret-of-nobody"


async def rows(client: TestClient[Any, Any], what: str) -> dict[str, dict[str, Any]]:
    async with client.get(f"/admin/api/{what}", headers=ADMIN) as answer:
        assert answer.status == 200
        text = await answer.text()
        assert SECRET not in text
        return {row["name"]: row for row in (await answer.json())["data"]}


async def test_models_have_routes_prices_and_settings(inside: Inside) -> None:
    models = {
        "plain": {
            "routes": [{"upstream": "main", "model": "real-name", "weight": 3}, {"upstream": "second", "priority": 2}],
            "price": {"input": 1.5, "output": 6, "cached_input": 0.25},
            "endpoints": ["chat"],
            "fallbacks": ["spare"],
            "max_output_tokens": 512,
        },
        "spare": {"routes": [{"upstream": "second"}], "max_output_tokens": 10},
        "any-*": {"routes": [{"upstream": "second"}], "price": None, "max_output_tokens": 10},
    }
    upstreams = {"main": {"base_url": NOWHERE}, "second": {"base_url": "http://127.0.0.1:9/v2", "api_key": SECRET}}
    client = await inside(
        NOWHERE, models=models, upstreams=upstreams, aliases={"nick": "plain"}, admin={"token": ADMIN_TOKEN}
    )
    found = await rows(client, "models")
    assert found["plain"] == {
        "name": "plain",
        "is_pattern": False,
        "aliases": ["nick"],
        "endpoints": ["chat"],
        "routes": [
            {"upstream": "main", "model": "real-name", "priority": 1, "weight": 3},
            {"upstream": "second", "model": None, "priority": 2, "weight": 1},
        ],
        "price": {"input": 1.5, "output": 6.0, "cached_input": 0.25},
        "price_source": "configured",
        "priced_names": 0,
        "settings": {"max_output_tokens": 512, "fallbacks": ["spare"]},
    }
    assert (found["any-*"]["is_pattern"], found["any-*"]["price"], found["any-*"]["price_source"]) == (True, None, None)


async def test_upstreams_say_what_the_configuration_says_without_secrets(inside: Inside) -> None:
    upstreams = {
        "second": {
            "base_url": "http://127.0.0.1:9/v2", "api_key": SECRET, "headers": {"X-Secret": SECRET},
            "proxy": f"http://u:{SECRET}@p.example:3128", "max_connections": 7, "timeouts": {"connect_s": 3},
            "limits": {"requests": "60/minute"},
        }
    }  # fmt: skip
    models = {"m": {"routes": [{"upstream": "second"}], "max_output_tokens": 10}}
    client = await inside(NOWHERE, upstreams=upstreams, models=models, admin={"token": ADMIN_TOKEN})
    found = await rows(client, "upstreams")
    received = found["second"]["settings"]
    assert received["max_connections"] == 7
    assert received["timeouts"] == {"connect_s": 3.0}
    assert received["proxy"] == "p.example:3128"
    assert "headers" not in received
    assert "api_key" not in received


async def test_a_preview_needs_the_supervisor(inside: Inside) -> None:
    client = await inside(NOWHERE, admin={"token": ADMIN_TOKEN})
    async with client.get("/admin/api/reload", headers=ADMIN) as answer:
        assert answer.status == 503
