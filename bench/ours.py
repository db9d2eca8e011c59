"""The gateway as it is shipped: `gateway serve --config`, one worker, the embedded store, everything on.

Without the extra `tokens`, which is not installed with it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.flows.gateway_process import WITHOUT_TOKENS

from . import calls, cases
from .cases import Case
from .processes import Program

ROOT = Path(__file__).parents[1]
PLENTY = 10**12
"""A limit that is counted and never met."""


WINDOWS = (
    ("requests", "minute"), ("tokens", "day"), ("requests", "day"), ("tokens", "minute"), ("requests", "hour"),
    ("tokens", "month"),
)  # fmt: skip
"""Quotas of a key: the first three, where no other number is asked for."""


def quotas(windows: int = 3) -> list[dict[str, Any]]:
    """So many, as they stand in a configuration."""
    return [{unit: PLENTY, "per": per} for unit, per in WINDOWS[:windows]]


def settings(folder: Path, upstream: int) -> dict[str, Any]:
    """What is not named has its default: access lines as JSON on standard output, metrics, one worker."""
    return {
        "server": {"port": 0},
        "store": {"url": f"embedded:{folder / 'data'}"},
        "admin": {"token": "admin-token-of-the-bench"},
        "upstreams": {"main": {"base_url": f"http://127.0.0.1:{upstream}/v1", "api_key": "sk-upstream-of-the-bench"}},
        "models": {calls.MODEL: _model("chat")},
        "keys": [{"id": "bench", "secret": calls.SECRET, "quotas": quotas()}],
    }


def settings_of(case: Case, folder: Path, upstream: int, ca_file: Path | None, redis_url: str) -> dict[str, Any]:
    """The same for a case."""
    received = settings(folder, upstream)
    received["server"]["workers"] = case.workers
    if ca_file is not None:
        received["upstreams"]["main"] |= {"base_url": f"https://127.0.0.1:{upstream}/v1", "ca_file": str(ca_file)}
    if case.store == "redis":
        received["store"] = {"url": redis_url, "journal_dir": str(folder)}
    received["models"] = {case.model(number): _model(case.endpoint) for number in range(case.models)}
    if not case.issued:
        received["keys"] = [
            {"id": cases.key(number), "secret": cases.secret(number), "quotas": quotas(case.windows)}
            for number in range(case.callers)
        ]
    return received


def _model(endpoint: str) -> dict[str, Any]:
    return {"endpoints": [endpoint], "routes": [{"upstream": "main"}], "max_output_tokens": 4096}


def gateway(folder: Path, core: int, upstream: int) -> Program:
    """The gateway in front of this port."""
    return serving(settings(folder, upstream), folder, core)


def serving(received: Mapping[str, Any], folder: Path, core: int) -> Program:
    """The gateway with these settings."""
    file = folder / "gateway.yaml"
    file.write_text(yaml.safe_dump(received))
    command = [sys.executable, "-m", "gateway", "serve", "--config", str(file)]
    places = os.pathsep.join([WITHOUT_TOKENS["PYTHONPATH"], str(ROOT)])
    return Program("the gateway", command, folder, core, env={"PYTHONPATH": places, "TMPDIR": str(folder)})
