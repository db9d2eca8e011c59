"""The official SDKs as people have them, default retries and all, asked in one way.

    ask_with["node"](f"{gateway.url}/v1", secret("alice"), [Call("completions", {...})])

Calls are made one after the other with one client. Each has an answer, shaped as that of the script for Node is
(openai_node.mjs): `data` or, of a stream, `chunks`; `request_id`; and `error` where the SDK raised one.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import openai
from openai import AsyncOpenAI, OpenAI

from tests.fakes.redis_servers import ROOT

SCRIPT = Path(__file__).parent / "openai_node.mjs"
NODE = ROOT / ".venv" / "servers" / "node-sdk"
"""Where .ci/servers puts Node and its SDK."""

NODE_S = 50.0
"""How long the calls of one process may take in all."""

Received = dict[str, Any]


class Call(NamedTuple):
    """What to ask: the resource whose `create` is called, and with what."""

    path: str
    body: Mapping[str, Any] = {}
    leave_after: int | None = None
    """Of a stream, after how many chunks the client leaves; only with Node."""
    files: Mapping[str, Sequence[str]] = {}
    """Files of a form in base64, by parameter; only with Node."""
    method: str = "create"
    """Of the resource; only with Node."""
    id: str | None = None
    """What the method is asked about, in place of a body; only with Node."""


class MissingSDK(Exception):
    """The SDK for Node is not installed; the sentence says what to do."""


def ask_node(base_url: str, secret: str, calls: Sequence[Call]) -> list[Received]:
    """openai-node. Raises `MissingSDK`."""
    sdk = NODE / "node_modules" / "openai"
    if not (sdk / "index.mjs").exists() or not (NODE / "node").exists():
        raise MissingSDK(
            f"{sdk} is not there, and this test needs the real one: run `make servers`, which says why not."
        )
    done = subprocess.run(
        [NODE / "node", SCRIPT, sdk], input=json.dumps([call._asdict() for call in calls]), capture_output=True,
        text=True, timeout=NODE_S, check=False,
        env={**os.environ, "OPENAI_BASE_URL": base_url, "OPENAI_API_KEY": secret},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answers: list[Received] = json.loads(done.stdout)
    return answers


def ask_python(base_url: str, secret: str, calls: Sequence[Call]) -> list[Received]:
    """openai-python."""

    def ask(call: Call) -> Received:
        made = attrgetter(call.path)(sdk).create(**call.body)
        if not call.body.get("stream"):
            return {"data": made.model_dump(), "request_id": made._request_id}
        return {"chunks": [chunk.model_dump() for chunk in made]}

    def try_to_ask(call: Call) -> Received:
        try:
            return ask(call)
        except openai.APIError as error:
            return {"error": _received(error)}

    with OpenAI(base_url=base_url, api_key=secret) as sdk:
        return [try_to_ask(call) for call in calls]


def ask_python_async(base_url: str, secret: str, calls: Sequence[Call]) -> list[Received]:
    """The other client of openai-python, in an event loop of its own."""

    async def ask(sdk: AsyncOpenAI, call: Call) -> Received:
        try:
            made = await attrgetter(call.path)(sdk).create(**call.body)
            if not call.body.get("stream"):
                return {"data": made.model_dump(), "request_id": made._request_id}
            return {"chunks": [chunk.model_dump() async for chunk in made]}
        except openai.APIError as error:
            return {"error": _received(error)}

    async def ask_all() -> list[Received]:
        async with AsyncOpenAI(base_url=base_url, api_key=secret) as sdk:
            return [await ask(sdk, call) for call in calls]

    return asyncio.run(ask_all())


def _received(error: openai.APIError) -> Received:
    """What a program reads of it."""
    return {
        "name": type(error).__name__, "status": getattr(error, "status_code", None), "code": error.code,
        "type": error.type, "param": error.param, "request_id": getattr(error, "request_id", None),
        "message": error.message,
    }  # fmt: skip


ask_with: Mapping[str, Callable[[str, str, Sequence[Call]], list[Received]]] = {
    "python": ask_python, "python async": ask_python_async, "node": ask_node,
}  # fmt: skip
