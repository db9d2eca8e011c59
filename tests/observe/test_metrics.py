"""Every metric and its labels; the number of series is bounded."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gateway.observe.metrics import (
    BoundedLabels,
    KeyCollector,
    Telemetry,
    WingCounter,
    WingGauge,
    WingHistogram,
    quota_rows,
)
from gateway.records import Usage, Window, WindowStatus
from gateway.wings import parts
from tests.store.changes import record

ROOT = Path(__file__).parent.parent.parent

# Every metric of a worker, and its labels.
METRICS = {
    "gateway_requests_total": {"key", "model", "endpoint", "upstream", "status"},
    "gateway_tokens_total": {"key", "model", "upstream", "type", "source"},
    "gateway_cost_usd_total": {"key", "model"},
    "gateway_request_duration_seconds": {"model", "upstream"},
    "gateway_time_to_first_token_seconds": {"model", "upstream"},
    "gateway_time_per_output_token_seconds": {"model", "upstream"},
    "gateway_overhead_seconds": {"endpoint"},
    "gateway_upstream_attempts_total": {"upstream", "outcome"},
    "gateway_upstream_state": {"upstream"},
    "gateway_rejections_total": {"reason"},
    "gateway_in_flight_requests": set(),
    "gateway_journal_pending_records": set(),
    "gateway_clock_skew_seconds": set(),
    "gateway_store_errors_total": set(),
    "gateway_closed_calls_total": set(),
    "gateway_lost_changes_total": {"outcome"},
    "gateway_usage_unknown_total": set(),
    "gateway_usage_implausible_total": {"upstream", "model", "type"},
    "gateway_client_disconnects_total": set(),
    "gateway_estimate_error_tokens": set(),
}
TYPES = {
    "total": "counter",
    "seconds": "histogram",
    "tokens": "histogram",
    "requests": "gauge",
    "records": "gauge",
    "state": "gauge",
    "depth": "gauge",
    "gateway_clock_skew_seconds": "gauge",
}
"""By the whole name, or by its last word."""

CALL = record(
    "c", usage=Usage(10, 5, 4, 2, source="reported"), stream=True, first_byte_s=0.2, duration_s=1.0, label_model="m",
    cost_nusd=25_000,
)  # fmt: skip
TOKENS = {"key": "k", "model": "m", "upstream": "up", "source": "reported"}
BESIDE: dict[str, Any] = {"estimated_prompt_tokens": 12, "overhead_s": 0.001, "is_usage_unknown": False}


def telemetry(*key_ids: str, max_keys: int = 200) -> Telemetry:
    return Telemetry(key_ids or ("k",), max_keys)


def everything(made: Telemetry) -> None:
    """Calls each method of `Metrics` once."""
    made.recorded(CALL, **BESIDE)
    made.rejected("rate_limited")
    made.attempted("up", "ok")
    made.show_upstream("up", 2)
    made.count_under_way(1)
    made.store_failed()
    made.doubted("up", "m", "prompt")
    made.change_restored("restored", 2)
    made.show_pending(3)
    made.show_skew(-2.5)


def value(made: Telemetry, name: str, **labels: str) -> float:
    return made.registry.get_sample_value(name, labels) or 0.0


def test_every_metric_is_there_with_its_labels_and_help() -> None:
    made = telemetry()
    everything(made)
    found = text_string_to_metric_families(generate_latest(made.registry).decode())
    families = {family.name: family for family in found if not family.name.endswith("_created")}
    of_wings: list[Any] = [each for kind in (WingCounter, WingGauge, WingHistogram) for each in parts(kind, "metrics")]
    assert all(len(families.pop(each.name.removesuffix("_total")).documentation) > 10 for each in of_wings)
    for name, labels in METRICS.items():
        family = families.pop(name.removesuffix("_total"))
        assert family.type == TYPES.get(name, TYPES[name.rpartition("_")[2]]), name
        assert len(family.documentation) > 10, name
        assert family.samples, name
        assert {frozenset(set(s.labels) - {"le"}) for s in family.samples} == {frozenset(labels)}
    assert not families, "a metric that METRICS here does not name: write it down, and in the documentation too"


def test_a_clock_differs_ahead_of_the_stores_or_behind_it() -> None:
    made = telemetry()
    for skew_s in (2.5, -2.5):
        made.show_skew(skew_s)
        assert value(made, "gateway_clock_skew_seconds") == 2.5


def test_an_ended_call() -> None:
    made = telemetry()
    made.recorded(CALL, **BESIDE)
    of_call = {"key": "k", "model": "m", "upstream": "up"}
    assert value(made, "gateway_requests_total", **of_call, endpoint="chat", status="200") == 1
    for kind, count in {"prompt": 10, "completion": 5, "cached": 4, "reasoning": 2}.items():
        assert value(made, "gateway_tokens_total", **of_call, type=kind, source="reported") == count
    place = {"model": "m", "upstream": "up"}
    assert value(made, "gateway_request_duration_seconds_sum", **place) == 1.0
    assert value(made, "gateway_time_to_first_token_seconds_sum", **place) == 0.2
    assert value(made, "gateway_time_per_output_token_seconds_sum", **place) == pytest.approx(0.2)
    assert value(made, "gateway_overhead_seconds_sum", endpoint="chat") == 0.001
    errors = {le: value(made, "gateway_estimate_error_tokens_bucket", le=le) for le in ("0.0", "16.0")}
    assert errors == {"0.0": 0, "16.0": 1}  # two too many
    assert value(made, "gateway_usage_unknown_total") == 0
    assert value(made, "gateway_client_disconnects_total") == 0


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"ended": "client_gone"}, {"gateway_client_disconnects_total": 1}),
        ({"ended": "error"}, {"gateway_client_disconnects_total": 0}),
        ({"usage": Usage(3, 4, source="estimated")}, {"gateway_estimate_error_tokens_count": 0}),
    ],
)
def test_calls_that_ended_otherwise(changes: dict[str, Any], expected: dict[str, float]) -> None:
    made = telemetry()
    made.recorded(CALL._replace(**changes), **BESIDE)
    assert {name: value(made, name) for name in expected} == expected


def test_money_is_summed_in_dollars_where_it_is_known() -> None:
    made = telemetry("k", "l")
    for cost_nusd in (25_000, 1, None, 0, 2_000_000_000):
        made.recorded(CALL._replace(cost_nusd=cost_nusd), **BESIDE)
    made.recorded(CALL._replace(key="l", cost_nusd=None), **BESIDE)
    assert value(made, "gateway_cost_usd_total", key="k", model="m") == pytest.approx(2.000025001)
    assert made.registry.get_sample_value("gateway_cost_usd_total", {"key": "l", "model": "m"}) is None


def test_a_call_that_was_lost_counts_with_its_estimate_and_without_times() -> None:
    made = telemetry()
    usage = Usage(10, 4096, source="estimated")
    lost = CALL._replace(status=0, ended="lost", usage=usage, cost_nusd=5_000_000, duration_s=0, first_byte_s=None)
    made.recovered("journal", 7, lost)
    of_call = {"key": "k", "model": "m", "upstream": "up"}
    assert value(made, "gateway_requests_total", **of_call, endpoint="chat", status="0") == 1
    assert value(made, "gateway_tokens_total", **of_call, type="prompt", source="estimated") == 10
    assert value(made, "gateway_tokens_total", **of_call, type="completion", source="estimated") == 4096
    assert value(made, "gateway_cost_usd_total", key="k", model="m") == pytest.approx(0.005)
    assert value(made, "gateway_usage_unknown_total") == 1
    assert value(made, "gateway_request_duration_seconds_count", model="m", upstream="up") == 0


def test_unknown_usage_is_counted() -> None:
    made = telemetry()
    made.recorded(CALL, **BESIDE)
    made.recorded(CALL, **{**BESIDE, "is_usage_unknown": True})
    assert value(made, "gateway_usage_unknown_total") == 1


@pytest.mark.parametrize(
    ("changes", "firsts", "per_token"),
    [
        ({}, 1, 1),
        ({"stream": False}, 1, 0),
        ({"first_byte_s": None}, 0, 0),
        ({"usage": Usage(1, 1, source="reported")}, 1, 0),
        ({"usage": Usage(1, 0, source="reported")}, 1, 0),
    ],
)
def test_times_of_tokens(changes: dict[str, Any], firsts: int, per_token: int) -> None:
    made = telemetry()
    made.recorded(CALL._replace(**changes), **BESIDE)
    place = {"model": "m", "upstream": "up"}
    assert value(made, "gateway_time_to_first_token_seconds_count", **place) == firsts
    assert value(made, "gateway_time_per_output_token_seconds_count", **place) == per_token


def test_other_verbs() -> None:
    made = telemetry()
    for _ in range(3):
        made.count_under_way(1)
    made.count_under_way(-1)
    made.rejected("rate_limited")
    made.attempted("up", "timeout")
    made.store_failed()
    made.show_pending(7)
    made.show_pending(2)
    made.answered(key="", model="", endpoint="chat", upstream="", status=401)
    assert value(made, "gateway_in_flight_requests") == 2
    assert value(made, "gateway_rejections_total", reason="rate_limited") == 1
    assert value(made, "gateway_upstream_attempts_total", upstream="up", outcome="timeout") == 1
    assert value(made, "gateway_store_errors_total") == 1
    assert value(made, "gateway_journal_pending_records") == 2
    unknown = {"key": "", "model": "", "upstream": "", "endpoint": "chat", "status": "401"}
    assert value(made, "gateway_requests_total", **unknown) == 1


def test_labels_are_bounded_whatever_clients_make_up() -> None:
    """10,000 model names that are not configured, and 100,000 keys."""
    ids = [f"key-{number}" for number in range(100_000)]
    made = telemetry(*ids, max_keys=5)
    for number in range(10_000):
        name = f"model-{number}"
        made.recorded(CALL._replace(key=ids[-number], model=name, returned_model=name, label_model="other"), **BESIDE)
    for key in ids:
        made.answered(key=key, model="other", endpoint="chat", upstream="", status=429)
    keys = {sample.labels["key"] for f in made.registry.collect() for sample in f.samples if "key" in sample.labels}
    assert keys == {"other", *ids[:5]}
    text = generate_latest(made.registry).decode()
    assert "model-" not in text
    assert len(text.splitlines()) < 300
    served = [s.value for f in made.registry.collect() for s in f.samples if s.name == "gateway_requests_total"]
    assert sum(served) == 110_000


def test_key_labels() -> None:
    made = telemetry("a", "b", "c", max_keys=2)
    assert [made.key_labels(key) for key in ("a", "b", "c", "d", "")] == ["a", "b", "other", "other", ""]
    assert telemetry("a", max_keys=0).key_labels("a") == "other"


def test_keys_made_at_run_time_get_the_room_that_is_left_in_the_order_of_their_use() -> None:
    made = telemetry("a", max_keys=3)
    assert [made.key_labels(key) for key in ("x", "y", "z", "y", "a")] == ["x", "y", "other", "y", "a"]
    made.key_labels.configure(["b", "a"], 4)
    assert [made.key_labels(key) for key in ("b", "a", "x", "z")] == ["b", "a", "x", "other"]
    made.key_labels.configure(["c"], 0)
    assert [made.key_labels(key) for key in ("c", "a")] == ["other", "a"]  # a key keeps its label


def test_workers_agree_on_the_keys_with_a_label(tmp_path: Path) -> None:
    one, other = (BoundedLabels(["a"], 4, tmp_path / "key-labels") for _ in range(2))
    assert [one("x"), other("y"), other("x"), one("z"), other("z")] == ["x", "y", "x", "z", "z"]
    assert [one("late"), other("late"), one("y")] == ["other", "other", "y"]
    assert (tmp_path / "key-labels").read_text().split() == ['"a"', '"x"', '"y"', '"z"']
    successor = BoundedLabels(["a"], 4, tmp_path / "key-labels")  # the successor of a killed worker
    assert [successor(key) for key in ("y", "late", "x")] == ["y", "other", "x"]


def test_a_worker_learns_of_labels_that_others_gave(tmp_path: Path) -> None:
    one, other = (BoundedLabels([], 9, tmp_path / "key-labels") for _ in range(2))
    one("x")
    assert other.every() == {"x"}


def test_half_of_a_label_on_a_full_disk_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    labels, write = BoundedLabels(["a"], 9, tmp_path / "key-labels"), os.write
    monkeypatch.setattr(os, "write", lambda file, text: write(file, text[:3]))
    assert labels("bob") == "other"
    monkeypatch.undo()
    assert [labels("carol"), labels("bob")] == ["carol", "bob"]
    assert (tmp_path / "key-labels").read_text().split() == ['"a"', '"carol"', '"bob"']


def test_a_folder_that_is_gone_costs_labels_and_no_call(tmp_path: Path) -> None:
    labels = BoundedLabels(["a"], 9, tmp_path / "gone" / "key-labels")
    assert [labels("a"), labels("")] == ["other", ""]


def test_a_hundred_thousand_keys_of_several_workers_are_looked_up_once(tmp_path: Path) -> None:
    workers = [BoundedLabels([], 200, tmp_path / "key-labels") for _ in range(4)]
    labels = {workers[number % 4](f"key-{number}") for number in range(100_000)}
    assert len(labels) == 201
    assert len((tmp_path / "key-labels").read_text().split()) == 200


def test_one_turn_is_written_at_its_end() -> None:
    later: list[Callable[[], None]] = []
    made = Telemetry(["k"], 10, defer=later.append)
    everything(made)
    everything(made)
    assert value(made, "gateway_tokens_total", **TOKENS, type="prompt") == 0
    (write,) = later
    write()
    assert value(made, "gateway_tokens_total", **TOKENS, type="prompt") == 2 * CALL.usage.prompt_tokens
    assert value(made, "gateway_in_flight_requests") == 2
    everything(made)
    later.pop()()
    assert value(made, "gateway_tokens_total", **TOKENS, type="prompt") == 3 * CALL.usage.prompt_tokens


@given(st.lists(st.floats(-5000, 5000) | st.sampled_from([0.05, 0.1, 600, 601, 0]), max_size=50))
def test_gathered_observations_are_those_of_prometheus(values: list[float]) -> None:
    """Private names of prometheus-client are used; this test fails when they change."""
    ours, theirs = (Histogram("h", "h", buckets=(-10, 0.05, 0.1, 600), registry=CollectorRegistry()) for _ in "ab")
    telemetry()._observe(ours, (), values)
    for number in values:
        theirs.observe(number)
    samples = [
        [(s.name, s.labels, pytest.approx(s.value)) for s in next(iter(h.collect())).samples if "created" not in s.name]
        for h in (ours, theirs)
    ]
    assert samples[0] == [(name, labels, value.expected) for name, labels, value in samples[1]]


def test_a_recovered_call_counts_as_one_that_ended_here_but_for_what_its_record_lacks() -> None:
    ended, recovered = telemetry(), telemetry()
    call = CALL._replace(ended="client_gone", usage=CALL.usage._replace(source="estimated"))
    ended.recorded(call, **{**BESIDE, "is_usage_unknown": True})
    recovered.recovered("journal", 7, call)
    samples = [
        {
            (s.name, *s.labels.values()): s.value
            for f in made.registry.collect()
            for s in f.samples
            if "created" not in s.name
        }
        for made in (ended, recovered)
    ]
    differing = {name for name, *_ in samples[0] if name.startswith(("gateway_overhead", "gateway_estimate"))}
    assert {key: n for key, n in samples[0].items() if key[0] not in differing} == {
        key: n for key, n in samples[1].items() if key[0] not in differing
    }
    assert value(recovered, "gateway_client_disconnects_total") == 1
    assert recovered.counted("journal") == 7


def test_workers_of_one_process_do_not_share_metrics() -> None:
    one, other = telemetry(), telemetry()
    one.store_failed()
    assert value(other, "gateway_store_errors_total") == 0


def standing(scope: str, unit: str = "tokens", per: str = "day", model: str | None = None) -> WindowStatus:
    return WindowStatus(Window("w", scope, unit, per, model, 100), used=30, reserved=12, reset_us=0)  # type: ignore[arg-type]


def test_quotas_of_keys_with_a_label_of_their_own() -> None:
    made = telemetry("a", "b", max_keys=1)
    standings = [
        standing("key:a"),
        standing("key:a", "requests", "90"),
        WindowStatus(Window("w", "key:a", "usd", "month", None, 50 * 10**9), 30 * 10**9, 12 * 10**9, reset_us=0),
        standing("key:a", model="gpt-*"),
        standing("key:a", "parallel", ""),
        standing("key:b"),
        standing("team:a"),
        standing("gateway"),
        standing("person:ann"),
    ]
    made.registry.register(KeyCollector(quota_rows(standings, made.key_labels), {"a": "crew", "b": None}))
    samples = [s for f in made.registry.collect() if f.name.startswith("gateway_quota") for s in f.samples]
    assert {(s.name, *s.labels.values()): s.value for s in samples} == {
        ("gateway_quota_used", "a", "tokens", "day"): 42,
        ("gateway_quota_used", "a", "usd", "month"): 42,
        ("gateway_quota_used", "a", "requests", "90"): 42,
        ("gateway_quota_used", "a", "parallel", ""): 42,
        ("gateway_quota_limit", "a", "parallel", ""): 100,
        ("gateway_quota_limit", "a", "tokens", "day"): 100,
        ("gateway_quota_limit", "a", "usd", "month"): 50,
        ("gateway_quota_limit", "a", "requests", "90"): 100,
    }
    shared = [s for f in made.registry.collect() if f.name.startswith("gateway_shared_quota") for s in f.samples]
    assert {(s.name, s.labels["scope"]): s.value for s in shared} == {
        (f"gateway_shared_quota_{name}", scope): value
        for scope in ("team:a", "gateway", "person:ann")
        for name, value in (("used", 42), ("limit", 100))
    }
    assert made.registry.get_sample_value("gateway_key_info", {"key": "a", "team": "crew"}) == 1
    assert made.registry.get_sample_value("gateway_key_info", {"key": "b", "team": ""}) == 1


# ----------------------------------------------------------------------------------------------- several processes

CHILD = """
import sys
from collections.abc import Callable
from tests.observe.test_metrics import everything, telemetry
made = telemetry()
for _ in range(int(sys.argv[1])):
    everything(made)
