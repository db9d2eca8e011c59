"""Plug-ins that note the values that they get, and fail where the tag of a call names a method."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from gateway.wings.plugins import (
    AnswerHead,
    AttemptEnd,
    CallEnd,
    Plugin,
    PluginAttempt,
    PluginCall,
    Refuse,
)
from gateway.wings.plugins.loading import load

Notes = list[tuple[str, Any]]

SECRET = "the-text-of-a-prompt"


async def waits() -> None: ...


class Unreadable(Mapping[str, str]):
    """A result whose own code fails."""

    def __getitem__(self, name: str) -> str:
        return int(SECRET)  # type: ignore[return-value]

    def __iter__(self) -> Iterator[str]:
        return iter(["x-a"])

    def __len__(self) -> int:
        return 1


class Empty(Refuse):
    """A refusal that has none of its facts."""

    def __init__(self) -> None:
        pass


def deep() -> Any:
    return deep()


FAULTS: Mapping[str, Callable[[], Any]] = {
    "value": lambda: int(SECRET),
    "exit": lambda: exec("raise SystemExit(3)"),
    "interrupt": lambda: exec("raise KeyboardInterrupt"),
    "cancelled": lambda: exec("raise CancelledError", {"CancelledError": asyncio.CancelledError}),
    "deep": deep,
    "coroutine": waits,
    "type": lambda: 7,
    "refuses": lambda: exec("raise Refuse('no')", {"Refuse": Refuse}),
    "closes": lambda: exec("raise GeneratorExit"),
    "empty": lambda: exec("raise Empty", {"Empty": Empty}),
    "unreadable": Unreadable,
}
"""What a method does wrong, by name."""


def fault_of(call: PluginCall, method: str) -> str:
    """What this method of a plug-in does wrong in this call: the call's tag `fault` says it; empty: nothing."""
    where, _, how = call.tags.get("fault", "").partition(".")
    return how if where == method else ""


class Probe(Plugin):
    """Notes all that it gets. `mark` makes it an object of its own; `is_healthy`: it never fails."""

    interface = 1
    name = "probe"
    version = "0.1"

    def __init__(self, mark: str = "", adds: Any = None, is_healthy: bool = False) -> None:
        self.heard: Notes = []
        self.calls: list[PluginCall] = []
        self._adds, self._is_healthy = adds, is_healthy

    def _note(self, attempt: PluginAttempt, method: str, what: Any) -> Any:
        self.heard.append((method, what))
        how = fault_of(attempt.call, method)
        return FAULTS[how]() if how in FAULTS and not self._is_healthy else None

    def before_attempt(self, attempt: PluginAttempt) -> Mapping[str, str] | None:
        self.calls.append(attempt.call)
        attempt.notes["events"] = 0
        return self._note(attempt, "before_attempt", (attempt.upstream, attempt.model)) or self._adds

    def head(self, attempt: PluginAttempt, head: AnswerHead) -> None:
        return self._note(attempt, "head", head.status)

    def event(self, attempt: PluginAttempt, event: bytes) -> None:
        attempt.notes["events"] += 1
        if attempt.notes["events"] == 2 and fault_of(attempt.call, "event") == "second":
            raise ValueError
        return self._note(attempt, "event", event)

    def end(self, attempt: PluginAttempt, end: AttemptEnd) -> None:
        what = (end.status, end.error, end.prompt_tokens, end.completion_tokens, end.usage)
        return self._note(attempt, "end", what)


class Wrapper(Plugin):
    """Wraps calls and attempts. A fault with `before_` in front is one before its `carry()`."""

    interface = 1
    name = "wrapper"

    def __init__(self, mark: str = "") -> None:
        self.heard: Notes = []

    async def _around(self, method: str, call: PluginCall, carry: Callable[[], Awaitable[Any]]) -> Any:
        how = fault_of(call, method)
        match how:
            case "skips":
                return None
            case "twice":
                await carry()
            case "task":
                return await asyncio.gather(carry())  # gather runs it in a task of its own
            case "gives_up":
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.01):
                        await carry()
                return None
            case _ if how.startswith("before_"):
                FAULTS[how.removeprefix("before_")]()
        try:
            end = await carry()
        except asyncio.CancelledError:
            self.heard.append((method, "cancelled"))
            raise
        self.heard.append((method, (end.status, end.error)))
        return FAULTS[how]() if how in FAULTS else None

    async def around_attempt(self, attempt: PluginAttempt, carry: Callable[[], Awaitable[AttemptEnd]]) -> None:
        return await self._around("around_attempt", attempt.call, carry)

    async def around_call(self, call: PluginCall, carry: Callable[[], Awaitable[CallEnd]]) -> None:
        return await self._around("around_call", call, carry)


class Refuses(Plugin):
    """Refuses in `method`."""

    interface = 1
    name = "refuses"

    def __init__(self, message: Any = "Not like this.", method: str = "before_attempt", **more: Any) -> None:
        self._refusal = message, more
        self._method = method

    def before_attempt(self, attempt: PluginAttempt) -> None:
        self._refuse("before_attempt")

    def _refuse(self, method: str) -> None:
        message, more = self._refusal
        if self._method == method:
            raise Refuse(message, **more)

    async def around_attempt(self, attempt: PluginAttempt, carry: Callable[[], Awaitable[AttemptEnd]]) -> None:
        self._refuse("around_attempt")
        await carry()

    async def around_call(self, call: PluginCall, carry: Callable[[], Awaitable[CallEnd]]) -> None:
        self._refuse("around_call")
        await carry()


class Slow(Plugin):
    interface = 1
    name = "slow"

    def before_attempt(self, attempt: PluginAttempt) -> None:
        time.sleep(0.1)  # longer than the bound, however fast the machine is


class Changes(Plugin):
    """Tries to change what it reads."""

    interface = 1
    name = "changes"

    def before_attempt(self, attempt: PluginAttempt) -> None:
        attempt.call.request["messages"][0]["content"] = "something else"


def plug_in(use: type[Plugin], **options: Any) -> dict[str, Any]:
    """An entry of the file."""
    return {"use": f"{__name__}:{use.__name__}", "options": options}


def object_of(entry: Mapping[str, Any]) -> Any:
    """The plug-in that this process has made of an entry."""
    return load(entry["use"], entry["options"]).plugin
