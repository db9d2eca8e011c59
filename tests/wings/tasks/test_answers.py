"""How often the answers of rows are read: a result may be as long as its pictures."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway import untrusted_json
from tests.conftest import ScriptedUpstream
from tests.fakes.scripted import ok_json
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
