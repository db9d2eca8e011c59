"""The metrics of the whole gateway, as they are written for a scrape."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway import __version__
from gateway.observe.exposition import Reloads, write

WORKER = """
from gateway.observe.metrics import Telemetry
telemetry = Telemetry(["k"], 10)
telemetry.show_upstream("there", 2)
telemetry.show_upstream("gone", 2)
telemetry.store_failed()
"""


@pytest.mark.rest
def test_what_is_removed_is_left_out_and_what_the_supervisor_knows_is_added(tmp_path: Path) -> None:
    env = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    for _ in range(2):
        subprocess.run([sys.executable, "-c", WORKER], env=env, check=True)
    path = Path(
        write(
            str(tmp_path),
            {"there"},
            Reloads(3, {"applied": 2, "refused": 0}),
            [("k", "usd", "day", 1, 2)],
            {"k": "crew"},
        )
    )
    assert path.parent == tmp_path
    samples = {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(path.read_text())
        for sample in family.samples
    }
    assert samples["gateway_upstream_state", ("there",)] == 2
    assert ("gateway_upstream_state", ("gone",)) not in samples
    assert samples["gateway_store_errors_total", ()] == 2
    assert samples["gateway_config_generation", ()] == 3
    assert samples["gateway_config_reloads_total", ("applied",)] == 2
    assert samples["gateway_config_reloads_total", ("refused",)] == 0
    assert samples["gateway_build_info", (__version__,)] == 1
    assert not [name for name, _ in samples if name.endswith("_created")]
