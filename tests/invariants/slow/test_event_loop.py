"""No request holds the event loop for long, however absurd it is: counted in the functions that one turn of the loop
calls, or by the process that does the work."""

from __future__ import annotations

import gzip
import json
import sys
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import FormData
from aiohttp.test_utils import TestClient

from gateway.relay import exchange
from gateway.upstream.content_encoding import PIECE_BYTES
from gateway.web.bodies import MAX_MEMBERS
from gateway.wings.stored.batch_file import MAX_ALL_LINES, MAX_NESTED
from gateway.wings.stored.batch_results import CleanedResults
from tests.conftest import ScriptedUpstream
from tests.fakes.scripted import answer, chunk, ok_json, raw
from tests.fakes.turns import MOST_CALLS, counted
from tests.web.conftest import AUTH, KEY, Inside

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

NOWHERE = "http://127.0.0.1:9/v1"
MEMBERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress, "x-gzip": gzip.compress, "deflate": zlib.compress, "zstd": zstd.compress,
}  # fmt: skip
"""The content encodings of which a body may have several members."""

BODY = json.dumps({"model": "m", "prompt": ["x", 1]}).encode()
"""It is refused by its content."""


async def send(client: TestClient[Any, Any], body: bytes, coding: str) -> tuple[int, str]:
    headers = AUTH | {"Content-Encoding": coding, "Content-Type": "application/json"}
    async with client.post("/v1/completions", data=body, headers=headers) as answer:
        return answer.status, (await answer.json())["error"]["message"]


