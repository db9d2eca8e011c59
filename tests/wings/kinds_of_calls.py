"""Calls of each kind that the tables of docs/openings.md have, an upstream that takes them, and settings."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from aiohttp.test_utils import TestClient

from tests.fakes import forms, scripted
from tests.fakes.good_answers import FORMS
from tests.web.conftest import AUTH

PAGE = Path(__file__).parents[2] / "docs" / "openings.md"

MESSAGES = [{"role": "user", "content": "Hello"}]
LINE = {
    "custom_id": "a", "method": "POST", "url": "/v1/chat/completions",
    "body": {"model": "m", "messages": MESSAGES, "max_tokens": 5},
}  # fmt: skip
_BATCH = {
    "id": "batch_1", "object": "batch", "endpoint": "/v1/chat/completions", "input_file_id": "file-1",
    "completion_window": "24h", "status": "in_progress",
}  # fmt: skip
_MESSAGE_BATCH = {"id": "msgbatch_1", "type": "message_batch", "processing_status": "in_progress"}
_ANSWERS = {
    "/files": {"id": "file-1", "object": "file", "purpose": "batch", "bytes": 9, "filename": "a.jsonl"},
    "/messages/batches": _MESSAGE_BATCH, "/batches": _BATCH, "/count_tokens": {"input_tokens": 3},
    "/input_tokens": {"object": "response.input_tokens", "input_tokens": 3}, ":countTokens": {"totalTokens": 3},
    "/responses": FORMS["responses"].document("Hi"), "/messages": FORMS["messages"].document("Hi"),
    "/made": {"id": "t-1", "state": "ready"}, "/make": {"id": "t-1", "state": "ready"},
    "/transcriptions": {"text": "Hi"},
}  # fmt: skip
"""By a part of the path, the first that it has; all else is a chat."""


async def upstream(wire: scripted.Wire) -> None:
    if "upgrade" in wire.request.headers:
        await scripted.error_json(403)(wire)
    elif b'"stream": true' in wire.request.body:
        await scripted.stream([*FORMS["chat"].pieces("Hi"), *FORMS["chat"].finish("Hi")])(wire)
    else:
        found = [answer for part, answer in _ANSWERS.items() if part in wire.request.path]
        await scripted.ok_json(found[0] if found else FORMS["chat"].document("Hi"))(wire)


def settings(url: str) -> dict[str, Any]:
    able = {"realtime": True, "messages": True, "responses": True, "generate_content": True}
    up = {"routes": [{"upstream": "up"}]}
    text = ["chat", "responses", "messages", "generate_content"]
    return {
        "upstreams": {"up": {"base_url": url, "api_key": "upstream-secret-key", "capabilities": able}},
        "models": {
            "m": {**up, "max_output_tokens": 100, "endpoints": text},
            "voice": {**up, "endpoints": ["realtime"]},
            "ears": {**up, "endpoints": ["transcriptions"]},
        },
        "passthrough": {
            "draw": {
                "upstream": "up", "prefix": "/draw", "submit": ["POST /make"], "read": ["GET /made?id={task}"],
                "task": "/id", "done": {"/state": "ready"},
            },
        },
        "files": {"upstream": "up"},
    }  # fmt: skip


class Asked(NamedTuple):
    """A request of a client: with a body in JSON, or a form, or none."""

    path: str
    body: Any = None
    headers: Mapping[str, str] = {}
    before: tuple[Asked, ...] = ()
    """What has to be asked before, so that it can be."""

    async def send(self, client: TestClient[Any, Any]) -> tuple[int, Any]:
        """The status and the object of the answer."""
        method = "GET" if self.body is None else "POST"
        data = self.body if isinstance(self.body, bytes | None) else json.dumps(self.body).encode()
        kind = {} if data is None or isinstance(self.body, bytes) else {"Content-Type": "application/json"}
        async with client.request(method, self.path, data=data, headers={**AUTH, **kind, **self.headers}) as answer:
            read = await answer.read()
            return answer.status, json.loads(read) if read.startswith(b"{") else read


CHAT = Asked("/v1/chat/completions", {"model": "m", "messages": MESSAGES})
STREAM = Asked("/v1/chat/completions", {"model": "m", "messages": MESSAGES, "stream": True})
LONG = Asked("/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": "long " * 20_000}]})
COUNTS = (
    Asked("/v1/messages/count_tokens", {"model": "m", "messages": MESSAGES}),
    Asked("/v1/responses/input_tokens", {"model": "m", "input": "Hello"}),
    Asked("/v1beta/models/m:countTokens", {"contents": [{"parts": [{"text": "Hello"}]}]}),
)
FORM = Asked("/v1/audio/transcriptions", forms.form(("model", "ears"), ("file", forms.wav(0.1))), forms.TYPE)
_PARAMS = {"model": "m", "max_tokens": 5, "messages": MESSAGES}
MESSAGE_BATCH = Asked("/v1/messages/batches", {"requests": [{"custom_id": "a", "params": _PARAMS}]})
_FILE = forms.form(("purpose", "batch"), ("file", json.dumps(LINE).encode() + b"\n"))
UPLOAD = Asked("/v1/files", _FILE, forms.TYPE)
BATCH = Asked(
    "/v1/batches", {"input_file_id": "file-1", "endpoint": LINE["url"], "completion_window": "24h"}, before=(UPLOAD,)
)
TASK = Asked("/draw/make", {"prompt": "a cat"})
TASK_FORM = Asked("/draw/make", forms.form(("prompt", "a cat"), ("image", b"PNG")), forms.TYPE)
STORED = Asked("/v1/responses", {"model": "m", "input": "Hello", "store": True})
READS = (
    Asked("/draw/made?id=t-1", before=(TASK,)),
    Asked("/v1/responses/resp_1", before=(STORED,)),
    Asked("/v1/files/file-1", before=(UPLOAD,)),
)
_UPGRADE = {
    "Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": base64.b64encode(bytes(16)).decode(),
}  # fmt: skip
SESSION = Asked("/v1/realtime?model=voice", headers=_UPGRADE)


def table(*head: str) -> list[list[str]]:
    """The rows of the table with these words in its head, each with its columns."""
    lines = PAGE.read_text().splitlines()
    start = lines.index(f"| {' | '.join(head)} |") + 2
    end = next(number for number, line in enumerate(lines) if number >= start and not line.startswith("|"))
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[start:end]]
