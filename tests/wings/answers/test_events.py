"""Deploys and reloads, from the notes of workers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from gateway.config import StoreSettings, build
from gateway.store.opening import open_store
from gateway.wings.answers.events import MOST, PLACE, Note, digest_of, is_kept, notes_in, rows_of, written
from tests.flows.gateway_process import settings
from tests.web.conftest import ADMIN_TOKEN, Inside

NOTES = [Note(1.0, "1.0", "a"), Note(1.1, "1.0", "a"), Note(100.0, "1.0", "b"), Note(200.0, "1.1", "b")]


def test_a_change_of_version_is_a_deploy_and_one_of_configuration_a_reload() -> None:
    notes = notes_in(map(written, reversed(NOTES)))
    assert [note.time for note in notes] == [1.0, 100.0, 200.0]
    assert [(row["kind"], row["version"], row["time"]) for row in rows_of(notes)] == [
        ("reload", "1.0", "1970-01-01T00:01:40Z"), ("deploy", "1.1", "1970-01-01T00:03:20Z"),
    ]  # fmt: skip


def test_what_is_in_use_already_is_no_event() -> None:
    notes = notes_in(map(written, NOTES))
    assert not is_kept(Note(300.0, "1.1", "b"), notes)
    assert is_kept(Note(300.0, "1.1", "a"), notes)
    assert is_kept(NOTES[0], [])
    assert not is_kept(NOTES[0], NOTES[1:] * MOST)


def test_other_posts_are_left_out() -> None:
    assert notes_in(["", "{}", "[1]", "null", '["x", "1.0", "a"]']) == []


async def events(client: Any) -> Any:
    headers = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
    async with client.get("/admin/api/events", headers=headers) as answer:
        assert answer.status == 200, await answer.text()
        return (await answer.json())["data"]


async def noted(url: str, number: int) -> None:
    """Wait until the store has this number of notes."""
    store = await open_store(StoreSettings(url=url))
    while len(notes_in((await store.exchange(PLACE, "test", "", 0.01)).values())) < number:  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    await store.close()


async def test_another_configuration_on_the_same_store_is_an_event(inside: Inside, tmp_path: Path) -> None:
    store = {"url": f"embedded:{tmp_path / 'data'}"}
    first = await inside("http://127.0.0.1:9/v1", store={**store, "journal_dir": str(tmp_path / "one")})
    await noted(store["url"], 1)
    assert await events(first) == []
    await first.close()
    second = await inside("http://127.0.0.1:9/v1", store={**store, "journal_dir": str(tmp_path / "two")})
    await noted(store["url"], 2)
    assert [row["kind"] for row in await events(second)] == ["reload"]


def test_a_digest_has_no_secret_and_follows_the_configuration(tmp_path: Path) -> None:
    values = settings("http://127.0.0.1:9/v1", store={"url": f"embedded:{tmp_path}"})
    values["admin"] = {"token": "one-admin-token-0123456789"}
    one = digest_of(build(values))
    assert digest_of(build({**values, "admin": {"token": "another-admin-token-0123456789"}})) == one
    assert digest_of(build({**values, "quotas": [{"requests": 3, "per": "day"}]})) != one
