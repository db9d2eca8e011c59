"""Tasks by configuration alone: who may submit and read them, what they draw on, and when they are settled."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from tests.conftest import StartsGateways
from tests.fakes.forms import TYPE, form
from tests.flows import task_rows as scenario
from tests.flows.gateway_process import ADMIN_TOKEN, Gateway, check, eventually, key, settings
from tests.flows.task_rows import SUBMISSIONS


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, simulated_port: int, store_url: str) -> Gateway:
    return start_shared_gateway(scenario.config(f"http://127.0.0.1:{simulated_port}", store_url))


def test_what_a_client_sees_settles_at_once(gateway: Gateway) -> None:
    """Before its answer is there: not at the gateway's own next look."""
    made = scenario.submit(gateway, "kling", takes_s=0)
    assert scenario.read(gateway, "kling", scenario.id_in("kling", made)).json["data"]["task_status"] == "succeed"
    assert len(scenario.records(gateway, made.id)) == 1


SAMPLE = {"video": {"uri": "https://generativelanguage.googleapis.com/v1beta/files/1:download?alt=media"}}


@pytest.mark.parametrize("is_read", [True, False], ids=["read by the client", "polled"])
@pytest.mark.parametrize(
    ("samples", "paid_seconds", "status"), [(2, 8, 200), (1, 4, 200), (0, None, 502)], ids=["all", "one", "none"]
)
def test_videos_that_are_blocked_are_not_charged(
    gateway: Gateway, samples: int, paid_seconds: int | None, status: int, *, is_read: bool
) -> None:
    """Veo names the blocked ones in raiMediaFilteredCount, and they are missing in generatedSamples."""
    before, reserved = scenario.spent(gateway)
    shown = {"generatedSamples": [SAMPLE] * samples} if samples else {"raiMediaFilteredCount": 2}
    body = {
        "instances": [{"prompt": "cat"}], "parameters": {"durationSeconds": 4, "sampleCount": 2},
        "simulate": {"shows": {"done": True, "response": {"generateVideoResponse": shown}}},
    }  # fmt: skip
    made = gateway.post("/veo/v1beta/models/veo-3.0-generate-001:predictLongRunning", body)
    assert scenario.spent(gateway) == (before, pytest.approx(reserved + 3.2))
    if is_read:
        assert scenario.read(gateway, "veo", scenario.id_in("veo", made)).json["done"] is True
    record = scenario.settled(gateway, made.id)
    units = {"seconds": paid_seconds} if paid_seconds else {}
    check(record, units=units, status=status, usage_source="reported", model="veo/veo-3.0-generate-001")
    assert record["cost_usd"] == pytest.approx(0.4 * (paid_seconds or 0))
    assert scenario.spent(gateway) == (pytest.approx(before + record["cost_usd"]), reserved)


def test_what_moderation_rejects_is_charged_where_the_vendor_does(gateway: Gateway) -> None:
    """docs.dev.runwayml.com/usage/moderation: as much as what succeeds."""
    shown = {"status": "FAILED", "failureCode": "SAFETY.INPUT.TEXT"}
    body = {**SUBMISSIONS["runway"].members, "simulate": {"shows": shown}}
    made = gateway.post(SUBMISSIONS["runway"].path, body)
    record = scenario.settled(gateway, made.id)
    check(record, units={"seconds": 5}, status=502, ended="error", usage_source="reported", cost_usd=0.25)


def test_images_that_are_missing_are_not_charged(gateway: Gateway) -> None:
    """Ideogram is priced per output image, and an unsafe one has no url."""
    images = [{"url": "https://cdn.example/i.png"}, {"url": None, "is_image_safe": False}]
    fields = [
        ("image_request", '{"prompt": "cat", "num_images": 2}'),
        ("simulate", json.dumps({"shows": {"data": images}})),
    ]
    made = gateway.post("/ideogram/remix", form(*fields, ("image_file", b"\x89PNG")), headers=TYPE)
    check(gateway.call(made.id), units={"images": 1}, usage_source="reported", cost_usd=0.08)


def test_a_file_in_a_form_may_decide_the_price(gateway: Gateway) -> None:
    """Ideogram has another price for images with a character reference."""
    fields = [("prompt", "cat"), ("simulate", json.dumps({"shows": {"data": [{"url": "https://cdn.example/i.png"}]}}))]
    path = "/ideogram/v1/ideogram-v3/generate"
    made = gateway.post(path, form(*fields, ("character_reference_images", b"\x89PNG")), headers=TYPE)
    check(gateway.call(made.id), units={"images": 1}, cost_usd=0.15)


