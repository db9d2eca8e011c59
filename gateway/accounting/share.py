"""The log of a part of a call, for one of several attempts that run at the same time.

Fan-out has one for each prompt, hedging one for each route. The owner closes the log of the whole when all parts have
ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Self

from gateway.quota import pricing
from gateway.records import Call, Ended, Usage

from .call_log import Accounting, CallLog


class PartLog(CallLog):
    """It writes no record, and shares the reservation of the whole. `ended` is called when it is closed."""

    def __init__(self, whole: CallLog, accounting: Accounting, call: Call, ended: Callable[[], None]) -> None:
        super().__init__(accounting, call, whole.reservation, whole.trace)
        self.status = 0
        self.usage = Usage()
        """Usage of all attempts of this part."""
        self.answer_usage = Usage()
        """Usage of the attempt that answered this part, which the client may be shown."""
        self.returned_model: str | None = None
        self._is_ended = False
        self._ended = ended

    async def __aenter__(self) -> Self:
        return self

    @property
    def is_open(self) -> bool:
        return not self._is_ended

    def close(
        self, *, status: int, usage: Usage, ended: Ended, is_truncated: bool = False, returned_model: str | None = None,
        error: str | None = None,
    ) -> None:  # fmt: skip
        if self._is_ended:
            return
        self._is_ended = True
        self.status, self.answer_usage, self.returned_model = status, usage, returned_model
        self.usage = pricing.total_usage((self.spent, usage))
        if (running := self.running(time.perf_counter() - self.call.arrived)) is not None:
            self.answered = [running]
        self._ended()

    async def acknowledged(self) -> None:
        """No-op: the log of the whole call waits for the settlement."""
