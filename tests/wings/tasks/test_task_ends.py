"""Every documented state of every ready row of config/tasks.yaml: whether it is an end here, and what of it is paid."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest
import yaml

from gateway.accounting.deferral import Deferral, decode_deferral, encode_deferral
from gateway.config import build
from gateway.formats.format import TaskEnd
from gateway.untrusted_json import parse
from gateway.wings.tasks.formats import MAX_ID, end_of, format_of
from gateway.wings.tasks.settings import rows_of
from tests.flows.task_rows import ROWS

READY = rows_of(
    build(
        {
            "upstreams": {"tasks": {"base_url": "http://127.0.0.1:1"}},
            "passthrough": yaml.safe_load(ROWS.read_text())["passthrough"],
        }
    )
)

PAID, FREE, PAID_FAILURE = TaskEnd(), TaskEnd(has_failed=True, paid=0), TaskEnd(has_failed=True)


class States(NamedTuple):
    """The states of an API, as answers about a task."""

    source: str
    goes_on: tuple[Any, ...]
    ended: tuple[tuple[Any, TaskEnd], ...]


def status(*texts: str) -> tuple[dict[str, str], ...]:
    return tuple([{"status": text} for text in texts])


MIDJOURNEY = States(
    "novicezk/midjourney-proxy, enums/TaskStatus.java; CANCEL and MODAL: trueai-org/midjourney-proxy",
    status("NOT_START", "SUBMITTED", "IN_PROGRESS", "MODAL"),
    (({"status": "SUCCESS"}, PAID), ({"status": "FAILURE"}, FREE), ({"status": "CANCEL"}, FREE)),
)


def suno(text: str) -> dict[str, Any]:
    return {"code": "success", "data": {"status": text}}


def kling(text: str) -> dict[str, Any]:
    return {"code": 0, "data": {"task_status": text}}


def veo(**response: Any) -> dict[str, Any]:
    return {"name": "operations/1", "done": True, "response": {"generateVideoResponse": response}}


SAMPLE = {"video": {"uri": "https://generativelanguage.googleapis.com/v1beta/files/1:download?alt=media"}}

STATES: dict[str, States] = {
    "midjourney": MIDJOURNEY,
    "midjourney-modes": MIDJOURNEY,
    "suno": States(
        "Suno-API/Suno-API, entity/po/task.go, IsDone",
        tuple(map(suno, ("NOT_START", "SUBMITTED", "QUEUED", "IN_PROGRESS"))),
        ((suno("SUCCESS"), PAID), (suno("FAILURE"), FREE), (suno("UNKNOWN"), FREE)),
    ),
    "kling": States(
        "app.klingai.com/global/dev/document-api, task_status",
        (kling("submitted"), kling("processing")),
        ((kling("succeed"), PAID), (kling("failed"), FREE)),
    ),
    "runway": States(
        "runwayml/sdk-python, types/task_retrieve_response.py; docs.dev.runwayml.com/errors/task-failures and "
        "/usage/moderation: moderated generations cost as much as successful ones",
        status("PENDING", "THROTTLED", "RUNNING"),
        (
            ({"status": "SUCCEEDED", "output": ["https://a.example/"]}, PAID),
            ({"status": "CANCELLED"}, FREE),
            ({"status": "FAILED", "failure": "..."}, FREE),
            ({"status": "FAILED", "failureCode": "INTERNAL.BAD_OUTPUT.CODE01"}, FREE),
            ({"status": "FAILED", "failureCode": "SAFETY.INPUT.TEXT"}, PAID_FAILURE),
            ({"status": "FAILED", "failureCode": "SAFETY.OUTPUT.VIDEO"}, PAID_FAILURE),
        ),
    ),
    "luma": States(
        "lumalabs/lumaai-api, openapi.yaml, State",
        ({"state": "queued"}, {"state": "dreaming"}),
        (({"state": "completed"}, PAID), ({"state": "failed"}, FREE)),
    ),
    "pika": States(
        "comfyanonymous/ComfyUI, comfy_api_nodes/apis/pika_api.py, PikaStatusEnum",
        status("queued", "started"),
        (({"status": "finished"}, PAID), ({"status": "failed"}, FREE), ({"status": "error"}, FREE)),
    ),
    "veo": States(
        "googleapis/python-genai, _operations_converters.py: generatedSamples, raiMediaFilteredCount; "
        "cloud.google.com, Veo, responsible AI: fewer videos than requested means that some were blocked",
        ({"name": "operations/1"}, {"name": "operations/1", "done": False}),
        (
            ({"done": True, "error": {"code": 13, "message": "Internal error."}}, FREE),
            (veo(raiMediaFilteredCount=1, raiMediaFilteredReasons=["..."]), FREE),
            (veo(generatedSamples=[], raiMediaFilteredCount=2), FREE),
            (veo(generatedSamples=[SAMPLE]), TaskEnd(paid=1)),
            (veo(generatedSamples=[SAMPLE], raiMediaFilteredCount=1), TaskEnd(paid=1)),
            (veo(generatedSamples=[SAMPLE, SAMPLE]), TaskEnd(paid=2)),
            ({"done": True, "response": {"videos": [{"gcsUri": "gs://a/b"}]}}, PAID),  # of Vertex: nothing is known
        ),
    ),
    "hailuo": States(
        "platform.minimax.io/docs/api-reference/video/generation, status",
        status("Preparing", "Queueing", "Processing"),
        (({"status": "Success", "file_id": "1"}, PAID), ({"status": "Fail", "file_id": ""}, FREE)),
    ),
    "flux": States(
        "docs.bfl.ai/api_integration/errors; help.bfl.ai: only Ready consumes credits",
        status("Pending"),
        (
            ({"status": "Ready"}, PAID),
            *[({"status": each}, FREE)
              for each in ("Error", "Request Moderated", "Content Moderated", "Task not found")],
        ),
    ),
    "replicate": States(
        "replicate.com/docs/topics/predictions/lifecycle",
        status("starting", "processing"),
        (
            ({"status": "succeeded", "output": "https://a.example/"}, PAID),
            ({"status": "failed"}, FREE),
            ({"status": "canceled"}, PAID),
            ({"status": "aborted"}, FREE),
        ),
    ),
    "videos": States(
        "openai-python, types/video.py",
        status("queued", "in_progress"),
        (({"status": "completed"}, PAID), ({"status": "failed"}, FREE)),
    ),
}  # fmt: skip
"""By row; the other rows are answered at once."""

ENDED = [(row, answer, end) for row, states in STATES.items() for answer, end in states.ended]


def test_every_row_with_tasks_has_its_states() -> None:
    assert set(STATES) == {name for name, row in READY.items() if row.task is not None}
    assert all(states.source and states.goes_on and states.ended for states in STATES.values())


@pytest.mark.parametrize(("row", "answer", "end"), ENDED)
def test_every_documented_end_is_one(row: str, answer: Any, end: TaskEnd) -> None:
    assert end_of(READY[row], answer) == end


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_an_end_counts_beside_numbers_that_python_alone_writes(number: str) -> None:
    row, answer, end = next(each for each in ENDED if isinstance(each[1], dict))
    assert end_of(READY[row], parse(json.dumps({**answer, "loss": float(number)}).encode())) == end


@pytest.mark.parametrize(("row", "answer"), [(row, each) for row, states in STATES.items() for each in states.goes_on])
def test_every_other_documented_state_goes_on(row: str, answer: Any) -> None:
    assert end_of(READY[row], answer) is None


def test_no_row_has_an_end_that_is_not_documented() -> None:
    """Each value in a row is shown by one of the answers above."""
    for name, states in STATES.items():
        shown = str([answer for answer, _ in states.ended])
        row = READY[name]
        for conditions in (row.done, row.failed, row.charged):
            for texts in conditions.values():
                for text in texts:
                    assert text in ("?*", "true") or text.rstrip("*") in shown, (name, text)


@pytest.mark.parametrize(
    ("end", "outputs", "paid"),
    [
        (PAID, 2, (("seconds", 16),)),
        (PAID_FAILURE, 2, (("seconds", 16),)),
        (FREE, 2, ()),
        (TaskEnd(paid=1), 2, (("seconds", 8),)),
        (TaskEnd(paid=2), 2, (("seconds", 16),)),
        (TaskEnd(paid=3), 2, (("seconds", 24),)),  # it made more than was asked for
        (TaskEnd(paid=0), 1, ()),
    ],
)
def test_what_is_paid(end: TaskEnd, outputs: int, paid: Any) -> None:
    assert end.charged((("seconds", 16),), outputs) == paid


SAFE = {"url": "https://ideogram.example/i.png", "is_image_safe": True}
UNSAFE = ({"url": None, "is_image_safe": False}, {"url": "", "is_image_safe": False}, {"is_image_safe": False})


@pytest.mark.parametrize(
    ("body", "paid"),
    [
        (json.dumps({"data": [SAFE, SAFE]}), None),
        # Its OpenAPI, ImageObject: of an unsafe image the url is empty; ideogram.ai/features/api-pricing: priced per
        # output image.
        *[(json.dumps({"data": [SAFE, each]}), 1) for each in UNSAFE],
        (json.dumps({"data": UNSAFE}), 0),
        (json.dumps({"data": []}), 0),
        # developer.ideogram.ai, Generate (legacy): the images come later, by the webhook.
        (json.dumps({"request_id": "r"}), None),
        ("[]", None),
        ("not JSON", None),
    ],
)
def test_a_result_with_fewer_outputs_than_asked(body: str, paid: int | None) -> None:
    facts = format_of(READY["ideogram"], 2, (("images", 2),)).facts(body.encode())
    assert facts.kept_id is None
    assert facts.has_usage == (paid is not None)
    if paid is not None:
        assert facts.usage is not None
        assert (facts.usage.source, facts.usage.more) == ("reported", (("images", paid),) if paid else ())


def test_a_task_whose_id_is_too_long_is_charged_at_once() -> None:
    """The journal had five megabytes of it for each call."""
    row = format_of(READY["kling"], 1, (("images", 1),))
    for length, is_kept in ((MAX_ID, True), (MAX_ID + 1, False)):
        facts = row.facts(json.dumps({"code": 0, "data": {"task_id": "x" * length}}).encode())
        assert (facts.kept_id is not None, facts.is_pending, facts.has_usage) == (is_kept, is_kept, False)


def test_a_note_of_an_earlier_version_is_of_one_output() -> None:
    """A task that was submitted before an upgrade is settled after it."""
    deferral = Deferral("7", "main", "", None, "m", None, 0, 0.0, path="/made/7", outputs=2)
    assert decode_deferral(encode_deferral(deferral)).outputs == 2
    earlier = decode_deferral(json.dumps(json.loads(encode_deferral(deferral))[:-1]))
    assert (earlier.kept_id, earlier.path, earlier.outputs) == ("7", "/made/7", 1)
