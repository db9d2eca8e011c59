"""Seconds of audio are never lost and never counted twice, whichever process is killed while forms are on their way.

A file has one length and the upstream reports
another, so that a record shows which of the two it was charged.
"""

from __future__ import annotations

import asyncio
import http.client
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import StartsGateways
from tests.fakes.forms import TYPE, form, wav
from tests.fakes.scripted import Wire, ok_json
from tests.flows.client import request
from tests.flows.gateway_process import Gateway, key, secret, settings
from tests.flows.killing import STORES, calls_while_workers_die, client_id, settled, upstream_and_store, windows

WORK_S = 15.0
PER_MINUTE = 0.06


def received_s(number: int) -> int:
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
        await ok_json({"text": "Hi", "usage": {"type": "duration", "seconds": received_s(number)}})(wire)


def call(port: int, number: int) -> bool:
    """One transcription; whether it was answered."""
    sound = wav(length_ms(number) / 1000, 32_000 if number % 2 else 1000)  # above and below the limit of memory
    body = form(("model", "whisper-1"), ("prompt", str(number)), ("file", sound))
    headers = {"Authorization": f"Bearer {secret('alice')}", "X-Client-Request-Id": client_id(number), **TYPE}
    try:
        return request(port, "POST", "/v1/audio/transcriptions", body, headers).status == 200
    except (OSError, http.client.HTTPException):
        return False


@pytest.mark.parametrize("kind", STORES)
def test_the_ledgers_agree_after_kills(start_shared_gateway: StartsGateways, tmp_path: Path, kind: str) -> None:
    listener = Listener()
    with upstream_and_store(kind, tmp_path, listener) as (url, store):
        gateway = start_shared_gateway(configuration(url, store))
        answered = calls_while_workers_die(gateway, call, WORK_S)
        check(gateway, listener, answered)
        gateway.stop()  # while its store is there


def configuration(upstream: str, store: dict[str, str]) -> dict[str, Any]:
    model = {
        "endpoints": ["transcriptions"], "routes": [{"upstream": "main"}], "price": {"audio_per_minute": PER_MINUTE},
    }  # fmt: skip
    return settings(
        upstream, models={"whisper-1": model}, uploads={"memory_bytes": 2000}, server={"workers": 2}, store=store,
        keys=[key("alice", quotas=[{"usd": 1000, "per": "month"}])],
    )  # fmt: skip


def check(gateway: Gateway, listener: Listener, answered: list[int]) -> None:
    """Each call that the upstream received has one record; those that were answered have its seconds."""

    found = settled(gateway, listener.received)
    for number in answered:
        row = found[client_id(number)]
        assert (row["units"], row["usage_source"]) == ({"audio_ms": 1000 * received_s(number)}, "reported")
    for name, row in found.items():
        number = int(name.removeprefix("client-"))
        audio_ms = row["units"].get("audio_ms", 0)
        assert audio_ms in ((0,) if number not in listener.received else ()) + (
            1000 * received_s(number), length_ms(number),
        )  # fmt: skip
    spent = sum(row["units"].get("audio_ms", 0) for row in found.values()) / 60_000 * PER_MINUTE
    assert windows(gateway)["usd"]["used"] == pytest.approx(spent, abs=1e-6)
