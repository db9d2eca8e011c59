"""What a call may use is reserved, and charged where no report counts it, at the dearest row of the price that it can
have."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.config import Model, Price, Route
from gateway.formats.table import FORMATS
from gateway.quota import windows
from gateway.records import Call, Endpoint, Key

PRICE = Price.model_validate({
    "input": 1, "output": 2, "cache_write": 3, "cache_write_1h": 4, "audio_in": 10, "audio_out": 20, "image_out": 40,
    "cache_write_on_request": True,
    "variants": {"fast": {"input": 100, "output": 200}},
})  # fmt: skip
SPEAKS: dict[str, Any] = {"model": "m", "max_tokens": 1000, "messages": [{"role": "user", "content": "Hello"}]}
DRAWS: dict[str, Any] = {"contents": [{"parts": [{"text": "Hello"}]}]}


def call(endpoint: Endpoint, body: dict[str, Any] | bytes, price: Price = PRICE) -> Call:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    params = FORMATS[endpoint].read(raw, lambda model: None)
    model = Model(routes=(Route(upstream="u"),), price=price)
    return Call("r", 0.0, Key("k"), endpoint, params, model, label_model="m", arrived=0.0)


WITHOUT_PICTURES = PRICE.model_copy(update={"image_out": None})
SOUND = json.dumps(SPEAKS | {"modalities": ["audio"]})
ONE_HOUR = json.dumps(SPEAKS | {"cache_control": {"ttl": "1h"}})


@pytest.mark.parametrize(
    ("endpoint", "body", "price", "least"),
    [
        ("chat", SOUND, WITHOUT_PICTURES, 1000 * 20_000),
        ("chat", SOUND.replace('"audio"', '"AUDIO"'), WITHOUT_PICTURES, 1000 * 20_000),
        ("chat", SOUND.replace('"audio"', '"\\u0061udio"'), WITHOUT_PICTURES, 1000 * 20_000),
        ("messages", ONE_HOUR, PRICE, 1000 * 4_000),
        ("messages", ONE_HOUR.replace('"1h"', '"\\u0031h"'), PRICE, 1000 * 4_000),
        ("generate_content", json.dumps(DRAWS), PRICE, 1000 * 40_000),
        ("generate_content", json.dumps(DRAWS | {"generationConfig": {"responseModalities": ["IMAGE"]}}), PRICE,
         1000 * 40_000),
        ("generate_content", json.dumps({"contents": [{"parts": [{"fileData": {"fileUri": "https://x/a"}}]}]}),
         PRICE, 1000 * 10_000),
        ("messages", json.dumps(SPEAKS | {"fallbacks": [{"model": "m", "speed": "fast"}]}), PRICE, 1000 * 200_000),
    ],
)  # fmt: skip
def test_what_a_call_may_use_is_reserved_however_it_is_written(
    endpoint: Endpoint, body: str, price: Price, least: int
) -> None:
    most = windows.most_nusd(call(endpoint, body.encode(), price), 1000, 1000)
    assert most is not None
    assert most >= least


def test_letters_of_other_scripts_reserve_nothing_more() -> None:
    plain, other = (SPEAKS | {"messages": [{"role": "user", "content": text}]} for text in ("Hello", "你好é"))
    most = [windows.most_nusd(call("messages", each, WITHOUT_PICTURES), 1000, 1000) for each in (plain, other)]
    assert most[0] == most[1] == 1000 * 1_000 + 1000 * 2_000
