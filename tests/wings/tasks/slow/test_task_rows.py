"""Each ready row of config/tasks.yaml through a whole gateway: submission, price, reads, end, failure and refusal."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from gateway.config import build
from gateway.wings.tasks.notation import at_pointer, holds, read_options
from gateway.wings.tasks.settings import TaskPrice, rows_of
from tests.conftest import StartsGateways
from tests.flows import task_rows as scenario
from tests.flows.gateway_process import UPSTREAM_KEY, Gateway, check
from tests.flows.task_rows import POLLED, PRICE, ROWS, SUBMISSIONS

READY = rows_of(
    build(
        {
            "upstreams": {"tasks": {"base_url": "http://127.0.0.1:1"}},
            "passthrough": yaml.safe_load(ROWS.read_text())["passthrough"],
        }
    )
)
"""The ready rows with their own prices."""


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, simulated_port: int, store_url: str) -> Gateway:
    return start_shared_gateway(scenario.config(f"http://127.0.0.1:{simulated_port}", store_url))


@pytest.mark.parametrize("row", SUBMISSIONS)
def test_a_task_is_submitted_read_and_paid(gateway: Gateway, simulated_port: int, row: str) -> None:
    asked = SUBMISSIONS[row]
    before, received_before = scenario.spent(gateway)[0], scenario.ledger(simulated_port)["totals"]["tasks"]
    made = scenario.submit(gateway, row, takes_s=0.3)
    assert made.status in (200, 201)
    assert UPSTREAM_KEY not in str(made)
    if asked.read:
        task = scenario.id_in(row, made)
        assert scenario.spent(gateway)[1] > 0
        assert scenario.read(gateway, row, task).status == 200
        other, unknown = (
            scenario.read(gateway, row, task, "bob"),
            scenario.read(gateway, row, f"{task}0" if task else ""),
        )
        assert (other.status, unknown.status) == (404, 404)
        assert other.error["code"] == unknown.error["code"] == "task_not_found"
    record = scenario.settled(gateway, made.id)
    check(
        record, endpoint=row, model=asked.model, units=asked.units, status=200, ended="done", usage_source="reported",
        upstream="main", key="alice", stream=False,
    )  # fmt: skip
    assert record["cost_usd"] > 0
    assert scenario.spent(gateway) == (pytest.approx(before + record["cost_usd"]), 0)
    assert scenario.ledger(simulated_port)["totals"]["tasks"] == received_before + 1


FRAME = {"image": {"bytesBase64Encoded": "AAAA", "mimeType": "image/png"}}
KLING = "/kling/v1/videos/"
LUMA = "/luma/dream-machine/v1/generations"
REPLICATE = "/replicate/v1/models/black-forest-labs/{}/predictions"

ACTIONS: list[tuple[str, dict[str, Any], str, dict[str, int], float]] = [
    # Midjourney and Suno have no prices of their own: that behind each row counts.
    *[
        (f"{mode}/mj/submit/{action}", {"prompt": "cat"}, f"{row}/{action}", {"tasks": 1}, PRICE)
        for mode, row in (("", "midjourney"), ("/mj-relax", "midjourney-modes"))
        for action in ("imagine", "blend", "describe", "shorten", "modal", "action", "change", "simple-change")
    ],
    ("/mj/insight-face/swap", {"sourceBase64": "AAAA", "targetBase64": "AAAA"}, "midjourney/swap", {"tasks": 1}, PRICE),
    ("/mj/submit/video", {"prompt": "cat", "motion": "low"}, "midjourney/video", {"tasks": 1}, PRICE),
    ("/suno/submit/music", {"prompt": "la", "mv": "chirp-v4"}, "suno/music", {"tasks": 1}, PRICE),
    ("/suno/submit/lyrics", {"prompt": "la"}, "suno/lyrics", {"tasks": 1}, PRICE),
    (f"{KLING}text2video", {"prompt": "cat"}, "kling/kling-v1", {"tasks": 1}, 0.14),
    (f"{KLING}text2video", {"mode": "std", "duration": 10}, "kling/kling-v1", {"tasks": 1}, 0.28),
    (f"{KLING}image2video", {"mode": "pro", "image": "AAAA"}, "kling/kling-v1", {"tasks": 1}, 0.49),
    (f"{KLING}image2video", {"mode": "pro", "duration": "10"}, "kling/kling-v1", {"tasks": 1}, 0.98),
    (f"{KLING}text2video", {"model_name": "kling-v2-master"}, "kling/kling-v2-master", {"tasks": 1}, PRICE),
    ("/kling/v1/images/generations", {"prompt": "cat"}, "kling/kling-v1", {"images": 1}, 0.028),
    ("/kling/v1/images/generations", {"model_name": "kling-v1-5", "n": 4}, "kling/kling-v1-5", {"images": 4}, 0.112),
    ("/kling/v1/images/kolors-virtual-try-on", {"model_name": "kolors-virtual-try-on-v1-5"},
     "kling/kolors-virtual-try-on-v1-5", {"tasks": 1}, 0.07),
    ("/runwayml/v1/image_to_video", {"model": "gen4_turbo", "duration": 10}, "runway/gen4_turbo", {"seconds": 10}, 0.5),
    ("/runwayml/v1/image_to_video", {"model": "gen3a_turbo"}, "runway/gen3a_turbo", {"seconds": 10}, 0.5),
    ("/runwayml/v1/text_to_image", {"model": "gen4_image"}, "runway/gen4_image", {"tasks": 1}, PRICE),
    (LUMA, {"model": "ray-2"}, "luma/ray-2", {"tasks": 1}, PRICE),
    (f"{LUMA}/image", {"model": "photon-1"}, "luma/photon-1", {"tasks": 1}, PRICE),
    (f"{LUMA}/video", {"model": "ray-flash-2"}, "luma/ray-flash-2", {"tasks": 1}, PRICE),
    ("/pika/generate/2.2/t2v", {"promptText": "cat"}, "pika/2.2", {"tasks": 1}, PRICE),
    ("/veo/v1beta/models/veo-3.0-generate-001:predictLongRunning", {"instances": [{"prompt": "cat"}]},
     "veo/veo-3.0-generate-001", {"seconds": 8}, 3.2),
    ("/veo/v1beta/models/veo-3.0-fast-generate-001:predictLongRunning",
     {"instances": [{"prompt": "cat", **FRAME, "lastFrame": FRAME["image"]}], "parameters": {"durationSeconds": 4}},
     "veo/veo-3.0-fast-generate-001", {"seconds": 4}, 0.6),
    ("/minimax/v1/video_generation", {"model": "MiniMax-Hailuo-02", "first_frame_image": "data:"},
     "hailuo/MiniMax-Hailuo-02", {"tasks": 1}, 0.28),
    ("/minimax/v1/video_generation", {"model": "MiniMax-Hailuo-02", "duration": 10}, "hailuo/MiniMax-Hailuo-02",
     {"tasks": 1}, 0.56),
    ("/minimax/v1/video_generation", {"model": "MiniMax-Hailuo-02", "resolution": "1080P"}, "hailuo/MiniMax-Hailuo-02",
     {"tasks": 1}, 0.49),
    ("/bfl/v1/flux-kontext-pro", {"prompt": "cat"}, "flux/flux-kontext-pro", {"tasks": 1}, 0.04),
    ("/bfl/v1/flux-kontext-max", {"prompt": "cat"}, "flux/flux-kontext-max", {"tasks": 1}, 0.08),
    ("/bfl/v1/flux-pro-1.1-ultra", {"prompt": "cat"}, "flux/flux-pro-1.1-ultra", {"tasks": 1}, 0.06),
    (REPLICATE.format("flux-1.1-pro"), {"input": {}}, "replicate/flux-1.1-pro", {"tasks": 1}, 0.04),
    (REPLICATE.format("flux-kontext-max"), {"input": {}}, "replicate/flux-kontext-max", {"tasks": 1}, 0.08),
    (REPLICATE.format("flux-pro"), {"input": {}}, "replicate/flux-pro", {"tasks": 1}, 0.055),
    ("/veo/v1beta/models/veo-3.0-generate-001:predictLongRunning",
     {"instances": [{"prompt": "cat"}], "parameters": {"durationSeconds": 4, "sampleCount": 2}},
     "veo/veo-3.0-generate-001", {"seconds": 8}, 3.2),
    *[
        (f"/ideogram/v1/ideogram-v3/{action}", speed | number, f"ideogram/{action}", {"images": images}, usd * images)
        for action in ("generate", "edit", "inpaint", "remix", "reframe", "replace-background")
        for speed, usd in (
            ({}, 0.06), ({"rendering_speed": "TURBO"}, 0.03), ({"rendering_speed": "FLASH"}, 0.03),
            ({"rendering_speed": "QUALITY"}, 0.09),
        )
        for number, images in (({}, 1), ({"num_images": 2}, 2))
    ],
    *[
        ("/ideogram/v1/ideogram-v3/generate", {"character_reference_images": ["AAAA"]} | speed | number,
         "ideogram/generate", {"images": images}, usd * images)
        for speed, usd in (({}, 0.15), ({"rendering_speed": "TURBO"}, 0.1), ({"rendering_speed": "QUALITY"}, 0.2))
        for number, images in (({}, 1), ({"num_images": 3}, 3))
    ],
    *[
        (f"/ideogram/{action}", {"image_request": number | model}, f"ideogram/{action}", {"images": images},
         usd * images)
        for action in ("generate", "remix")
        for model, usd in (
            ({}, 0.08), ({"model": "V_2"}, 0.08), ({"model": "V_2_TURBO"}, 0.05), ({"model": "V_2A"}, 0.04),
            ({"model": "V_2A_TURBO"}, 0.025), ({"model": "V_1"}, 0.06), ({"model": "V_1_TURBO"}, 0.02),
        )
        for number, images in (({}, 1), ({"num_images": 4}, 4))
    ],
    # In a form it is a text (its OpenAPI, /remix).
    ("/ideogram/remix", {"image_request": json.dumps({"prompt": "cat", "num_images": 3})}, "ideogram/remix",
     {"images": 3}, 0.24),
    ("/ideogram/edit", {"num_images": "2"}, "ideogram/edit", {"images": 2}, 0.16),
    ("/ideogram/edit", {}, "ideogram/edit", {"images": 1}, 0.08),
    ("/ideogram/reframe", {"model": "V_2_TURBO"}, "ideogram/reframe", {"images": 1}, 0.05),
    ("/ideogram/reframe", {"model": "V_2_TURBO", "num_images": 2}, "ideogram/reframe", {"images": 2}, 0.1),
    ("/ideogram/upscale", {}, "ideogram/upscale", {"images": 1}, 0.06),
    ("/ideogram/upscale", {"image_request": {"num_images": 2}}, "ideogram/upscale", {"images": 2}, 0.12),
    ("/ideogram/describe", {}, "ideogram/describe", {"tasks": 1}, PRICE),
    ("/recraft/v1/images/generations", {"prompt": "cat"}, "recraft/generations", {"images": 1}, 0.035),
    ("/recraft/v1/images/generations", {"model": "recraftv3", "n": 2}, "recraft/generations", {"images": 2}, 0.08),
    ("/recraft/v1/images/generations", {"model": "recraftv3"}, "recraft/generations", {"images": 1}, 0.04),
    ("/recraft/v1/images/generations", {"model": "recraftv3_vector"}, "recraft/generations", {"images": 1}, 0.08),
    ("/recraft/v1/images/generations", {"model": "recraftv3_vector", "n": 2}, "recraft/generations", {"images": 2},
     0.16),
    ("/recraft/v1/images/generations", {"model": "recraftv4_1", "n": 6}, "recraft/generations", {"images": 6}, 0.21),
    ("/recraft/v1/images/generations", {"style": "icon"}, "recraft/generations", {"images": 1}, 0.08),
    ("/recraft/v1/images/generations", {"style": "Photorealism"}, "recraft/generations", {"images": 1}, 0.04),
    ("/recraft/v1/images/generations", {"style": "Photorealism", "n": 2}, "recraft/generations", {"images": 2}, 0.08),
    ("/recraft/v1/images/generations", {"style": "icon", "n": 3}, "recraft/generations", {"images": 3}, 0.24),
    *[
        (f"/recraft/v1/images/{action}", {}, f"recraft/{action}", {"tasks": 1}, usd)
        for action, usd in (("removeBackground", 0.01), ("vectorize", 0.01), ("clarityUpscale", 0.004),
                            ("crispUpscale", 0.004), ("generativeUpscale", 0.25), ("creativeUpscale", 0.25))
    ],
    ("/veo/v1beta/models/veo-3.0-fast-generate-001:predictLongRunning",
     {"instances": [{"prompt": "cat"}], "parameters": {"sampleCount": 3}}, "veo/veo-3.0-fast-generate-001",
     {"seconds": 24}, 3.6),
    ("/v1/videos", {"prompt": "cat"}, "videos/sora-2", {"seconds": 4}, 0.4),
    ("/v1/videos", {"prompt": "cat", "seconds": "12"}, "videos/sora-2", {"seconds": 12}, 1.2),
    ("/v1/videos", {"model": "sora-2-pro"}, "videos/sora-2-pro", {"seconds": 4}, 1.2),
    ("/v1/videos", {"model": "sora-2-pro", "size": "1024x1792"}, "videos/sora-2-pro", {"seconds": 4}, 2),
    ("/v1/videos", {"model": "sora-2-pro", "seconds": "8"}, "videos/sora-2-pro", {"seconds": 8}, 2.4),
    ("/v1/videos", {"model": "sora-2-pro", "seconds": "12", "size": "1792x1024"}, "videos/sora-2-pro",
     {"seconds": 12}, 6),
]  # fmt: skip


def delivered(model: str, members: dict[str, Any], units: dict[str, int]) -> dict[str, Any]:
    """The request for an answer with as many outputs as were asked for, where the answer decides what is paid."""
    if model.startswith("veo/"):
        samples = [{}] * members.get("parameters", {}).get("sampleCount", 1)
        return {"shows": {"done": True, "response": {"generateVideoResponse": {"generatedSamples": samples}}}}
    images = [{"url": "https://cdn.example/i.png"}] * units.get("images", 1)
    return {"shows": {"data": images}} if model.startswith("ideogram/") else {}


def test_every_action_has_its_price(gateway: Gateway) -> None:
    """Sent as JSON, also where the API itself takes a form: options are read alike."""
    made = [(gateway.post(path, {**members, "simulate": delivered(model, members, units)}), model, units, usd)
            for path, members, model, units, usd in ACTIONS]  # fmt: skip
    assert {answer.status for answer, *_ in made} <= {200, 201}
    for answer, model, units, usd in made:
        record = scenario.settled(gateway, answer.id)
        check(record, endpoint=model.partition("/")[0], model=model, units=units, ended="done")
        assert record["cost_usd"] == pytest.approx(usd), record


def prices_of(path: str, members: dict[str, Any]) -> Iterator[tuple[str, int, TaskPrice]]:
    """The price of a call by the ready rows, with its row and its number; none where no price applies."""
    for name, row in READY.items():
        found = [operation.match("POST", path.removeprefix(row.prefix), "") for operation in row.submissions]
        parts = next((parts for parts in found if parts is not None), None)
        if parts is None or not path.startswith(row.prefix):
            continue
        pointed = row.model is not None and row.model.startswith("/")
        model = at_pointer(members, row.model or "") if pointed else parts.get(row.model or "")
        for number, price in enumerate(row.prices):
            texts = read_options(price.when, parts, members) | {"model": model or row.default_model or name}
            if holds(price.when, texts):
                yield name, number, price
                break


def test_every_price_of_the_ready_rows_is_tried() -> None:
    """Each row of prices is the first that applies to one of the calls above."""
    tried = {(name, number) for path, members, *_ in ACTIONS for name, number, _ in prices_of(path, members)}
    assert tried == {(name, number) for name, row in READY.items() for number in range(len(row.prices))}


def test_every_count_of_the_ready_rows_is_tried_with_and_without_it() -> None:
    """Each documented default is reserved and charged by the calls above, and each number that is asked for."""
    given, left_out = set(), set()
    for path, members, *_ in ACTIONS:
        for name, number, price in prices_of(path, members):
            for part in ("count", "outputs"):
                if names := getattr(price, part):
                    texts = read_options(names, {}, members)
                    (given if any(texts.values()) else left_out).add((name, number, part))
    every = {
        (name, number, part)
        for name, row in READY.items()
        for number, price in enumerate(row.prices)
        for part in ("count", "outputs")
        if getattr(price, part)
    }
    assert (every - given, every - left_out) == (set(), set())


@pytest.mark.parametrize("row", POLLED)
def test_a_failed_task_is_given_back_once(gateway: Gateway, row: str) -> None:
    before = scenario.spent(gateway, "bob")[0]
    made = scenario.submit(gateway, row, "bob", takes_s=0.2, fails=True)
    task = scenario.id_in(row, made)
    assert scenario.spent(gateway, "bob")[1] > 0
    record = scenario.settled(gateway, made.id)
    check(record, endpoint=row, units={}, status=502, ended="error", cost_usd=0)
    for _ in range(3):
        assert scenario.read(gateway, row, task, "bob").status == 200
    assert scenario.spent(gateway, "bob") == (before, 0)
    assert len(scenario.records(gateway, made.id)) == 1


@pytest.mark.parametrize("row", POLLED)
def test_a_refused_submission_costs_nothing(gateway: Gateway, row: str) -> None:
    before = scenario.spent(gateway, "bob")
    made = scenario.submit(gateway, row, "bob", refuses=True)
    check(scenario.settled(gateway, made.id), units={})
    assert scenario.spent(gateway, "bob") == before
