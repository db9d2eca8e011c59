"""Seconds of audio are never lost and never counted twice, whichever process is killed while forms are on their way.

Each call has a number, in X-Client-Request-Id and in the form. Its file has one length and the upstream reports
another, so that a record shows which of the two it was charged.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import itertools
import os
import random
import re
import signal
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import StartsGateways
from tests.fakes.forms import TYPE, form, wav
from tests.fakes.redis_servers import RedisServer
from tests.fakes.scripted import Scripted, Wire, ok_json
from tests.flows.client import request
from tests.flows.house import Gateway, eventually, key, secret, settings

WORK_S, CLIENTS = 15.0, 6
KILLS = 3
"""Below the number at which a gateway gives up."""
SETTLED_S = 60.0
PER_MINUTE = 0.06


def told_s(number: int) -> int:
    """What the upstream reports: never the length of the file."""
    return 10 + number % 50


def length_ms(number: int) -> int:
    """Of the file."""
    return 100 + number % 900


class Listener:
    """The upstream, which keeps a ledger of the calls that it has answered."""

    def __init__(self) -> None:
        self.received: Counter[int] = Counter()

    async def __call__(self, wire: Wire) -> None:
        found = re.search(rb'name="prompt"\r\n\r\n(\d+)\r\n', wire.request.body)
        assert found is not None
        number = int(found[1])
        self.received[number] += 1
        await asyncio.sleep(0.02)
        await ok_json({"text": "Hi", "usage": {"type": "duration", "seconds": told_s(number)}})(wire)


def call(port: int, number: int) -> bool:
    """One transcription; whether it was answered."""
    sound = wav(length_ms(number) / 1000, 32_000 if number % 2 else 1000)  # above and below the limit of memory
    body = form(("model", "whisper-1"), ("prompt", str(number)), ("file", sound))
    headers = {"Authorization": f"Bearer {secret('alice')}", "X-Client-Request-Id": f"client-{number}", **TYPE}
    try:
        return request(port, "POST", "/v1/audio/transcriptions", body, headers).status == 200
    except (OSError, http.client.HTTPException):
        return False


@pytest.mark.parametrize("kind", ["embedded", "redis"])
def test_the_ledgers_agree_after_kills(gateways: StartsGateways, tmp_path: Path, kind: str) -> None:
    listener = Listener()
    with contextlib.ExitStack() as ends:
        upstream = ends.enter_context(Scripted(always=listener))
        store = {"url": f"embedded:{tmp_path / 'data'}"}
        if kind == "redis":
            redis = ends.enter_context(RedisServer(tmp_path / "redis"))
            store = {"url": redis.url_for(port=redis.port)}
        house = gateways(configuration(upstream.url, {**store, "journal_dir": str(tmp_path / "journal")}))
        answered = worked(house)
        check(house, listener, answered)
        house.stop()  # while its store is there
        # A worker that is killed while it sends leaves half a request.
        upstream.troubles = [words for words in upstream.troubles if "half a request" not in words]


def configuration(upstream: str, store: dict[str, str]) -> dict[str, Any]:
    model = {
        "endpoints": ["transcriptions"], "routes": [{"upstream": "main"}], "price": {"audio_per_minute": PER_MINUTE},
    }  # fmt: skip
    return settings(
        upstream, models={"whisper-1": model}, uploads={"memory_bytes": 2000}, server={"workers": 2}, store=store,
        keys=[key("alice", quotas=[{"usd": 1000, "per": "month"}])],
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
        workers = [pool.submit(work) for _ in range(CLIENTS)]
        killed = 0
        while time.monotonic() < end - 3 and killed < KILLS:
            time.sleep(dice.uniform(0.5, 3))
            if len(alive := house.workers()) == 2:
                os.kill(dice.choice(alive), signal.SIGKILL)
                killed += 1
        for each in workers:
            each.result()
    assert killed
    assert answered
    return answered


def check(house: Gateway, listener: Listener, answered: list[int]) -> None:
    """Each call that the upstream received has one record; those that were answered have its seconds."""

    def rows() -> dict[str, Any]:
        return {row["client_request_id"]: row for row in house.calls(limit=100_000)}

    def window() -> dict[str, Any]:
        (row,) = [each for each in house.admin("quotas", key="alice").json["data"] if each["unit"] == "usd"]
        return dict(row)

    wanted = {f"client-{number}" for number in listener.received}
    eventually(lambda: wanted <= rows().keys() and window()["reserved"] == 0, SETTLED_S, 1)
    records = house.calls(limit=100_000)
    assert max(Counter(row["client_request_id"] for row in records).values()) == 1
    found = {row["client_request_id"]: row for row in records}
    for number in answered:
        row = found[f"client-{number}"]
        assert (row["units"], row["usage_source"]) == ({"audio_ms": 1000 * told_s(number)}, "reported")
    for name, row in found.items():
        number = int(name.removeprefix("client-"))
        audio_ms = row["units"].get("audio_ms", 0)
        assert audio_ms in ((0,) if number not in listener.received else ()) + (
            1000 * told_s(number), length_ms(number),
        )  # fmt: skip
    spent = sum(row["units"].get("audio_ms", 0) for row in records) / 60_000 * PER_MINUTE
    assert window()["used"] == pytest.approx(spent, abs=1e-6)
