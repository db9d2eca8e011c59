"""No large body holds the event loop, whatever it is made of and whatever has to be done with it: the work is another
process's."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import pytest

from gateway.api.large_body import LARGE_BYTES, MAX_BRIEF_BYTES
from gateway.formats.format import no_json
from gateway.formats.table import FORMATS
from gateway.wings.tasks.settings import Passthrough
from gateway.wings.translate.bridges import WAYS
from tests.conftest import ScriptedUpstream
from tests.fakes.scripted import ok_json
from tests.fakes.turns import MOST_CALLS, counted
from tests.flows.task_rows import SUBMISSIONS, rows
from tests.invariants.test_foreign_ids import FILE_DOORS, Door
from tests.web.conftest import AUTH, KEY, Inside

TURNS = [{"role": "user", "parts": [{"text": "Hi"}]}]
MODELS = "/v1beta/models/generate_content"
DOORS: dict[str, Door] = {
    **{name: door for name, door in FILE_DOORS.items() if name in FORMATS},
    "generate_content": Door(f"{MODELS}:generateContent", {"contents": TURNS}),
    "count_content_tokens": Door(
        f"{MODELS}:countTokens", {"generateContentRequest": {"model": "models/generate_content", "contents": TURNS}}
    ),
    "embed_content": Door(f"{MODELS}:embedContent", {"content": TURNS[0]}),
    "batch_embed_contents": Door(
        f"{MODELS}:batchEmbedContents", {"requests": [{"model": "models/generate_content", "content": TURNS[0]}]}
    ),
}
"""Each format of which a call is a long document."""

SHORT = {"batches": "names a file", "realtime": "a socket"}
ENDPOINTS = sorted({*FORMATS} - {"realtime", "batches", "message_batches", "count_tokens", "input_tokens", "compact"}
                   - {"count_content_tokens", "batch_embed_contents"})  # fmt: skip

in_order = partial(json.dumps, sort_keys=True)

PLAIN: Mapping[str, Mapping[str, Any]] = {name: {} for name in DOORS}
ABLE = {"messages": True, "generate_content": True}
HEAVY: Mapping[str, Any] = {
    "escapes": "\x01" * 10_000, "wide": [0] * 20_000, "deep": [[[[]]]] * 8_000, "objects": [{"x": 1}] * 8_000,
    "texts": ["file_id"] * 5_000,
}  # fmt: skip
"""What takes long to read, in the functions that it calls or by its length."""


def test_every_format_of_documents_is_a_door() -> None:
    assert {name for name, each in FORMATS.items() if each.read is not no_json} == DOORS.keys() | SHORT.keys()


TURN = {"role": "user", "content": "Hi"}
TRANSLATABLE: Mapping[str, Mapping[str, Any]] = {
    "chat": {"messages": [TURN]}, "messages": {"messages": [TURN]}, "responses": {"input": [TURN]},
}  # fmt: skip


def body(door: str, **more: Any) -> bytes:
    text = json.dumps({**DOORS[door].body, **more})
    return text.replace('"THE_NAME": 0', '"x": 0').encode()


async def sent(
    inside: Inside, upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch, doors: Mapping[str, Mapping[str, Any]],
    able: Mapping[str, Any], *, there: str | None = None, answer: Mapping[str, Any] = MappingProxyType({}),
    **settings: Any,
) -> dict[str, tuple[int, bytes | None]]:  # fmt: skip
    """The status, and what the upstream got, of a long call with these further members at each door: what it gets of a
    short one, and the rest of the long one."""
    upstream.answer_with(always=ok_json(dict(answer)))
    route = {"upstream": "up"} | ({"model": there} if there else {})
    models = {
        name: {"routes": [route], "max_output_tokens": 9, "endpoints": [FORMATS[name].name]} for name in ENDPOINTS
    }
    models["generate_content"]["endpoints"] = ["generate_content", "embed_content"]
    models |= dict.fromkeys(("input_tokens", "compact"), models["responses"]) | {"count_tokens": models["messages"]}
    up = {"base_url": upstream.url, "api_key": "upstream-secret-key", "capabilities": ABLE | dict(able)}
    client = await inside(upstream.url, models=models, upstreams={"up": up}, **settings)
    found: dict[str, tuple[int, bytes | None]] = {}
    for door, more in doors.items():
        headers = AUTH | {"Content-Type": "application/json"}
        before = upstream.hits
        async with client.post(DOORS[door].path, data=body(door, **more), headers=headers) as received:
            await received.read()  # what is made once is there
        hits = upstream.hits
        long = body(door, heavy=HEAVY, **more)
        assert len(long) > 4 * LARGE_BYTES
        with counted(monkeypatch) as turns:
            async with client.post(DOORS[door].path, data=long, headers=headers) as received:
                status, told = received.status, await received.read()
        assert turns.most <= MOST_CALLS, (door, turns.most, turns.by)
        assert turns.longest_json <= LARGE_BYTES, (door, turns.longest_json)
        asked = [json.loads(request.body) for request in upstream.requests[before:]]
        assert [each.pop("heavy") for each in asked[hits - before :]] == [HEAVY] * (upstream.hits - hits)
        short, rest = (sorted(map(in_order, each)) for each in (asked[: hits - before], asked[hits - before :]))
        assert rest in (short, [])
        got = upstream.requests[-1].body if upstream.hits > hits else None
        assert got is not None or status < 500, (door, told)
        found[door] = status, got
    return found


async def test_plain(inside: Inside, upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch) -> None:
    for door, (_, got) in (await sent(inside, upstream, monkeypatch, PLAIN, {})).items():
        assert got is not None, door


@pytest.mark.parametrize("path", ["heavy.objects.x", "heavy.nothing"])
async def test_dropped(inside: Inside, upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """Parameters that the upstream would drop, anywhere in the body."""
    is_there = path == "heavy.objects.x"
    for door, (status, got) in (await sent(inside, upstream, monkeypatch, PLAIN, {"drops": [path]})).items():
        assert (status == 400, got is None) == (is_there, is_there), (door, status)


async def test_foreign_files(inside: Inside, upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch) -> None:
    doors = {name: {"more": {"file_id": "file-foreign"}} for name in FILE_DOORS if name in FORMATS}
    found = await sent(inside, upstream, monkeypatch, doors, {}, files={"upstream": "up"})
    assert {status for status, _ in found.values()} == {404}


@pytest.mark.parametrize("door", sorted(WAYS))
async def test_translated(
    inside: Inside, upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch, door: str
) -> None:
    """It goes up as a short one does, with the output limit that the target requires."""
    target = WAYS[door].target  # type: ignore[index]
    (found,) = (await sent(inside, upstream, monkeypatch, {door: TRANSLATABLE[door]}, {door: f"via_{target}"})).values()
    assert found[1] is not None
    assert upstream.requests[-1].path.endswith(FORMATS[target].upstream_path)


async def test_refused_translations(
    inside: Inside, upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = await sent(inside, upstream, monkeypatch, {"responses": {"background": True}}, {"responses": "via_chat"})
    assert found == {"responses": (400, None)}


@pytest.mark.parametrize("door", sorted(name for name, each in FORMATS.items() if each.rename is not None))
async def test_renamed(inside: Inside, upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch, door: str) -> None:
    """Models that are named inside lists."""
    (found,) = (await sent(inside, upstream, monkeypatch, {door: {}}, {}, there="another")).values()
    assert found[1] is not None
    asked = json.loads(found[1])
    inner = (asked.get("requests") or [asked.get("generateContentRequest")])[0]
    assert (inner.get("params") or inner)["model"].removeprefix("models/") == "another"


async def test_restricted(inside: Inside, upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request of a batch by the limits of the key."""
    (request,) = DOORS["message_batches"].body["requests"]
    doors = {"message_batches": {"requests": [request, request | {"custom_id": "b"}]}}
    for most, is_refused in ((8, True), (9, False)):
        keys = [{"id": "k", "secret": KEY, "limits": {"max_tokens": most, "deny": ["top_k"]}}]
        (found,) = (await sent(inside, upstream, monkeypatch, doors, {}, keys=keys)).values()
        assert (found[0] == 400, found[1] is None) == (is_refused, is_refused)


