"""The files of a worker's metrics after a kill at any point of a write."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector

from gateway.observe import worker_files

ROOT = Path(__file__).parent.parent.parent

pytestmark = pytest.mark.rest

WORKER = """
import os
asked, ask = [], os.getpid
os.getpid = lambda: asked.append(1) or ask()
import os, signal, struct, sys
from pathlib import Path
from prometheus_client import Counter, Gauge, Histogram
from gateway.observe import worker_files
from gateway.observe.worker_files import WorkerFiles

files = WorkerFiles(Path(os.environ["PROMETHEUS_MULTIPROC_DIR"]))
counter = Counter("calls", "c", ["key"])
seconds = Histogram("seconds", "s", buckets=(1, 10))
gauge = Gauge("under_way", "g", multiprocess_mode="livesum")
changes = 0


def changed():
    global changes
    changes += 1


files.on_change = changed


def count(times):
    for number in range(times):
        counter.labels(f"key-{number}").inc(number + 1)
        seconds.observe(5)
    gauge.set(times)


killed_at, written = int(sys.argv[1]), 0


class Mortal:
    size = 16

    def pack(self, value, time):
        global written
        if written == killed_at:
            os.kill(os.getpid(), signal.SIGKILL)
        written += 1
        return struct.pack("dd", value, time)


before = len(asked)
count(3)
files.write({"journal": 10})
assert len(asked) == before, "the kernel is asked for the process id with each value"
assert changes == 1, changes
worker_files._VALUE = Mortal()
count(5)
files.write({"journal": 20, "other": 3})
files.write({"journal": 20, "other": 3})
if killed_at < 0:
    files.close()
"""


def run(folder: Path, killed_at: int) -> int:
    """The process id of a worker that was killed before it had changed so many values in its files; -1: it was not."""
    env = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(folder)}
    worker = subprocess.Popen([sys.executable, "-c", WORKER, str(killed_at)], env=env, cwd=ROOT)
    assert worker.wait() == (-signal.SIGKILL if killed_at >= 0 else 0)
    return worker.pid


def sums(folder: Path) -> dict[str, float]:
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=str(folder))  # type: ignore[no-untyped-call]
    found: dict[str, float] = {}
    for family in registry.collect():
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0) + sample.value
    return found


ALL = {"calls_total": 21, "seconds_sum": 40, "seconds_count": 8}


@pytest.mark.parametrize("killed_at", [0, 1, 4, 7])
def test_the_last_write_of_a_killed_worker_is_completed(tmp_path: Path, killed_at: int) -> None:
    pid = run(tmp_path, killed_at)
    torn = sums(tmp_path)
    assert torn["calls_total"] < ALL["calls_total"] or torn["seconds_sum"] < ALL["seconds_sum"] or killed_at == 7
    for _ in range(2):
        worker_files.complete(tmp_path, pid)
        assert ALL.items() <= sums(tmp_path).items()
    heir = reader(tmp_path)
    assert [heir(name) for name in ("journal", "other", "unknown")] == [20, 3, None]


def reader(folder: Path) -> Any:
    files = object.__new__(worker_files.WorkerFiles)  # which would change how all metrics of this process are kept
    files._folder = folder
    return files.counted


def test_a_worker_that_ended_in_good_order_leaves_no_log(tmp_path: Path) -> None:
    pid = run(tmp_path, -1)
    worker_files.complete(tmp_path, pid)
    assert ALL.items() <= sums(tmp_path).items()
    assert sums(tmp_path)["under_way"] == 5
    assert reader(tmp_path)("journal") is None
    assert not list(tmp_path.glob("counted-*"))


@pytest.mark.parametrize("damage", ["torn", "changed", "empty"])
def test_a_write_that_did_not_reach_its_log_counts_for_nothing(tmp_path: Path, damage: str) -> None:
    pid = run(tmp_path, 0)  # nothing of the second write is in the files
    log = tmp_path / f"counted-{pid}"
    data = bytearray(log.read_bytes())
    assert json.loads(data[16:].partition(b"\n")[0])["marks"]["journal"] == 20
    if damage == "torn":
        data[60:] = bytes(len(data) - 60)
        data[worker_files._SLOT_BYTES :] = log.read_bytes()[worker_files._SLOT_BYTES :]
    elif damage == "changed":
        data[40] ^= 1
    else:
        data[:] = b""
    log.write_bytes(data)
    worker_files.complete(tmp_path, pid)
    assert sums(tmp_path) == {**sums(tmp_path), "calls_total": 6, "seconds_count": 3}
    assert reader(tmp_path)("journal") == (None if damage == "empty" else 10)


WITHOUT_ROOM = """
import os, resource
from pathlib import Path
from prometheus_client import Counter, Gauge
from gateway.observe.worker_files import WorkerFiles

files = WorkerFiles(Path(os.environ["PROMETHEUS_MULTIPROC_DIR"]))


def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def count(name):
    for number in range(2000):
        counter.labels(f"{name}-{number}").inc()
    gauge.set(7)
    files.write({})


limit(0)
counter, gauge = Counter("calls", "c", ["key"]), Gauge("under_way", "g", multiprocess_mode="livesum")
count("first")
assert not list(files._folder.glob("*.db"))
limit(resource.RLIM_INFINITY)
count("first")
(path,) = files._folder.glob("counter_*.db")
limit(path.stat().st_size)
count("other")
limit(resource.RLIM_INFINITY)
count("other")
for path in files._folder.glob("*.db"):
    assert path.stat().st_blocks * 512 >= path.stat().st_size, "a write to a hole of a full disk kills the process"
"""


def test_without_room_for_their_files_metrics_are_kept_in_memory(tmp_path: Path) -> None:
    """Where there is room again, all that was counted meanwhile is in the files."""
    env = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    asked = [sys.executable, "-c", WITHOUT_ROOM]
    worker = subprocess.run(asked, env=env, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (worker.returncode, worker.stderr.count("new metrics are kept in memory")) == (0, 1), worker.stderr
    assert {"calls_total": 8000, "under_way": 7}.items() <= sums(tmp_path).items()
