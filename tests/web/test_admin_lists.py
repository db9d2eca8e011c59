"""Lists of the admin API: pages that together are the whole, and whole lists, on both stores."""

from __future__ import annotations

import asyncio
import csv
import io
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from aiohttp import ClientPayloadError
from aiohttp.test_utils import TestClient

from gateway.accounting.delivered_reports import DeliveredReports
from gateway.store import StoreUnavailable
from tests.browser.stores import days, filled
from tests.flows.gateway_process import key
from tests.flows.planted import plant, record

from .conftest import ADMIN_TOKEN, Inside

NOWHERE = "http://127.0.0.1:9/v1"
ADMIN = {"Authorization": f"Bearer {ADMIN_TOKEN}"}


async def get(client: TestClient[Any, Any], path: str) -> Any:
    async with client.get(f"/admin/api/{path}", headers=ADMIN) as answer:
        assert answer.status == 200, await answer.text()
        return await answer.json() if answer.content_type == "application/json" else await answer.text()


async def pages(client: TestClient[Any, Any], path: str, name: str, limit: int) -> list[dict[str, Any]]:
    """All rows, page by page."""
    rows: list[dict[str, Any]] = []
    follows = ""
    while True:
        page = await get(client, f"{path}limit={limit}" + (f"&{name}={quote(follows)}" if follows else ""))
        rows += page["data"]
        if (follows := page["next"]) is None:
            return rows


@pytest.mark.parametrize("kind", ["embedded", "redis"])
async def test_pages_together_are_the_whole(inside: Inside, kind: str, tmp_path: Path) -> None:
    quotas = [{"requests": 60, "per": "minute"}, {"tokens": 1000, "per": "day"}]
    settings: dict[str, Any] = {
        "keys": [
            key(f"key-{place}", team="t", quotas=quotas, labels={"center": f"c-{place % 2}"} if place else {})
            for place in range(7)
        ],
        "teams": {"t": {"quotas": quotas}},
        "quotas": quotas,
    }
    day = days(1)[0]
    with filled(kind, tmp_path, {}) as url:
        await asyncio.to_thread(
            plant, url, [record(day, f"key-{place % 3}", model=f"m-{place % 5}") for place in range(250)]
        )
        store = {"url": url, "journal_dir": str(tmp_path / "journal")}
        client = await inside(NOWHERE, store=store, **settings)
        for place in range(5):  # keys of the store stand between those of the file
            body = {"id": f"key-{place}-b", "quotas": quotas}
            async with client.post("/admin/api/keys", json=body, headers=ADMIN) as answer:
                assert answer.status == 201

        whole = await pages(client, "calls?", "before", 1000)
        assert len({row["id"] for row in whole}) == 250
        assert await pages(client, "calls?", "before", 99) == whole
        of_one = await pages(client, "calls?key=key-1&", "before", 10)
        assert of_one == [row for row in whole if row["key"] == "key-1"]
        rows = list(csv.DictReader(io.StringIO(await get(client, "calls?format=csv"))))
        assert [row["id"] for row in rows] == [row["id"] for row in whole]
        assert [row["prompt_tokens"] for row in rows] == [str(row["prompt_tokens"]) for row in whole]

        for groups in ("key", "key,model", "model,day,key", "", "label:center", "model,label:center,day"):
            report = await get(client, f"usage?group_by={groups}")
            assert report["next"] is None
            assert await pages(client, f"usage?group_by={groups}&", "after", 2) == report["data"]
            lines = list(csv.DictReader(io.StringIO(await get(client, f"usage?group_by={groups}&format=csv"))))
            assert [line["requests"] for line in lines] == [str(row["requests"]) for row in report["data"]]

        windows = (await get(client, "quotas"))["data"]
        assert len(windows) == 2 * (1 + 1 + 7 + 5)
        paged = await pages(client, "quotas?", "after", 5)
        assert [(row["scope"], row["unit"]) for row in paged] == [(row["scope"], row["unit"]) for row in windows]
        names = [row["key"] for row in windows if row["key"] is not None]
        assert names == sorted(names)
        await client.close()


@pytest.mark.parametrize("query", ["calls?before=x", "usage?after=x", "usage?after=[1]", 'usage?after=["a","b"]'])
async def test_a_position_that_no_page_gave_is_refused(inside: Inside, query: str) -> None:
    client = await inside(NOWHERE)
    async with client.get(f"/admin/api/{query}", headers=ADMIN) as answer:
        error = (await answer.json())["error"]
    assert (answer.status, error["param"]) == (400, query.partition("?")[2].partition("=")[0])


async def test_a_list_that_fails_on_the_way_is_no_whole_message(
    inside: Inside, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails_later(*_: Any) -> Any:
        yield [{"key": "x" * 100_000}]
        raise StoreUnavailable("away")

    client = await inside(NOWHERE)
    monkeypatch.setattr(DeliveredReports, "usage_portions", fails_later)
    with pytest.raises(ClientPayloadError):
        await get(client, "usage")
