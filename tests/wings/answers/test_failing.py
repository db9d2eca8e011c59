"""Whether an upstream fails, since when, and with what."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.upstream.status import UpstreamReport
from gateway.wings.answers.failing import FailedMinute, last_run, runs

NOW = 1_800_000_000.0


def failed(first_ago_s: float, last_ago_s: float, number: int, begun: int, status: int | None = 503) -> FailedMinute:
    fault = "timeout" if status is None else "status"
    return FailedMinute(first_ago_s, last_ago_s, number, begun, fault, status, f"status {status}")


def report(*rows: FailedMinute, begun: int = 100, state: int = 0) -> UpstreamReport:
    return UpstreamReport("shaky", state, 0, 0, [], {}, begun=begun, failed=rows)


def found(*reports: UpstreamReport) -> dict[str, Any]:
    (row,) = runs([[tuple(each)] for each in reports], ["main", "shaky"], NOW)
    return row


def test_no_failure_is_no_run() -> None:
    assert last_run([], 100) is None
    assert runs([[tuple(report())]], ["shaky"], NOW) == []
    assert last_run([failed(4000, 3900, 5, 1)], 100) is None


def test_an_upstream_in_the_middle_of_an_outage() -> None:
    row = found(report(failed(39, 1, 11, 90)))
    assert row["failing"]
    assert (row["since"], row["last"]) == (NOW - 39, NOW - 1)
    assert (row["failures"], row["attempts"]) == (11, 11)
    assert row["kinds"] == [{"fault": "status", "status": 503, "count": 11}]


def test_it_is_over_when_only_good_answers_come() -> None:
    row = found(report(failed(300, 261, 11, 90), begun=200))
    assert not row["failing"]
    assert (row["since"], row["last"]) == (NOW - 300, NOW - 261)


def test_a_failure_now_and_then_is_no_outage() -> None:
    row = found(report(failed(3000, 3000, 1, 1), failed(50, 50, 1, 900), failed(20, 5, 2, 950), begun=1000))
    assert not row["failing"]
    assert row["failures"] == 3
    assert row["since"] == NOW - 50


def test_an_upstream_that_is_asked_rarely_has_one_long_run() -> None:
    row = found(report(failed(1500, 1500, 1, 8), failed(900, 900, 1, 9), failed(30, 30, 1, 10), begun=10))
    assert row["failing"]
    assert (row["since"], row["failures"], row["attempts"]) == (NOW - 1500, 3, 3)


@pytest.mark.parametrize("state", [1, 2])
def test_an_avoided_upstream_fails_though_it_is_not_asked(state: int) -> None:
    assert found(report(failed(400, 200, 4, 97), begun=120, state=state))["failing"]


def test_kinds_are_counted_the_most_frequent_first() -> None:
    row = found(report(failed(80, 70, 2, 90, None), failed(60, 5, 9, 92), failed(20, 10, 3, 93, 500), begun=103))
    assert [(each["fault"], each["status"], each["count"]) for each in row["kinds"]] == [
        ("status", 503, 9), ("status", 500, 3), ("timeout", None, 2),
    ]  # fmt: skip
    assert row["detail"] == "status 503"
    assert row["message"] == ""


def test_the_newest_message_is_that_of_the_run() -> None:
    said = [failed(80, 70, 2, 90)._replace(message="old"), failed(60, 5, 9, 92)._replace(message="new")]
    assert found(report(*said, failed(4, 4, 3, 93, 500)), report(failed(1, 1, 3, 93)))["message"] == "new"


def test_workers_are_added_up() -> None:
    row = found(report(failed(60, 5, 4, 97)), report(failed(30, 2, 6, 93)))
    assert (row["failures"], row["attempts"], row["since"], row["last"]) == (10, 12, NOW - 60, NOW - 2)


def test_an_upstream_of_another_configuration_is_left_out() -> None:
    assert runs([[tuple(report(failed(9, 1, 4, 97)))]], ["main"], NOW) == []
