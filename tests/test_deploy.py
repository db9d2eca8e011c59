"""What stands in deploy/ and the Dockerfile still fits the code."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from gateway import cli
from gateway.config.sections import Server

ROOT = Path(__file__).parent.parent
UNIT = (ROOT / "deploy" / "gateway.service").read_text()
DOCKERFILE = (ROOT / "Dockerfile").read_text()


def settings(name: str) -> list[str]:
    return [line.partition("=")[2] for line in UNIT.splitlines() if line.startswith(f"{name}=")]


@pytest.mark.parametrize("command", [*settings("ExecStartPre"), *settings("ExecStart")])
def test_unit_runs_commands_that_exist(command: str) -> None:
    program, *arguments = shlex.split(command)
    assert Path(program).name == "gateway"
    assert cli._parser().parse_args(arguments).config == "/etc/gateway/gateway.yaml"


def test_unit_waits_for_the_whole_drain() -> None:
    (stop_s,) = map(float, settings("TimeoutStopSec"))
    assert stop_s >= Server().drain_delay_s + Server().drain_timeout_s + 10


def test_image_runs_a_command_that_exists() -> None:
    (command,) = (line.removeprefix("CMD ") for line in DOCKERFILE.splitlines() if line.startswith("CMD "))
    _, *arguments = json.loads(command)
    args = cli._parser().parse_args(arguments)
    assert (args.config, args.host) == ("/etc/gateway/gateway.yaml", "0.0.0.0")


def test_image_copies_only_what_is_there() -> None:
    for line in DOCKERFILE.splitlines():
        if line.startswith("COPY ") and "--from" not in line:
            *sources, _ = line.split()[1:]
            assert all((ROOT / source).exists() for source in sources), line