def test_further_ids_belong_to_the_key(gateway: Gateway) -> None:
    made = scenario.submit(gateway, "hailuo")
    file = scenario.read(gateway, "hailuo", scenario.id_in("hailuo", made)).json["file_id"]
    path = f"/minimax/v1/files/retrieve?file_id={file}"
    assert gateway.get(path).json["file"]["download_url"]
    assert gateway.get(path, key="bob").status == 404


def test_addresses_of_the_upstream_become_the_gateways_own(gateway: Gateway) -> None:
    """A client that follows them gets what it would get there, and another key does not."""
    made = scenario.submit(gateway, "flux").json
    assert made["polling_url"] == f"/bfl/v1/get_result?id={made['id']}"
    assert gateway.get(made["polling_url"]).json["status"] == "Ready"
    assert gateway.get(made["polling_url"], key="bob").status == 404

    urls = scenario.submit(gateway, "replicate", takes_s=60).json["urls"]
    assert urls["web"] is None
    shown = gateway.get(urls["get"]).json
    assert (shown["status"], shown["urls"]) == ("processing", urls)
    assert gateway.post(urls["cancel"], None).status == 200

    done = scenario.read(gateway, "veo", scenario.id_in("veo", scenario.submit(gateway, "veo"))).json
    (sample,) = done["response"]["generateVideoResponse"]["generatedSamples"]
    address = sample["video"]["uri"]
    assert address.startswith("/veo/v1beta/files/")
    assert address.endswith(":download?alt=media")
    content = gateway.get(address)
    assert (content.headers["content-type"], len(content.body)) == ("video/mp4", 200_012)
    assert gateway.get(address, key="bob").status == 404


def test_addresses_stand_behind_the_public_url(start_gateway: StartsGateways, simulated_port: int) -> None:
    gateway = start_gateway(
        settings(
            f"http://127.0.0.1:{simulated_port}",
            passthrough=scenario.rows(),
            server={"public_url": "https://gw.example/ai/"},
        )
    )
    made = scenario.submit(gateway, "flux").json
    assert made["polling_url"] == f"https://gw.example/ai/bfl/v1/get_result?id={made['id']}"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/mj/task/list-by-condition"),
        ("POST", "/mj-fast/mj/task/list-by-condition"),
        ("POST", "/suno/fetch"),
        ("GET", "/kling/v1/videos/text2video?pageNum=1"),
        ("GET", "/luma/dream-machine/v1/generations?limit=10"),
        ("GET", "/veo/v1beta/models/veo-3.0-generate-001/operations"),
        ("GET", "/replicate/v1/predictions"),
        ("GET", "/v1/videos?limit=10"),
    ],
)
def test_lists_of_an_upstream_are_not_shown(gateway: Gateway, simulated_port: int, method: str, path: str) -> None:
    body = {"ids": ["1"]} if method == "POST" else None
    refused = gateway.send(method, path, body)
    assert (refused.status, refused.error["code"]) == (404, "task_list_not_served")
    assert gateway.send(method, path, body, key=None).status == 401


def test_content_is_relayed_as_bytes(gateway: Gateway) -> None:
    task = scenario.id_in("videos", scenario.submit(gateway, "videos"))
    content = gateway.get(f"/v1/videos/{task}/content")
    assert (content.status, content.headers["content-type"], len(content.body)) == (200, "video/mp4", 200_012)
    assert gateway.get(f"/v1/videos/{task}/content", key="bob").status == 404


def test_a_follow_up_needs_a_task_of_the_same_key(gateway: Gateway) -> None:
    task = scenario.id_in("midjourney", scenario.submit(gateway, "midjourney"))
    change = {"action": "UPSCALE", "index": 1, "taskId": task}
    assert gateway.post("/mj/submit/change", change).status == 200
    refused = gateway.post("/mj/submit/change", change, key="bob")
    assert (refused.status, refused.error["code"]) == (404, "task_not_found")


