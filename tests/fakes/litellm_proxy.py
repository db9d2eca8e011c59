"""LiteLLM's proxy as a reseller: a real gateway of another make, whose models answer what its settings say.

It is installed by `make servers` into a virtual environment of its own. Nothing that it does leaves this machine: its
model prices are those it was installed with, and whatever else it would fetch goes to a proxy that does not exist.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Self

import yaml

from .redis_servers import ROOT

HOME = ROOT / ".venv" / "servers" / "litellm"
KEY = "sk-litellm-key-that-nobody-may-see"
START_S = 120.0
"""It imports for ten seconds on a quiet machine."""
STOP_S = 10.0


class MissingLiteLLM(Exception):
    """It is not installed; the sentence says what to do."""


def mock(says: Any) -> dict[str, Any]:
    """A model that says this; some texts are errors that it raises."""
    return {"model": "openai/behind-it", "api_key": "none", "mock_response": says}


class LiteLLM:
    """One of them on a port that was free. Raises `MissingLiteLLM`."""

    def __init__(self, folder: Path, **models: Any) -> None:
        program = HOME / "bin" / "litellm"
        if not (HOME / "wanted").exists():
            raise MissingLiteLLM(
                f"{program} is not there, and this test needs the real one: run `make servers`, which says why not."
            )
        folder.mkdir(parents=True, exist_ok=True)
        settings = {
            "model_list": [{"model_name": name, "litellm_params": mock(says)} for name, says in models.items()],
            "litellm_settings": {"telemetry": False, "num_retries": 0},
            "router_settings": {"num_retries": 0},
            "general_settings": {"master_key": KEY},
        }
        (folder / "litellm.yaml").write_text(yaml.safe_dump(settings))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self._log = folder / "log"
        nowhere = "http://127.0.0.1:9"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [program, "--config", folder / "litellm.yaml", "--host", "127.0.0.1", "--port", str(self.port)],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=folder, start_new_session=True,
                env={
                    "PATH": os.environ["PATH"], "HOME": str(folder), "TMPDIR": str(folder), "NO_PROXY": "127.0.0.1",
                    "LITELLM_LOCAL_MODEL_COST_MAP": "True", "HTTP_PROXY": nowhere, "HTTPS_PROXY": nowhere,
                },
            )  # fmt: skip

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def __enter__(self) -> Self:
        try:
            self._wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Stopped politely, and then whatever it has started with it."""
        self.process.terminate()
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(STOP_S)

    def _wait(self) -> None:
        end = time.monotonic() + START_S
        while not self._is_alive():
            code = self.process.poll()
            assert code is None, f"LiteLLM ended with {code}: {self._log.read_text()[-2000:]}"
            assert time.monotonic() < end, (
                f"LiteLLM did not start within {START_S:g} s: {self._log.read_text()[-2000:]}"
            )
            time.sleep(0.1)

    def _is_alive(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health/liveliness", timeout=5) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError):
            return False
