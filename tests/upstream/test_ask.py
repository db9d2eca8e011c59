"""One request to an upstream outside of calls, and the names in its answer to GET /models."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.config import Upstream
from gateway.errors import Unavailable
from gateway.upstream import ask as under_test
from gateway.upstream.ask import MAX_PAGES, Reply, fetch, list_models, model_names, next_page
from gateway.upstream.pool import pool_of
from tests.fakes.scripted import Scripted, error_json, ok_json, raw


@pytest.mark.parametrize(
    ("body", "names"),
    [
        (b'{"data": [{"id": "b"}, {"id": "a"}, {"id": "a"}]}', ["a", "b"]),
        (b'{"data": []}', []),
        (b'{"models": []}', None),
        (b'{"data": [1]}', None),
        (b'{"data": 1}', None),
        (b"[]", None),
        (b"<html>", None),
        (b"[" * 100_000, None),
    ],
    ids=range(8),
)
def test_names(body: bytes, names: list[str] | None) -> None:
    assert model_names(Reply(200, body)) == names
    assert model_names(Reply(401, body)) is None


def page(*names: str, **more: Any) -> dict[str, Any]:
    return {"data": [{"id": name} for name in names], **more}


@pytest.mark.parametrize(
    ("answer", "query"),
    [
        (page("a", has_more=True, first_id="a", last_id="a b"), "after_id=a+b"),
        (page("a", has_more=True, last_id="a", object="list"), "after=a"),
        (page("a", nextPageToken="x&y"), "pageToken=x%26y"),
        (page("a", has_more=False, last_id="a"), None),
        (page("a", has_more=True, last_id=None), None),
        (page("a", has_more=True, last_id=["a"]), None),
        (page("a", nextPageToken=""), None),
        ([], None),
        ("text", None),
    ],
    ids=range(9),
)
def test_next_page(answer: Any, query: str | None) -> None:
    assert next_page(Reply(200, json.dumps(answer).encode())) == query


async def test_pages_are_followed_to_the_last() -> None:
    more = {"has_more": True, "last_id": "b"}
    async with Scripted(ok_json(page("b", "a", **more)), ok_json(page("c", has_more=False))) as upstream:
        reply, names = await list_models(Upstream(base_url=upstream.url), 5)
        assert (reply.status, names) == (200, ["a", "b", "c"])
        assert [request.path for request in upstream.requests] == ["/v1/models", "/v1/models?after_id=b"]


async def test_a_failed_page_is_reported_with_the_pages_before() -> None:
    async with Scripted(ok_json(page("a", has_more=True, last_id="a")), error_json(503)) as upstream:
        reply, names = await list_models(Upstream(base_url=upstream.url), 5)
        assert (reply.status, names) == (503, ["a"])


async def test_pages_that_never_end_are_bounded() -> None:
    async with Scripted(always=ok_json(page("a", has_more=True, last_id="a"))) as upstream:
        assert (await list_models(Upstream(base_url=upstream.url), 5)).names == ["a"]
        assert len(upstream.requests) == 2  # the second has nothing new
    pages = [ok_json(page(str(number), has_more=True, last_id=str(number))) for number in range(MAX_PAGES + 5)]
    async with Scripted(*pages) as upstream:
        assert len((await list_models(Upstream(base_url=upstream.url), 30)).names or ()) == MAX_PAGES


@pytest.mark.parametrize(("most", "within_s"), [(0, 5), (10**6, 0.2)])
async def test_a_failed_answer_is_freed(monkeypatch: pytest.MonkeyPatch, most: int, within_s: float) -> None:
    """At once, and not when garbage is collected: there may be many, of 64 MB each."""
    made: list[under_test._Collector] = []

    class Collector(under_test._Collector):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            made.append(self)

    def hold(size: int) -> None:
        if made[0].body and size > most:
            raise Unavailable("full", code="buffers_full")

    monkeypatch.setattr(under_test, "_Collector", Collector)
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n1"
    async with Scripted(raw(head, b"2", delay_s=0.05)) as upstream:
        pool = pool_of("up", Upstream(base_url=upstream.url), 1)
        try:
            await fetch("up", pool, pool.request("/x", [], b""), within_s, 100, hold=hold)
        except Unavailable:
            pass
        finally:
            await pool.close()
    assert made[0].body == b""