@pytest.mark.parametrize(
    ("path", "members"),
    [
        ("/mj/submit/simple-change", {"content": "{} U2"}),
        ("/mj/submit/action", {"customId": "MJ::JOB::upsample::1::x", "taskId": "{}"}),
        ("/mj-fast/mj/submit/simple-change", {"content": "{} v1"}),
    ],
)
def test_every_way_to_name_a_midjourney_task_is_bound_to_its_key(gateway: Gateway, path: str, members: Any) -> None:
    task = scenario.id_in("midjourney", scenario.submit(gateway, "midjourney"))
    body = {name: value.format(task) for name, value in members.items()}
    assert gateway.post(path, body).status == 200
    refused = gateway.post(path, body, key="bob")
    assert (refused.status, refused.error["code"]) == (404, "task_not_found")


@pytest.mark.parametrize("content", ["{}", "{}\tU2", " {} U2", "x {} U2", ["{} U2"], {"a": 1}, 7])
def test_a_text_in_which_no_task_is_found_is_not_sent(gateway: Gateway, simulated_port: int, content: Any) -> None:
    task = scenario.id_in("midjourney", scenario.submit(gateway, "midjourney", "bob"))
    before = scenario.ledger(simulated_port)["totals"]["tasks"]
    written = json.loads(json.dumps(content).replace("{}", task))
    assert gateway.post("/mj/submit/simple-change", {"content": written}).status in (400, 404)
    assert scenario.ledger(simulated_port)["totals"]["tasks"] == before


def test_a_clip_of_a_song_is_bound_to_its_key(gateway: Gateway) -> None:
    task = scenario.id_in("suno", scenario.submit(gateway, "suno"))
    clips = [each["id"] for each in scenario.read(gateway, "suno", task).json["data"]["data"]]
    assert len(clips) == 2
    for clip in clips:
        body = {"prompt": "la", "mv": "chirp-v4", "continue_clip_id": clip, "continue_at": 60, "task_id": task}
        assert gateway.post("/suno/submit/music", body).status == 200
        del body["task_id"]
        refused = gateway.post("/suno/submit/music", body, key="bob")
        assert (refused.status, refused.error["code"]) == (404, "task_not_found")


def test_reads_are_recorded_beside_submissions(gateway: Gateway) -> None:
    task = scenario.id_in("flux", scenario.submit(gateway, "flux", "carol"))
    read = scenario.read(gateway, "flux", task, "carol")
    check(gateway.call(read.id), endpoint="flux", model="flux/reads", units={}, cost_usd=0)


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("POST", "/kling/v1/videos/text2video", {"callback_url": "http://a.example/"}, 400, "unsupported_parameter"),
        ("POST", "/runwayml/v1/image_to_video", {}, 400, "missing_required_parameter"),
        ("POST", "/runwayml/v1/image_to_video", {"model": 7}, 400, "missing_required_parameter"),
        ("POST", "/kling/v1/videos/%2e%2e", {}, 404, None),
        ("POST", "/kling/v1/videos/a%2fb", {}, 404, None),
        ("GET", "/kling/v1/videos/text2video/", None, 404, None),
        ("PUT", "/v1/videos", {}, 404, None),
        ("GET", "/minimax/v1/query/video_generation?task_id=1&task_id=2", None, 404, None),
        ("GET", "/v1/videos/%00", None, 404, None),
    ],
)
def test_what_is_refused(gateway: Gateway, method: str, path: str, body: Any, status: int, code: str | None) -> None:
    answer = gateway.send(method, path, body)
    assert (answer.status, answer.error["code"]) == (status, code)


def test_a_count_that_is_no_number_is_named_under_a_quota_of_money(
    start_gateway: StartsGateways, simulated_port: int
) -> None:
    row = scenario.rows()["recraft"] | {"prices": [{"image": 0.04, "count": "/n"}]}
    keys = [key("alice", quotas=[{"usd": 5, "per": "month"}]), key("bob")]
    gateway = start_gateway(settings(f"http://127.0.0.1:{simulated_port}", passthrough={"recraft": row}, keys=keys))
    path = "/recraft/v1/images/generations"
    for n in (0, -1, "many", 1_000_000, None):
        refused = gateway.post(path, {"prompt": "cat", "n": n})
        assert (refused.status, refused.error["param"], refused.error["code"]) == (400, "n", "invalid_value")
        assert "Expected a number from 1 to 999999 in 'n'" in refused.error["message"]
    made = gateway.post(path, {"prompt": "cat", "n": "many"}, key="bob")
    check(gateway.call(made.id), units={"tasks": 1}, cost_usd=None)


def test_bodies_that_are_no_json_object(gateway: Gateway) -> None:
    for body in (b"[]", b"{", b'{"model":"a","model":"b"}', b"\xff"):
        assert gateway.post("/runwayml/v1/image_to_video", body).status == 400


