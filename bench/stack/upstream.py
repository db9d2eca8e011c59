"""An upstream that can be killed and restarted at its address, and the expected answers and charges of its calls."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.soak.observed import Truth, members
from gateway.simulator.choices import Generated, chat, complete
from gateway.simulator.requests import ChatRequest, CompletionRequest, EmbeddingRequest, parse
from gateway.simulator.server import embeddings_body
from gateway.simulator.server import usage_of as usage_of_embeddings
from tests.fakes.redis_servers import ROOT
from tests.fakes.scripted import dead_port
from tests.flows.gateway_process import Process

TOKENS_PER_S = 30
LONG_TOKENS, LONG_TOKENS_PER_S = 30, 15
"""Two seconds: longer than a gateway accepts calls after SIGTERM."""
DIMENSIONS = 4


class _Simulator(Process):
    @staticmethod
    def command(*arguments: str) -> list[str]:
        return [sys.executable, "-m", "bench.stack.simulator", *arguments]


class Upstream:
    """See the head of the file. Started when made."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.url = f"http://127.0.0.1:{(port := dead_port())}/v1"
        self._arguments = ["--port", str(port), "--book", str(folder / "book")]
        self._book = folder / "book"
        self._folder, self._lives = folder, 0
        self.start()

    def start(self) -> None:
        self._lives += 1
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        folder = self._folder / str(self._lives)
        self._process = _Simulator(folder, *self._arguments, env={"PYTHONPATH": path})
        self._process.wait_for("serves")

    def kill(self) -> None:
        """Kills it with SIGKILL, in the middle of answers. Returns when it has ended."""
        self._process.kill(signal.SIGKILL)
        self._process.wait()

    def end(self) -> None:
        self._process.end()

    @property
    def sold(self) -> Counter[int]:
        """The number of begun answers by call."""
        return Counter(int(line.split()[0]) for line in self._book.read_text().splitlines() if line.endswith("begun"))


def body_of(number: int, kind: str, endpoint: str, *, is_stream: bool) -> dict[str, Any]:
    """The body of a call: its own length of answer, at a speed at which most answers take a moment."""
    asked = members(number, kind, endpoint, is_stream=is_stream)
    if endpoint == "embeddings":
        return {**asked, "dimensions": DIMENSIONS, "encoding_format": "float"}
    tokens, tokens_per_s = (LONG_TOKENS, LONG_TOKENS_PER_S) if kind == "long" else (1 + number % 23, TOKENS_PER_S)
    return {**asked, "simulate": {"tokens": tokens, "tokens_per_s": tokens_per_s}}


def truth_of(body: Mapping[str, Any], endpoint: str) -> Truth:
    """The simulator's answer to it, a function of the call."""
    said = json.dumps(body).encode()
    if endpoint == "embeddings":
        asked = parse(EmbeddingRequest, said)
        usage = usage_of_embeddings(asked)
        return Truth(json.loads(embeddings_body(asked, usage))["data"][0]["embedding"], usage.prompt, 0)
    generated: Generated = (
        chat(parse(ChatRequest, said)) if endpoint == "chat" else complete(parse(CompletionRequest, said))
    )
    return Truth(generated.choices[0].output.text, generated.usage.prompt, generated.usage.completion)
