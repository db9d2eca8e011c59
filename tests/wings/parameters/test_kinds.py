"""Each row of the table of kinds of calls in docs/openings.md: whether members are changed, and headers are set."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Literal, NamedTuple

import pytest
from aiohttp.test_utils import TestClient

from tests.fakes import scripted
from tests.fakes.scripted import Scripted
from tests.web.conftest import Inside
from tests.wings import kinds_of_calls as kinds
from tests.wings.kinds_of_calls import Asked


class Kind(NamedTuple):
    calls: tuple[Asked, ...]
    members: Literal["changed", "refused", "stay"]
    sets_headers: bool = True


INSIDE_LONG = Asked("/v1/chat/completions", {**kinds.LONG.body, "metadata": {"b": "b" * 9000}})
FALLBACK = Asked("/v1/chat/completions", {"model": "falls", "messages": kinds.MESSAGES})
KINDS = {
    "in JSON, also above 64 KiB": Kind((kinds.CHAT, kinds.STREAM, kinds.LONG, kinds.STORED), "changed"),
    "in JSON, inside a long value": Kind((INSIDE_LONG,), "refused"),
    "in forms, of task APIs, Realtime sessions, OpenAI's and Anthropic's batches, also where the rule names the "
    "endpoint of their requests": Kind(
        (kinds.FORM, kinds.TASK, kinds.TASK_FORM, kinds.SESSION, kinds.BATCH, kinds.MESSAGE_BATCH), "refused"
    ),
    "counts of tokens": Kind(kinds.COUNTS, "stay", sets_headers=False),
    "that another model serves: a fallback, or a [cheaper one](quotas.md#a-cheaper-model-when-money-gets-short)": Kind(
        (FALLBACK,), "changed"
    ),
}


def test_the_table_has_these_rows() -> None:
    """The second row here is the exception in the first one there."""
    rows = kinds.table("Calls", "Members", "Headers")
    assert [row[0] for row in rows] == [name for name in KINDS if not name.endswith("long value")]


class Place(NamedTuple):
    client: TestClient[Any, Any]
    upstream: Scripted

    async def ask(self, call: Asked) -> tuple[int, Any, scripted.Request | None]:
        """The status and the answer of this call, and what the upstream got last."""
        for each in call.before:
            await each.send(self.client)
        sent = self.upstream.hits
        status, answer = await call.send(self.client)
        return status, answer, self.upstream.requests[-1] if self.upstream.hits > sent else None


@pytest.fixture
async def place(inside: Inside, request: pytest.FixtureRequest) -> AsyncIterator[Place]:
    async with Scripted(always=kinds.upstream) as upstream, Scripted(always=scripted.error_json(500)) as failing:
        settings = kinds.settings(upstream.url)
        settings["upstreams"]["down"] = {"base_url": failing.url, "api_key": "upstream-secret-key"}
        settings["models"]["falls"] = {
            "routes": [{"upstream": "down"}], "max_output_tokens": 100, "endpoints": ["chat"], "fallbacks": ["m"],
        }  # fmt: skip
        rules = {"*": request.param}
        if "set" in request.param:
            rules["m"] = {"endpoints": ["chat"], "set": {"seed": 1}}
        yield Place(await inside(upstream.url, **settings, parameters={"models": rules}), upstream)


@pytest.mark.parametrize("place", [{"set": {"metadata.a": "set"}, "headers": {"X-Stainless-A": "a"}}], indirect=True)
async def test_members(place: Place) -> None:
    for name, kind in KINDS.items():
        for call in kind.calls:
            status, answer, sent = await place.ask(call)
            if kind.members == "refused":
                assert (status, sent) == (400, None), (name, call.path)
                assert answer["error"]["message"].startswith("The gateway changes ")
                continue
            assert (status, sent is not None) == (200, True), (name, call.path)
            assert sent is not None
            assert sent.json.get("metadata") == ({"a": "set"} if kind.members == "changed" else None), (name, call.path)
            if call is FALLBACK:  # rules are those of the name that was asked for
                assert (sent.json["model"], "seed" in sent.json) == ("m", False)


@pytest.mark.parametrize("place", [{"headers": {"X-Stainless-A": "a"}}], indirect=True)
async def test_headers(place: Place) -> None:
    for name, kind in KINDS.items():
        for call in kind.calls:
            _, _, sent = await place.ask(call)
            assert sent is not None, (name, call.path)
            assert sent.headers.get("x-stainless-a") == ("a" if kind.sets_headers else None), (name, call.path)
