"""llama.cpp's server as an upstream: a real one, on a model that writes random words.

It is installed by `make servers`. Besides chat it has Responses and Messages of its own, which it makes of the same
generation (llama.cpp, tools/server/server-task.cpp), and a cache of prompts by their prefixes.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Self

from . import llama_model
from .redis_servers import ROOT

HOME = ROOT / ".venv" / "servers" / "llama-cpp"
SCRIPT = Path(__file__).with_name("llama_serve.py")
START_S = 60.0
STOP_S = 10.0


class MissingLlama(Exception):
    """It is not installed; the sentence says what to do."""


def version() -> str:
    """The package, which has llama.cpp's build in its number. Raises `MissingLlama`."""
    wanted = HOME / "wanted"
    if not wanted.exists():
        raise MissingLlama(
            f"{HOME} is not there, and this test needs llama.cpp itself: run `make servers`, which says why not."
        )
    return wanted.read_text().strip()


class LlamaServer:
    """One of them on a port that was free. Raises `MissingLlama`."""

    def __init__(self, folder: Path, **settings: int) -> None:
        version()
        folder.mkdir(parents=True, exist_ok=True)
        model = folder / "words.gguf"
        llama_model.write(model)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self._log = folder / "log"
        more = [f"{name}={number}" for name, number in settings.items()]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, SCRIPT, model, str(self.port), *more], stdin=subprocess.DEVNULL, stdout=log,
                stderr=log, cwd=folder, start_new_session=True, env={**os.environ, "PYTHONPATH": str(HOME)},
            )  # fmt: skip

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def post(self, path: str, body: Any) -> Any:
        """The JSON of an answer, or the data of its events. `path` is below /v1."""
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}{path}", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=START_S) as answer:
            data = answer.read().decode()
        if not body.get("stream"):
            return json.loads(data)
        lines = [line.removeprefix("data: ") for line in data.splitlines() if line.startswith("data: ")]
        return [json.loads(line) for line in lines if line != "[DONE]"]

    def __enter__(self) -> Self:
        try:
            self._wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(STOP_S)

    def _wait(self) -> None:
        end = time.monotonic() + START_S
        while not self._is_alive():
            code = self.process.poll()
            assert code is None, f"llama.cpp ended with {code}: {self._log.read_text()[-2000:]}"
            assert time.monotonic() < end, f"llama.cpp did not start in {START_S:g} s: {self._log.read_text()[-2000:]}"
            time.sleep(0.05)

    def _is_alive(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/models", timeout=5) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError):
            return False
