"""The reason in an upstream's error, whatever object it comes in: with an error status and inside a 200."""

from __future__ import annotations

import json
import re

import pytest

from gateway.errors import UpstreamRefused
from gateway.formats.reason_cleaner import MAX_TEXT
from gateway.records import Failure, Fault
from gateway.upstream.connection import Head
from gateway.upstream.error_shapes import MAX_ERROR_BYTES, MAX_ERROR_PARTS, MEMBERS, error_of
from gateway.upstream.provider_errors import judge, judge_in_band, row_of
from gateway.upstream.refusal import NO_REASON

from .error_bodies import SECRETS, SHAPES, Shape

HIDDEN = [(SECRETS[0], "***")]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_with_an_error_status(shape: Shape) -> None:
    head = Head(shape.status, (("content-type", shape.content_type),))
    found = judge("up", head, shape.raw, now=0.0, hide=HIDDEN)
    assert isinstance(found, UpstreamRefused)
    assert (found.message, found.param, found.code) == (shape.says or NO_REASON, shape.param, shape.code)
    assert found.status == shape.status
    assert re.fullmatch(r"\w+", found.type)
    assert not [secret for secret in SECRETS if secret in found.body().decode()]


@pytest.mark.parametrize(
    "shape", [each for each in SHAPES if isinstance(each.body, dict)], ids=lambda shape: shape.name
)
def test_inside_a_200(shape: Shape) -> None:
    """A reader hands over the error object of an answer or an event, which may itself be any of these."""
    found = judge_in_band("up", {**shape.body, "code": 400}, hide=HIDDEN)
    assert isinstance(found, UpstreamRefused)
    assert found.message == (shape.says or NO_REASON)


def test_each_member_is_in_a_shape() -> None:
    text = b"".join(shape.raw for shape in SHAPES).decode("utf-8", "replace").replace('\\"', '"')
    assert [name for name in MEMBERS if f'"{name}"' not in text] == []


@pytest.mark.parametrize("name", ["insufficient balance", "该令牌额度已用尽", "no channel for x", "invalid_api_key"])
def test_a_name_that_a_client_invented_does_not_make_it_our_fault(name: str) -> None:
    """FastAPI repeats the names of unknown members."""
    for body in (
        {"detail": [{"type": "extra_forbidden", "loc": ["body", name], "msg": "Extra inputs are not permitted"}]},
        {"errors": {name: ["is unknown"]}},
        {"error": {"details": [{"fieldViolations": [{"field": name, "description": "is unknown"}]}]}},
    ):
        assert row_of(400, error_of(json.dumps(body).encode())).fault is None


@pytest.mark.parametrize(
    "body",
    [
        {"message": "Not Found"}, {"detail": "Not Found"}, {"type": "about:blank", "title": "Not Found", "status": 404},
        {"status": 404, "error": "Not Found", "path": "/v1/x"}, {"message": "no Route matched with those values"},
        {"errors": [{"code": 7003, "message": "Could not route to /client/v4/x, perhaps ..."}], "success": False},
    ],
)  # fmt: skip
def test_a_path_that_a_framework_does_not_have_is_no_fault_of_the_request(body: dict[str, object]) -> None:
    found = judge("up", Head(404, ()), json.dumps(body).encode(), now=0.0, hide=())
    assert isinstance(found, Failure)
    assert found.fault is Fault.WRONG_URL


LONG = {
    "text": b'{"error": {"code": "insufficient_quota", "message": "' + b"x" * MAX_ERROR_BYTES + b'"}}',
    "event": b'data: {"message": "' + b"x" * MAX_ERROR_BYTES + b'"}',
    "words": b"Why" * MAX_ERROR_BYTES,
    "lists": b'{"message": "Why", "more": [' + b"[]," * MAX_ERROR_PARTS + b"[]]}",
    "members": b'{"message": "Why", "more": {' + b'"a":1,' * MAX_ERROR_PARTS + b'"b":1}}',
}  # fmt: skip


@pytest.mark.parametrize("body", LONG.values(), ids=LONG)
@pytest.mark.parametrize(("status", "fault"), [(400, None), (403, Fault.AUTH), (500, Fault.STATUS)])
def test_a_long_error_is_judged_by_its_status(body: bytes, status: int, fault: Fault | None) -> None:
    """To parse 50 MB of an error, or 1 MB of empty lists, would hold the event loop."""
    assert error_of(body) is None
    found = judge("up", Head(status, ()), body, now=0.0, hide=HIDDEN)
    assert (found.fault if isinstance(found, Failure) else None) is fault
    if isinstance(found, UpstreamRefused):
        assert found.message == NO_REASON


def test_a_long_reason_is_cut_before_it_is_searched() -> None:
    found = error_of(json.dumps({"error": {"message": "x" * 1_000_000}}).encode())
    assert found == {"message": "x" * MAX_TEXT}
