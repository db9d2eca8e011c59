"""Task APIs of the simulated upstream: Midjourney, Suno, Kling, Runway, Luma, Pika, Veo, Hailuo, Flux, Replicate,
Ideogram, Recraft and OpenAI's videos, with the paths and the answers of their public documentation (config/tasks.yaml
names it for each).

The member or text field `simulate` of a submission sets how its task goes: `{"takes_s": 0.5, "fails": true, "refuses":
true, "shows": {"done": true}}`. The last is the answer with the result, in place of the usual one. The state of a task
follows from the clock. The ledger has a task when it has ended: one unit if it is done, none if it failed.
"""

from __future__ import annotations

import itertools
import json
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from aiohttp import web

State = Literal["queued", "running", "done", "failed"]

KEPT = 10_000
"""The newest tasks that are kept."""

_FIRST = "mj|mj-[a-z]+|suno|kling|runwayml|luma|pika|veo|minimax|bfl|replicate|ideogram|recraft"
TASK_PATHS = f"/{{path:(?:{_FIRST})/.+|v1/videos(?:/.+)?}}"
"""Of all submissions and reads, as aiohttp writes routes."""

VIDEO = b"\x00\x00\x00\x18ftypmp42" + bytes(200_000)
"""The content of a video, as far as it has any."""

_VEO_OPERATIONS = "models/veo-3.0-generate-001/operations/"

Shows = Callable[[str, State], Any]


def _by_state(queued: str, running: str, done: str, failed: str) -> Callable[[State], str]:
    return {"queued": queued, "running": running, "done": done, "failed": failed}.__getitem__


_MIDJOURNEY = _by_state("SUBMITTED", "IN_PROGRESS", "SUCCESS", "FAILURE")
_KLING = _by_state("submitted", "processing", "succeed", "failed")
_RUNWAY = _by_state("PENDING", "RUNNING", "SUCCEEDED", "FAILED")
_LUMA = _by_state("queued", "dreaming", "completed", "failed")
_PIKA = _by_state("queued", "started", "finished", "failed")
_HAILUO = _by_state("Queueing", "Processing", "Success", "Fail")
_FLUX = _by_state("Pending", "Pending", "Ready", "Error")
_REPLICATE = _by_state("starting", "processing", "succeeded", "failed")
_OPENAI = _by_state("queued", "in_progress", "completed", "failed")


def _kling(task: str, state: State) -> Any:
    result = {"videos": [{"id": f"v-{task}", "url": "https://cdn.example/v.mp4", "duration": "5"}]}
    return {
        "code": 0, "message": "SUCCEED", "request_id": "r",
        "data": {"task_id": task, "task_status": _KLING(state), "task_result": result if state == "done" else {}},
    }  # fmt: skip


def _suno(task: str, state: State) -> Any:
    clips = [{"id": f"clip-{number}-{task}", "audio_url": "https://cdn.example/a.mp3"} for number in (0, 1)]
    data = {"task_id": task, "status": _MIDJOURNEY(state), "data": clips if state == "done" else []}
    return {"code": "success", "message": "", "data": data}


def _veo(task: str, state: State) -> Any:
    file = f"https://generativelanguage.googleapis.com/v1beta/files/{task.rpartition('/')[2]}:download?alt=media"
    samples = [{"video": {"uri": file}}]
    ends: Mapping[str, Any] = {
        "done": {"done": True, "response": {"generateVideoResponse": {"generatedSamples": samples}}},
        "failed": {"done": True, "error": {"code": 13, "message": "Internal error."}},
    }
    return {"name": task} | ends.get(state, {})


def _replicate(task: str, state: State) -> Any:
    address = f"https://api.replicate.com/v1/predictions/{task}"
    urls = {"get": address, "cancel": f"{address}/cancel", "web": f"https://replicate.com/p/{task}"}
    return {"id": task, "status": _REPLICATE(state), "output": None, "urls": urls}


class Family(NamedTuple):
    """One API."""

    submit: re.Pattern[str]
    read: re.Pattern[str] | None
    """With the group `task`; of a path with its query. None: the answer to the submission is the result."""
    submitted: Callable[[str], Any]
    """The answer to a submission, given the id."""
    shown: Shows
    """The answer about a task."""
    refused: Any = None
    """The answer to a submission that is not accepted, with status 200; None: it is a status 400."""
    new_id: Callable[[int], str] = "task-{:08d}".format
    status: int = 200


