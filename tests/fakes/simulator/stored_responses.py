"""Responses that the simulated upstream keeps: continued, read, deleted, cancelled, and made in the background.

The state of a background response follows from the clock, so that no task makes it: it is queued for the delay of its
first token, then in progress for as long as its text takes. So do the events of its stream, which may be read from any
event on, more than once. The stream of one that is cancelled ends without a last event: the API has none for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from gateway.simulator.answers import SimulatedEvent
from gateway.simulator.requests import APIError
from gateway.simulator.responses import ResponseRequest, SimulatedResponse

from .conversations import ConversationStore

KEPT = 1000
"""The newest responses that are kept."""

QUEUED = ("response.created", "response.queued")
"""The events of a background response that come before it begins."""


class KeptResponse(SimulatedResponse):
    """A response that may be made in the background."""

    def events(self, tokens_per_event: int) -> Iterator[tuple[dict[str, Any], int, int, int]]:
        """Events, as of the class above; one in the background is queued first."""
        events = super().events(tokens_per_event)
        first, *_ = next(events)
        if not first["response"]["background"]:
            yield first, 0, 0, 0
        else:
            for kind in QUEUED:
                yield {"type": kind, "response": first["response"] | {"status": "queued"}}, 0, 0, 0
        yield from events


@dataclass(slots=True)
class StoredResponse:
    """One response, and what it was made of."""

    whole: dict[str, Any]
    """As it is in the end."""
    input: list[dict[str, Any]]
    """The items of the whole conversation up to it."""
    begins: float = 0.0
    """When its text begins, on the clock of `time.monotonic`; 0: it was made at once."""
    ends: float = 0.0
    stream: list[SimulatedEvent] = field(default_factory=list)
    """The events of one that is made in the background with a stream."""
    tokens_per_s: float | None = None
    when_cancelled: Callable[[], None] = field(default=lambda: None)
    _cancelled: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_cancelled(self) -> bool:
        """Whether it was cancelled."""
        return self._cancelled.is_set()

    def cancel(self) -> None:
        """Cancel it; its streams end."""
        self._cancelled.set()
        self.when_cancelled()

    def events_after(self, number: int) -> AsyncIterator[SimulatedEvent]:
        """The events behind this one, each when it is due. Raises `APIError` if it has no stream."""
        if not self.stream:
            raise APIError(400, "This response was not made with 'background' and 'stream', and cannot be streamed.")
        return self._events_after(number)

    async def _events_after(self, number: int) -> AsyncIterator[SimulatedEvent]:
        for at, event in enumerate(self.stream):
            if at <= number:
                continue
            if self.is_cancelled:
                return
            if (wait_s := self._due(at, event) - time.monotonic()) > 0:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._cancelled.wait(), wait_s)
                    return
            yield event

    def _due(self, number: int, event: SimulatedEvent) -> float:
        if number < len(QUEUED):
            return 0.0
        return self.begins + (event.step / self.tokens_per_s if self.tokens_per_s else 0.0)

    @property
    def is_done(self) -> bool:
        """Whether its state is final."""
        return self.is_cancelled or time.monotonic() >= self.ends

    def as_json(self) -> dict[str, Any]:
        """As it is now."""
        if self.is_done and not self.is_cancelled:
            return self.whole
        status = "cancelled" if self.is_cancelled else "queued" if time.monotonic() < self.begins else "in_progress"
        return self.whole | {"status": status, "output": [], "usage": None, "incomplete_details": None}


class ResponseStore:
    """The stored responses by their ids."""

    def __init__(self, conversations: ConversationStore, clock: Callable[[], float] = time.monotonic) -> None:
        self._conversations = conversations
        self._clock = clock
        self._kept: OrderedDict[str, StoredResponse] = OrderedDict()

    def __repr__(self) -> str:
        return f"<ResponseStore: {len(self._kept)} kept>"

    def whole_input(self, asked: ResponseRequest) -> list[dict[str, Any]]:
        """The items of the conversation that a request continues, with its own. Raises `APIError`."""
        own = asked.own_items
        if asked.conversation_id is not None:
            if asked.previous_response_id is not None:
                raise APIError(400, "Mutually exclusive parameters: 'previous_response_id' and 'conversation'.")
            return [*self._conversations.find(asked.conversation_id).items.values(), *own]
        if asked.previous_response_id is None:
            return own
        previous = self._kept.get(asked.previous_response_id)
        if previous is None:
            raise APIError(
                400,
                f"Previous response with id '{asked.previous_response_id}' not found.",
                param="previous_response_id",
                code="previous_response_not_found",
            )
        output = [item for item in previous.whole["output"] if item["type"] != "reasoning"]
        return [*previous.input, *output, *own]

    def keep(
        self, whole: dict[str, Any], items: list[dict[str, Any]], delay_s: float, takes_s: float
    ) -> StoredResponse:
        """Keep a response that is made in this time; 0: at once."""
        begins = self._clock() + delay_s
        kept = self._kept[whole["id"]] = StoredResponse(whole, items, begins, begins + takes_s)
        if len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return kept

    def note(self, asked: ResponseRequest, whole: dict[str, Any]) -> None:
        """Add a response's input and output to its conversation, if it has one and that is still there."""
        if asked.conversation_id is not None:
            with contextlib.suppress(APIError):
                self._conversations.find(asked.conversation_id).add([*asked.own_items, *whole["output"]])

    def find(self, name: str) -> StoredResponse:
        """The response of this id. Raises `APIError`."""
        found = self._kept.get(name)
        if found is None:
            raise APIError(404, f"Response with id '{name}' not found.")
        return found

    def delete(self, name: str) -> dict[str, Any]:
        """Delete a response; the answer. Raises `APIError`."""
        self.find(name)
        del self._kept[name]
        return {"id": name, "object": "response", "deleted": True}

    def cancel(self, name: str) -> dict[str, Any]:
        """Cancel a background response; as it is then. Raises `APIError`."""
        found = self.find(name)
        if not found.whole.get("background"):
            raise APIError(400, "Cannot cancel a synchronous response.")
        if not found.is_done:
            found.cancel()
        return found.as_json()

    def input_items(self, name: str) -> dict[str, Any]:
        """The list of a response's input. Raises `APIError`."""
        items = [
            {"id": f"msg_{at}", "type": "message"} | item for at, item in enumerate(reversed(self.find(name).input))
        ]
        ends = {"first_id": items[0]["id"], "last_id": items[-1]["id"]} if items else {}
        return {"object": "list", "data": items, "has_more": False, **ends}
