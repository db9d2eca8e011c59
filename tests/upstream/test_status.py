"""What all workers know of the upstreams, in one row for each."""

from __future__ import annotations

import json

from gateway.upstream.status import CredentialCooldown, UpstreamReport, merged_status

ADDRESSES = {"a": "http://a/v1", "b": "http://b/v1"}
KEYS = {"a": 2, "b": 1}


def test_the_worst_is_shown_and_amounts_are_summed() -> None:
    one = [
        UpstreamReport("a", 0, 2, 3, [], {}, waiting=4, state_s=900),
        UpstreamReport(
            "b",
            2,
            1,
            1,
            [CredentialCooldown(1, "m", 2.34, "rate_limited")],
            {"m": 1, "n": 2},
            "timeout",
            9.96,
            state_s=7.04,
            models_s={"m": 50.0, "n": 4.0},
        ),
    ]
    other = [
        UpstreamReport(
            "a",
            1,
            1,
            2,
            [CredentialCooldown(2, None, 60.04, "auth"), CredentialCooldown(2, "m", 500, "rate_limited")],
            {},
            "connect",
            3.0,
            state_s=12,
        ),
        UpstreamReport("b", 0, 0, 0, [], {"m": 2}, "status", 1.04, state_s=99, models_s={"m": 2.5}),
        UpstreamReport("c", 2, 9, 9, [], {}),  # of a configuration that this worker does not have any more
    ]
    rows = merged_status(json.loads(json.dumps([one, other])), ADDRESSES, KEYS)
    assert rows == [
        {
            "name": "a", "base_url": "http://a/v1", "state": "half-open", "state_s": 12, "in_flight": 3, "waiting": 4,
            "connections": 5, "workers": 2, "credentials": [
                {"number": 1, "resting_s": 0.0, "model": None, "fault": None},
                {"number": 2, "resting_s": 60.0, "model": None, "fault": "auth"},
            ],
            "models": [], "last_failure": {"fault": "connect", "seconds_ago": 3.0},
        },
        {
            "name": "b", "base_url": "http://b/v1", "state": "open", "state_s": 7.0, "in_flight": 1, "waiting": 0,
            "connections": 1, "workers": 2,
            "credentials": [{"number": 1, "resting_s": 2.3, "model": "m", "fault": "rate_limited"}],
            "models": [
                {"model": "m", "state": "open", "state_s": 2.5}, {"model": "n", "state": "open", "state_s": 4.0},
            ],
            "last_failure": {"fault": "status", "seconds_ago": 1.0},
        },
    ]  # fmt: skip


def test_no_server_answers() -> None:
    (row,) = merged_status([], {"a": "http://a/v1"}, {"a": 1})
    assert (row["state"], row["workers"], row["last_failure"]) == ("closed", 0, None)
