"""The gateway as it is shipped: `gateway serve --config`, one worker, the embedded store, everything on.

Without the extra `tokens`, which is not installed with it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import yaml

from tests.flows.house import WITHOUT_TOKENS

from . import calls
from .processes import Program

ROOT = Path(__file__).parents[2]
PLENTY = 10**12
"""A limit that is counted and never met."""


def settings(folder: Path, upstream: int) -> dict[str, Any]:
    """What is not named has its default: access lines as JSON on standard output, metrics, one worker."""
    windows = [("requests", "minute"), ("tokens", "day"), ("requests", "day")]
    quotas = [{unit: PLENTY, "per": per} for unit, per in windows]
    return {
        "server": {"port": 0},
        "store": {"url": f"embedded:{folder / 'data'}"},
        "admin": {"token": "admin-token-of-the-bench"},
        "upstreams": {"main": {"base_url": f"http://127.0.0.1:{upstream}/v1", "api_key": "sk-upstream-of-the-bench"}},
        "models": {calls.MODEL: {"endpoints": ["chat"], "routes": [{"upstream": "main"}], "max_output_tokens": 4096}},
        "keys": [{"id": "bench", "secret": calls.SECRET, "quotas": quotas}],
    }


def gateway(folder: Path, core: int, upstream: int) -> Program:
    """The gateway in front of this port."""
    file = folder / "gateway.yaml"
    file.write_text(yaml.safe_dump(settings(folder, upstream)))
    command = [sys.executable, "-m", "gateway", "serve", "--config", str(file)]
    places = os.pathsep.join([WITHOUT_TOKENS["PYTHONPATH"], str(ROOT)])
    return Program("the gateway", command, folder, core, env={"PYTHONPATH": places, "TMPDIR": str(folder)})
