"""Work that goes on at an upstream after its call has ended, such as a background response.

The call hands over its lease (`defer`). One worker of all gateways on a store asks the upstreams for the state of the
work (`DeferredPoller`), and settles each lease once: by the usage that the upstream reports; without a report by
relay/charge.py; at its whole reservation where the upstream does not know the work, or it has not ended within
`GIVE_UP_AFTER_S`.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, suppress
from functools import partial
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote

from gateway import wings
from gateway.accounting.call_log import AccessLogExtras, Accounting
from gateway.accounting.call_record import failed_text, record_of
from gateway.accounting.deferral import Deferral, decode_deferral
from gateway.api.prompt_tokens import FindsCounter
from gateway.config import Config, Model, Route
from gateway.errors import Unavailable
from gateway.formats import token_rule
from gateway.formats.ceilings import PROMPT_ALLOWANCE
from gateway.formats.format import LONG_ANSWER, VARIANT, BatchFormat, Format, PlainFacts, TaskEnd
from gateway.formats.reported_usage import PlainText
from gateway.formats.table import ADDED, FORMATS
from gateway.quota import ledger_entry, pricing
from gateway.records import (
    OTHER,
    Call,
    Document,
    Ended,
    Endpoint,
    Failure,
    Key,
    Params,
    Record,
    Settlement,
    Usage,
    UsageSource,
)
from gateway.store import Batch, Deferred, Settle, Store, StoreLostWrites, StoreUnavailable, heir_of
from gateway.store.bonds import SETTLED, item_bonds
from gateway.tasks import Tasks
from gateway.upstream.ask import Fetched, fetch
from gateway.upstream.connection import Head
from gateway.upstream.credentials import position_of
from gateway.upstream.download import Download
from gateway.upstream.pool import Pool

from . import charge
from .attempt import Attempt, MakesAnswers, counted_text
from .charge import SentRequest
from .exchange import PLAIN_PIECE

log = logging.getLogger("gateway")

LOOK_EVERY_S = 1.0
"""How often a worker looks for deferred leases."""

HELD_FOR_S = 15.0
"""How long one worker keeps the polling to itself; a killed one's is taken over after this time."""

NAME = "deferred-calls"
"""Name of the lock on polling, which one worker holds."""

MIN_PAUSE_S, MAX_PAUSE_S = 1.0, 15.0
"""Bounds of the seconds between two polls of one lease: a quarter of its age, within these bounds."""

ANSWER_WITHIN_S = 10.0
"""Time limit of one poll."""

MAX_BATCH_BYTES = 262_144
"""The maximum size of a batch, which is parsed at once. It has a kilobyte or two."""

MOST = 10_000
"""Deferred leases that are looked at."""

UNKNOWN_AFTER_S = 30.0
"""How long work is polled before an upstream that answers 404 is believed."""

GIVE_UP_AFTER_S = 86_400.0
GIVE_UP_BATCH_AFTER_S = 259_200.0
"""A batch may take a day, and its cancellation and its results some time."""

GIVE_UP_UNKNOWN_AFTER_S = 604_800.0
"""How long work of a kind that only newer gateways know is left to them: longer than an upgrade takes."""

POLLED_AT_LEAST_S = 3600.0
"""How long one worker has polled what it gives up: a clock may be ahead when it begins."""

STEP_ASIDE_S = 3 * LOOK_EVERY_S
"""Seconds for which the lock is left to gateways that may know such work."""

RETIRE_AFTER_S = 120.0
"""How long after a settlement its number is kept, against another worker that still polls."""


class Parts(Protocol):
    """The services of a worker at present. Implemented by `pipeline.Services`."""

    @property
    def config(self) -> Config: ...

    @property
    def accounting(self) -> Accounting: ...

    @property
    def pools(self) -> Mapping[str, Pool]: ...

    @property
    def find_counter(self) -> FindsCounter: ...

    @property
    def make(self) -> MakesAnswers: ...