def test_without_a_key(gateway: Gateway) -> None:
    assert gateway.post("/v1/videos", {}, key=None).status == 401
    assert gateway.get("/v1/videos/video_1", key=None).status == 401


def test_a_large_body(gateway: Gateway) -> None:
    """Its short options are read although its picture is not."""
    members = {**SUBMISSIONS["runway"].members, "promptImage": "data:image/png;base64," + "A" * 300_000}
    made = gateway.post("/runwayml/v1/image_to_video", members)
    check(scenario.settled(gateway, made.id), units={"seconds": 5}, model="runway/gen4_turbo")


LONG = "A" * 10_000
"""Longer than what is kept of a value of a large body."""


@pytest.mark.parametrize(
    ("path", "members"),
    [
        ("/mj/submit/simple-change", {"content": "{} U2" + " " * 10_000}),
        ("/kling/v1/videos/lip-sync", {"input": {"video_id": "{}", "audio_file": LONG}}),
        ("/luma/dream-machine/v1/generations", {"model": "ray-2", "keyframes": {"frame0": {"id": "{}", "x": LONG}}}),
    ],
)
def test_a_large_body_hides_no_task_of_another_key(gateway: Gateway, path: str, members: dict[str, Any]) -> None:
    row = {"mj": "midjourney", "kling": "kling", "luma": "luma"}[path.split("/")[1]]
    task = scenario.id_in(row, scenario.submit(gateway, row, "bob"))
    body = json.loads(json.dumps({**members, "prompt": "A" * 300_000}).replace("{}", task))
    refused = gateway.post(path, body)
    assert (refused.status, refused.error["code"]) == (404, "task_not_found")
    assert gateway.post(path, body, key="bob").status in (200, 201)


def test_a_large_body_hides_no_address_to_call(gateway: Gateway) -> None:
    refused = gateway.post(
        "/bfl/v1/flux-pro-1.1", {"prompt": "A" * 300_000, "webhook_url": f"https://a.example/{LONG}"}
    )
    assert (refused.status, refused.error["param"]) == (400, "webhook_url")


def test_a_large_body_hides_no_number_of_outputs(gateway: Gateway) -> None:
    before = scenario.spent(gateway)[1]
    body = {
        "instances": [{"prompt": "cat", "image": {"bytesBase64Encoded": "A" * 300_000}}],
        "parameters": {"sampleCount": 4, "negativePrompt": LONG}, "simulate": {"takes_s": 60},
    }  # fmt: skip
    assert gateway.post("/veo/v1beta/models/veo-3.0-generate-001:predictLongRunning", body).status == 200
    assert scenario.spent(gateway)[1] == pytest.approx(before + 4 * 8 * 0.4)


def test_metrics_have_rows_and_no_models(gateway: Gateway) -> None:
    scenario.submit(gateway, "suno", "carol")
    scenario.settled(gateway, scenario.submit(gateway, "suno", "carol").id)
    found = [line for line in gateway.get("/metrics", key=None).body.decode().splitlines() if 'endpoint="suno"' in line]
    assert any('model="suno"' in line for line in found)
    assert not any("suno/music" in line for line in found)


@pytest.fixture
def small(start_gateway: StartsGateways, simulated_port: int) -> Callable[..., Gateway]:
    """A gateway with these keys, and the rows without the price behind all others."""

    def start(*keys: dict[str, Any]) -> Gateway:
        rows = scenario.rows()
        for row in rows.values():
            row["prices"].pop()
        return start_gateway(settings(f"http://127.0.0.1:{simulated_port}", passthrough=rows, keys=list(keys)))

    return start


def test_the_models_of_a_key(small: Callable[..., Gateway]) -> None:
    gateway = small(key("alice", models=["kling", "runway/gen4*"]), key("bob", models=["gpt-4o"]))
    assert scenario.submit(gateway, "kling").status == 200
    made = scenario.submit(gateway, "runway")
    assert made.status == 200
    assert scenario.read(gateway, "runway", scenario.id_in("runway", made)).status == 200
    for row, who in (("luma", "alice"), ("kling", "bob")):
        refused = scenario.submit(gateway, row, who)
        assert (refused.status, refused.error["code"]) == (404, "model_not_found")
    other = gateway.post("/runwayml/v1/image_to_video", {"model": "gen3a_turbo"})
    assert (other.status, other.error["code"]) == (404, "model_not_found")


