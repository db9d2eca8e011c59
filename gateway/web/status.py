"""The state of a worker between its start and its end."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from gateway.errors import Unavailable
from gateway.tasks import cut_off


@dataclass(slots=True)
class Status:
    """The state of a worker between start and stop. Private to the worker."""

    is_ready: bool = True
    """Whether a balancer should send calls here."""
    is_draining: bool = False
    """No new calls; those under way may end."""
    calls: set[asyncio.Task[Any] | None] = field(default_factory=set)
    """The tasks of the calls that are under way."""

    def cut_off_calls(self) -> None:
        """End the running calls; their clients get an error."""
        for call in list(self.calls):
            if call is not None:
                cut_off(call)


def shutting_down() -> Unavailable:
    """The error of calls at a gateway that is shutting down."""
    return Unavailable("The gateway is shutting down. Please try again.", code="shutting_down")