FAMILIES: Mapping[str, Family] = {
    "midjourney": Family(
        re.compile(r"(?:/mj-\w+)?/mj/(?:submit|insight-face)/[\w-]+"),
        re.compile(r"(?:/mj-\w+)?/mj/task/(?P<task>\d+)/(?:fetch|image-seed)"),
        lambda task: {"code": 1, "description": "submitted", "result": task, "properties": {}},
        lambda task, state: {"id": task, "action": "IMAGINE", "status": _MIDJOURNEY(state), "progress": "50%"},
        {"code": 24, "description": "banned prompt", "result": None},
        "17{:014d}".format,
    ),
    "suno": Family(
        re.compile(r"/suno/submit/\w+"),
        re.compile(r"/suno/fetch/(?P<task>[\w-]+)"),
        lambda task: {"code": "success", "message": "", "data": task},
        _suno,
        {"code": "invalid_request", "message": "prompt_empty", "data": None},
    ),
    "kling": Family(
        re.compile(r"/kling/v1/\w+/[\w-]+"),
        re.compile(r"/kling/v1/\w+/[\w-]+/(?P<task>[\w-]+)"),
        lambda task: _kling(task, "queued"),
        _kling,
        {"code": 1301, "message": "blocked by the risk control system", "data": {}},
    ),
    "runway": Family(
        re.compile(r"/runwayml/v1/\w+"),
        re.compile(r"/runwayml/v1/tasks/(?P<task>[\w-]+)"),
        lambda task: {"id": task},
        lambda task, state: {"id": task, "status": _RUNWAY(state), "output": ["https://cdn.example/v.mp4"]},
    ),
    "luma": Family(
        re.compile(r"/luma/dream-machine/v1/generations(?:/image|/video)?"),
        re.compile(r"/luma/dream-machine/v1/generations/(?P<task>[\w-]+)"),
        lambda task: {"id": task, "generation_type": "video", "state": "queued"},
        lambda task, state: {"id": task, "state": _LUMA(state), "assets": {}},
        status=201,
    ),
    "pika": Family(
        re.compile(r"/pika/generate/[\w.]+/\w+"),
        re.compile(r"/pika/videos/(?P<task>[\w-]+)"),
        lambda task: {"video_id": task},
        lambda task, state: {"id": task, "status": _PIKA(state), "url": "https://cdn.example/v.mp4"},
    ),
    "veo": Family(
        re.compile(r"/veo/v1beta/models/[\w.-]+:predictLongRunning"),
        re.compile(r"/veo/v1beta/(?P<task>models/[\w.-]+/operations/[\w-]+)"),
        lambda task: {"name": task},
        _veo,
        new_id=f"{_VEO_OPERATIONS}{{:08d}}".format,
    ),
    "hailuo": Family(
        re.compile(r"/minimax/v1/video_generation"),
        re.compile(r"/minimax/v1/query/video_generation\?task_id=(?P<task>\d+)"),
        lambda task: {"task_id": task, "base_resp": {"status_code": 0, "status_msg": "success"}},
        lambda task, state: {
            "task_id": task,
            "status": _HAILUO(state),
            "base_resp": {"status_code": 0, "status_msg": "success"},
            "file_id": int(f"9{task}") if state == "done" else "",
        },
        {"task_id": "", "base_resp": {"status_code": 1026, "status_msg": "sensitive content"}},
        "24{:014d}".format,
    ),
    "flux": Family(
        re.compile(r"/bfl/v1/flux[\w.-]+"),
        re.compile(r"/bfl/v1/get_result\?id=(?P<task>[\w-]+)"),
        lambda task: {"id": task, "polling_url": f"https://api.example/v1/get_result?id={task}"},
        lambda task, state: {"id": task, "status": _FLUX(state), "result": None},
    ),
    "replicate": Family(
        re.compile(r"/replicate/v1/models/[\w-]+/[\w.-]+/predictions"),
        re.compile(r"/replicate/v1/predictions/(?P<task>[\w-]+)(?:/cancel)?"),
        lambda task: _replicate(task, "queued"),
        _replicate,
        status=201,
    ),
    "ideogram": Family(
        re.compile(r"/ideogram/(?:v1/ideogram-v\d/)?[\w-]+"),
        None,
        lambda task: {"created": "2025-01-01T00:00:00Z", "data": [{"url": "https://cdn.example/i.png", "seed": 1}]},
        lambda task, state: None,
    ),
    "recraft": Family(
        re.compile(r"/recraft/v1/images/\w+"),
        None,
        lambda task: {"created": 1, "data": [{"url": "https://cdn.example/i.webp"}]},
        lambda task, state: None,
    ),
    "videos": Family(
        re.compile(r"/v1/videos"),
        re.compile(r"/v1/videos/(?P<task>video_\w+)(?:/content)?"),
        lambda task: {"id": task, "object": "video", "status": "queued", "progress": 0},
        lambda task, state: {"id": task, "object": "video", "status": _OPENAI(state), "progress": 50},
        new_id="video_{:032x}".format,
    ),
}
"""By the names of the rows in config/tasks.yaml."""