def defer(this: Attempt, kept_id: str) -> None:
    """End the call of an answer that is still being made. Its reservation stays until a worker settles it."""
    this.log.defer(_deferral(this, kept_id))


def note_deferral(this: Attempt, kept_id: str) -> None:
    """Have the call deferred if this worker is killed while it streams an answer that is made without it."""
    this.log.note_deferral(_deferral(this, kept_id))


def _deferral(this: Attempt, kept_id: str) -> Deferral:
    sent, call, spent = this.sent, this.call, this.log.spent
    has_times = this.log.attempts > 1 or this.log.reservation.waits
    path = "" if call.passed is None else call.passed.poll_path(kept_id)
    return Deferral(
        kept_id, this.route.upstream, this.account, sent.routed_model, call.model_name, sent.output_limit,
        sent.prompt_ceiling() - PROMPT_ALLOWANCE, call.started + time.perf_counter() - call.arrived, call.remote,
        (spent.prompt_tokens, spent.completion_tokens), path, call.params.lines, call.params.lines_endpoint,
        this.log.attempts, failed_text(this.log.failed), call.params.line_ceilings,
        this.log.timeline(time.perf_counter() - call.arrived) if has_times else "",
        1 if call.passed is None else call.passed.outputs,
    )  # fmt: skip


class WorkEnd(NamedTuple):
    """How deferred work has ended, and what it is charged."""

    charged: charge.Charge
    status: int = 200
    ended: Ended = "done"
    model: str | None = None
    error: str | None = None
    items: tuple[str, ...] = ()
    """The ids of what it consists of."""
    task: TaskEnd | None = None
    """End of a task, as the upstream's answer has it."""


OpensAnswer = Callable[[str], AbstractAsyncContextManager[tuple[Download, Head] | None]]
"""Asks the upstream of deferred work for this path; None: it does not answer, or is no longer configured."""


class WingBatches(NamedTuple):
    """How a wing reads the results of batches, which are at addresses of their own."""

    end: Callable[[SentRequest, Deferral, BatchFormat, bytes, OpensAnswer], Awaitable[WorkEnd | None]]
    """How the batch of this object has ended; None: it goes on, or cannot be read now. The first argument
    represents any of its requests."""


class PollTurns(Protocol):
    """Whose work is polled next, and room for the answers."""

    async def due(self, found: Sequence[Deferred], busy: Collection[str]) -> list[Deferred]: ...

    def pause(self, lease: str, pause_s: float) -> None: ...

    def holding(self, call: Call) -> AbstractContextManager[Callable[[int], None]]: ...


class WingTurns(NamedTuple):
    """How a wing gives turns, in the room for bytes of a worker."""

    of: Callable[[Any], PollTurns]


class Age(NamedTuple):
    """The age of work: one moment in which the store's clock is wrong gives nothing up."""

    first_s: float
    """The age at the first poll of this worker, by the store's clock."""
    polled_s: float
    """Seconds since then, by a clock that is never set."""

    def is_beyond(self, limit_s: float) -> bool:
        return min(self.first_s, limit_s - POLLED_AT_LEAST_S) + self.polled_s > limit_s


