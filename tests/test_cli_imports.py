"""A command imports what it needs and no more: counted in modules, because times depend on the machine."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.flows.gateway_process import WITHOUT_TOKENS

pytestmark = pytest.mark.rest

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
    own = {name for name in found if name.startswith("gateway")}
    of_wings = {name for name in own if re.fullmatch(r"gateway\.wings\.\w+(\.command)?", name)}
    assert own - of_wings == {"gateway", "gateway.cli", "gateway.wings"}


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


START = """
import json, os, sys
before = set(sys.modules)
from gateway import cli

def fork():
    files = {name: getattr(sys.modules[name], "__file__", None) or "" for name in set(sys.modules) - before}
    print(json.dumps(files), flush=True)
    os._exit(0)

def scan(*_, **__):
    raise AssertionError("the metadata of installed packages is read")

os.fork, os.pidfd_open = fork, lambda pid: os.dup(0)
import importlib.metadata
importlib.metadata.distributions = scan
cli.main(["serve", "--config", sys.argv[1]])
"""
PACKAGES = {
    "aiohappyeyeballs", "aiohttp", "aiosignal", "annotated_types", "attr", "frozenlist", "httptools", "idna",
    "multidict", "prometheus_client", "propcache", "pydantic", "pydantic_core", "typing_extensions",
    "typing_inspection", "uvloop", "yaml", "yarl",
}  # fmt: skip
"""The gateway's requirements, and what those need."""
WHERE_INSTALLED = {
    "embedded": {"brotli", "brotlicffi", "_brotli", "backports"},  # decoders of aiohttp
    "redis": {"brotli", "brotlicffi", "_brotli", "backports", "cryptography", "opentelemetry"},
}
"""What the requirements import where it is there."""


@pytest.mark.parametrize(
    ("url", "module", "client"),
    [
        ("embedded:data", "gateway.store.sqlite.store", set()),
        ("redis://127.0.0.1:9", "gateway.store.redis.store", {"redis"}),
    ],
)
def test_a_start_imports_no_more_packages_and_loads_the_store_before_workers_are_forked(
    url: str, module: str, client: set[str], tmp_path: Path
) -> None:
    (tmp_path / "gateway.yaml").write_text(
        f"store: {{url: '{url}', journal_dir: journal}}\n"
        "server: {workers: 2}\n"
        "upstreams: {u: {base_url: 'http://127.0.0.1:9/v1'}}\n"
        "models: {m: {routes: [{upstream: u}], max_output_tokens: 10, price: null}}\n"
    )
    files = _start(START, tmp_path)
    installed = {name.partition(".")[0] for name, file in files.items() if "site-packages" in file}
    assert installed - WHERE_INSTALLED[url.partition(":")[0]] == PACKAGES | client
    assert module in files


def _start(code: str, folder: Path) -> dict[str, str]:
    """What a start with `folder`'s configuration prints."""
    done = subprocess.run(
        [sys.executable, "-c", code, "gateway.yaml"], capture_output=True, text=True, check=True,
        cwd=folder, env={**os.environ, **WITHOUT_TOKENS},
    )  # fmt: skip
    files: dict[str, str] = json.loads(done.stdout)
    return files


def test_the_supervisor_of_one_worker_loads_nothing_of_the_worker(tmp_path: Path) -> None:
    """Else the pages of these modules would be in memory twice, as soon as the worker uses them."""
    (tmp_path / "gateway.yaml").write_text(
        "upstreams: {u: {base_url: 'http://127.0.0.1:9/v1'}}\n"
        "models: {m: {routes: [{upstream: u}], max_output_tokens: 10}}\n"
    )
    files = _start(START, tmp_path)
    packages = {name.partition(".")[0] for name in files}
    assert not packages & {"aiohttp", "uvloop", "httptools"}
    assert not {name for name in files if name.startswith(("gateway.web", "gateway.pipeline", "gateway.relay"))}


REST = """
import asyncio, json, sys
from gateway.config.source import Source
from gateway.observe.metrics import Telemetry
from gateway.process import worker
from gateway.api import schema

async def scrape():
    raise AssertionError

async def rest():
    config = Source(sys.argv[1], {}).read().config
    async with worker.app.build(config, Telemetry([], 0), scrape):
        built = [each.__name__ for each in schema.Part.__subclasses__() if each.__pydantic_complete__]
        print(json.dumps({**dict.fromkeys(sys.modules, "module"), **dict.fromkeys(built, "schema")}))

asyncio.run(rest())
"""
UNUSED = {
    "gateway.simulator", "gateway.store.redis.store", "gateway.web.openapi.schemas", "genai_prices", "redis",
    "opentelemetry", "tiktoken", "multiprocessing", "schema",
}  # fmt: skip
"""What a worker of a plain configuration never needs, or not before a client asks for it."""


def test_a_worker_at_rest_has_loaded_nothing_that_it_does_not_use(tmp_path: Path) -> None:
    (tmp_path / "gateway.yaml").write_text(
        "store: {url: 'embedded:data'}\n"
        "upstreams: {u: {base_url: 'http://127.0.0.1:9/v1'}}\n"
        "models: {m: {routes: [{upstream: u}], max_output_tokens: 10}}\n"
    )
    files = _start(REST, tmp_path)
    assert "gateway.web.dashboard" in files
    assert not UNUSED & {*files, *files.values()}
