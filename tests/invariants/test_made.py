"""All that a task or a call made is charged, also more than the request names: counts have vendors' defaults."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.formats.format import MOST_MADE, TaskEnd
from gateway.units import counts
from tests.conftest import StartsGateways
from tests.fakes.forms import TYPE, form
from tests.flows import task_rows as scenario
from tests.flows.gateway_process import Gateway, check


@pytest.mark.parametrize(
    ("paid", "outputs", "charged"),
    [(None, 2, 16), (2, 2, 16), (1, 2, 8), (0, 2, 0), (3, 2, 24), (4, 1, 64), (10**6, 1, 16 * MOST_MADE),
     (10**6, 20, 16)],
)  # fmt: skip
def test_outputs_are_charged_as_they_were_made(paid: int | None, outputs: int, charged: int) -> None:
    assert TaskEnd(paid=paid).charged(counts({"seconds": 16}), outputs) == counts({"seconds": charged})
    assert TaskEnd(paid=paid).share(16, outputs) == charged


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, simulated_port: int, store_url: str) -> Gateway:
    return start_shared_gateway(scenario.config(f"http://127.0.0.1:{simulated_port}", store_url))


SAMPLE = {"video": {"uri": "https://generativelanguage.googleapis.com/v1beta/files/1:download?alt=media"}}


@pytest.mark.parametrize(
    ("parameters", "seconds"),
    [
        ({}, 16),
        ({"durationSeconds": 4}, 8),
        ({"sampleCount": None}, 16),
        ({"sampleCount": 1, "durationSeconds": 6}, 12),
    ],
)
@pytest.mark.parametrize("is_read", [True, False], ids=["read by the client", "polled"])
def test_every_video_that_came_is_charged(
    gateway: Gateway, parameters: dict[str, Any], seconds: int, *, is_read: bool
) -> None:
    shown = {"done": True, "response": {"generateVideoResponse": {"generatedSamples": [SAMPLE] * 2}}}
    body = {"instances": [{"prompt": "cat"}], "parameters": parameters, "simulate": {"shows": shown}}
    made = gateway.post("/veo/v1beta/models/veo-3.0-generate-001:predictLongRunning", body)
    if is_read:
        assert scenario.read(gateway, "veo", scenario.id_in("veo", made)).json["done"] is True
    record = scenario.settled(gateway, made.id)
    check(record, units={"seconds": seconds}, usage_source="reported", cost_usd=pytest.approx(0.4 * seconds))


def test_every_image_that_came_is_charged(gateway: Gateway) -> None:
    shows = {"data": [{"url": "https://cdn.example/i.png"}] * 4}
    fields = [("image_request", '{"prompt": "cat"}'), ("simulate", json.dumps({"shows": shows}))]
    made = gateway.post("/ideogram/remix", form(*fields, ("image_file", b"\x89PNG")), headers=TYPE)
    check(gateway.call(made.id), units={"images": 4}, usage_source="reported", cost_usd=pytest.approx(0.32))
