"""Live numbers out of the workers' files: the same as out of a whole scrape, for a part of its work."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import Metric
from prometheus_client.multiprocess import mark_process_dead
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from gateway.observe import exposition
from gateway.observe.exposition import Reloads, SupervisorMetrics
from gateway.observe.live_counters import SHOWN, LiveCounters
from gateway.observe.live_numbers import _READ, summed

UPSTREAMS = ["up0", "up1", "idle"]
RELOADS = Reloads(3, {"applied": 2})
KEYS = 40
GAUGES = {
    "gateway_clock_skew_seconds", "gateway_in_flight_requests", "gateway_journal_pending_records",
    "gateway_upstream_state",
}  # fmt: skip
"""Read anew at each look."""

WORKER = f"""
import sys
from gateway.records import Record, Usage
from gateway.observe.metrics import Telemetry

keys = [f"key-{{number:02}}" for number in range({KEYS})] + ['odd"\\\\\\n']
telemetry = Telemetry(keys, 100)
for line in sys.stdin:
    upstream, first_byte_s = line.split()
    for key in keys:
        record = Record(
            id="r", time=0.0, key=key, team=None, endpoint="chat", model="m", label_model="m", routed_model="m",
            returned_model="m", upstream=upstream, status=200, stream=True, usage=Usage(10, 5, 3, 2, "reported"),
            ended="client_gone", first_byte_s=float(first_byte_s), duration_s=99.0, attempts=1, cost_nusd=1_500_000,
        )
        telemetry.recorded(record, estimated_prompt_tokens=9, overhead_s=0.001, is_usage_unknown=True)
        telemetry.attempted(upstream, "ok")
        telemetry.answered(key=key, model="m", endpoint="chat", upstream="", status=429)
    telemetry.answered(key=key, model="", endpoint="models", upstream="", status=200)
    telemetry.rejected("rate_limited")
    telemetry.show_upstream("up0", 1)
    telemetry.show_upstream(upstream, 2)
    telemetry.show_pending(3)
    telemetry.store_failed()
    telemetry.count_under_way(1)
    print("done", flush=True)
"""


class Worker:
    """A process that counts. Each `work` is a call of every key."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.pid = process.pid

    def work(self, upstream: str, first_byte_s: float = 0.2) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{upstream} {first_byte_s}\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "done\n"


@contextmanager
def worker(folder: Path) -> Iterator[Worker]:
    env = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(folder)}
    with subprocess.Popen(
        [sys.executable, "-c", WORKER], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield Worker(process)
        assert process.stdin is not None
        process.stdin.close()


def of_scrape(folder: Path) -> dict[str, Any]:
    return summed([Scraped(taken(exposition.write(str(folder), UPSTREAMS, RELOADS, [], {})))], UPSTREAMS)


def numbers_of(counters: LiveCounters) -> dict[str, Any]:
    return summed([counters, SupervisorMetrics(RELOADS)], UPSTREAMS)


class Scraped(Collector):
    """The metrics of a scrape's text, as Prometheus reads it."""

    def __init__(self, text: str) -> None:
        self._text = text

    def collect(self) -> Iterator[Metric]:
        yield from text_string_to_metric_families(self._text)


def taken(path: str) -> str:
    text = Path(path).read_text()
    Path(path).unlink()
    return text


@pytest.mark.rest
def test_they_are_those_of_a_scrape_whatever_workers_come_and_go(tmp_path: Path) -> None:
    counters = LiveCounters(tmp_path)

    def live() -> dict[str, Any]:
        return numbers_of(counters)

    assert live() == of_scrape(tmp_path)
    with worker(tmp_path) as one:
        one.work("up0")
        assert live() == of_scrape(tmp_path)
        with worker(tmp_path) as other:
            other.work("up1", 7.0)  # series that the first one does not have
            assert live() == of_scrape(tmp_path)
            one.work("up1", 0.01)  # ...and now has, behind what is known of its file
            other.work("up1", 7.0)
            numbers = live()
            assert numbers == of_scrape(tmp_path)
            assert numbers["upstreams"]["up1"]["state"] == 2
            assert len(numbers["refused"]) == KEYS + 1
            assert (numbers["in_flight"], numbers["journal_pending"], numbers["generation"]) == (4, 6, 3)
    mark_process_dead(one.pid, str(tmp_path))  # type: ignore[no-untyped-call]
    after = live()
    assert after == of_scrape(tmp_path)
    assert (after["requests"], after["in_flight"]) == (numbers["requests"], 2)


@pytest.mark.rest
def test_a_name_is_read_once_and_keys_are_summed_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def loads(text: str) -> Any:
        read.append(text)
        return json.JSONDecoder().decode(text)

    monkeypatch.setattr("gateway.observe.live_counters.json.loads", loads)
    counters = LiveCounters(tmp_path)
    with worker(tmp_path) as one:
        one.work("up0")
        numbers_of(counters)
        assert len(read) > 5 * KEYS
        read.clear()
        one.work("up0")
        samples = [sample for metric in counters.collect() for sample in metric.samples]
        assert {json.JSONDecoder().decode(text)[1] for text in read} == GAUGES
    (shown,) = [each for each in samples if each.labels.get("key") == "key-07"]
    assert (shown.name, shown.value) == ("gateway_requests_total", 2.0)
    assert shown.labels == {"key": "key-07", "model": "m", "status": "429", "upstream": ""}


@pytest.mark.rest
def test_a_worker_that_is_about_to_make_its_files_is_no_obstacle(tmp_path: Path) -> None:
    counters = LiveCounters(tmp_path)
    with worker(tmp_path) as one:
        one.work("up0")
        numbers = numbers_of(counters)
        (tmp_path / "counter_1.db").touch()
        (tmp_path / "histogram_1.db").write_bytes(bytes(1 << 16))
        assert numbers_of(counters) == numbers


def test_what_is_read_of_them_is_what_is_kept() -> None:
    assert {*SHOWN, "gateway_config_generation"} == {*_READ}