def test_no_price_under_a_quota_of_money(small: Callable[..., Gateway]) -> None:
    gateway = small(key("alice", quotas=[{"usd": 1, "per": "day"}]), key("bob"))
    refused = scenario.submit(gateway, "luma")
    assert (refused.status, refused.error["code"]) == (403, "model_not_priced")
    unknown = gateway.post("/kling/v1/videos/text2video", {"duration": "7"})
    assert (unknown.status, unknown.error["code"]) == (403, "model_not_priced")
    made = scenario.submit(gateway, "luma", "bob")
    check(scenario.settled(gateway, made.id), units={"tasks": 1}, cost_usd=None)


@pytest.mark.parametrize("parameters", [{"sampleCount": 0}, {"sampleCount": "x"}, {"sampleCount": 200_000},
                                        {"durationSeconds": 999_999, "sampleCount": 999_999}])  # fmt: skip
def test_a_number_of_outputs_that_is_none(small: Callable[..., Gateway], parameters: dict[str, Any]) -> None:
    gateway = small(key("alice", quotas=[{"usd": 1, "per": "day"}]))
    body = {"instances": [{"prompt": "cat"}], "parameters": parameters}
    refused = gateway.post("/veo/v1beta/models/veo-3.0-generate-001:predictLongRunning", body)
    assert (refused.status, refused.error["code"]) == (400, "invalid_value")
    assert refused.error["param"] in parameters


def test_the_quota_is_drawn_before_the_upstream_is_asked(small: Callable[..., Gateway], simulated_port: int) -> None:
    gateway = small(key("alice", quotas=[{"usd": "0.5", "per": "day"}]))
    made = [scenario.submit(gateway, "kling", takes_s=60) for _ in range(2)]
    received = scenario.ledger(simulated_port)["open"]
    assert [each.status for each in made] == [200, 429]
    assert scenario.ledger(simulated_port)["open"] == received
    dear = gateway.post("/v1/videos", {"model": "sora-2-pro", "seconds": 12})
    assert (dear.status, dear.error["code"]) == (400, "quota_too_small")


def test_reads_count_in_rates_alone(small: Callable[..., Gateway]) -> None:
    gateway = small(key("alice", quotas=[{"requests": 3, "per": "hour"}, {"requests": 2, "per": "day"}]))
    task = scenario.id_in("flux", scenario.submit(gateway, "flux"))
    statuses = [scenario.read(gateway, "flux", task).status for _ in range(3)]
    assert statuses == [200, 200, 429]
    quotas = gateway.get("/v1/key").json["quotas"]
    assert [row["used"] + row["reserved"] for row in quotas if row["per"] == "day"] == [1]


def test_ids_survive_in_the_store(gateway: Gateway) -> None:
    """Every worker knows them."""
    task = scenario.id_in("flux", scenario.submit(gateway, "flux", "carol"))
    assert {scenario.read(gateway, "flux", task, "carol").status for _ in range(8)} == {200}


def test_the_access_line_of_a_task(gateway: Gateway) -> None:
    made = scenario.submit(gateway, "suno", takes_s=0)
    scenario.settled(gateway, made.id)
    (line,) = eventually(lambda: [line for line in gateway.lines() if line["id"] == made.id])
    assert (line["endpoint"], line["status"]) == ("suno", 200)
    assert "la" not in json.dumps(line["model"]).split()


def test_a_row_comes_with_a_reload(start_gateway: StartsGateways, simulated_port: int) -> None:
    config = settings(f"http://127.0.0.1:{simulated_port}", keys=[key("alice")])
    gateway = start_gateway(config)
    assert scenario.submit(gateway, "flux").status == 404
    gateway.file.write_text(yaml.safe_dump({**gateway.config, "passthrough": scenario.rows()}))
    headers = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
    assert gateway.post("/admin/api/reload", None, key=None, headers=headers).status == 200
    made = eventually(lambda: (answer := scenario.submit(gateway, "flux")).status == 200 and answer)
    assert scenario.settled(gateway, made.id)["units"] == {"tasks": 1}


def test_limits_of_a_key_hold_for_tasks(small: Callable[..., Gateway]) -> None:
    gateway = small(key("alice", limits={"deny": ["duration"]}))
    refused = scenario.submit(gateway, "kling")
    assert (refused.status, refused.error["param"]) == (400, "duration")
