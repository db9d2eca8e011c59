"""Tokens of Gemini streams are never lost and never counted twice, whichever process is killed while they come.

Each call has a number, in X-Client-Request-Id and in its contents; what the upstream reports follows from the number.
Each chunk reports the usage so far, as Google's do, so that a broken stream has a report that is too low.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import itertools
import json
import os
import random
import signal
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import StartsGateways
from tests.fakes.redis_servers import RedisServer
from tests.fakes.scripted import CHUNKED, Scripted, Wire, chunk
from tests.flows.house import Gateway, eventually, key, secret, settings

WORK_S, CLIENTS = 12.0, 6
KILLS = 3
"""Below the number at which a gateway gives up."""
SETTLED_S = 60.0
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
            told = {"candidates": [candidate | ({"finishReason": "STOP"} if is_last else {})], "usageMetadata": usage}
            await wire.write(chunk(b"data: " + json.dumps(told).encode() + b"\r\n\r\n"))
            await asyncio.sleep(0.01)
        await wire.write(b"0\r\n\r\n")


def call(port: int, number: int) -> bool:
    """One stream; whether all of it came."""
    asked = {
        "contents": [{"role": "user", "parts": [{"text": f"call {number}"}]}],
        "generationConfig": {"maxOutputTokens": MOST_OUTPUT},
    }
    headers = {
        "x-goog-api-key": secret("alice"), "X-Client-Request-Id": f"client-{number}",
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


@pytest.mark.parametrize("kind", ["embedded", "redis"])
def test_the_ledgers_agree_after_kills(gateways: StartsGateways, tmp_path: Path, kind: str) -> None:
    sender = Sender()
    with contextlib.ExitStack() as ends:
        upstream = ends.enter_context(Scripted(always=sender))
        store = {"url": f"embedded:{tmp_path / 'data'}"}
        if kind == "redis":
            store = {"url": ends.enter_context(RedisServer(tmp_path / "redis")).url}
        house = gateways(configuration(upstream.url, {**store, "journal_dir": str(tmp_path / "journal")}))
        answered = worked(house)
        check(house, sender, answered)
        house.stop()  # while its store is there
        # A worker that is killed while it sends leaves half a request.
        upstream.troubles = [words for words in upstream.troubles if "half a request" not in words]


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


def worked(house: Gateway) -> list[int]:
    """The calls that were answered while workers were killed."""
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    dice, numbers = random.Random(seed), itertools.count()
    answered: list[int] = []
    end = time.monotonic() + WORK_S

    def work() -> None:
        while time.monotonic() < end:
            number = next(numbers)
            if call(house.port, number):
                answered.append(number)

    with ThreadPoolExecutor(CLIENTS) as pool:
        clients = [pool.submit(work) for _ in range(CLIENTS)]
        killed = 0
        while time.monotonic() < end - 3 and killed < KILLS:
            time.sleep(dice.uniform(0.5, 3))
            if len(alive := house.workers()) == 2:
                os.kill(dice.choice(alive), signal.SIGKILL)
                killed += 1
        for each in clients:
            each.result()
    assert killed
    assert answered
    return answered


def check(house: Gateway, sender: Sender, answered: list[int]) -> None:
    """Each call that the upstream received has one record; what was answered has its reported tokens, what was lost at
    least those; and the windows hold the sum of the records."""

    def rows() -> dict[str, Any]:
        return {row["client_request_id"]: row for row in house.calls(limit=100_000)}

    def windows() -> dict[str, Any]:
        return {each["unit"]: each for each in house.admin("quotas", key="alice").json["data"]}

    wanted = {f"client-{number}" for number in sender.received}
    eventually(lambda: wanted <= rows().keys() and not any(w["reserved"] for w in windows().values()), SETTLED_S, 1)
    records = house.calls(limit=100_000)
    assert max(Counter(row["client_request_id"] for row in records).values()) == 1
    found = {row["client_request_id"]: row for row in records}
    for number in answered:
        prompt, candidates, thoughts = tokens_of(number)
        row = found[f"client-{number}"]
        assert (row["prompt_tokens"], row["completion_tokens"]) == (prompt, candidates + thoughts)
        assert (row["reasoning_tokens"], row["usage_source"]) == (thoughts, "reported")
    for name, row in found.items():
        number = int(name.removeprefix("client-"))
        _, candidates, thoughts = tokens_of(number)
        if row["ended"] == "lost":
            assert row["completion_tokens"] >= candidates + thoughts
        elif number not in sender.received:
            assert row["completion_tokens"] == 0
    tokens = sum(row["prompt_tokens"] + row["completion_tokens"] for row in records)
    spent = sum(row["cost_usd"] for row in records)
    told = windows()
    assert told["tokens"]["used"] == tokens
    assert told["usd"]["used"] == pytest.approx(spent)
