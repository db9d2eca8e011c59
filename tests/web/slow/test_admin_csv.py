"""A list of the admin API with many rows."""

from __future__ import annotations

import asyncio
import tracemalloc
from pathlib import Path

import pytest

from tests.browser.stores import days, filled
from tests.flows.planted import plant, record
from tests.web.conftest import Inside
from tests.web.test_admin_lists import ADMIN, NOWHERE, get


@pytest.mark.parametrize("kind", ["embedded", "redis"])
async def test_a_csv_of_all_calls_is_written_in_bounded_memory(inside: Inside, kind: str, tmp_path: Path) -> None:
    records = 30_000
    with filled(kind, tmp_path, {}) as url:
        await asyncio.to_thread(plant, url, [record(days(1)[0], "k") for _ in range(records)])
        client = await inside(NOWHERE, store={"url": url, "journal_dir": str(tmp_path / "journal")})
        await get(client, "calls?format=csv&limit=1000")
        tracemalloc.start()
        try:
            lines = 0
            async with client.get("/admin/api/calls?format=csv", headers=ADMIN) as answer:
                async for _ in answer.content:
                    lines += 1
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert lines == records + 1
        assert most < 8_000_000, f"{most:,} bytes"
        await client.close()
