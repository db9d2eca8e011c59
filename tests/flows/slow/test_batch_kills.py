"""Batches of both APIs whose workers and gateways are killed between their creation, their end and their settlement:
each is charged once, by its results."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import StartsGateways
from tests.fakes import forms
from tests.fakes.scripted import Wire, answer, error_json, ok_json
from tests.flows.client import Answer, request
from tests.flows.gateway_process import CHAT, Gateway, key, model, secret, settings
from tests.flows.killing import (
    STORES,
    calls_while_workers_die,
    client_id,
    kill_all,
    settled,
    upstream_and_store,
    windows,
)

WORK_S = 8.0
PAUSE_S = 0.2
MAX_TOKENS = 40
PRICE = {"input": 2, "output": 8, "variants": {"batch": {"input": 1, "output": 4}}}
CLAUDE = "claude-sonnet-5"


def usages_of(number: int) -> list[tuple[int, int]]:
    """Prompt and completion tokens of each request of a batch, as its upstream reports them."""
    return [(3 + (number + line) % 11, 1 + (number * 7 + line) % MAX_TOKENS) for line in range(1 + number % 3)]


def tokens_of(number: int) -> tuple[int, int]:
    """The sum over the batch."""
    usages = usages_of(number)
    return sum(prompt for prompt, _ in usages), sum(completion for _, completion in usages)


def takes_s(number: int) -> float:
    """How long a batch takes."""
    return number % 7 / 2


class BatchUpstream:
    """The upstream of one API, which keeps a ledger of the batches that it has begun, by their numbers."""

    def __init__(self) -> None:
        self.received: Counter[int] = Counter()
        self.began: dict[int, float] = {}

    async def __call__(self, wire: Wire) -> None:
        path, body = wire.request.path, wire.request.body
        if wire.request.method == "POST":
            number = _first_number(body if path.endswith(("batches", "files")) else path.encode())
            if path.endswith("batches"):
                self.received[number] += 1
                self.began.setdefault(number, time.monotonic())
            await asyncio.sleep(0.02)
            await ok_json(self.made(path, number))(wire)
        else:
            number = _first_number(path.encode())
            if number not in self.began:
                await error_json(404)(wire)
            elif path.endswith(("/results", "/content")):
                await answer(b"".join([json.dumps(line).encode() + b"\n" for line in self.results(number)]))(wire)
            else:
                await ok_json(self.state(number, is_over=time.monotonic() - self.began[number] > takes_s(number)))(wire)

    def pending(self) -> int:
        """How many batches go on."""
        now = time.monotonic()
        return sum(now - began < takes_s(number) for number, began in list(self.began.items()))

    def made(self, path: str, number: int) -> dict[str, Any]:
        """The answer to a POST."""
        return self.state(number, is_over=False)

    def state(self, number: int, *, is_over: bool) -> dict[str, Any]:
        """The batch object."""
        raise NotImplementedError

    def results(self, number: int) -> list[dict[str, Any]]:
        """The lines of the results."""
        raise NotImplementedError


def _first_number(text: bytes) -> int:
    found = re.search(rb"call-(\d+)", text)
    assert found is not None, text
    return int(found[1])


class OpenAIBatches(BatchUpstream):
    def made(self, path: str, number: int) -> dict[str, Any]:
        if path.endswith("files"):
            return {"id": f"file-call-{number}", "object": "file"}
        return super().made(path, number)

    def state(self, number: int, *, is_over: bool) -> dict[str, Any]:
        over = {"status": "completed", "output_file_id": f"out-call-{number}"}
        return {"id": f"batch_call-{number}", **(over if is_over else {"status": "in_progress"})}

    def results(self, number: int) -> list[dict[str, Any]]:
        bodies = [
            {"model": CHAT, "choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion}}
            for prompt, completion in usages_of(number)
        ]
        return [
            {"custom_id": str(at), "response": {"status_code": 200, "body": body}} for at, body in enumerate(bodies)
        ]


class AnthropicBatches(BatchUpstream):
    def state(self, number: int, *, is_over: bool) -> dict[str, Any]:
        made = f"msgbatch_call-{number}"
        over = {"processing_status": "ended", "results_url": "https://upstream.invalid/results"}
        return {"id": made, "type": "message_batch", **(over if is_over else {"processing_status": "in_progress"})}

    def results(self, number: int) -> list[dict[str, Any]]:
        messages = [
            {"type": "message", "model": CLAUDE, "usage": {"input_tokens": prompt, "output_tokens": completion}}
            for prompt, completion in usages_of(number)
        ]
        return [
            {"custom_id": str(at), "result": {"type": "succeeded", "message": each}} for at, each in enumerate(messages)
        ]


def post(port: int, number: int, path: str, body: bytes, **headers: str) -> Answer:
    given = {"Authorization": f"Bearer {secret('alice')}", "Content-Type": "application/json", **headers}
    return request(port, "POST", path, body, {**given, "X-Client-Request-Id": client_id(number)})


def _params(number: int, at: int, which: str) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"call-{number} {at}"}]
    return {"model": which, "max_tokens": MAX_TOKENS, "messages": messages}


def make_openai(port: int, number: int) -> bool:
    """A file and a batch of it; whether the batch was made."""
    lines = [
        {"custom_id": f"call-{number}-{at}", "method": "POST", "url": "/v1/chat/completions",
         "body": _params(number, at, CHAT)}
        for at in range(len(usages_of(number)))
    ]  # fmt: skip
    file = b"".join([json.dumps(line).encode() + b"\n" for line in lines])
    asked = {"endpoint": "/v1/chat/completions", "completion_window": "24h", "input_file_id": f"file-call-{number}"}
    try:
        uploaded = post(port, number, "/v1/files", forms.form(("purpose", "batch"), ("file", file)), **forms.TYPE)
        return uploaded.status == 200 and post(port, number, "/v1/batches", json.dumps(asked).encode()).status == 200
    except (OSError, http.client.HTTPException):
        return False


def make_anthropic(port: int, number: int) -> bool:
    """A message batch; whether it was made."""
    requests = [
        {"custom_id": f"call-{number}-{at}", "params": _params(number, at, CLAUDE)}
        for at in range(len(usages_of(number)))
    ]
    try:
        return post(port, number, "/v1/messages/batches", json.dumps({"requests": requests}).encode()).status == 200
    except (OSError, http.client.HTTPException):
        return False


APIS: dict[str, tuple[type[BatchUpstream], Callable[[int, int], bool]]] = {
    "openai": (OpenAIBatches, make_openai), "anthropic": (AnthropicBatches, make_anthropic),
}  # fmt: skip


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("api", APIS)
def test_killed_workers_and_gateways_change_nothing(
    start_shared_gateway: StartsGateways, tmp_path: Path, api: str, kind: str
) -> None:
    upstream, make = APIS[api][0](), APIS[api][1]
    with upstream_and_store(kind, tmp_path, upstream) as (url, store):
        given = configuration(url, store)
        gateway = start_shared_gateway(given)
        answered = calls_while_workers_die(gateway, make, WORK_S, pause_s=PAUSE_S)
        assert upstream.pending()
        kill_all(gateway)
        heir = start_shared_gateway(given)
        check(heir, upstream, answered)
        heir.stop()  # while its store is there


def configuration(upstream: str, store: dict[str, str]) -> dict[str, Any]:
    return settings(
        upstream,
        upstreams={"main": {"capabilities": {"messages": True}}},
        models={CHAT: model("chat", price=PRICE), CLAUDE: model("messages", price=PRICE)},
        keys=[key("alice", quotas=[{"usd": 1000, "per": "month"}, {"tokens": 10**9, "per": "day"}])],
        files={"upstream": "main", "max_per_key": 5000}, server={"workers": 2}, store=store,
    )  # fmt: skip


def check(gateway: Gateway, upstream: BatchUpstream, answered: list[int]) -> None:
    """Each batch that the upstream has begun has one record: those whose id the client saw with what it reports, others
    with that or, as lost, with no less. The windows hold the sum of the records."""
    found = settled(gateway, upstream.received)
    for number in answered:
        row = found[client_id(number)]
        assert (row["prompt_tokens"], row["completion_tokens"]) == tokens_of(number)
        assert (row["usage_source"], row["status"]) == ("reported", 200)
    for number in upstream.received.keys() - set(answered):
        row = found[client_id(number)]
        assert row["ended"] == "lost" or (row["prompt_tokens"], row["completion_tokens"]) == tokens_of(number)
        assert row["completion_tokens"] >= tokens_of(number)[1]
    rows = found.values()
    reported = windows(gateway)
    assert reported["tokens"]["used"] == sum(row["prompt_tokens"] + row["completion_tokens"] for row in rows)
    assert reported["usd"]["used"] == pytest.approx(sum(row["cost_usd"] for row in rows))