_FILE = re.compile(r"/minimax/v1/files/retrieve\?file_id=9(?P<task>\d+)")

_VEO_FILE = re.compile(r"/veo/v1beta/files/(?P<task>\d+):download\?alt=media")


@dataclass(slots=True)
class SimulatedTask:
    """One task."""

    family: Family
    ends: float
    """When it ends, on the clock of `time.monotonic`."""
    fails: bool
    shows: Any = None
    """The answer with the result; None: the usual one."""

    @property
    def state(self) -> State:
        """The state at present."""
        if time.monotonic() < self.ends:
            return "running"
        return "failed" if self.fails else "done"


class TaskStore:
    """The tasks by their ids."""

    def __init__(self) -> None:
        self._tasks: OrderedDict[str, SimulatedTask] = OrderedDict()
        self._numbers = itertools.count(1)

    def __repr__(self) -> str:
        return f"<TaskStore: {len(self._tasks)} kept>"

    def submit(self, family: Family, asked: Mapping[str, Any]) -> tuple[str, SimulatedTask]:
        """A new task and its id."""
        name = family.new_id(next(self._numbers))
        task = self._tasks[name] = SimulatedTask(
            family, time.monotonic() + float(asked.get("takes_s", 0)), bool(asked.get("fails")), asked.get("shows")
        )
        if len(self._tasks) > KEPT:
            self._tasks.popitem(last=False)
        return name, task

    def show(self, address: str) -> web.Response | None:
        """The answer to a read of this path and query; None: it is no read of a task that there is."""
        if (file := _FILE.fullmatch(address)) is not None and file["task"] in self._tasks:
            return web.json_response({"file": {"file_id": f"9{file['task']}", "download_url": "https://cdn.example/"}})
        if (file := _VEO_FILE.fullmatch(address)) is not None and f"{_VEO_OPERATIONS}{file['task']}" in self._tasks:
            return web.Response(body=VIDEO, content_type="video/mp4")
        for family in FAMILIES.values():
            found = family.read.fullmatch(address) if family.read is not None else None
            task = self._tasks.get(found["task"]) if found is not None else None
            if found is None or task is None:
                continue
            if address.endswith("/content") and task.state == "done":
                return web.Response(body=VIDEO, content_type="video/mp4")
            has_ended = task.state in ("done", "failed")
            shown = family.shown(found["task"], task.state) if task.shows is None or not has_ended else task.shows
            return web.json_response(shown)
        return None


def family_of(path: str) -> tuple[str, Family] | None:
    """The API to which submissions on this path belong."""
    return next(((name, each) for name, each in FAMILIES.items() if each.submit.fullmatch(path)), None)


async def read_options(request: web.Request) -> Mapping[str, Any]:
    """The options of a submission for its own task."""
    if request.content_type == "multipart/form-data":
        options: Any = json.loads(str((await request.post()).get("simulate", "{}")))
    else:
        options = (await request.json()).get("simulate")
    return options if isinstance(options, dict) else {}
