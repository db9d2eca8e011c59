"""Responses that the simulated upstream keeps: continued, read, deleted, cancelled, and made in the background.

The state of a background response follows from the clock, so that no task makes it: it is queued for the delay of its
first token, then in progress for as long as its text takes.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .requests import APIError
from .responses import ResponseRequest

KEPT = 1000
"""The newest responses that are kept."""


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
    is_cancelled: bool = False

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

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: OrderedDict[str, StoredResponse] = OrderedDict()

    def __repr__(self) -> str:
        return f"<ResponseStore: {len(self._kept)} kept>"

    def whole_input(self, asked: ResponseRequest) -> list[dict[str, Any]]:
        """The items of the conversation that a request continues, with its own. Raises `APIError`."""
        own = [{"role": "user", "content": asked.input}] if isinstance(asked.input, str) else list(asked.input)
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
        said = [item for item in previous.whole["output"] if item["type"] != "reasoning"]
        return [*previous.input, *said, *own]

    def keep(
        self, whole: dict[str, Any], items: list[dict[str, Any]], delay_s: float, takes_s: float
    ) -> StoredResponse:
        """Keep a response that is made in this time; 0: at once."""
        begins = self._clock() + delay_s
        kept = self._kept[whole["id"]] = StoredResponse(whole, items, begins, begins + takes_s)
        if len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return kept

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
        found.is_cancelled = found.is_cancelled or not found.is_done
        return found.as_json()

    def input_items(self, name: str) -> dict[str, Any]:
        """The list of a response's input. Raises `APIError`."""
        items = [
            {"id": f"msg_{at}", "type": "message"} | item for at, item in enumerate(reversed(self.find(name).input))
        ]
        ends = {"first_id": items[0]["id"], "last_id": items[-1]["id"]} if items else {}
        return {"object": "list", "data": items, "has_more": False, **ends}
