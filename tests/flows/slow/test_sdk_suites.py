"""The official Python SDKs' own tests of what a gateway serves, run through a gateway with a scripted upstream.

Their tests call every method with no more than it requires and with every parameter, plain, raw and streamed, and check
the types of what comes back. What the gateway refuses is named with the reason. Tests of Responses name no model, and
ids that were never made: suite_conftest.py supplies both, and the upstream gives the ids that are wanted.

Not run: openai-python's `audio/test_speech.py`, whose answers come from a mock inside of it, so that nothing is sent,
and `test_videos.py`, whose API OpenAI was to shut down on 2026-09-24.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes import responses_api as api
from tests.fakes.good_answers import FORMS, Form
from tests.fakes.redis_servers import ROOT
from tests.fakes.scripted import CHUNKED, Request, Wire, chunk, ok_json
from tests.flows.gateway_process import Gateway, key, model, secret, settings

SUITES = ROOT / ".venv/servers/sdk-tests"
"""Where .ci/servers puts the tests of the installed SDKs, out of their source packages."""
CONFTEST = Path(__file__).parents[1] / "suite_conftest.py"
WITHIN_S = 240.0
pytestmark = pytest.mark.timeout(300)


class Suite(NamedTuple):
    """Files of an SDK's tests, and which of these tests the gateway refuses."""

    sdk: str
    base_url: str
    files: tuple[str, ...]
    refused: dict[str, str]
    """Pattern of a test's `file::name` -> why."""
    is_keeping: bool = False
    """Whether it is about what an upstream keeps."""


_CALLS = r"^{}\..*test_(method|raw_response|streaming_response)_({})"
"""Tests that send something: those named `path_params` do not."""

_MOCKED = "the answer comes from a mock inside of the test, whose package is not here"

SUITE = {
    "anthropic": Suite(
        "anthropic", "",
        ("test_messages.py", "beta/test_messages.py", "test_models.py", "beta/test_models.py"),
        {r"^beta.test_messages\..*_create_with_all_params": "names a thread, which is a conversation of the account"},
    ),
    "openai": Suite(
        "openai", "/v1",
        (
            "test_completions.py", "chat/test_completions.py", "test_embeddings.py", "test_models.py",
            "test_moderations.py", "test_responses.py", "responses/test_input_items.py",
            "responses/test_input_tokens.py", "test_conversations.py", "conversations/test_items.py",
        ),
        {
            _CALLS.format("chat.test_completions", "retrieve|update|list|delete"): "stored chats are not served",
            r"^(test_responses|responses.test_input_tokens)\..*_method_(create|count)_with_all_params":
                "names a previous response and a conversation, of which the API takes one",
            _CALLS.format("test_models", "delete"): "a gateway's models are deleted by its operator",
        },
    ),
    "openai, images and audio": Suite(
        "openai", "/v1", ("test_images.py", "audio/test_transcriptions.py", "audio/test_translations.py"),
        {r"^test_images\..*_(edit|generate)_with_all_params": "a picture in SVG, whose writing has no price"},
    ),
    "openai, files and batches": Suite(
        "openai", "/v1", ("test_files.py", "test_batches.py"),
        {
            r"^test_(files|batches)\..*_list_with_all_params": "a page of 0 objects behind an id that was never made",
            _CALLS.format("test_files", "content"): _MOCKED,
        },
        is_keeping=True,
    ),
    "anthropic, batches": Suite(
        "anthropic", "", ("messages/test_batches.py",),
        {
            _CALLS.format("messages.test_batches", "delete"): "what is not charged yet is not deleted",
            _CALLS.format("messages.test_batches", "results"): _MOCKED,
            r"^messages.test_batches\..*_list_with_all_params": "a page behind an id that was never made",
        },
        is_keeping=True,
    ),
}  # fmt: skip


ITEM = api.message("Hello")


