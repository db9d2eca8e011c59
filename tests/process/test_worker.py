"""What a worker arranges before it serves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import os
asked, ask = [], os.getpid
os.getpid = lambda: asked.append(1) or ask()
from gateway.process.worker import keep_process_id
keep_process_id()
from prometheus_client import CollectorRegistry, Counter
counter = Counter("counted", "Counted.", registry=CollectorRegistry())
before = len(asked)
counter.inc(3)
assert len(asked) == before
print(ask())
"""


def test_metrics_ask_for_the_process_id_once(tmp_path: Path) -> None:
    env = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    ran = subprocess.run([sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert [path.name for path in tmp_path.glob("*.db")] == [f"counter_{int(ran.stdout)}.db"]
