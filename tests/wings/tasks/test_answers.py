"""How often the answers of rows are read: a result may be as long as its pictures."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from gateway import untrusted_json
from gateway.formats.format import LONG_ANSWER
from gateway.relay import exchange
from gateway.web.large_bodies import LargeBodies
from tests.conftest import ScriptedUpstream
from tests.fakes.scripted import ok_json, until
from tests.fakes.turns import counted
from tests.web.conftest import AUTH, KEY, Inside
from tests.wings.tasks.test_rows import GOOD

RESULT = {"data": [{"url": "https://cdn.example/i.png"}], "note": "x" * 1000}
ROWS: dict[str, dict[str, Any]] = {
    "a result": {"upstream": "up", "prefix": "/p", "submit": ["POST /v1/{kind}"]},
    "a counted result": {"upstream": "up", "prefix": "/p", "submit": ["POST /v1/{kind}"], "made": ["/data/*/url"]},
    "a task": GOOD,
}


@pytest.mark.parametrize(("row", "times"), [("a result", 0), ("a counted result", 1), ("a task", 1)])
async def test_the_answer_to_a_submission_is_parsed_once_at_most(
    inside: Inside, upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch, row: str, times: int
) -> None:
    shown = RESULT | {"id": "t1", "state": "queued"}
    parse, parsed = untrusted_json.parse, list[str]()

    def noted(text: Any, unusable: float | None = None) -> Any:
        if (found := parse(text, unusable)) == shown:
            parsed.append(row)
        return found

    monkeypatch.setattr(untrusted_json, "parse", noted)
    rows = {"row": ROWS[row] | {"unpriced": "allow"}}
    client = await inside(upstream.url, passthrough=rows, keys=[{"id": "k", "secret": KEY}])
    upstream.answer_with(always=ok_json(shown))
    async with client.post("/p/v1/film", json={"prompt": "cat"}, headers=AUTH) as answer:
        assert (answer.status, json.loads(await answer.read())) == (200, shown)
    assert parsed == [row] * times


async def test_long_answers_are_read_by_another_process(
    inside: Inside, upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An API may repeat the whole request in each answer, as Replicate does; polls of the gateway read them, too."""
    shown = {"id": "t1", "state": "queued", "urls": {"get": f"{upstream.url}/v1/films/t1"}, "input": [{}] * LONG_ANSWER}
    make, jobs = LargeBodies.make, list[str]()

    async def noted(self: LargeBodies, key: str, function: Callable[..., Any], body: bytes, *arguments: Any) -> Any:
        try:
            return await make(self, key, function, body, *arguments)
        finally:
            jobs.append(function.__name__)

    monkeypatch.setattr(LargeBodies, "make", noted)
    rows = {"row": GOOD | {"links": ["/urls/get"], "unpriced": "allow"}}
    upstream.answer_with(always=ok_json(shown))
    with counted(monkeypatch) as turns:
        client = await inside(upstream.url, passthrough=rows, keys=[{"id": "k", "secret": KEY}])
        for method, path in (("POST", "/p/v1/film"), ("GET", "/p/v1/films/t1")):
            async with client.request(method, path, json={"prompt": "cat"}, headers=AUTH) as answer:
                assert (answer.status, b'"/p/v1/films/t1"' in await answer.read()) == (200, True)
        await until(lambda: len(jobs) > 3)  # the facts, the links, the read, a poll
    assert jobs.count(exchange._facts_or_none.__name__) == 1  # those of the read are none
    assert turns.longest_json <= LONG_ANSWER
