"""Characters, images, image tokens, search units and audio tokens after kills: never lost, never counted twice.

The upstream reports other counts than the request has, where the API reports any, so that a record shows which of the
two it was charged.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.conftest import StartsGateways
from tests.fakes.forms import wav
from tests.fakes.scripted import Behaviour, Wire, answer, ok_json
from tests.flows.client import request
from tests.flows.gateway_process import Gateway, key, secret, settings
from tests.flows.killing import STORES, calls_while_workers_die, client_id, settled, upstream_and_store, windows

WORK_S = 15.0
IMAGE = "A" * 50_000

Units = Mapping[str, int]


class Kind(NamedTuple):
    """One format and unit. The functions have the number of the call."""

    path: str
    model: str
    price: Mapping[str, float]
    asks: Callable[[int], dict[str, Any]]
    answers: Callable[[int], Behaviour]
    charged: Callable[[int], Units]
    """What an answered call is charged."""
    estimated: Callable[[int], Units]
    """What one is charged whose answer was cut."""
    reserved: Callable[[int], Units]
    """What one is charged whose worker was killed."""
    source: str = "reported"


def text(number: int) -> str:
    return f"#{number}# " + "x" * (number % 300)


def images_asked(number: int) -> int:
    return 1 + number % 3


def images_made(number: int) -> int:
    return 4 + number % 3


def image_tokens(number: int) -> int:
    return 1000 + number % 900


def audio_s(number: int) -> int:
    return 1 + number % 60


def usage(number: int) -> dict[str, Any]:
    return {"input_tokens": 10, "output_tokens": image_tokens(number), "total_tokens": 10 + image_tokens(number)}


SOUND = [("Content-Type", "audio/wav")]
KINDS = (
    Kind(
        "/v1/audio/speech", "tts-1", {"characters_per_million": 15},
        lambda number: {"input": text(number), "voice": "alloy"},
        lambda number: answer(wav(2), headers=SOUND),
        lambda number: {"characters": len(text(number))},
        lambda number: {"characters": len(text(number))},
        lambda number: {"characters": len(text(number))},
    ),
    Kind(
        "/v1/audio/speech", "gpt-4o-mini-tts", {"input": 0.6, "audio_out": 12},
        lambda number: {"input": text(number), "voice": "alloy"},
        lambda number: answer(wav(audio_s(number)), headers=SOUND),
        lambda number: {"audio_out": 20 * audio_s(number)},
        lambda number: {"audio_out": int(1.5 * len(text(number))) + 1},
        lambda number: {"characters": len(text(number))},
        "estimated",
    ),
    Kind(
        "/v1/images/generations", "dall-e-3", {"image": 0.04},
        lambda number: {"prompt": text(number), "n": images_asked(number)},
        lambda number: ok_json({"created": 1, "data": [{"b64_json": IMAGE}] * images_made(number)}),
        lambda number: {"images": images_made(number)},
        lambda number: {"images": images_asked(number)},
        lambda number: {"images": images_asked(number)},
    ),
    Kind(
        "/v1/images/generations", "gpt-image-1", {"input": 5, "image_out": 40},
        lambda number: {"prompt": text(number), "n": images_asked(number)},
        lambda number: ok_json({"created": 1, "data": [{"b64_json": IMAGE}], "usage": usage(number)}),
        lambda number: {"image_out": image_tokens(number)},
        lambda number: {"image_out": 8192 * images_asked(number)},
        lambda number: {"images": images_asked(number)},
    ),
    Kind(
        "/v1/rerank", "rerank-v3.5", {"search_units_per_1000": 2, "input": 1},
        lambda number: {"query": text(number), "documents": ["a", "b"]},
        lambda number: ok_json({"results": [], "meta": {"billed_units": {"search_units": 2 + number % 7}}}),
        lambda number: {"search_units": 2 + number % 7},
        lambda number: {},
        lambda number: {"search_units": 1},
    ),
)  # fmt: skip


def kind_of(number: int) -> Kind:
    return KINDS[number % len(KINDS)]


class Seller:
    """The upstream, which counts the calls that it has answered."""

    def __init__(self) -> None:
        self.received: Counter[int] = Counter()

    async def __call__(self, wire: Wire) -> None:
        found = re.search(rb"#(\d+)#", wire.request.body)
        assert found is not None
        number = int(found[1])
        self.received[number] += 1
        await asyncio.sleep(0.02)
        await kind_of(number).answers(number)(wire)


def call(port: int, number: int) -> bool:
    """One call; whether it was answered."""
    kind = kind_of(number)
    headers = {
        "Authorization": f"Bearer {secret('alice')}", "X-Client-Request-Id": client_id(number),
        "Content-Type": "application/json",
    }  # fmt: skip
    body = json.dumps({"model": kind.model, **kind.asks(number)}).encode()
    try:
        return request(port, "POST", kind.path, body, headers).status == 200
    except (OSError, http.client.HTTPException):
        return False


@pytest.mark.parametrize("store_kind", STORES)
def test_the_ledgers_agree_after_kills(start_shared_gateway: StartsGateways, tmp_path: Path, store_kind: str) -> None:
    seller = Seller()
    with upstream_and_store(store_kind, tmp_path, seller) as (url, store):
        endpoints = ["speech", "images", "rerank"]
        models = {
            kind.model: {"endpoints": endpoints, "routes": [{"upstream": "main"}], "price": dict(kind.price)}
            for kind in KINDS
        }
        keys = [key("alice", quotas=[{"usd": 100_000, "per": "month"}])]
        gateway = start_shared_gateway(settings(url, models=models, server={"workers": 2}, store=store, keys=keys))
        answered = calls_while_workers_die(gateway, call, WORK_S)
        check(gateway, seller, answered)
        gateway.stop()  # while its store is there


def check(gateway: Gateway, seller: Seller, answered: list[int]) -> None:
    """Each call that the upstream received has one record; those that were answered have its units."""
    found = settled(gateway, seller.received)
    assert {number % len(KINDS) for number in answered} == set(range(len(KINDS)))
    for number in answered:
        row, kind = found[client_id(number)], kind_of(number)
        assert (row["units"], row["usage_source"]) == (kind.charged(number), kind.source), kind
    for name, row in found.items():
        number = int(name.removeprefix("client-"))
        kind = kind_of(number)
        if row["ended"] == "lost":
            expected = [kind.reserved(number)]
        else:
            expected = [kind.charged(number), kind.estimated(number), *([] if number in seller.received else [{}])]
        assert row["units"] in expected, (kind, row)
    spent = sum(row["cost_usd"] for row in found.values())
    assert spent > 0
    assert windows(gateway)["usd"]["used"] == pytest.approx(spent, abs=1e-6)
