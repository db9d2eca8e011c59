"""The counters behind the dashboard's live numbers: read every second while a dashboard is open, far fewer than a
scrape.

Series that are not shown separately are summed, mainly over keys. The workers' files (`metrics.py`) are those of
prometheus-client and only grow: a series in a file keeps its position. So its name is read once, then only numbers.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from struct import Struct
from typing import Any

from prometheus_client import Metric
from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.registry import Collector

REQUESTS = "gateway_requests_total"
UPSTREAM_STATE = "gateway_upstream_state"
BUCKETS = "gateway_time_to_first_token_seconds_bucket"

SHOWN: Mapping[str, tuple[str, ...]] = {
    REQUESTS: ("status", "upstream"),
    "gateway_tokens_total": ("type",),
    "gateway_cost_usd_total": (),
    BUCKETS: ("upstream", "le"),
    "gateway_upstream_attempts_total": ("upstream", "outcome"),
    UPSTREAM_STATE: ("upstream",),
    "gateway_rejections_total": ("reason",),
    "gateway_in_flight_requests": (),
    "gateway_journal_pending_records": (),
    "gateway_store_errors_total": (),
    "gateway_usage_unknown_total": (),
    "gateway_client_disconnects_total": (),
}
"""Labels that a sample keeps, by the name of the sample."""

KEY_AND_MODEL = ("key", "model")
"""Label kept for requests that reached no upstream: refusals are shown by key."""

Series = tuple[str, tuple[tuple[str, str], ...]]
"""A sample's name and the labels that it keeps."""

_number = Struct("d").unpack_from
_HEAD_BYTES = 4
"""How much of a file is in use."""


class _File:
    """The shown series of one file, and their positions in it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._head = b""
        self._read_until = 0
        self._places: defaultdict[Series, list[int]] = defaultdict(list)

    def values(self) -> list[tuple[Series, list[float]]]:
        """The numbers of each series. Raises OSError."""
        with self._path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
        if head != self._head:
            self._find_more()
            self._head = head
        data = self._path.read_bytes()
        return [(series, [_number(data, place)[0] for place in places]) for series, places in self._places.items()]

    def _find_more(self) -> None:
        entries = MmapedDict.read_all_values_from_file(self._path)  # type: ignore[no-untyped-call]
        for key, _, _, place in entries:
            if place > self._read_until:
                self._read_until = place
                _, name, labels, _ = json.loads(key)
                if name in SHOWN:
                    self._places[name, _kept(name, labels)].append(place)


def _kept(name: str, labels: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    kept = SHOWN[name] if name != REQUESTS or labels["upstream"] else SHOWN[name] + KEY_AND_MODEL
    return tuple([(label, labels[label]) for label in kept])


class LiveCounters(Collector):
    """The counters of one gateway, whose workers have their files in this folder. Reading is thread-safe."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[Path, _File] = {}
        self._turn = threading.Lock()

    def collect(self) -> Iterator[Metric]:
        """The sums over all workers, as far as they are shown."""
        by_name: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
        for (name, labels), values in self._read().items():
            by_name.setdefault(name, {})[labels] = max(values) if name == UPSTREAM_STATE else sum(values)
        for name, numbers in by_name.items():
            metric = Metric(name, "", "untyped")
            for labels, value in _summed_up(numbers) if name == BUCKETS else numbers.items():
                metric.add_sample(name, dict(labels), value)
            yield metric

    def _read(self) -> Mapping[Series, list[float]]:
        found: defaultdict[Series, list[float]] = defaultdict(list)
        with self._turn:
            # Gauges end with their worker, and another may come to the same process id, and so to the same name.
            known = {path: file for path, file in self._files.items() if not path.name.startswith("gauge")}
            self._files = {path: known.get(path) or _File(path) for path in self._folder.glob("*.db")}
            for file in self._files.values():
                with contextlib.suppress(FileNotFoundError):
                    for series, values in file.values():
                        found[series] += values
        return found


def _summed_up(buckets: Mapping[tuple[tuple[str, str], ...], float]) -> Iterable[tuple[Any, float]]:
    """Buckets are separate in a file and cumulative in the result."""
    sums: defaultdict[Any, float] = defaultdict(float)
    for labels, value in sorted(buckets.items(), key=lambda bucket: float(dict(bucket[0])["le"])):
        upstream, _ = labels
        sums[upstream] += value
        yield labels, sums[upstream]