class DeferredPoller:
    """Polls and settles. One in each worker; of all of them one is at work."""

    def __init__(
        self, store: Store, parts: Callable[[], Parts], room: Any, clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._store = store
        self._parts = parts
        self._clock = clock
        self._monotonic = monotonic
        self._holder = uuid.uuid4().hex
        self._turns = next((each.of(room) for each in wings.parts(WingTurns, "layers")), None)
        """None: no wing defers work."""
        self._batches = wings.parts(WingBatches, "batch_results")
        self._tasks = Tasks()
        self._busy: dict[str, asyncio.Task[None]] = {}
        """The leases that are polled now."""
        self._polled: dict[str, tuple[float, float]] = {}
        """When each lease was polled first, on the monotonic clock, and its age then."""
        self._has_lock = False
        self._retiring: dict[str, float] = {}
        """When each settled lease's heir is deleted, on the same clock."""
        self._has_unknown = False
        """Work of an unknown kind was met since the lock was taken."""
        self._aside_until = 0.0
        """Time until which the lock is not taken, on the clock of `time.monotonic`."""

    async def run(self) -> None:
        """Look every `LOOK_EVERY_S`, until cancelled."""
        try:
            while True:
                await self._guarded(self._look())
                await asyncio.sleep(LOOK_EVERY_S)
        finally:
            await self._tasks.cancel_all()
            if self._has_lock:
                await self._guarded(self._release())

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except (StoreUnavailable, Unavailable):
            pass  # which the ledger reports; or there is no room for an answer
        except Exception:
            log.exception("deferred calls cannot be looked after")

    async def _look(self) -> None:
        await self._retire()
        if (turns := self._turns) is None or time.monotonic() < self._aside_until:
            return
        found = await self._store.deferred(MOST)
        if not found:
            return
        self._has_lock = not (await self._store.claim(self._holder, {NAME: HELD_FOR_S}))[NAME]
        if not self._has_lock:
            return
        if len(found) < MOST:
            self._polled = {each.lease: known for each in found if (known := self._polled.get(each.lease))}
        for each in await turns.due(found, self._busy):
            self._busy[each.lease] = self._tasks.spawn(self._guarded(self._see_to(each, turns)), "deferred-call")
        if self._busy:  # the results of a batch may take minutes: meanwhile others are polled, and the lock is kept
            await asyncio.wait(self._busy.values(), timeout=LOOK_EVERY_S)
            self._busy = {lease: task for lease, task in self._busy.items() if not task.done()}
        if self._has_unknown and not self._busy:
            await self._step_aside()

    async def _step_aside(self) -> None:
        """Leave the lock to a newer gateway, if there is one: it knows all kinds, and keeps it."""
        self._has_unknown = False
        self._aside_until = time.monotonic() + STEP_ASIDE_S
        await self._release()

    async def _release(self) -> None:
        self._has_lock = False
        await self._store.claim(self._holder, {NAME: 0.0})

    async def task_ended(self, lease: str, end: TaskEnd) -> None:
        """Settle the lease of a task that a client has seen ended, if it is not settled yet. Where the store is away,
        a poll does it later."""
        with suppress(StoreUnavailable, StoreLostWrites):
            deferred = await self._store.find_deferred(lease)
            if deferred is None or (known := await self._decode(deferred)) is None:
                return
            deferral, estimate = known
            await self._settle(_call(estimate, deferral, self._parts()), deferral, estimate, _ending_of_task(end))

    async def _decode(self, deferred: Deferred) -> tuple[Deferral, Settlement] | None:
        """The stored facts of deferred work; None: they cannot be read, and the work is ended."""
        try:
            estimate = ledger_entry.decode(deferred.entry)
        except ValueError:
            log.exception("the deferred call %s cannot be read; its reservation is released", deferred.lease)
            await self._store.remove_deferred(deferred.lease)
            await self._store.void_leases(heir_of(deferred.lease))
            return None
        try:
            return decode_deferral(deferred.note), estimate
        except (ValueError, TypeError):
            log.exception("the note of the deferred call %s cannot be read: it cannot be polled", deferred.lease)
            await self._settle_blindly(deferred.lease, estimate)
            return None

    async def _see_to(self, deferred: Deferred, turns: PollTurns) -> None:
        if (known := await self._decode(deferred)) is None:
            return
        deferral, estimate = known
        now = self._monotonic()
        since, first_s = self._polled.setdefault(deferred.lease, (now, max(0.0, self._clock() - deferral.began)))
        age = Age(first_s, now - since)
        turns.pause(deferred.lease, min(max(sum(age) / 4, MIN_PAUSE_S), MAX_PAUSE_S))
        if not _can_poll(estimate.record.endpoint, deferral):
            self._has_unknown = True
            if age.is_beyond(GIVE_UP_UNKNOWN_AFTER_S):
                log.warning("call %s: its kind is unknown; it is charged at its estimate", deferred.lease)
                await self._settle_blindly(deferred.lease, estimate)
            return
        with suppress(StoreUnavailable, StoreLostWrites):
            call = _call(estimate, deferral, self._parts())
            ending = await self._poll(call, deferral, age, turns)
            if ending is not None:
                await self._settle(call, deferral, estimate, ending)

    async def _poll(self, call: Call, deferral: Deferral, age: Age, turns: PollTurns) -> WorkEnd | None:
        """How the work has ended; None: it goes on, as far as is known. Work of any age that has ended is charged by
        its answer: the gateway may have been stopped for days, or its clock set."""
        parts, spec = self._parts(), FORMATS[call.endpoint]
        path = deferral.path or f"{spec.upstream_path}/{quote(deferral.kept_id, safe='')}"
        with turns.holding(call) as hold:
            answer = await self._ask(deferral, path, parts, hold)
            if isinstance(answer, Fetched) and answer.head.status == 200:
                ending = await self._read(call, deferral, answer.body)
                if ending is not None:
                    return ending
        is_unknown = isinstance(answer, Fetched) and answer.head.status == 404 and age.polled_s > UNKNOWN_AFTER_S
        if is_unknown or age.is_beyond(GIVE_UP_AFTER_S if spec.batch is None else GIVE_UP_BATCH_AFTER_S):
            log.warning(
                "call %s: upstream %s %s; it is charged at its estimate",
                call.id, deferral.upstream, "does not know it any more" if is_unknown else "has not ended it in time",
            )  # fmt: skip
            charged = charge.of_broken(_sent(call, deferral, parts), charge.Ending.SILENT)
            usage = charged.usage._replace(variant=call.params.variant)
            return WorkEnd(charge.Charge(usage), 504, "error", None, "upstream_timeout")
        return None

    async def _read(self, call: Call, deferral: Deferral, body: bytes) -> WorkEnd | None:
        """How the work of this good answer has ended; None: it goes on, or cannot be read now."""
        parts, spec = self._parts(), FORMATS[call.endpoint]
        if deferral.path:
            end = None
            if (read := spec.ended(parts.config, call.endpoint)) is not None:
                with suppress(Unavailable, RuntimeError):
                    end = await parts.make(call.key.id, _done_by, body, read)
            return None if end is None else _ending_of_task(end)
        if spec.batch is not None:
            endpoint: Endpoint = deferral.lines_endpoint  # type: ignore[assignment]
            sent = _sent(call._replace(endpoint=endpoint), deferral, parts)
            (batches,) = self._batches  # of the wing that has these formats
            return await batches.end(sent, deferral, spec.batch, body, partial(self._open, deferral))
        try:
            facts = await _facts(spec, body)
        except ValueError:
            return None
        if facts.is_pending:
            return None
        sent, counted = _sent(call, deferral, parts), None
        if len(body) > LONG_ANSWER:
            try:
                counted = await counted_text(parts.make, sent, facts.usage, body)
            except (Unavailable, RuntimeError):
                return None
        return _ending(sent, facts, body, counted)

    @asynccontextmanager
    async def _open(self, deferral: Deferral, path: str) -> AsyncIterator[tuple[Download, Head] | None]:
        """This is an `OpensAnswer` for this work."""
        if (reached := self._reach(deferral, self._parts())) is None:
            yield None
            return
        pool, key = reached
        request = pool.request(path, [("Accept", "*/*")], b"", method="GET", key=key)
        async with Download(deferral.upstream, pool) as download:
            head = await download.begin(request, ANSWER_WITHIN_S)
            yield (download, head) if isinstance(head, Head) else None

    def _reach(self, deferral: Deferral, parts: Parts) -> tuple[Pool, int] | None:
        """The connections to the upstream, and which of its API keys; None: one of them is no longer configured."""
        upstream = parts.config.upstreams.get(deferral.upstream)
        key = None if upstream is None else position_of(upstream, deferral.account)
        return None if key is None else (parts.pools[deferral.upstream], key)

    async def _ask(
        self, deferral: Deferral, path: str, parts: Parts, hold: Callable[[int], None]
    ) -> Fetched | Failure | None:
        """The upstream's answer; None: it is no longer configured, or this API key of it. Raises as `hold`."""
        if (reached := self._reach(deferral, parts)) is None:
            return None
        pool, key = reached
        request = pool.request(path, [("Accept", "application/json")], b"", method="GET", key=key)
        limit = parts.config.server.max_response_bytes
        if deferral.lines_endpoint:
            limit = min(limit, MAX_BATCH_BYTES)
        return await fetch(deferral.upstream, pool, request, ANSWER_WITHIN_S, limit, hold=hold)

    async def _settle(self, call: Call, deferral: Deferral, estimate: Settlement, ending: WorkEnd) -> None:
        accounting = self._parts().accounting
        usage = pricing.total_usage((deferral.spent_usage, ending.charged.usage))
        label = accounting.served.note(call.model_name) if call.label_model == OTHER else call.label_model
        record = record_of(
            call._replace(label_model=label), _route(deferral), ending.status, usage, ending.ended,
            returned_model=ending.model,
            duration_s=max(0.0, self._clock() - call.started),
            attempts=deferral.attempts,
            failed=deferral.failed,
            timeline=deferral.timeline,
        )._replace(stream=estimate.record.stream)  # fmt: skip
        if deferral.path:
            record = _as_reserved(record, estimate.record, ending.task, deferral.outputs)
        extras = AccessLogExtras(deferral.remote, ending.error, None, None)
        await self._record(record, estimate, extras)
        now = self._clock()
        if (
            not deferral.path
            and (bond := await self._store.find_bond(deferral.kept_id, now)) is not None
            and bond.key == call.key.id
        ):
            tokens = ending.charged.usage.total_tokens
            note = SETTLED if deferral.lines else bond.note
            for each in item_bonds(bond, ending.items, ending.charged.usage.completion_tokens):
                await self._store.add_bond(each, now)
            await self._store.add_bond(bond._replace(tokens=tokens, note=note), now)
        await self._remove(call.id)

    async def _settle_blindly(self, lease: str, estimate: Settlement) -> None:
        """Charge the whole reservation of work that cannot be polled."""
        record = estimate.record._replace(status=504, ended="error")
        with suppress(StoreLostWrites):
            extras = AccessLogExtras(None, "upstream_timeout", None, None)
            await self._record(record, estimate, extras)
            await self._remove(lease)

    async def _record(self, record: Record, estimate: Settlement, extras: AccessLogExtras) -> None:
        """Settle by the first entry of the lease's heir, which counts once, whichever worker sends it."""
        accounting = self._parts().accounting
        heir = heir_of(record.id)
        progress = await self._store.progress(heir)
        if progress.mark:
            return
        entry = Settle(1, record, estimate.claims, ledger_entry.encode(record, estimate.claims))
        await self._store.apply(Batch(heir, progress.seq + 1, progress.seq, [entry]))
        accounting.telemetry.recorded(
            record,
            estimated_prompt_tokens=estimate.record.usage.prompt_tokens,
            overhead_s=0.0,
            is_usage_unknown=record.usage.source == "estimated",
        )
        accounting.write_line(record, extras)

    async def _remove(self, lease: str) -> None:
        await self._store.remove_deferred(lease)
        self._retiring[lease] = time.monotonic() + RETIRE_AFTER_S
        self._polled.pop(lease, None)

    async def _retire(self) -> None:
        for lease, at in list(self._retiring.items()):
            if at <= time.monotonic():
                await self._store.retire(heir_of(lease))
                del self._retiring[lease]


def _done_by(body: bytes, read: Callable[[bytes], TaskEnd | None]) -> TaskEnd | None:
    return read(body)


async def _facts(spec: Format, body: bytes) -> PlainFacts:
    """Raises `ValueError`. Calls have their turn while a long answer is read."""
    if spec.long_reader is None or len(body) <= LONG_ANSWER:
        return spec.facts(body)
    reader = spec.long_reader()
    for at in range(0, len(body), PLAIN_PIECE):
        reader.feed(body[at : at + PLAIN_PIECE])
        await asyncio.sleep(0)
    return reader.facts()


def _can_poll(endpoint: str, deferral: Deferral) -> bool:
    """Whether deferred work is of a kind that this version knows. Another kind is of a newer gateway on the store."""
    if deferral.path:
        return ADDED is not None
    if endpoint not in FORMATS:
        return False
    spec = FORMATS[endpoint]  # type: ignore[index]
    if spec.batch is not None:
        return deferral.lines_endpoint in spec.batch.endpoints
    return spec.pending_id is not None and not deferral.lines


def _ending(sent: SentRequest, facts: PlainFacts, body: bytes, counted: PlainText | None) -> WorkEnd:
    of_plain = partial(charge.of_plain, sent, facts.usage, body, facts.model, counted=counted)
    if facts.is_cancelled:
        if facts.usage is not None:
            return WorkEnd(of_plain(), 499, "client_gone", facts.model)
        return WorkEnd(charge.of_broken(sent, charge.Ending.STOPPED, body), 499, "client_gone", facts.model)
    if not facts.is_error:
        return WorkEnd(of_plain(), model=facts.model, items=facts.items)
    charged = charge.of_broken(sent, charge.Ending.REFUSED)
    if facts.has_usage or facts.has_output:
        charged = of_plain(ending=charge.Ending.ERROR)
    return WorkEnd(charged, 502, "error", facts.model, "upstream_error")


def _ending_of_task(end: TaskEnd) -> WorkEnd:
    if end.has_failed:
        return WorkEnd(charge.Charge(Usage()), 502, "error", None, "upstream_error", task=end)
    return WorkEnd(charge.Charge(Usage()), task=end)


def _as_reserved(record: Record, reserved: Record, end: TaskEnd | None, outputs: int) -> Record:
    """The record of a task, at the price of its submission for as many outputs as are paid. `end`: None if its end is
    not known."""
    usage, cost_nusd = reserved.usage, reserved.cost_nusd
    source: UsageSource = "estimated" if end is None else "reported"
    if end is not None:
        usage = usage._replace(more=end.charged(usage.more, outputs))
        cost_nusd = None if cost_nusd is None else end.share(cost_nusd, outputs)
    return record._replace(usage=usage._replace(source=source), price=reserved.price, cost_nusd=cost_nusd)


def _route(deferral: Deferral) -> Route:
    return Route(upstream=deferral.upstream, model=deferral.routed_model)


def _call(estimate: Settlement, deferral: Deferral, parts: Parts) -> Call:
    """The call as far as its charge depends on it; priced as its model is now."""
    record = estimate.record
    found = parts.config.model(deferral.model)
    usage = record.usage
    params = Params(
        Document("{}", {}), record.model, prompt_tokens=usage.prompt_tokens, output_limit=usage.completion_tokens
    )
    return Call(
        id=record.id,
        started=record.time,
        key=Key(record.key, record.team),
        endpoint=record.endpoint,  # type: ignore[arg-type]
        params=params._replace(variant=VARIANT) if deferral.lines else params,
        model=found.model if found is not None else Model(routes=(_route(deferral),)),
        label_model=record.label_model,
        arrived=0.0,
        client_request_id=record.client_request_id,
        target=deferral.model if deferral.model != record.model else None,
        user=record.user,
        tags=record.tags,
    )


def _sent(call: Call, deferral: Deferral, parts: Parts) -> SentRequest:
    count = token_rule.counting(parts.find_counter(call.model_name))
    return SentRequest(call, deferral.routed_model, deferral.output_limit, count, (), deferral.request_bytes)
