"""Anthropic's message batches of the simulated upstream.

A batch takes as long as the longest `delay_s` of its requests, or nearly no time. All of its requests are
answered at its end, and the ledger has each of them as a call of its own, under the id of the batch. One that is
cancelled before has answered nothing.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

from gateway.simulator.choices import Settings
from gateway.simulator.messages import MessageRequest, PromptCache, SimulatedMessage
from gateway.simulator.requests import APIError, parse
from gateway.simulator.server import CallHistory

from .batches import TAKES_S


@dataclass(slots=True)
class MessageBatch:
    """One batch."""

    requests: list[tuple[str, MessageRequest]]
    results: list[dict[str, Any]] = field(default_factory=list)
    is_over: bool = False
    cancelled: datetime | None = None
    id: str = field(default_factory=lambda: f"msgbatch_{uuid4().hex}")
    made: datetime = field(default_factory=lambda: datetime.now(UTC))

    def as_json(self, origin: str) -> dict[str, Any]:
        """The batch object; its results are below this origin."""
        kinds = [result["result"]["type"] for result in self.results]
        counts = {kind: kinds.count(kind) for kind in ("succeeded", "errored", "canceled", "expired")}
        url = f"{origin}/v1/messages/batches/{self.id}/results"
        return {
            "id": self.id, "type": "message_batch", "processing_status": "ended" if self.is_over else "in_progress",
            "request_counts": {"processing": 0 if self.is_over else len(self.requests), **counts},
            "created_at": _written(self.made), "expires_at": _written(self.made + timedelta(days=1)),
            "ended_at": _written(self.made) if self.is_over else None, "archived_at": None,
            "cancel_initiated_at": None if self.cancelled is None else _written(self.cancelled),
            "results_url": url if self.is_over else None,
        }  # fmt: skip


class MessageBatchStore:
    """The batches by their ids."""

    def __init__(self, ledger: CallHistory, settings: Settings) -> None:
        self._ledger = ledger
        self._models = settings.models
        self._batches: dict[str, MessageBatch] = {}

    def __repr__(self) -> str:
        return f"<MessageBatchStore: {len(self._batches)} batches>"

    def find(self, name: str) -> MessageBatch:
        """The batch of this id. Raises `APIError`."""
        if (found := self._batches.get(name)) is None:
            raise APIError(404, f"No message batch found with id '{name}'.")
        return found

    def add(self, asked: dict[str, Any]) -> MessageBatch:
        """Begin a batch. Raises `APIError`."""
        requests = [
            (each["custom_id"], parse(MessageRequest, json.dumps(each["params"]).encode()))
            for each in asked["requests"]
        ]
        made = MessageBatch(requests)
        self._batches[made.id] = made
        takes_s = max([TAKES_S, *[request.pace.delay_s or 0.0 for _, request in requests]])
        asyncio.get_running_loop().call_later(takes_s, self._end, made)
        return made

    def cancel(self, name: str) -> MessageBatch:
        """Cancel a batch. Raises `APIError`."""
        found = self.find(name)
        if not found.is_over:
            found.cancelled, found.is_over = datetime.now(UTC), True
            found.results = [{"custom_id": name, "result": {"type": "canceled"}} for name, _ in found.requests]
        return found

    def remove(self, name: str) -> dict[str, Any]:
        """Delete a batch; the answer. Raises `APIError`."""
        self.find(name)
        del self._batches[name]
        return {"id": name, "type": "message_batch_deleted"}

    def _end(self, batch: MessageBatch) -> None:
        if batch.is_over:
            return
        batch.results = [
            {"custom_id": name, "result": self._answer(batch, name, request)} for name, request in batch.requests
        ]
        batch.is_over = True

    def _answer(self, batch: MessageBatch, name: str, request: MessageRequest) -> dict[str, Any]:
        entry = self._ledger.open(f"{batch.id}:{name}", "message_batches")
        entry.model = request.model
        if request.model not in self._models or request.pace.failure() is not None:
            entry.status = 400
            self._ledger.close(entry, "error")
            error = {"type": "invalid_request_error", "message": "The request has failed."}
            return {"type": "errored", "error": {"type": "error", "error": error}}
        message = SimulatedMessage(request, PromptCache().bill(request))
        entry.prompt_tokens, entry.completion_tokens = message.prompt.total, message.output.cost
        self._ledger.close(entry, "done")
        whole = json.loads(message.body())
        whole["usage"]["service_tier"] = "batch"
        return {"type": "succeeded", "message": whole}


def _written(time: datetime) -> str:
    return time.isoformat().replace("+00:00", "Z")
