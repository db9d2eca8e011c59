"""Each row of the table of kinds of calls in docs/openings.md: whether a hook is asked, and what it sees."""

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

MAX_BYTES = 150_000


class Kind(NamedTuple):
    calls: tuple[Asked, ...]
    is_asked: bool
    """Whether one that sees facts is asked."""
    body: Literal["replaced", "shown", "refused", "not asked"]
    """What becomes of a call where one sees bodies: `shown`, and cannot be replaced."""


TOO_LONG = Asked("/v1/chat/completions", {**kinds.CHAT.body, "user": "u" * MAX_BYTES})
KINDS = {
    "in JSON, plain or streamed, also counts of tokens": Kind(
        (kinds.CHAT, kinds.STREAM, kinds.LONG, kinds.STORED, *kinds.COUNTS), True, "replaced"
    ),
    "with a body above `max_bytes`": Kind((TOO_LONG,), True, "refused"),
    "in forms (transcriptions, edits of images)": Kind((kinds.FORM,), True, "refused"),
    "message batches of Anthropic's API": Kind((kinds.MESSAGE_BATCH,), True, "replaced"),
    "OpenAI's batches, whose requests are in a file": Kind((kinds.BATCH,), True, "refused"),
    "submissions of [task APIs](tasks.md)": Kind((kinds.TASK,), True, "shown"),
    "submissions of [task APIs](tasks.md) in forms": Kind((kinds.TASK_FORM,), True, "refused"),
    "reads of tasks, of stored responses, of files": Kind(kinds.READS, False, "not asked"),
    "a Realtime session": Kind((kinds.SESSION,), True, "refused"),
}


def test_the_table_has_these_rows() -> None:
    rows = kinds.table("Calls", "`sees: facts`", "`sees: body`")
    assert [row[0] for row in rows] == [name for name in KINDS if not name.endswith("in forms")]
    for name, facts, body in rows:
        assert facts.startswith("asked") == KINDS[name].is_asked
        shown = "refused" if body.startswith("refused") else "not asked" if body == "not asked" else "shown"
        assert shown == KINDS[name].body.replace("replaced", "shown")


class Place(NamedTuple):
    """A gateway whose one hook allows, or replaces the metadata of the body that it has seen."""

    client: TestClient[Any, Any]
    upstream: Scripted
    hook: Scripted
    verdict: dict[str, Any]

    async def ask(self, call: Asked) -> tuple[int, Any, list[scripted.Request], list[scripted.Request]]:
        """The status and the answer of this call, what the hook was asked, and what the upstream got."""
        for each in call.before:
            self.verdict["action"] = "allow"
            assert (await each.send(self.client))[0] == 200
        self.verdict["action"] = "replace"
        asked, sent = self.hook.hits, self.upstream.hits
        status, answer = await call.send(self.client)
        return status, answer, self.hook.requests[asked:], self.upstream.requests[sent:]


@pytest.fixture
async def place(inside: Inside, request: pytest.FixtureRequest) -> AsyncIterator[Place]:
    verdict: dict[str, Any] = {}

    async def decide(wire: scripted.Wire) -> None:
        body = wire.request.json.get("body")
        is_allowed = verdict["action"] == "allow" or body is None
        answer = {"action": "allow"} if is_allowed else {"action": "replace", "body": {**body, "metadata": {"a": "b"}}}
        await scripted.ok_json(answer)(wire)

    async with Scripted(always=kinds.upstream) as upstream, Scripted(always=decide) as hook:
        hooks = {"first": {"url": hook.url, "sees": request.param, "max_bytes": MAX_BYTES}}
        client = await inside(upstream.url, **kinds.settings(upstream.url), hooks={"before_call": hooks})
        yield Place(client, upstream, hook, verdict)


@pytest.mark.parametrize("place", ["facts"], indirect=True)
async def test_a_hook_that_sees_facts(place: Place) -> None:
    for name, kind in KINDS.items():
        for call in kind.calls:
            status, _, asked, sent = await place.ask(call)
            assert (status, len(asked)) == (502 if call is kinds.SESSION else 200, kind.is_asked), (name, call.path)
            assert all("body" not in each.json for each in asked)
            assert sent, (name, call.path)


@pytest.mark.parametrize("place", ["body"], indirect=True)
async def test_a_hook_that_sees_bodies(place: Place) -> None:
    received: dict[tuple[str, int], tuple[int, str | None, bool]] = {}
    expected = dict(received)
    for name, kind in KINDS.items():
        for number, call in enumerate(kind.calls):
            status, answer, asked, sent = await place.ask(call)
            assert [each.json["body"] for each in asked] == [call.body] * (kind.body in ("replaced", "shown")), name
            code = answer["error"].get("code") if status >= 400 else None
            is_replaced = any(b'"metadata"' in each.body for each in sent)
            received[name, number] = status, code, is_replaced
            expected[name, number] = {
                "replaced": (200, None, True),
                "shown": (503, "hook_failed", False),
                "refused": (403, "not_seen_by_hook", False),
                "not asked": (200, None, False),
            }[kind.body]
    assert received == expected
