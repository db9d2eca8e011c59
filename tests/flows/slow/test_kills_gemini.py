"""Tokens of Gemini streams are never lost and never counted twice, whichever process is killed while they come.

Each chunk reports the usage so far, as Google's do, so that a broken stream has a report that is too low.
"""

from __future__ import annotations

import asyncio
import http.client
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import StartsGateways
from tests.fakes.scripted import CHUNKED, Wire, chunk
from tests.flows.gateway_process import Gateway, key, secret, settings
from tests.flows.killing import STORES, calls_while_workers_die, client_id, settled, upstream_and_store, windows

WORK_S = 12.0
MODEL = "gemini-2.5-flash"
CHUNKS = 4
MOST_OUTPUT = 500
PRICE = {"input": 1, "output": 10}


def tokens_of(number: int) -> tuple[int, int, int]:
    """Prompt, candidates and thoughts of a call as its upstream reports them at its end."""
    return 3 + number % 89, CHUNKS + number % 31, 2 + number % 7


class Sender:
    """The upstream, which keeps a ledger of what it has sent."""

    def __init__(self) -> None:
        self.received: Counter[int] = Counter()

    async def __call__(self, wire: Wire) -> None:
        number = int(wire.request.json["contents"][0]["parts"][0]["text"].split()[1])
        self.received[number] += 1
        prompt, candidates, thoughts = tokens_of(number)
        await wire.write(CHUNKED)
        for index in range(1, CHUNKS + 1):
            is_last = index == CHUNKS
            candidate = {"index": 0, "content": {"role": "model", "parts": [{"text": "word "}]}}
            usage = {
                "promptTokenCount": prompt, "candidatesTokenCount": candidates if is_last else index,
                "thoughtsTokenCount": thoughts,
            }  # fmt: skip
            reported = {
                "candidates": [candidate | ({"finishReason": "STOP"} if is_last else {})],
                "usageMetadata": usage,
            }
            await wire.write(chunk(b"data: " + json.dumps(reported).encode() + b"\r\n\r\n"))
            await asyncio.sleep(0.01)
        await wire.write(b"0\r\n\r\n")


def call(port: int, number: int) -> bool:
    """One stream; whether all of it came."""
    asked = {
        "contents": [{"role": "user", "parts": [{"text": f"call {number}"}]}],
        "generationConfig": {"maxOutputTokens": MOST_OUTPUT},
    }
    headers = {
        "x-goog-api-key": secret("alice"), "X-Client-Request-Id": client_id(number),
        "Content-Type": "application/json",
    }  # fmt: skip
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("POST", f"/v1beta/models/{MODEL}:streamGenerateContent?alt=sse", json.dumps(asked), headers)
        answer = connection.getresponse()
        body = answer.read()
        return answer.status == 200 and b'"finishReason": "STOP"' in body
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


@pytest.mark.parametrize("kind", STORES)
def test_the_ledgers_agree_after_kills(start_shared_gateway: StartsGateways, tmp_path: Path, kind: str) -> None:
    sender = Sender()
    with upstream_and_store(kind, tmp_path, sender) as (url, store):
        gateway = start_shared_gateway(configuration(url, store))
        answered = calls_while_workers_die(gateway, call, WORK_S)
        check(gateway, sender, answered)
        gateway.stop()  # while its store is there


def configuration(upstream: str, store: dict[str, str]) -> dict[str, Any]:
    model = {
        "endpoints": ["generate_content"], "routes": [{"upstream": "main"}], "price": PRICE,
        "max_output_tokens": MOST_OUTPUT,
    }  # fmt: skip
    return settings(
        upstream, models={MODEL: model}, upstreams={"main": {"capabilities": {"generate_content": True}}},
        server={"workers": 2}, store=store,
        keys=[key("alice", quotas=[{"usd": 1000, "per": "month"}, {"tokens": 10**9, "per": "day"}])],
    )  # fmt: skip


def check(gateway: Gateway, sender: Sender, answered: list[int]) -> None:
    """Each call that the upstream received has one record; what was answered has its reported tokens, what was lost at
    least those; and the windows hold the sum of the records."""

    found = settled(gateway, sender.received)
    for number in answered:
        prompt, candidates, thoughts = tokens_of(number)
        row = found[client_id(number)]
        assert (row["prompt_tokens"], row["completion_tokens"]) == (prompt, candidates + thoughts)
        assert (row["reasoning_tokens"], row["usage_source"]) == (thoughts, "reported")
    for name, row in found.items():
        number = int(name.removeprefix("client-"))
        _, candidates, thoughts = tokens_of(number)
        if row["ended"] == "lost":
            assert row["completion_tokens"] >= candidates + thoughts
        elif number not in sender.received:
            assert row["completion_tokens"] == 0
    tokens = sum(row["prompt_tokens"] + row["completion_tokens"] for row in found.values())
    spent = sum(row["cost_usd"] for row in found.values())
    reported = windows(gateway)
    assert reported["tokens"]["used"] == tokens
    assert reported["usd"]["used"] == pytest.approx(spent)
