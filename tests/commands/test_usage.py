"""`gateway usage` writes a report for programs while it reads it, from a store or a gateway, and holds a portion."""

from __future__ import annotations

import argparse
import csv
import io
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.commands.remote import RemoteRegistry
from gateway.commands.usage import _write
from gateway.keys.registry import Page
from gateway.store.report_rows import usage_row

KEYS = ("a", "b", "c", "d")


def row(key: str) -> dict[str, Any]:
    return usage_row(["key"], [key], (1, 0, 2, 3, 0, 0, 0, 4_000_000, 0))


def read(shape: str, text: str) -> list[str]:
    rows = csv.DictReader(io.StringIO(text)) if shape == "csv" else json.loads(text)
    return [each["key"] for each in rows]


@pytest.mark.parametrize("shape", ["csv", "json"])
@pytest.mark.parametrize("portions", [[], [[]], [["a"], [], ["b", "c"], ["d"]]])
async def test_each_portion_is_written_before_the_next_is_read(
    capsys: pytest.CaptureFixture[str], shape: str, portions: list[list[str]]
) -> None:
    text = ""

    async def found() -> AsyncIterator[list[dict[str, Any]]]:
        nonlocal text
        for keys in portions:
            yield [row(key) for key in keys]
            written = capsys.readouterr().out
            assert (row(keys[-1])["key"] in written) if keys else not written
            text += written

    assert await _write(argparse.Namespace(format=shape), ["key"], found(), ["from 2026-11-20 on (UTC)"]) == 0
    ended = capsys.readouterr()
    assert read(shape, text + ended.out) == [key for keys in portions for key in keys]
    assert ended.err == "gateway: from 2026-11-20 on (UTC)\n"


async def test_a_gateway_is_asked_for_one_page_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    async def page(self: RemoteRegistry, path: str, **query: Any) -> Page:
        asked.append(query)
        first = KEYS.index(query["after"]) + 1 if query["after"] else 0
        rows = [row(key) for key in KEYS[first : first + 3]]
        return Page(rows, rows[-1]["key"] if len(rows) == 3 else None)

    monkeypatch.setattr(RemoteRegistry, "_page", page)
    gateway = RemoteRegistry("http://gateway", None)  # type: ignore[arg-type]
    portions = [rows async for rows in gateway.usage(["key"], "2026-11-01", None, team="red")]
    assert [[each["key"] for each in rows] for rows in portions] == [["a", "b", "c"], ["d"]]
    assert [query.pop("after") for query in asked] == [None, "c"]
    assert asked[0] == asked[1] == {
        "group_by": "key", "since": "2026-11-01", "until": None, "limit": 1000, "team": "red",
    }  # fmt: skip