async def upstream_of_all(wire: Wire) -> None:
    """A good answer to whatever is asked."""
    path = wire.request.path.partition("?")[0].removeprefix("/v1")
    if path == "/messages/count_tokens":
        await ok_json({"input_tokens": 3})(wire)
    elif path == "/embeddings":
        data = [{"object": "embedding", "index": 0, "embedding": [0.5]}]
        usage = {"prompt_tokens": 1, "total_tokens": 1}
        await ok_json({"object": "list", "data": data, "model": "m", "usage": usage})(wire)
    elif path == "/moderations":
        await ok_json({"id": "modr-1", "model": "m", "results": []})(wire)
    elif path.startswith(("/images", "/audio")):
        await _media(wire, path)
    elif path.startswith(("/responses", "/conversations")):
        await _stored(wire, path)
    elif path.startswith(("/files", "/batches", "/messages/batches")):
        await ok_json(_object(wire.request, path))(wire)
    else:
        await _generated(wire, next(form for form in FORMS.values() if form.path == f"/v1{path}"))


def _kept(request: Request, path: str) -> dict[str, Any]:
    """What is kept, or is about to be, and what is asked of it."""
    kind, _, rest = path.removeprefix("/").partition("/")
    named, _, action = rest.partition("/")
    match kind, named, action, request.method:
        case "responses", "input_tokens", _, _:
            return {"object": "response.input_tokens", "input_tokens": 3}
        case "responses", "compact", _, _:
            return api.response([api.message("Hello")]) | {"object": "response.compaction"}
        case _, _, "items" | "input_items", _:
            return {"object": "list", "data": [ITEM], "first_id": ITEM["id"], "last_id": ITEM["id"], "has_more": False}
        case "conversations", _, _, "GET" if action:
            return ITEM
        case "conversations", _, "", "DELETE":
            return {"id": named, "object": "conversation.deleted", "deleted": True}
    metadata = request.json.get("metadata") if request.body else None
    made = named or (metadata or {}).get("id", f"{kind[:4]}_made")
    if kind == "responses":
        return api.response([api.message("Hello")], id=made)
    return {"id": made, "object": "conversation", "created_at": 1, "metadata": {}}


async def _stored(wire: Wire, path: str) -> None:
    answer, query = _kept(wire.request, path), wire.request.path.partition("?")[2]
    if answer.get("object") == "response" and (_asks_for_stream(wire.request) or "stream=true" in query):
        parts = list(map(api.one, api.events(answer["output"], answer)))
        await wire.write(CHUNKED + b"".join(map(chunk, parts)) + b"0\r\n\r\n")
    else:
        await ok_json(answer)(wire)


def _object(request: Request, path: str) -> dict[str, Any]:
    """A file or a batch: named in the path, or made with the id that its request wants."""
    kind, _, rest = path.removeprefix("/messages").removeprefix("/").partition("/")
    named = rest.partition("/")[0]
    wanted = _WANTED.search(request.body)
    found = next(filter(None, wanted.groups()), b"").decode() if wanted else ""
    made = named or found or f"{kind}_{next(_NUMBERS)}"
    is_deleted = {"deleted": True} if request.method == "DELETE" else {}
    if kind == "files":
        of_file = {"bytes": 3, "created_at": 1, "filename": "a", "purpose": "assistants", "status": "processed"}
        return {"id": made, "object": "file", **of_file, **is_deleted}
    if path.startswith("/messages"):
        counts = dict.fromkeys(("canceled", "errored", "expired", "processing", "succeeded"), 0)
        ends = dict.fromkeys(("archived_at", "cancel_initiated_at", "ended_at", "results_url"))
        times = dict.fromkeys(("created_at", "expires_at"), "2026-01-01T00:00:00Z")
        state = {"processing_status": "in_progress", "request_counts": counts}
        return {"id": made, "type": "message_batch", **state, **ends, **times}
    return {
        "id": made, "object": "batch", "endpoint": "/v1/responses", "completion_window": "24h", "created_at": 1,
        "input_file_id": "input_file_id", "status": "in_progress",
    }  # fmt: skip


_NUMBERS = count()
_WANTED = re.compile(rb'filename="(\w+_id|file_of_batch)"|"id": ?"(\w+)"|"(message_batch_id)"')

PICTURE = {"b64_json": "AAAA", "created_at": 1, "output_format": "png", "quality": "high", "size": "1024x1024"}
IMAGE_USAGE = {
    "input_tokens": 1, "output_tokens": 1, "total_tokens": 2,
    "input_tokens_details": {"image_tokens": 0, "text_tokens": 1},
}  # fmt: skip