print("ready", flush=True)
sys.stdin.read()
"""

SUM = """
import sys
from collections.abc import Callable
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
folder = sys.argv[1]
for pid in sys.argv[2:]:
    mark_process_dead(int(pid), folder)
registry = CollectorRegistry()
MultiProcessCollector(registry, path=folder)
print(generate_latest(registry).decode())
"""


@pytest.mark.rest
def test_one_scrape_is_the_sum_and_no_counter_falls_with_a_worker(tmp_path: Path) -> None:
    env = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}

    def start(times: int) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", CHILD, str(times)],
            cwd=ROOT, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def scrape(*dead: int) -> dict[str, float]:
        text = subprocess.run(
            [sys.executable, "-c", SUM, str(tmp_path), *map(str, dead)],
            cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True, check=True,
        ).stdout  # fmt: skip
        sums: dict[str, float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
        return sums

    workers = [start(2), start(3)]
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    before = scrape()
    assert before["gateway_requests_total"] == 5
    assert before["gateway_tokens_total"] == 5 * 21
    assert before["gateway_overhead_seconds_count"] == 5
    assert before["gateway_in_flight_requests"] == 5
    assert before["gateway_journal_pending_records"] == 6

    os.kill(workers[0].pid, signal.SIGKILL)
    workers[0].communicate()
    after = scrape(workers[0].pid)
    for name in before:
        if name.endswith(("_total", "_count", "_sum", "_bucket")):
            assert after[name] == before[name], name
    assert after["gateway_in_flight_requests"] == 3  # the calls of a killed worker are not in flight any more
    assert after["gateway_journal_pending_records"] == 3

    workers[1].communicate("")