COMPLETION = {"id": "a", "object": "text_completion", "created": 1, "model": "m",
              "choices": [{"index": 0, "text": "Hi", "logprobs": None, "finish_reason": "stop"}]}  # fmt: skip
CHAT = COMPLETION | {"object": "chat.completion", "choices": [
    {"index": 0, "message": {"role": "assistant", "content": "Hi"}, "logprobs": None, "finish_reason": "stop"}
]}  # fmt: skip


@pytest.mark.parametrize("prompt", ["Hi", None, ["Hi", "you"], [[1, 2], [3]]], ids=str)
@pytest.mark.parametrize("is_chat", [False, True])
async def test_split(
    inside: Inside, upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch, prompt: Any, is_chat: bool
) -> None:
    """Prompts that go up one by one."""
    able = {"completions": "via_chat"} if is_chat else {"prompt_arrays": False}
    doors = {"completions": {"prompt": prompt, "max_tokens": 5}}
    answer = CHAT if is_chat else COMPLETION
    (found,) = (await sent(inside, upstream, monkeypatch, doors, able, answer=answer)).values()
    assert found[0] == (400 if is_chat and prompt == [[1, 2], [3]] else 200)


def beside(reads: Mapping[str, Any], submission: Any) -> dict[str, Any]:
    """A submission with long values beside all that the row reads inside others."""
    found = dict(submission) if isinstance(submission, dict) else {}
    for name, inside in reads.items():
        if inside:
            found[name] = beside(inside, found.get(name)) | {"heavy": HEAVY}
    return found


READS = {name: Passthrough.model_validate(row).members for name, row in rows().items()}
READ_INSIDE = {name: members for name, members in READS.items() if any(members.values())}


@pytest.mark.parametrize("row", sorted(READ_INSIDE.keys() - {"ideogram"}))
async def test_rows_of_tasks(
    inside: Inside, upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch, row: str
) -> None:
    """Long values beside the ones that a row reads. Ideogram's are fields of forms."""
    upstream.answer_with(always=ok_json({"id": "task_1"}))
    keys = [{"id": "k", "secret": KEY, "limits": {"max_tokens": 9}}]
    client = await inside(upstream.url, passthrough={row: rows()[row] | {"upstream": "up"}}, keys=keys)
    asked = beside(READ_INSIDE[row], SUBMISSIONS[row].members) | {"long": HEAVY}
    written, headers = json.dumps(asked).encode(), AUTH | {"Content-Type": "application/json"}
    with counted(monkeypatch) as turns:
        async with client.post(SUBMISSIONS[row].path, data=io.BytesIO(written), headers=headers) as received:
            refusal = await received.read()
    assert [json.loads(request.body) for request in upstream.requests] == [asked], refusal
    assert turns.most <= MOST_CALLS, (turns.most, turns.by)
    assert turns.longest_json <= MAX_BRIEF_BYTES
