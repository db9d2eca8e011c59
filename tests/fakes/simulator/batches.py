"""Batches of the simulated upstream (/v1/batches): the requests of a file, answered into another one.

A batch takes `takes_s` of its metadata, in seconds, or nearly no time. All of its requests are answered at its end,
and the ledger has each of them as a call of its own, under the id of the batch. One that is cancelled before has
answered nothing.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from gateway.simulator import answers, choices, server
from gateway.simulator.choices import Settings
from gateway.simulator.requests import APIError, ChatRequest, CompletionRequest, EmbeddingRequest, parse
from gateway.simulator.server import CallHistory

from .files import FileStore

TAKES_S = 0.05
"""How long a batch without `takes_s` takes."""

Answer = tuple[bytes, int, int]
"""A body, and its prompt and completion tokens."""


@dataclass(slots=True)
class SimulatedBatch:
    """One batch."""

    endpoint: str
    input_file_id: str
    metadata: dict[str, str] | None
    status: str = "in_progress"
    output_file_id: str | None = None
    error_file_id: str | None = None
    completed: int = 0
    failed: int = 0
    id: str = field(default_factory=lambda: f"batch_{uuid4().hex}")
    made: int = field(default_factory=lambda: int(time.time()))

    def as_json(self) -> dict[str, Any]:
        """The batch object."""
        return {
            "id": self.id, "object": "batch", "endpoint": self.endpoint, "errors": None,
            "input_file_id": self.input_file_id, "completion_window": "24h", "status": self.status,
            "output_file_id": self.output_file_id, "error_file_id": self.error_file_id, "created_at": self.made,
            "request_counts": {
                "total": self.completed + self.failed, "completed": self.completed, "failed": self.failed,
            },
            "metadata": self.metadata,
        }  # fmt: skip


class BatchStore:
    """The batches by their ids."""

    def __init__(self, files: FileStore, ledger: CallHistory, settings: Settings) -> None:
        self._files = files
        self._ledger = ledger
        self._models = settings.models
        self._batches: dict[str, SimulatedBatch] = {}

    def __repr__(self) -> str:
        return f"<BatchStore: {len(self._batches)} batches>"

    def find(self, name: str) -> SimulatedBatch:
        """The batch of this id. Raises `APIError`."""
        if (found := self._batches.get(name)) is None:
            raise APIError(404, f"No batch found with id '{name}'.")
        return found

    def add(self, asked: dict[str, Any]) -> SimulatedBatch:
        """Begin a batch. Raises `APIError`."""
        content = self._files.find(str(asked.get("input_file_id"))).content
        metadata = asked.get("metadata")
        made = SimulatedBatch(str(asked.get("endpoint")), asked["input_file_id"], metadata)
        self._batches[made.id] = made
        takes_s = float((metadata or {}).get("takes_s", TAKES_S))
        asyncio.get_running_loop().call_later(takes_s, self._end, made, content)
        return made

    def cancel(self, name: str) -> SimulatedBatch:
        """Cancel a batch. Raises `APIError`."""
        found = self.find(name)
        if found.status == "in_progress":
            found.status = "cancelled"
        return found

    def _end(self, batch: SimulatedBatch, content: bytes) -> None:
        if batch.status != "in_progress":
            return
        good: list[str] = []
        bad: list[str] = []
        for line in content.splitlines():
            outcome = self._answer(batch, json.loads(line))
            (good if outcome["error"] is None else bad).append(json.dumps(outcome))
        batch.completed, batch.failed, batch.status = len(good), len(bad), "completed"
        if good:
            batch.output_file_id = self._files.add("output.jsonl", "batch_output", _lines(good)).id
        if bad:
            batch.error_file_id = self._files.add("error.jsonl", "batch_output", _lines(bad)).id

    def _answer(self, batch: SimulatedBatch, line: dict[str, Any]) -> dict[str, Any]:
        name, body = line["custom_id"], json.dumps(line["body"]).encode()
        whole: dict[str, Any] = {"id": f"batch_req_{uuid4().hex}", "custom_id": name, "error": None}
        entry = self._ledger.open(f"{batch.id}:{name}", "batches")
        entry.model = str(line["body"].get("model"))
        try:
            if entry.model not in self._models:
                raise APIError(404, f"The model `{entry.model}` does not exist.", code="model_not_found")
            answer, entry.prompt_tokens, entry.completion_tokens = _ANSWERS[batch.endpoint](body)
        except APIError as refused:
            entry.status = refused.status
            self._ledger.close(entry, "error")
            error = {"error": refused.error}
            return whole | {"response": {"status_code": refused.status, "body": error}, "error": refused.error}
        self._ledger.close(entry, "done")
        return whole | {"response": {"status_code": 200, "request_id": name, "body": json.loads(answer)}}


def _lines(lines: list[str]) -> bytes:
    return "".join([f"{line}\n" for line in lines]).encode()


def _chat(body: bytes) -> Answer:
    asked = parse(ChatRequest, body)
    if (failure := asked.pace.failure()) is not None:
        raise failure
    generated = choices.chat(asked)
    return answers.chat_body(asked, generated), generated.usage.prompt, generated.usage.completion


def _completion(body: bytes) -> Answer:
    asked = parse(CompletionRequest, body)
    generated = choices.complete(asked)
    return answers.completion_body(asked, generated), generated.usage.prompt, generated.usage.completion


def _embedding(body: bytes) -> Answer:
    asked = parse(EmbeddingRequest, body)
    usage = server.usage_of(asked)
    return server.embeddings_body(asked, usage), usage.prompt, 0


_ANSWERS: dict[str, Callable[[bytes], Answer]] = {
    "/v1/chat/completions": _chat, "/v1/completions": _completion, "/v1/embeddings": _embedding,
}  # fmt: skip