async def _media(wire: Wire, path: str) -> None:
    """Of images and audio. A form asks for a stream in a field of its own."""
    streams = re.search(rb'name="stream"\r\n\r\ntrue|"stream":\s*true', wire.request.body)
    if path.startswith("/audio"):
        event: dict[str, Any] = {"type": "transcript.text.done", "text": "Hello"}
        plain: dict[str, Any] = {"text": "Hello"}
    else:
        kind = "image_edit" if path == "/images/edits" else "image_generation"
        event = {"type": f"{kind}.completed", **PICTURE, "background": "auto", "usage": IMAGE_USAGE}
        plain = {"created": 1, "data": [{"b64_json": "AAAA"}], "usage": IMAGE_USAGE}
    if streams is None:
        await ok_json(plain)(wire)
    else:
        await wire.write(CHUNKED + chunk(b"data: " + json.dumps(event).encode() + b"\n\n") + b"0\r\n\r\n")


def _asks_for_stream(request: Request) -> bool:
    return bool(request.body) and bool(request.json.get("stream"))


async def _generated(wire: Wire, form: Form) -> None:
    if wire.request.json.get("stream"):
        events = [*form.pieces("Hello"), *form.finish("Hello")]
        parts = [*map(form.event, events), form.end()]
        await wire.write(CHUNKED + b"".join(map(chunk, filter(None, parts))) + b"0\r\n\r\n")
    else:
        await ok_json(form.document("Hello"))(wire)


def config(upstream: str) -> dict[str, Any]:
    endpoints = [
        "completions", "chat", "embeddings", "messages", "moderations", "responses", "images", "image_edits",
        "image_variations", "transcriptions", "translations",
    ]  # fmt: skip
    of_all = model("chat") | {"endpoints": endpoints, "max_attempts": 1}
    plain = settings(upstream, keys=[key("alice")], upstreams={"main": {"capabilities": {"messages": True}}})
    return plain | {"models": {"claude-1": of_all, "*": of_all}}


@pytest.fixture(scope="module")
def gateways(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> dict[bool, Gateway]:
    """A gateway, and one that keeps files and batches: it refuses names of files that were not uploaded."""
    plain = config(shared_upstream.url)
    return {False: start_shared_gateway(plain), True: start_shared_gateway(plain | {"files": {"upstream": "main"}})}


def run(gateway: Gateway, asked: Suite, folder: Path) -> dict[str, str | None]:
    """Every test by `file::name`, with the message of its failure; None: it passed."""
    suite = SUITES / asked.sdk / "tests"
    assert suite.exists(), f"{suite} is not there, and this test needs it: run `make servers`."
    shutil.copytree(suite, folder / "tests")
    shutil.copy(CONFTEST, folder / "tests/conftest.py")
    files = [f"tests/api_resources/{name}" for name in asked.files]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", ".", "-p", "no:cacheprovider",
         "-p", "no:xdist", "-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=session",
         "-o", "asyncio_default_test_loop_scope=session", "--junitxml", "report.xml", *files],
        cwd=folder, capture_output=True, text=True, timeout=WITHIN_S, check=False,
        env={
            **os.environ, "TEST_SDK": asked.sdk, "TEST_API_BASE_URL": gateway.url + asked.base_url,
            "TEST_API_KEY": secret("alice"), "PYTHONPATH": ".",
        },
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return dict(map(_outcome, ET.parse(folder / "report.xml").iter("testcase")))


def _outcome(case: ET.Element) -> tuple[str, str | None]:
    name = f"{case.get('classname')}::{case.get('name')}".removeprefix("tests.api_resources.")
    failure = case.find("failure") if case.find("failure") is not None else case.find("error")
    return name, None if failure is None else str(failure.get("message"))


@pytest.mark.parametrize("name", SUITE)
def test_the_sdk_s_own_tests_pass(
    gateways: dict[bool, Gateway], upstream: ScriptedUpstream, tmp_path: Path, name: str
) -> None:
    upstream.answer_with(always=upstream_of_all)
    outcomes = run(gateways[SUITE[name].is_keeping], SUITE[name], tmp_path)
    refused = SUITE[name].refused
    wrong: dict[str, Any] = {}
    for test, failure in outcomes.items():
        expects = any(re.search(pattern, test) for pattern in refused)
        if expects is (failure is None):
            wrong[test] = failure
    assert not wrong
    assert len(outcomes) > 100
