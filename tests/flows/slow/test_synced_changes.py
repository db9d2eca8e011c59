"""A change by an operator is on the disk before it is acknowledged, with the embedded store, too.

The gateway runs with a library in front of the C library that notes each file that is synced.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.preloaded import NOTES_SYNCS, library
from tests.flows.gateway_process import key, settings
from tests.flows.steering import Operator


def test_each_change_is_on_the_disk_before_its_answer(
    start_gateway: StartsGateways, shared_upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    notes = tmp_path / "synced"
    gateway = start_gateway(
        settings(shared_upstream.url, keys=[key("filed", quotas=[{"requests": 10, "per": "day"}])]),
        env={"LD_PRELOAD": str(library(NOTES_SYNCS, tmp_path)), "SYNC_NOTES": str(notes)},
    )
    operator = Operator(gateway)

    def syncs() -> int:
        return sum(line.endswith(".sqlite-wal") for line in notes.read_text().splitlines())

    changes: list[Callable[[], object]] = [
        lambda: operator.create("issued"),
        lambda: operator.done("PATCH", "keys/issued", {"max_parallel": 7}),
        lambda: operator.done("POST", "keys/filed/top_up", {"requests": 90, "per": "day"}),
        lambda: operator.done("POST", "keys/filed/reset"),
        lambda: operator.done("POST", "teams", {"name": "red", "quotas": []}),
        lambda: operator.done("DELETE", "keys/issued"),
        lambda: operator.done("DELETE", "keys/filed"),
    ]
    for change in changes:
        before = syncs()
        change()
        assert syncs() > before
