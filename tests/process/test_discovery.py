"""Reading the lists of upstreams: what is kept, what is believed, and what is asked when."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.config import Config, build
from gateway.config.source import Reading
from gateway.process.discovery import FILE, TRY_AGAIN_S, ModelDiscovery
from tests.fakes.scripted import Behaviour, Scripted, answer, dead_port, error_json, ok_json, raw


def listed(*names: Any) -> Behaviour:
    return ok_json({"object": "list", "data": [{"id": name} for name in names]})


def reading(url: str, **upstream: Any) -> Reading:
    values = {"upstreams": {"u": {"base_url": url, "discover": True, **upstream}}}
    return Reading(build(values), values, frozenset())


def names(discovery: ModelDiscovery, given: Reading) -> list[str]:
    return list(discovery.extend(given).config.models)


async def ask(discovery: ModelDiscovery, config: Config) -> bool:
    return await discovery._ask(config, ["u"], 5.0)


async def test_what_is_listed_is_served_and_kept_for_the_next_start(tmp_path: Path) -> None:
    async with Scripted(listed("b", "a")) as upstream:
        given = reading(upstream.url)
        discovery = ModelDiscovery(tmp_path)
        assert names(discovery, given) == []
        await discovery.start(given.config)
        assert names(discovery, given) == ["a", "b"]
        successor = ModelDiscovery(tmp_path)
        await successor.start(given.config)  # asks nothing
        assert names(successor, given) == ["a", "b"]
        assert names(successor, reading(f"{upstream.url}/other")) == []  # of another upstream by this name


@pytest.mark.parametrize(
    "behaviour",
    [
        error_json(500, message="broken"), error_json(401, message="no key"), answer(b"<html>", 200), listed(),
        ok_json({"data": "none"}), ok_json({"data": [{"name": "x"}]}), ok_json([1, 2]), listed("a*", "", "x" * 999),
        answer(b'{"data":' + b"[" * 100_000), raw(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{", then_close=True),
        answer(b'{"data": [{"id": "x"}]}' + b" " * (17 * 2**20)),
    ],
)  # fmt: skip
async def test_a_list_that_cannot_be_used_changes_nothing(
    tmp_path: Path, behaviour: Behaviour, caplog: pytest.LogCaptureFixture
) -> None:
    async with Scripted(listed("a"), behaviour) as upstream:
        given = reading(upstream.url)
        discovery = ModelDiscovery(tmp_path)
        assert await ask(discovery, given.config)
        assert not await ask(discovery, given.config)
        assert names(discovery, given) == ["a"]
        assert "its 1 known models stay" in caplog.text


async def test_an_upstream_that_is_down_is_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    now = 100.0
    discovery = ModelDiscovery(tmp_path, lambda: now)
    given = reading(f"http://127.0.0.1:{dead_port()}/v1")
    await discovery.start(given.config)
    assert "nothing is known of its models" in caplog.text
    upstream = given.config.upstreams["u"]
    assert not discovery._is_due("u", upstream)
    now += TRY_AGAIN_S
    assert discovery._is_due("u", upstream)


async def test_what_has_changed_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with Scripted(listed("a", "b"), listed("a", "b"), listed("b", *"cdefghi")) as upstream:
        given = reading(upstream.url)
        discovery = ModelDiscovery(tmp_path)
        assert [await ask(discovery, given.config) for _ in range(3)] == [True, False, True]
        assert "upstream u lists 2 models" in caplog.text
        assert "upstream u lists other models: 7 new (c, d, e, f, g and 2 more); 1 gone (a)" in caplog.text


async def test_the_next_key_is_presented_where_one_is_refused(tmp_path: Path) -> None:
    async with Scripted(error_json(401, message="no"), listed("a")) as upstream:
        given = reading(upstream.url, api_keys=["sk-first", "sk-second"])
        discovery = ModelDiscovery(tmp_path)
        assert await ask(discovery, given.config)
        presented = [request.headers["authorization"] for request in upstream.requests]
        assert presented == ["Bearer sk-first", "Bearer sk-second"]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"upstreams": [1]}', '{"upstreams": {"u": {"names": 5}}}', "[" * 99999]
)
async def test_a_broken_file_is_no_obstacle(tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / FILE).write_text(text)
    async with Scripted(listed("a")) as upstream:
        given = reading(upstream.url)
        discovery = ModelDiscovery(tmp_path)
        assert "cannot be used" in caplog.text
        await discovery.start(given.config)
        assert names(discovery, given) == ["a"]
    assert json.loads((tmp_path / FILE).read_text())["upstreams"]["u"]["names"] == ["a"]


async def test_a_folder_that_cannot_be_written_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with Scripted(listed("a")) as upstream:
        given = reading(upstream.url)
        discovery = ModelDiscovery(tmp_path / "gone")
        await discovery.start(given.config)
        assert names(discovery, given) == ["a"]
    assert "cannot be kept" in caplog.text
