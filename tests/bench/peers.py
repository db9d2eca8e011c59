"""Other gateways on the main case, if installed: LiteLLM (`make servers`), and Portkey:

npm install --ignore-scripts --prefix .venv/servers/portkey @portkey-ai/gateway
"""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import yaml

from tests.fakes.litellm_proxy import HOME as LITELLM
from tests.fakes.redis_servers import ROOT

from . import calls, load, nginx, ours
from .processes import Program
from .table import figure

PORTKEY = ROOT / ".venv/servers/portkey/node_modules/@portkey-ai/gateway/build/start-server.js"
START_S = 120.0
SECONDS, SETTLE_S = 5, 0.5
NOWHERE = "http://127.0.0.1:9"
"""Their requests to other hosts fail: the proxy does not exist."""


def installed() -> list[str]:
    """Their names."""
    there = {"LiteLLM": (LITELLM / "wanted").exists(), "Portkey": PORTKEY.exists() and bool(shutil.which("node"))}
    return [name for name, is_there in there.items() if is_there]


def headers(upstream: int) -> dict[str, str]:
    """Headers that Portkey needs with each call; the others ignore them."""
    return {"x-portkey-provider": "openai", "x-portkey-custom-host": f"http://127.0.0.1:{upstream}/v1"}


def measure(new_folder: Callable[[], Path], core: int, own: int) -> str:
    """A Markdown table: the main case with one key and three windows, which the other gateways do not count."""
    with ExitStack() as running:
        behind = running.enter_context(nginx.upstream(new_folder(), own))
        started = {
            "nginx": nginx.proxy(new_folder(), core, behind.port, is_buffered=True),
            "this gateway": ours.gateway(new_folder(), core, behind.port),
            **{name: start(name, new_folder(), core, behind.port) for name in installed()},
        }
        for program in started.values():
            running.enter_context(program)
        cost_us = {name: _measure(program, new_folder(), headers(behind.port)) for name, program in started.items()}
    return "\n".join([
        "| Others on the main line | CPU per call, us | x nginx |",
        "| --- | ---: | ---: |",
        *[f"| {name} | {figure(us)} | {figure(us / cost_us['nginx'])} |" for name, us in cost_us.items()],
    ])  # fmt: skip


def _measure(program: Program, folder: Path, more: Mapping[str, str]) -> float:
    """CPU us per call."""
    program.wait_until_answered()
    load.run(program.port, SECONDS, folder, headers=more)
    time.sleep(SETTLE_S)
    cpu_s = program.cpu_s()
    seen = load.run(program.port, SECONDS, folder, headers=more)
    time.sleep(SETTLE_S)
    return (program.cpu_s() - cpu_s) / seen.requests * 1e6


def start(name: str, folder: Path, core: int, upstream: int) -> Program:
    """One of them in front of this port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    made = (_litellm if name == "LiteLLM" else _portkey)(folder, core, upstream, port)
    made.start_within_s = START_S
    made.probe = made.probe._replace(headers={**calls.HEADERS, **headers(upstream)}, answer=None)
    return made


def _litellm(folder: Path, core: int, upstream: int, port: int) -> Program:
    model = {"model": f"openai/{calls.MODEL}", "api_key": "none", "api_base": f"http://127.0.0.1:{upstream}/v1"}
    settings: dict[str, Any] = {
        "model_list": [{"model_name": calls.MODEL, "litellm_params": model}],
        "litellm_settings": {"telemetry": False},
        "general_settings": {"master_key": calls.SECRET},
    }
    file = folder / "litellm.yaml"
    file.write_text(yaml.safe_dump(settings))
    command = [str(LITELLM / "bin/litellm"), "--config", str(file), "--host", "127.0.0.1", "--port", str(port)]
    env = {
        "HOME": str(folder), "TMPDIR": str(folder), "NO_PROXY": "127.0.0.1", "HTTP_PROXY": NOWHERE,
        "HTTPS_PROXY": NOWHERE, "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }  # fmt: skip
    return Program("LiteLLM", command, folder, core, port, env=env)


def _portkey(folder: Path, core: int, upstream: int, port: int) -> Program:
    del upstream  # each call names it
    command = ["node", str(PORTKEY), f"--port={port}", "--headless"]
    return Program("Portkey", command, folder, core, port, env={"HOME": str(folder), "NODE_ENV": "production"})
