"""A soak that says "flat and balanced" has looked: what it has to notice, it notices."""

from __future__ import annotations

from typing import Any

import pytest

from bench.soak.balance import below_bill, may_be_below_bill, wrong
from bench.soak.flat import MB, MEMORY_ROOM, MEMORY_SHARE, judge
from bench.soak.market import truth
from bench.soak.observed import LIMIT, ObservedCall


def of_memory(*megabytes: float) -> bool:
    return judge([value * MB for value in megabytes], MEMORY_SHARE, MEMORY_ROOM).is_flat


def test_a_process_that_grows_as_it_began_is_not_flat() -> None:
    assert not of_memory(*(60 + each * 0.2 for each in range(150)))


def test_a_process_that_has_warmed_up_is_flat() -> None:
    assert of_memory(*(60 + each * 0.2 for each in range(50)), *[70] * 100)


def test_what_is_given_back_is_flat_and_so_is_a_peak() -> None:
    assert of_memory(*[70] * 50, *[90, 70, 71] * 33)


TRUTH = truth(7, "plain", "completions")
SERVED = ObservedCall(7, "plain", "alice", "completions", False, TRUTH, status=200, is_whole=True, id="req_7")
REFUSED = ObservedCall(
    7, "plain", "alice", "completions", False, TRUTH, status=502, code="upstream_error", is_whole=True, id="req_7"
)
CUT = ObservedCall(7, "stream", "alice", "completions", True, TRUTH, status=200, id="req_7")
_, PROMPT, COMPLETION = TRUTH
RECORD = {
    "id": "req_7", "key": "alice", "ended": "done", "status": 200, "usage_source": "reported",
    "prompt_tokens": PROMPT, "completion_tokens": COMPLETION, "attempts": 1,
}  # fmt: skip
LOST = {**RECORD, "ended": "lost", "status": 0, "usage_source": "estimated", "completion_tokens": LIMIT}
ERROR = {**RECORD, "ended": "error", "status": 502, "usage_source": "none", "prompt_tokens": 0, "completion_tokens": 0}


UNSEEN = {**ERROR, "usage_source": "estimated", "prompt_tokens": PROMPT, "completion_tokens": LIMIT}


@pytest.mark.parametrize(
    ("received", "record"), [(SERVED, RECORD), (REFUSED, ERROR), (REFUSED, UNSEEN), (CUT, LOST), (CUT, RECORD)]
)
def test_right_calls(received: ObservedCall, record: dict[str, Any]) -> None:
    assert not wrong(received, record, is_sold=True)


@pytest.mark.parametrize(
    ("received", "record"),
    [
        (SERVED, None),
        (SERVED, LOST),
        (SERVED, ERROR),
        (SERVED, {**RECORD, "completion_tokens": COMPLETION + 1}),
        (SERVED, {**RECORD, "key": "bob"}),
        (SERVED, {**RECORD, "id": "req_8"}),
        (REFUSED, RECORD),
        (REFUSED, {**ERROR, "status": 504}),
        (REFUSED, {**ERROR, "prompt_tokens": 1}),
        (CUT, {**LOST, "completion_tokens": 1}),
        (CUT, {**RECORD, "prompt_tokens": 1}),
    ],
)
def test_wrong_calls(received: ObservedCall, record: dict[str, Any] | None) -> None:
    assert wrong(received, record, is_sold=True)


def test_a_call_that_was_never_sold_needs_no_record() -> None:
    assert not wrong(REFUSED, None, is_sold=False)


SHOWN = {**LOST, "ended": "error", "status": 200, "completion_tokens": COMPLETION - 1}


@pytest.mark.parametrize(
    ("record", "answers", "short"),
    [(RECORD, 1, 0), (RECORD, 0, 0), (RECORD, 2, PROMPT + COMPLETION), (SHOWN, 1, 1), (ERROR, 1, PROMPT + COMPLETION)],
)
def test_how_far_a_charge_is_below_the_bill(record: dict[str, Any], answers: int, short: int) -> None:
    assert below_bill(SERVED, record, answers) == short


def test_only_a_broken_stream_or_a_lost_call_may_be_below_its_bill() -> None:
    assert not may_be_below_bill(SERVED, {**ERROR, "status": 504})
    assert not may_be_below_bill(CUT, RECORD)
    assert may_be_below_bill(CUT, SHOWN)
    assert may_be_below_bill(SERVED, LOST)
