"""A command imports what it needs and no more: counted in modules, because times depend on the machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

RUN = """
import contextlib, io, json, sys
from gateway import cli
before = set(sys.modules)
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    cli.main(sys.argv[1:])
print(json.dumps(sorted(sys.modules)), file=sys.__stdout__)
"""
LARGE = {"aiohttp", "asyncio", "pydantic", "redis", "uvloop", "yaml", "prometheus_client"}


def imported(*arguments: str) -> set[str]:
    done = subprocess.run([sys.executable, "-c", RUN, *arguments], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["serv"]])
def test_help_imports_no_library_and_no_command(arguments: list[str]) -> None:
    found = imported(*arguments)
    assert not found & LARGE
    assert {name for name in found if name.startswith("gateway")} == {"gateway", "gateway.cli"}


@pytest.mark.parametrize("command", ["serve", "demo", "simulate"])
def test_help_of_a_server_imports_no_server(command: str) -> None:
    assert not imported(command, "--help") & (LARGE - {"asyncio"})


@pytest.mark.parametrize("command", [["keys", "list"], ["teams", "list"], ["audit"], ["usage"]])
def test_a_command_on_the_store_imports_no_server(command: list[str], tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text(
        f"store: {{url: 'embedded:{tmp_path}/data'}}\n"
        "upstreams: {u: {base_url: 'http://127.0.0.1:9/v1'}}\n"
        "models: {m: {routes: [{upstream: u}], max_output_tokens: 10}}\n"
    )
    assert not imported(*command, "--config", str(file)) & {"aiohttp", "redis", "uvloop", "prometheus_client"}
