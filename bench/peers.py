"""Others on the main case: a bare aiohttp proxy, and other gateways if installed: LiteLLM (`make servers`), Portkey,
TensorZero and GoModel (its module is published as source; Go 1.26):

npm install --ignore-scripts --prefix .venv/servers/portkey @portkey-ai/gateway
python3 -m venv .venv/servers/tensorzero && .venv/servers/tensorzero/bin/pip install tensorzero openai
git clone https://github.com/ENTERPILOT/GoModel .venv/servers/gomodel && git -C .venv/servers/gomodel checkout a26fbd1
(cd .venv/servers/gomodel && go build -o gomodel.bin ./cmd/gomodel)
"""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import yaml

from tests.fakes.litellm_proxy import HOME as LITELLM
from tests.fakes.redis_servers import ROOT

from . import calls, load, nginx, ours
from .lone import bare
from .processes import Probe, Program
from .table import figure

PORTKEY = ROOT / ".venv/servers/portkey/node_modules/@portkey-ai/gateway/build/start-server.js"
TENSORZERO = ROOT / ".venv/servers/tensorzero/bin/python"
GOMODEL = ROOT / ".venv/servers/gomodel/gomodel.bin"
START_S = 120.0
ROUNDS, SECONDS, SETTLE_S = 3, 5, 0.5
NOWHERE = "http://127.0.0.1:9"
"""Their requests to other hosts fail: the proxy does not exist."""


def installed() -> list[str]:
    """Their names."""
    there = {
        "LiteLLM": (LITELLM / "wanted").exists(),
        "Portkey": PORTKEY.exists() and bool(shutil.which("node")),
        "TensorZero": TENSORZERO.exists(),
        "GoModel": GOMODEL.exists(),
    }
    return [name for name, is_there in there.items() if is_there]


class Wanted(NamedTuple):
    """How a gateway wants the call of the main case."""

    path: str = calls.PATH
    body: bytes = calls.request()


WANTED: Mapping[str, Wanted] = {
    "TensorZero": Wanted("/openai/v1/chat/completions", calls.request(model=f"tensorzero::model_name::{calls.MODEL}")),
}
"""Of those that do not take it as it is."""


def headers(upstream: int) -> dict[str, str]:
    """Headers that Portkey needs with each call; the others ignore them."""
    return {"x-portkey-provider": "openai", "x-portkey-custom-host": f"http://127.0.0.1:{upstream}/v1"}


def measure(new_folder: Callable[[], Path], core: int, own: int) -> str:
    """A Markdown table: the main case with one key and three windows, which the other programs do not count. All take
    turns in each round; CPU time and ratios are medians of the rounds, memory is that after the last one."""
    cost_us: dict[str, list[float]] = {}
    with ExitStack() as running:
        behind = running.enter_context(nginx.upstream(new_folder(), own))
        programs = {
            "nginx": nginx.proxy(new_folder(), core, behind.port, is_buffered=True),
            "a bare aiohttp proxy": bare(new_folder(), core, behind.port),
            "this gateway": ours.gateway(new_folder(), core, behind.port),
            **{name: start(name, new_folder(), core, behind.port) for name in installed()},
        }
        folder, more = new_folder(), headers(behind.port)
        for name, program in programs.items():
            running.enter_context(program)
            program.wait_until_answered()
            _measure(program, folder, more, WANTED.get(name, Wanted()))
        for _ in range(ROUNDS):
            for name, program in programs.items():
                cost_us.setdefault(name, []).append(_measure(program, folder, more, WANTED.get(name, Wanted())))
        memory_mb = {name: program.memory_mb() for name, program in programs.items()}
    return "\n".join([
        "| On the main line | CPU per call, us | x nginx | lowest - highest | memory, MB |",
        "| --- | ---: | ---: | ---: | ---: |",
        *[_row(name, costs, cost_us["nginx"], memory_mb[name]) for name, costs in cost_us.items()],
    ])  # fmt: skip


def _row(name: str, cost_us: list[float], of_nginx: list[float], memory_mb: float) -> str:
    ratios = [mine / theirs for mine, theirs in zip(cost_us, of_nginx, strict=True)]
    columns = [name, figure(median(cost_us)), figure(median(ratios))]
    return f"| {' | '.join(columns)} | {figure(min(ratios))} - {figure(max(ratios))} | {figure(memory_mb)} |"


def _measure(program: Program, folder: Path, more: Mapping[str, str], wanted: Wanted) -> float:
    """CPU us per call."""
    time.sleep(SETTLE_S)
    cpu_s = program.cpu_s()
    seen = load.run(program.port, SECONDS, folder, headers=more, path=wanted.path, body=wanted.body)
    time.sleep(SETTLE_S)
    return (program.cpu_s() - cpu_s) / seen.requests * 1e6


def start(name: str, folder: Path, core: int, upstream: int) -> Program:
    """One of them in front of this port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    make = {"LiteLLM": _litellm, "Portkey": _portkey, "TensorZero": _tensorzero, "GoModel": _gomodel}[name]
    made, (path, body) = make(folder, core, upstream, port), WANTED.get(name, Wanted())
    made.start_within_s = START_S
    made.probe = Probe(path, body, {**calls.HEADERS, **headers(upstream)}, None)
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


def _tensorzero(folder: Path, core: int, upstream: int, port: int) -> Program:
    """The gateway of its Python package, which chooses its port itself. It stores nothing here."""
    del port
    (folder / "tensorzero.toml").write_text(f"""[gateway]
observability.enabled = false

[models."{calls.MODEL}"]
routing = ["main"]

[models."{calls.MODEL}".providers.main]
type = "openai"
model_name = "{calls.MODEL}"
api_base = "http://127.0.0.1:{upstream}/v1/"
api_key_location = "none"
""")
    (folder / "serve.py").write_text("""import time

from openai import OpenAI
from tensorzero import patch_openai_client

client = patch_openai_client(OpenAI(api_key="none"), config_file="tensorzero.toml", async_setup=False)
print(f"serves http://127.0.0.1:{client.base_url.port} ", flush=True)
while True:
    time.sleep(60)
""")
    return Program("TensorZero", [str(TENSORZERO), "serve.py"], folder, core, env={"HOME": str(folder)})


def _gomodel(folder: Path, core: int, upstream: int, port: int) -> Program:
    """It checks a master key and stores usage in SQLite. It asks no other host for models or prices."""
    env = {
        "HOME": str(folder), "PORT": str(port), "GOMODEL_MASTER_KEY": calls.SECRET, "OPENAI_API_KEY": "none",
        "OPENAI_BASE_URL": f"http://127.0.0.1:{upstream}/v1", "OPENAI_MODELS": calls.MODEL,
        "CONFIGURED_PROVIDER_MODELS_MODE": "allowlist", "MODEL_LIST_URL": "", "SQLITE_PATH": str(folder / "usage.db"),
        "GOMODEL_CACHE_DIR": str(folder), "NO_PROXY": "127.0.0.1", "HTTP_PROXY": NOWHERE, "HTTPS_PROXY": NOWHERE,
    }  # fmt: skip
    return Program("GoModel", [str(GOMODEL)], folder, core, port, env=env)
