"""Asks hooks about calls before they are reserved, and sends them records when calls are settled."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple, TypeVar

from gateway.accounting.reservation import Reservation
from gateway.api.large_body import LARGE_BYTES
from gateway.config import Config
from gateway.errors import GatewayError, Unavailable
from gateway.keys.room import most_of_key
from gateway.observe.metrics import Telemetry
from gateway.observe.tracing import Trace
from gateway.pipeline.services import Amendment, Services, WingAmendment, is_never_disclosed
from gateway.records import Amended, Call, Record
from gateway.tasks import Tasks
from gateway.upstream.circuit_breaker import CircuitEvent

from . import policy
from .answers import Answers, HeldBytes, Listener
from .client import HookClient, HookFault
from .metrics import CALLS, SECONDS
from .places import Places
from .policy import Breaker, Verdict
from .reading import READS
from .settings import AfterCall, BeforeCall, HookReceiver, HookSettings

log = logging.getLogger("gateway")

ANSWER_BYTES = 65_536
"""The longest answer beside a body, and of a hook that sees facts alone."""

SENT_AT_ONCE = 4
CLOSE_WITHIN_S = 3.0

T = TypeVar("T")


class RefusedByHook(
    GatewayError, type="invalid_request_error", code="refused_by_hook", reason="refused_by_hook", is_final=True
):
    """A hook refuses the call, with a status, a code and a message of its own."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.message, code=verdict.code)
        self.status = verdict.status


class NotSeenByHook(
    GatewayError,
    status=403,
    type="invalid_request_error",
    code="not_seen_by_hook",
    reason="not_seen_by_hook",
    is_final=True,
):
    """A hook has to see the body of each call, and this one's cannot be shown."""


class BeforeHook(Amendment):
    """One hook that is asked before calls."""

    kind = "before_call"

    def __init__(self, name: str, settings: BeforeCall) -> None:
        self.name = name
        self.settings = settings
        self._client = HookClient(name, settings, settings.timeout_ms / 1000)
        self._places = Places(settings.at_once)
        self._breaker = Breaker()

    async def amend(self, call: Call, parts: Services, trace: Trace) -> Amended | None:
        named = (*call.params.other_models, *call.model.fallbacks)
        others = [found.name for name in named if (found := parts.config.model(name)) is not None]
        if not _is_about(self.settings, call, *others):
            return None
        telemetry = parts.accounting.telemetry
        shown = None
        if self.settings.sees == "body":
            shown = self._shown(call, telemetry)
        began, span = time.perf_counter(), trace.ask(f"hook/{self.name}")
        fault, verdict = "", Verdict("allow")
        try:
            verdict = await self._ask(call, shown)
        except HookFault as failure:
            fault = failure.name
            self._client.note(failure)
        finally:
            span.ended(None, fault or None)
        ended = time.perf_counter()
        telemetry.count(CALLS, self.name, fault or _OUTCOMES[verdict.action])
        telemetry.observe(SECONDS, ended - began, self.name)
        if fault and self.settings.on_failure == "refuse":
            raise Unavailable(
                f"The gateway's operator has each such request checked (hook {self.name}), and the check does not "
                "work right now. Please try again in a moment.",
                code="hook_failed",
            )
        if verdict.action == "refuse":
            raise RefusedByHook(verdict)
        words = f"hook {self.name} failed ({fault}) and was passed over" if fault else ""
        if verdict.action == "replace":
            words = f"hook {self.name} replaced the body"
        waits = ((f"hook/{self.name}", fault, began - call.arrived, ended - call.arrived),)
        return Amended(words, waits, body=[verdict.body] if verdict.body else None, waited_s=ended - began)

    async def _ask(self, call: Call, shown: Sequence[bytes | bytearray | memoryview] | None) -> Verdict:
        """The answer about a call. Raises `HookFault`."""
        key, began, event = call.key.id, time.monotonic(), CircuitEvent.NEUTRAL
        if not self._breaker.admits(key, began):
            raise HookFault("circuit_open")
        size = 0 if shown is None else sum(map(len, shown))
        try:
            asked = await _at_leisure(size, lambda: policy.question(self.name, call, shown))
            most = ANSWER_BYTES + (0 if shown is None else self.settings.max_bytes)
            answer = await self._client.post(asked, most, self._places.of(key))
            verdict = await self._read(answer, call, can_replace=shown is not None and call.passed is None)
            event = CircuitEvent.SUCCESS
        except HookFault as fault:
            event, key = CircuitEvent.FAILURE, "" if fault.is_unreachable else key
            raise
        finally:
            self._breaker.note(event, key, began, time.monotonic())
        self._client.note(None)
        return verdict

    async def _read(self, answer: bytes, call: Call, *, can_replace: bool) -> Verdict:
        try:
            verdict = await _at_leisure(len(answer), lambda: policy.read_verdict(answer))
            if verdict.action == "replace" and not can_replace:
                raise ValueError("it replaces a body that it has not seen, or that has to stay")
            is_stream = call.params.document.members.get("stream") is True
            if verdict.action == "replace" and verdict.is_stream != is_stream:
                raise ValueError("it changes 'stream', by which the client reads the answer")
        except ValueError as wrong:
            raise HookFault("invalid", f"its answer is not valid: {wrong}") from None
        return verdict

    def _shown(self, call: Call, telemetry: Telemetry) -> Sequence[bytes | bytearray | memoryview]:
        """The body of a call. Raises `NotSeenByHook`."""
        document, why = call.params.document, ""
        if document.form is not None or call.endpoint in ("realtime", "batches"):
            kind = {"realtime": "a Realtime session", "batches": "a batch"}.get(call.endpoint, "a form")
            why = f"{kind} cannot be shown to it"
        shown = [document.text.encode() or b"null"] if document.large is None else document.large.pieces
        size = sum(map(len, shown))
        if not why and size > self.settings.max_bytes:
            why = f"it takes up to {self.settings.max_bytes} bytes, and yours has {size}: send a shorter one"
        if why:
            telemetry.count(CALLS, self.name, "unseen")
            raise NotSeenByHook(
                f"The gateway's operator has the content of each such request checked (hook {self.name}): {why}."
            )
        return shown

    async def close(self) -> None:
        await self._client.close()