@pytest.mark.parametrize("coding", sorted(MEMBERS))
async def test_members_of_compressed_bodies(inside: Inside, coding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that hold nothing."""
    client = await inside(NOWHERE)
    await send(client, MEMBERS[coding](BODY), coding)  # the validator of the endpoint is made for its first body
    empty = MEMBERS[coding](b"")
    with counted(monkeypatch) as turns:
        status, allowed = await send(client, empty * (MAX_MEMBERS - 1) + MEMBERS[coding](BODY), coding)
        assert (status, "member" in allowed) == (400, False)
        status, refused = await send(client, empty * 20_000, coding)
        assert (status, f"more than {MAX_MEMBERS} members" in refused) == (400, True), refused
    assert turns.most <= MOST_CALLS, turns.by


VECTORS = [{"object": "embedding", "index": 0, "embedding": [0.0123456] * 256}] * 1000
MANY_VECTORS = {"object": "list", "model": "m", "data": VECTORS, "usage": {"prompt_tokens": 9, "total_tokens": 9}}


async def test_a_compressed_answer(inside: Inside, upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three megabytes of it, in one piece of the network."""
    models = {"m": {"endpoints": ["embeddings"], "routes": [{"upstream": "up"}]}}
    client, whole = await inside(upstream.url, models=models), json.dumps(MANY_VECTORS).encode()
    upstream.answer_with(always=answer(gzip.compress(whole), headers=[("Content-Encoding", "gzip")]))
    with counted(monkeypatch) as turns:
        async with client.post("/v1/embeddings", json={"model": "m", "input": "x"}, headers=AUTH) as received:
            assert await received.read() == whole
    assert turns.most <= MOST_CALLS, turns.by


async def test_compressed_results_of_a_batch(
    inside: Inside, upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty megabytes of them, in one piece of the network, pass in pieces."""
    models = {"m": {"endpoints": ["messages"], "routes": [{"upstream": "up"}]}}
    up = {"base_url": upstream.url, "api_key": "upstream-secret-key", "capabilities": {"messages": True}}
    client, whole = await inside(upstream.url, models=models, upstreams={"up": up}), b'{"custom_id": "1"}\n' * 10**6
    made = {"id": "msgbatch_1", "type": "message_batch", "processing_status": "in_progress"}
    packed = answer(gzip.compress(whole), headers=[("Content-Encoding", "gzip")])
    upstream.answer_with(ok_json(made), always=packed)
    ask = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}]}
    path, body = "/v1/messages/batches", {"requests": [{"custom_id": "1", "params": ask}]}
    async with client.post(path, json=body, headers=AUTH) as received:
        assert received.status == 200, await received.read()
    pieces, feed = list[int](), CleanedResults.feed

    async def fed(self: CleanedResults, piece: bytes) -> bytes:
        passed = await feed(self, piece)
        pieces.append(len(passed))
        return passed

    monkeypatch.setattr(CleanedResults, "feed", fed)
    with counted(monkeypatch) as turns:
        async with client.get(f"{path}/msgbatch_1/results", headers=AUTH) as received:
            assert await received.read() == whole
    assert turns.most <= MOST_CALLS, turns.by
    assert max(pieces) <= 2 * PIECE_BYTES


@pytest.mark.parametrize("line", [b"\n", b" \n", b"\r\n"])
async def test_lines_of_a_batch(inside: Inside, line: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    client = await inside(NOWHERE, files={"upstream": "up"})
    form = FormData({"purpose": "batch"})
    form.add_field("file", line * (MAX_ALL_LINES + 1), filename="lines.jsonl")
    with counted(monkeypatch) as turns:
        async with client.post("/v1/files", data=form, headers=AUTH) as answer:
            assert answer.status == 400
            message = (await answer.json())["error"]["message"]
    assert f"at most {MAX_ALL_LINES} lines" in message
    assert turns.most <= MOST_CALLS, turns.by


HEAVY = {"names": {f"é{place}": 0 for place in range(60_000)}, "objects": [{"é": 1}] * (MAX_NESTED - 9)}


@pytest.mark.parametrize("kind", HEAVY)
async def test_names_in_a_line_of_a_batch(inside: Inside, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A megabyte of them held up other calls for 290 ms: each may be that of a file."""
    client = await inside(NOWHERE, files={"upstream": "up"})
    ask = {"model": "m", "prompt": "Hi", "max_tokens": 5, "heavy": HEAVY[kind], "file_id": "file-1"}
    line = {"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": ask}
    form = FormData({"purpose": "batch"})
    form.add_field("file", json.dumps(line, ensure_ascii=False).encode(), filename="lines.jsonl")
    with counted(monkeypatch) as turns:
        async with client.post("/v1/files", data=form, headers=AUTH) as answer:
            message = (await answer.json())["error"]["message"]
    assert message == "Line 1 of the file: No such File object: file-1"
    assert turns.most <= MOST_CALLS, turns.by


@pytest.mark.parametrize(("heavy", "is_allowed"), [(["[{"] * MAX_NESTED, True), ([[]] * MAX_NESTED, False)])
async def test_lists_in_a_line_of_a_batch(inside: Inside, heavy: list[Any], *, is_allowed: bool) -> None:
    client = await inside(NOWHERE, files={"upstream": "up"})
    line = {"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": {"model": "none", "heavy": heavy}}
    form = FormData({"purpose": "batch"})
    form.add_field("file", json.dumps(line).encode(), filename="lines.jsonl")
    async with client.post("/v1/files", data=form, headers=AUTH) as answer:
        message = (await answer.json())["error"]["message"]
    assert ("objects and lists" in message) != is_allowed, message


@pytest.mark.parametrize("path", ["/v1/models", "/v1beta/models", "/openai/models", "/v1/chat/completions"])
async def test_models_of_a_key_with_many_patterns(inside: Inside, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    models = {f"model-{place}": {"routes": [{"upstream": "up"}], "max_output_tokens": 9} for place in range(1000)}
    patterns = [f"none-{place}*" for place in range(200)]
    client = await inside(NOWHERE, models=models, keys=[{"id": "k", "secret": KEY, "models": [*patterns, "model-99?"]}])
    asked = {"model": "modell-1", "messages": [{"role": "user", "content": "Hi"}]}
    method, status = ("POST", 404) if path == "/v1/chat/completions" else ("GET", 200)
    body = ""
    for _ in range(2):  # the first one makes what checks its format
        with counted(monkeypatch) as turns:
            async with client.request(method, path, json=asked, headers=AUTH) as answer:
                assert answer.status == status
                body = await answer.text()
    assert body.count("model-99") >= 10 or path == "/v1beta/models" or status == 404
    assert turns.most <= MOST_CALLS, turns.by


@pytest.mark.parametrize("body", [{"quotas": ["1 USD/day"]}, {"quotas": []}], ids=["with a quota", "without"])
async def test_a_new_key_with_many_patterns(
    inside: Inside, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is compared with each model, for a warning where it matches none."""
    route = {"routes": [{"upstream": "up"}], "max_output_tokens": 9, "price": {"input": 1, "output": 2}}
    client = await inside(NOWHERE, models={f"model-{place}": route for place in range(500)})
    patterns = [f"model-{'x' * 50}-{place}*" for place in range(200)]
    admin = {"Authorization": "Bearer admin-token-0123456789"}
    async with client.post("/admin/api/keys", json={"id": "few", **body}, headers=admin) as made:
        assert made.status == 201  # the validator is made for the first one
    with counted(monkeypatch) as turns:
        key = {"id": "many", "models": patterns, **body}
        async with client.post("/admin/api/keys", json=key, headers=admin) as made:
            warnings = (await made.json())["warnings"]
            assert (made.status, "matches none" in " ".join(warnings)) == (201, True)
    assert turns.most <= MOST_CALLS, turns.by


STREAMS = {
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
    "messages": ("/v1/messages", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5}),
    "responses": ("/v1/responses", {"input": "Hi"}),
}
FLOODS = {
    "comments": b":\n\n", "blank lines": b"\n", "bare CR": b"\r", "numbers": b"data:1\n\n", "objects": b"data:{}\n\n",
    "lists": b"data:[\n\n", "reports": b'data:{"usage":{}}\n\n', "ids": b"id:\n\n",
}  # fmt: skip
MOST_OF_A_READ = 9 * MOST_CALLS
"""The chunks of one read, and three hundred and forty comments, each with a look for names of the account: some
milliseconds."""


@pytest.mark.parametrize("size", [1, 65_536])
@pytest.mark.parametrize("flood", FLOODS)
@pytest.mark.parametrize("door", STREAMS)
async def test_a_stream_of_tiny_parts(
    inside: Inside, upstream: ScriptedUpstream, door: str, flood: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One read of 64 KiB of them, or of chunks of one byte, held up other calls for 350 to 700 ms."""
    path, ask = STREAMS[door]
    models = {"m": {"endpoints": [door], "routes": [{"upstream": "up"}], "max_output_tokens": 9}}
    up = {"base_url": upstream.url, "api_key": "upstream-secret-key", "capabilities": {"messages": True}}
    client = await inside(upstream.url, models=models, upstreams={"up": up})
    monkeypatch.setattr(exchange, "TURN_S", 0.0)
    unit = FLOODS[flood]
    whole = unit * ((100_000 if size > 1 else 10_000) // len(unit))
    chunks = [chunk(whole[at : at + size]) for at in range(0, len(whole), size)]
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    upstream.answer_with(always=raw(head + b"".join(chunks) + b"0\r\n\r\n"))
    with counted(monkeypatch) as turns:
        async with client.post(path, json={"model": "m", "stream": True, **ask}, headers=AUTH) as received:
            await received.read()
    assert turns.most <= MOST_OF_A_READ, turns.by
