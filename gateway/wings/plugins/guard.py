"""Runs the methods of one plug-in: measures the plain ones, and turns whatever goes wrong in them into an error of the
call, a line of the log and a count.

The log gets the place of a fault and no text of its error, which may quote a client's data.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from gateway.errors import GatewayError
from gateway.observe.metrics import Telemetry
from gateway.pipeline.plan import Outcome

from .faults import PluginFailed, PluginRefused
from .interface import PluginAttempt, Refuse
from .loading import LoadedPlugin
from .metrics import FAILURES, REFUSALS, SLOW
from .settings import place_of

log = logging.getLogger("gateway")

HOLDS_S = 0.05
"""Seconds for which a plain method may run before it is reported: all calls of the worker wait as long."""
LOGGED_EVERY_S = 60.0

BEFORE = "before_attempt"
End = TypeVar("End")
Result = TypeVar("Result")


class WrongResult(TypeError):
    """A method of a plug-in has returned something else than it should."""


class Guard:
    """One plug-in of one configuration."""

    def __init__(self, loaded: LoadedPlugin, number: int, telemetry: Telemetry) -> None:
        self.methods = loaded.methods
        self._plugin = loaded.plugin
        self._name = loaded.name
        self._place = place_of(number)
        self._telemetry = telemetry
        self._logged_at = loaded.held_up_at

    def run(self, method: str, call_id: str, *given: Any) -> None:
        """Runs `head`, `event` or `end`. Raises `PluginFailed`."""
        self._run(method, call_id, given, _nothing)

    def before(self, call_id: str, attempt: PluginAttempt, taken: frozenset[str]) -> Mapping[str, str]:
        """The headers that it adds, none of which is one of those `taken`. Raises `PluginRefused` or `PluginFailed`."""
        return self._run(BEFORE, call_id, (attempt,), partial(_headers, taken))

    async def around(
        self, method: str, call_id: str, seen: object, inner: Callable[[], Awaitable[Outcome]],
        ended: Callable[[Outcome | GatewayError], End], is_open: Callable[[], bool],
    ) -> Outcome:  # fmt: skip
        """Carries `inner` in a wrapper of the plug-in, and returns or raises the same. A fault behind a call that is
        settled withholds no answer. Raises `PluginRefused` or `PluginFailed`, too."""
        task = asyncio.current_task()
        carried = _Carried(inner, ended)
        fault: BaseException | None = None
        try:
            result = await getattr(self._plugin, method)(seen, carried)
        except BaseException as error:  # SystemExit, too: it may not end the worker
            if isinstance(error, GeneratorExit) and asyncio.current_task() is not task:
                raise  # the interpreter closes the call, which no task runs any more
            if isinstance(error, Refuse) and not carried.has_begun:
                raise self.refused(method, call_id, error) from None
            fault = error
        else:
            if not carried.is_over:
                fault = WrongResult("it has returned before carry() had, and has not refused the call")
            elif result is not None and result is not carried.end:
                fault = WrongResult(f"it has returned a {type(result).__name__}, expected nothing")
        if task is not None and task.cancelling():  # whatever the plug-in made of it
            was_cancelled = fault if isinstance(fault, asyncio.CancelledError) else asyncio.CancelledError()
            raise carried.cancelled or was_cancelled
        if carried.bug is not None:
            raise carried.bug
        if fault is not None:
            failed = self.failed(method, call_id, fault)
            if is_open() or not carried.is_over:
                raise failed from None
        if carried.error is not None:
            raise carried.error
        return carried.outcome

    def failed(self, method: str, call_id: str, error: BaseException) -> PluginFailed:
        """The error of the call for this fault, which is logged and counted."""
        self._telemetry.count(FAILURES, self._name, method)
        text = f": {error}" if isinstance(error, WrongResult) else ""
        frames = "" if text else "".join(traceback.format_tb(error.__traceback__)[1:]).rstrip()
        log.error(
            "plug-in %s (%s) has failed in %s, call %s: %s%s%s",
            self._name, self._place, method, call_id, type(error).__name__, text, f"\n{frames}" if frames else "",
        )  # fmt: skip
        return PluginFailed(call_id)

    def refused(self, method: str, call_id: str, refusal: Refuse) -> GatewayError:
        """The error of the call for this refusal, which is counted."""
        try:
            error = PluginRefused(refusal)
        except ValueError as wrong:
            return self.failed(method, call_id, WrongResult(str(wrong)))
        self._telemetry.count(REFUSALS, self._name)
        return error

    def _run(self, method: str, call_id: str, given: tuple[Any, ...], read: Callable[[object], Result]) -> Result:
        """Returns the result as `read` makes it of the method's, which can be of a class whose own code fails."""
        began = time.perf_counter()
        try:
            return read(getattr(self._plugin, method)(*given))
        except Refuse as refusal:
            if method == BEFORE:
                raise self.refused(method, call_id, refusal) from None
            wrong = WrongResult("it has raised Refuse, which before_attempt and wrappers may")
            raise self.failed(method, call_id, wrong) from None
        except BaseException as error:  # SystemExit and CancelledError, too: it may end neither the worker nor a task
            raise self.failed(method, call_id, error) from None
        finally:
            now = time.perf_counter()
            if now - began > HOLDS_S:
                self._held_up(method, call_id, now - began, now)

    def _held_up(self, method: str, call_id: str, seconds: float, now: float) -> None:
        self._telemetry.count(SLOW, self._name, method)
        if now - self._logged_at.get(method, -LOGGED_EVERY_S) >= LOGGED_EVERY_S:
            self._logged_at[method] = now
            log.warning(
                "plug-in %s (%s) has held up all calls of this worker for %.0f ms in %s, call %s; such a line is "
                "written once in %.0f s",
                self._name, self._place, seconds * 1000, method, call_id, LOGGED_EVERY_S,
            )  # fmt: skip


