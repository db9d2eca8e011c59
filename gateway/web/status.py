"""Where a worker stands between its start and its end."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.errors import Unavailable


@dataclass(slots=True)
class Status:
    """Where a worker stands between start and stop. Private to the worker."""

    is_ready: bool = True
    """Whether a balancer should send calls here."""
    is_draining: bool = False
    """No new calls; those under way may end."""

    def refuse_when_draining(self) -> None:
        """Raises `Unavailable` while draining."""
        if self.is_draining:
            raise Unavailable("The gateway is shutting down. Please try again.", code="shutting_down")