_OUTCOMES = {"allow": "allowed", "refuse": "refused", "replace": "replaced"}


class Delivery(NamedTuple):
    """A record that waits for a hook."""

    record: Record
    telemetry: Telemetry
    answers: Answers | None
    """The answers of the call, where its key's owner agreed."""


class AfterHook(Amendment):
    """One hook that gets the records of calls. No call waits for it."""

    kind = "after_call"

    def __init__(self, name: str, settings: AfterCall, config: Config) -> None:
        self.name = name
        self.settings = settings
        self.config = config
        """The newest: it decides which answers may be shown, also those of calls that began before."""
        self._client = HookClient(name, settings, settings.timeout_ms / 1000)
        self._places = asyncio.Semaphore(SENT_AT_ONCE)
        self._bytes = HeldBytes()
        self._waiting: deque[Delivery] = deque()
        self._waiting_of = Counter[str]()
        """Numbers of records that wait, by key."""
        self._senders = 0
        self._tasks = Tasks()

    def note(self, reservation: Reservation, parts: Services) -> None:
        call = reservation.call
        if _is_about(self.settings, call):
            has_text = call.endpoint in READS and call.passed is None and not call.params.is_deferred
            answers = Answers(self._bytes, call.key.id) if has_text and self._may_show(call.key.id) else None
            reservation.ended += (Listener(self._put, parts.accounting.telemetry, answers),)

    def _may_show(self, key: str) -> bool:
        """Whether the hook may have the text of this key's answers, by the newest configuration."""
        now = self.config.section(HookSettings).after_call.get(self.name)
        has_agreed = now is not None and any(fnmatchcase(key, pattern) for pattern in now.answers_of)
        return has_agreed and not is_never_disclosed(self.config, key)

    def _put(self, record: Record, telemetry: Telemetry, answers: Answers | None) -> None:
        if answers is not None:
            answers.end()
        most = self.settings.max_waiting
        if len(self._waiting) >= most or self._waiting_of[record.key] >= most_of_key(most):
            telemetry.count(CALLS, self.name, "dropped")
            if answers is not None:
                answers.release()
            return
        self._waiting.append(Delivery(record, telemetry, answers))
        self._waiting_of[record.key] += 1
        if self._senders < SENT_AT_ONCE:
            self._senders += 1
            self._tasks.spawn(self._send(), f"hook {self.name}")

    async def _send(self) -> None:
        """Post what waits, until there is nothing left."""
        try:
            while self._waiting:
                record, telemetry, answers = self._waiting.popleft()
                self._waiting_of -= Counter([record.key])
                body = policy.report(self.name, record, await self._answer_of(record, answers))
                fault: HookFault | None = None
                try:
                    await self._client.post(body, ANSWER_BYTES, self._places)
                except HookFault as failure:
                    fault = failure
                self._client.note(fault)
                telemetry.count(CALLS, self.name, "delivered" if fault is None else fault.name)
        finally:
            self._senders -= 1

    async def _answer_of(self, record: Record, answers: Answers | None) -> dict[str, Any] | None:
        """The text of the answers, for the hook; it releases them."""
        if answers is None:
            return None
        try:
            if not self._may_show(record.key):
                return None
            return {"texts": await _at_leisure(answers.size, answers.texts), "cut": answers.is_cut}
        except Exception as fault:  # an upstream's answer of any form costs no record; its text is not for the log
            log.error("hook %s: the answer of call %s cannot be read (%s)", self.name, record.id, type(fault).__name__)
            return {"texts": [], "cut": True}
        finally:
            answers.release()

    async def close(self) -> None:
        """Send what waits, for a short time."""
        await self._tasks.wait_until_idle(CLOSE_WITHIN_S)
        await self._tasks.cancel_all()
        if self._waiting:
            log.warning("hook %s did not get %d records", self.name, len(self._waiting))
        await self._client.close()


async def _at_leisure(size: int, do: Callable[[], T]) -> T:
    """The result of this function of `size` bytes, by a thread where it takes long."""
    return do() if size <= LARGE_BYTES else await asyncio.to_thread(do)


def _is_about(settings: HookReceiver, call: Call, *others: str) -> bool:
    names = call.params.model, call.model_name, *call.params.other_models, *call.model.fallbacks, *others
    return settings.is_about(call.key.id, call.key.team, call.endpoint, *names)


def make(config: Config, present: Sequence[Amendment]) -> list[Amendment]:
    """The hooks of a configuration; those that are set as before keep their connections and what waits."""
    settings = config.section(HookSettings)
    known = {(each.kind, each.name): each for each in present if isinstance(each, BeforeHook | AfterHook)}
    for each in present:
        if isinstance(each, AfterHook):
            each.config = config
    made: list[BeforeHook | AfterHook] = [
        *[BeforeHook(name, each) for name, each in settings.before_call.items()],
        *[AfterHook(name, each, config) for name, each in settings.after_call.items()],
    ]
    kept = [known.get((each.kind, each.name), each) for each in made]
    return [old if old.settings == new.settings else new for old, new in zip(kept, made, strict=True)]


AMENDMENT = WingAmendment(make)