class _Carried:
    """The `carry` of one wrapper, which hands out how it has ended and keeps what it is."""

    def __init__(self, inner: Callable[[], Awaitable[Outcome]], ended: Callable[[Any], Any]) -> None:
        self._inner = inner
        self._ended = ended
        self._task = asyncio.current_task()
        self.has_begun = self.is_over = False
        self.outcome: Outcome = None
        self.error: GatewayError | None = None
        self.bug: Exception | None = None
        """An error of the gateway itself."""
        self.cancelled: asyncio.CancelledError | None = None
        self.end: Any = None

    async def __call__(self) -> Any:
        if self.has_begun:
            raise RuntimeError("carry() was called twice")
        if asyncio.current_task() is not self._task:
            raise RuntimeError("carry() was called in another task")
        self.has_begun = True
        try:
            self.outcome = await self._inner()
        except asyncio.CancelledError as cancelled:
            self.cancelled = cancelled
            raise
        except GatewayError as error:
            self.error = error
            self.end = self._ended(error)
        except Exception as bug:
            self.bug = bug
            raise
        else:
            self.end = self._ended(self.outcome)
        self.is_over = True
        return self.end


def _nothing(result: object) -> None:
    if result is not None:
        raise _wrong(result, "nothing")


def _headers(taken: frozenset[str], result: object) -> Mapping[str, str]:
    """The headers that a plug-in has returned. Raises `WrongResult`."""
    if result is None:
        return {}
    if not isinstance(result, Mapping):
        raise _wrong(result, "a mapping of headers or nothing")
    added = dict(result)
    for name, value in added.items():
        if (wrong := wrong_header(name, value, taken)) is not None:
            raise WrongResult(wrong)
    return added


def _wrong(result: object, expected: str) -> WrongResult:
    if inspect.iscoroutine(result):
        result.close()
    return WrongResult(f"it has returned a {type(result).__name__}, expected {expected}")


_MAX_VALUE = 8192
"""Characters of a header's value: servers refuse much longer ones, for which no upstream is to be blamed."""
_TOKEN = frozenset("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz")
"""Characters of a header's name (RFC 9110, 5.6.2), in lower case."""
_OWN = frozenset({
    "accept-encoding", "api-key", "authorization", "connection", "content-encoding", "content-length", "content-type",
    "cookie", "expect", "host", "keep-alive", "te", "traceparent", "tracestate", "trailer", "transfer-encoding",
    "upgrade", "x-api-key", "x-goog-api-key",
})  # fmt: skip
"""Headers of the gateway: of the connection, the body, the trace and the upstream's API key."""


def wrong_header(name: object, value: object, taken: frozenset[str]) -> str | None:
    """Why this header cannot be added to a request; `taken` are those that it has already. None: it can."""
    if not isinstance(name, str) or not name or not _TOKEN.issuperset(name.lower()):
        return "it has returned a header whose name is none"
    lower = name.lower()
    if lower in _OWN or lower.startswith(("proxy-", "x-amz-")):
        return f"the header {lower} is the gateway's own"
    if lower in taken:
        return f"the request has the header {lower} already"
    if not isinstance(value, str) or not value.isascii() or not value.isprintable():
        return f"the value of the header {lower} is no line of ASCII"
    if len(value) > _MAX_VALUE:
        return f"the value of the header {lower} has more than {_MAX_VALUE} characters"
    return None
