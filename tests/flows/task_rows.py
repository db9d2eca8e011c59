"""The ready rows of config/tasks.yaml, a simulated upstream behind them, and a submission for each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tests.fakes.forms import TYPE, form

from .client import Answer, request
from .gateway_process import Gateway, eventually, key, records, settings

ROWS = Path(__file__).parents[2] / "config" / "tasks.yaml"
PRICE = 0.25


class Submission(NamedTuple):
    """One call of a row."""

    path: str
    members: dict[str, Any]
    model: str
    """The model's name in the record."""
    units: dict[str, int]
    read: str = ""
    """Where its task is read; empty: the answer is the result."""
    id_at: str = ""
    """The member of the answer that has the id."""
    is_form: bool = False


SUBMISSIONS = {
    "midjourney": Submission(
        "/mj/submit/imagine", {"prompt": "cat"}, "midjourney/imagine", {"tasks": 1}, "/mj/task/{}/fetch", "result"
    ),
    "midjourney-modes": Submission(
        "/mj-fast/mj/submit/blend", {"base64Array": []}, "midjourney-modes/blend", {"tasks": 1},
        "/mj-fast/mj/task/{}/fetch", "result",
    ),
    "suno": Submission(
        "/suno/submit/music", {"prompt": "la", "mv": "chirp-v4"}, "suno/music", {"tasks": 1}, "/suno/fetch/{}", "data"
    ),
    "kling": Submission(
        "/kling/v1/videos/text2video", {"model_name": "kling-v1", "prompt": "cat", "duration": "10"}, "kling/kling-v1",
        {"tasks": 1}, "/kling/v1/videos/text2video/{}", "data.task_id",
    ),
    "runway": Submission(
        "/runwayml/v1/image_to_video", {"model": "gen4_turbo", "promptImage": "https://a.example/", "duration": 5},
        "runway/gen4_turbo", {"seconds": 5}, "/runwayml/v1/tasks/{}", "id",
    ),
    "luma": Submission(
        "/luma/dream-machine/v1/generations", {"model": "ray-2", "prompt": "cat", "duration": "5s"}, "luma/ray-2",
        {"tasks": 1}, "/luma/dream-machine/v1/generations/{}", "id",
    ),
    "pika": Submission(
        "/pika/generate/2.2/i2v", {"promptText": "cat", "duration": "5"}, "pika/2.2", {"tasks": 1}, "/pika/videos/{}",
        "video_id", is_form=True,
    ),
    "veo": Submission(
        "/veo/v1beta/models/veo-3.0-generate-001:predictLongRunning",
        {"instances": [{"prompt": "cat"}], "parameters": {"durationSeconds": 6}}, "veo/veo-3.0-generate-001",
        {"seconds": 6}, "/veo/v1beta/{}", "name",
    ),
    "hailuo": Submission(
        "/minimax/v1/video_generation", {"model": "MiniMax-Hailuo-02", "prompt": "cat"}, "hailuo/MiniMax-Hailuo-02",
        {"tasks": 1}, "/minimax/v1/query/video_generation?task_id={}", "task_id",
    ),
    "flux": Submission(
        "/bfl/v1/flux-pro-1.1", {"prompt": "cat"}, "flux/flux-pro-1.1", {"tasks": 1}, "/bfl/v1/get_result?id={}", "id"
    ),
    "replicate": Submission(
        "/replicate/v1/models/black-forest-labs/flux-kontext-pro/predictions", {"input": {"prompt": "cat"}},
        "replicate/flux-kontext-pro", {"tasks": 1}, "/replicate/v1/predictions/{}", "id",
    ),
    "ideogram": Submission(
        "/ideogram/v1/ideogram-v3/generate", {"prompt": "cat"}, "ideogram/generate", {"images": 1},
        is_form=True,
    ),
    "recraft": Submission(
        "/recraft/v1/images/generations", {"prompt": "cat", "n": 2}, "recraft/generations", {"images": 2}
    ),
    "videos": Submission(
        "/v1/videos", {"model": "sora-2", "prompt": "cat", "seconds": "8"}, "videos/sora-2", {"seconds": 8},
        "/v1/videos/{}", "id",
    ),
}  # fmt: skip
"""By row."""

POLLED = [name for name, each in SUBMISSIONS.items() if each.read]


def rows(*, own_errors: bool = False) -> dict[str, Any]:
    """The rows of the file, each with a price behind its own, and with OpenAI's form of errors unless `own_errors`."""
    found: dict[str, Any] = yaml.safe_load(ROWS.read_text())["passthrough"]
    for row in found.values():
        row["upstream"] = "main"
        if not own_errors:
            row.pop("error", None)
        row["prices"] = [*row.get("prices", ()), {"task": PRICE}]
    return found


def config(upstream: str, url: str = "", **more: Any) -> dict[str, Any]:
    """The rows in front of this upstream; with two keys that have a quota of money."""
    quotas = [{"usd": 1000, "per": "month"}, {"requests": 10_000, "per": "day"}, {"requests": 5000, "per": "minute"}]
    return settings(
        upstream, passthrough=rows(), keys=[key("alice", quotas=quotas), key("bob", quotas=quotas), key("carol")],
        server={"workers": 2, "access_log": "json"}, **({"store": {"url": url, **more}} if url else {}),
    )  # fmt: skip


def submit(gateway: Gateway, row: str, who: str = "alice", **options: Any) -> Answer:
    """Submit a task of this row, which goes as `options` say (tests/fakes/simulator/tasks.py)."""
    asked = SUBMISSIONS[row]
    if asked.is_form:
        fields = [(name, str(value)) for name, value in asked.members.items()]
        body = form(*fields, ("simulate", json.dumps(options)), ("image", b"\x89PNG" + bytes(5000)))
        return gateway.post(asked.path, body, key=who, headers=TYPE)
    return gateway.post(asked.path, {**asked.members, "simulate": options}, key=who)


def id_in(row: str, answer: Answer) -> str:
    """The id of the task in the answer to its submission."""
    found = answer.json
    for step in SUBMISSIONS[row].id_at.split("."):
        found = found[step]
    return str(found)


def read(gateway: Gateway, row: str, task: str, who: str = "alice") -> Answer:
    """Read a task."""
    return gateway.get(SUBMISSIONS[row].read.format(task), key=who)


def settled(gateway: Gateway, request_id: str, timeout_s: float = 60.0) -> dict[str, Any]:
    """The record of a call, which is the only one."""
    eventually(lambda: records(gateway, request_id), timeout_s)
    (record,) = records(gateway, request_id)
    return record


def spent(gateway: Gateway, who: str = "alice") -> tuple[float, float]:
    """USD that are used and reserved of the key's month."""
    (row,) = [each for each in gateway.get("/v1/key", key=who).json["quotas"] if each["unit"] == "usd"]
    return row["used"], row["reserved"]


def ledger(port: int) -> dict[str, Any]:
    """The simulated upstream's own account."""
    found: dict[str, Any] = request(port, "GET", "/simulator/ledger", None, {}).json
    return found
