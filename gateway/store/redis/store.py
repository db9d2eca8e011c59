"""Redis: the store that gateways on several machines share. Redis 6.2 or newer, Valkey; one, with Sentinel, a cluster.

Everything that a batch does is one script (apply.lua), in one round trip, all of it or nothing. Acknowledged writes
can be lost with Redis all the same (`may_forget`): without an append-only file at a restart, and at a failover.

The keys, all with one hash tag, so that in a cluster one node has them all; 1 is the schema:

    {namespace}:schema             the newest schema that wrote here
    {namespace}:1:windows          hash: window -> "used reserved at_us"; rates and parallel calls
    {namespace}:1:windows:STARTS   the same for the calendar windows of a day, a week or a month
    {namespace}:1:worker:WORKER    "seq mark"
    {namespace}:1:leases:WORKER    hash: open lease -> drawn_us TAB entry
    {namespace}:1:lost:WORKER      hash: lease closed as lost -> id of its record TAB drawn_us TAB entry
    {namespace}:1:alive            sorted set: workers by the time of their last batch, in microseconds; times in which
                                   no worker could be heard are added to it
    {namespace}:1:records          stream: one record each
    {namespace}:1:sums:DAY         hash: group -> numbers (quota/ledger_entry); DAY is an hour, too (2026-11-20T14)
    {namespace}:1:sums:latency-DAY hash: model, upstream -> "counter:number counter:number" (quota/measures); the same
    {namespace}:1:sums:tags-DAY    hash: key, team, model, `user` or `tag:NAME`, value -> numbers
    {namespace}:1:sums:tagcounts-DAY  hash: key -> number of its groups in the former
    {namespace}:1:sums:groups-MONTH  sorted set: groups of the sums of its days (groups.lua)
    {namespace}:1:sent             hash: worker -> its last batch, without records (first argument of apply.lua)
    {namespace}:1:gaps             "ID ID ID ID ...": between each two no record counts (reassert.lua)
    {namespace}:1:claim:NAME       "until_us holder since_us"; what one of all workers does
    {namespace}:1:posts:PLACE      hash: worker -> "until_us text"; what workers with waiting calls exchange
    {namespace}:1:posted:PLACE     hash: worker -> since_us
    {namespace}:1:documents:KIND   hash: name -> document; KIND is key, team or overlay
    {namespace}:1:names:KIND       sorted set: their names, to be read in order
    {namespace}:1:secrets          hash: SHA-256 of a secret -> the key that it leads to
    {namespace}:1:decisions        hash: decision journal of a gateway -> number of its last change
    {namespace}:1:refusals         stream: one refused request each
    {namespace}:1:deferred         hash: lease that goes on without its worker -> entry TAB what to ask the upstream for
    {namespace}:1:bond:ID          "until_s bond": to whom an id belongs that an upstream has given (store/bonds.py)
    {namespace}:1:bonds:KEY        sorted set: ids of a key's bonds, by when they end
    {namespace}:1:audit            stream: one change of a document each
    {namespace}:1:days             sorted set: hours, days, weeks and months, by when they are deleted
    {namespace}:1:ages             sorted set: workers, claims and bonds, by when retention deletes them
    {namespace}:1:retention        "wall_h clock_h cursor": the last look of retention (store/rules/retention.py)

What a Redis user needs (ACL), with the real namespace:

    ~{gateway}:* +@read +@write +@scripting +@connection +time -@dangerous +client|setname +info

Without `+info` the gateway cannot see, and does not warn, that Redis keeps no append-only file, or may throw keys away.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from itertools import islice
from typing import Any, Self

from redis.exceptions import ResponseError

from gateway.chunked import portions
from gateway.config import StoreSettings as Settings
from gateway.quota import windows as limits
from gateway.records import Bond, Record, Window, WindowState, WindowStatus
from gateway.store import (
    REAPED_AT_ONCE,
    REOPENED_AT_ONCE,
    SILENT_S,
    USAGE_AT_ONCE,
    Applied,
    Batch,
    CallFilter,
    Deferred,
    Measures,
    Progress,
    ReportScope,
    StoreMisconfigured,
    StoreUnavailable,
    Where,
)
from gateway.store.clock import ServerClock, skew_warning
from gateway.store.key_store import ChangeFeed, DocumentKind, StoreChange, StoredAudit
from gateway.store.refusals import RefusalEntry, RefusalQuery, StoredRefusal
from gateway.store.report_rows import UsageReport, range_of
from gateway.store.rules.batch import MAX_GAP_US

from . import bonds, refusals, reports
from . import keys as redis_keys
from .batch import NOTHING, encode_items, header, moment_us_of, read_answer
from .connection import Ask, Command, RedisConnection, Script, ServerMisconfigured
from .daily_sums import DailySumReader

log = logging.getLogger("gateway")

SCHEMA = 1

APPLY = (
    "apply.lua", "apply_limits.lua", "apply_reading.lua", "apply_items.lua", "apply_lost.lua", "apply_retention.lua",
    "apply_writing.lua",
)  # fmt: skip
"""The parts of the one script."""

BATCH_WITHIN_S = 0.8
"""Time limit of a batch; one without an answer counts as lost. A refusal that waited for it is sent within a second."""

READ_WITHIN_S = 2.0
"""How long one portion of a report may take; on a connection of its own, so that no batch waits for it."""

FIND_WITHIN_S = 0.8
"""Time limit of a key lookup, for which a call waits; on a connection of its own, so that it waits for no report."""

REPLICA_WITHIN_MS = 200
"""How long a change of a key, team or quota waits until a replica has it."""

BUSY_FOR_S = 0.1
"""How long after a batch reports make way for calls: there are more."""

PORTION = 1000
"""Groups of a report by key that are added up at a time, and deferred leases that are read at a time."""

VOIDED_AT_ONCE = 100


class RedisStore:
    """The `Store` promise over Redis. Made by `open`.

    The result of `offset_us` is added to the server's clock; for tests. There are three connections: for batches, for
    reads of keys that calls wait for, and for all that may take a while, such as reports.
    """

    may_forget = True
    apply_now = None

    def __init__(
        self, settings: Settings, offset_us: Callable[[], int] = lambda: 0, clock: ServerClock | None = None
    ) -> None:
        self.clock = ServerClock() if clock is None else clock
        self._offset_us = offset_us
        self._settings = settings
        self._schema = f"{{{settings.namespace}}}:schema"
        self._base = f"{{{settings.namespace}}}:{SCHEMA}:"
        constants = _constants(self._base, self._schema, settings)
        self._script = Script.read(*APPLY, constants=constants)
        self._reassert = Script.read("reassert.lua", constants=constants)
        self._probe = Script.read("probe.lua")
        self._claim = Script.read("claim.lua")
        self._exchange = Script.read("exchange.lua")
        self._find = Script.read("find.lua")
        self._change = Script.read("change.lua")
        self._bond = Script.read("bond.lua")
        self._writing = RedisConnection(settings.redis, BATCH_WITHIN_S, self._greet_writing)
        self._finding = RedisConnection(settings.redis, FIND_WITHIN_S, self._greet)
        self._deferred_from: Any = "0"
        """The cursor of Redis at which the next look for deferred leases begins."""
        self._reading = RedisConnection(settings.redis, READ_WITHIN_S, self._greet)
        self._days = DailySumReader(self._reading, self._base, self._are_calls_under_way)
        self._applied_at = -BUSY_FOR_S

    @classmethod
    async def open(
        cls, settings: Settings, offset_us: Callable[[], int] = lambda: 0, clock: ServerClock | None = None
    ) -> Self:
        """Open the store, available or not.

        Raises `StoreMisconfigured` for a wrong password, a user without a needed permission, or newer data.
        """
        store = cls(settings, offset_us, clock)
        try:
            for line in await store.look():
                log.warning("%s", line)
        except ServerMisconfigured as away:
            await store.close()
            raise StoreMisconfigured(str(away)) from None
        except StoreUnavailable as away:
            log.warning("the store is away: %s", away)
        return store

    def __repr__(self) -> str:
        return f"<RedisStore {self._settings.shown_url}, namespace {self._settings.namespace}>"

    # --------------------------------------------------------------------------------------------------------- batches

    async def apply(self, batch: Batch, sent: Callable[[], None] | None = None) -> Applied:
        """Implements `Store.apply`. An error of redis-py means that the script rejects an item: nothing was applied."""
        self._applied_at = time.monotonic()
        reopened_at_once = 0 if batch.is_adopted else REOPENED_AT_ONCE
        first = header(batch.seq, batch.acked, self._offset_us(), reopened_at_once=reopened_at_once)
        encoded = encode_items(batch.items)
        arguments = [first + encoded.items, *encoded.texts]
        asked_at = self.clock.monotonic()
        answer = await self._run_apply(batch.worker, arguments, sent)
        applied = read_answer(batch, encoded.places, answer)
        self.clock.measured(moment_us_of(answer) / 1e6, asked_at)
        return applied

    async def progress(self, worker: str) -> Progress:
        (found,) = await self._writing.ask(("GET", f"{self._base}worker:{worker}"))
        return Progress(*map(int, found.split())) if found else Progress()

    async def void_leases(self, worker: str) -> None:
        await self._void(worker, is_forgotten=False)

    async def retire(self, worker: str) -> None:
        await self._void(worker, is_forgotten=True)

    async def _void(self, worker: str, *, is_forgotten: bool) -> None:
        first = header(0, 0, self._offset_us(), VOIDED_AT_ONCE, is_forgotten=is_forgotten)
        while await self._run_apply(worker, [first + NOTHING.items]) != "r 0":
            pass

    async def _run_apply(self, worker: str, arguments: Sequence[str], sent: Callable[[], None] | None = None) -> str:
        """Run the script, after a command that notes it: reassert.lua has to know what may have been carried out."""
        noted = ("HSET", f"{self._base}sent", worker, arguments[0])
        keys = [f"{self._base}worker:{worker}"]
        answer: str = await self._writing.run(self._script, keys, arguments, noted, sent=sent)
        return answer

    async def claim(self, holder: str, names: Mapping[str, float]) -> dict[str, float]:
        """Implements `Store.claim` on the connection for reports, so that no batch waits for it."""
        keys = [f"{self._base}claim:{name}" for name in names]
        spans_us = [str(int(for_s * 1e6)) for for_s in names.values()]
        held_us = await self._reading.run(self._claim, keys, [holder, str(self._offset_us()), self._base, *spans_us])
        return {name: us / 1e6 for name, us in zip(names, held_us, strict=True)}

    async def exchange(self, place: str, holder: str, text: str, for_s: float) -> dict[str, str]:
        """Implements `Store.exchange` on the connection for keys, where no report is in the way."""
        arguments = [holder, text, str(int(for_s * 1e6)), str(self._offset_us())]
        found = await self._finding.run(
            self._exchange, [f"{self._base}{kind}:{place}" for kind in ("posts", "posted")], arguments
        )
        return dict(zip(found[::2], found[1::2], strict=True))

    async def deferred(self, limit: int) -> list[Deferred]:
        (found,) = await self._finding.ask(("HSCAN", f"{self._base}deferred", self._deferred_from, "COUNT", limit))
        (self._deferred_from, texts), read = found, list[Deferred]()
        for some in portions(texts, 2 * PORTION):
            read += [Deferred(lease, *text.rsplit("\t", 1)) for lease, text in zip(some[::2], some[1::2], strict=True)]
            await asyncio.sleep(0)
        return read

    async def find_deferred(self, lease: str) -> Deferred | None:
        (text,) = await self._finding.ask(("HGET", f"{self._base}deferred", lease))
        return None if text is None else Deferred(lease, *text.rsplit("\t", 1))

    async def remove_deferred(self, lease: str) -> None:
        await self._finding.ask(("HDEL", f"{self._base}deferred", lease))

    async def ping(self) -> None:
        await self._writing.run(self._probe, [f"{self._base}probe"], [])

    def _are_calls_under_way(self) -> bool:
        return time.monotonic() - self._applied_at < BUSY_FOR_S

    # --------------------------------------------------------------------------------------------------------- reports

    async def window_statuses(self, windows: Sequence[Window], now: float) -> list[WindowStatus]:
        ids: dict[str, list[str]] = {}
        for window in windows:
            ids.setdefault(window.starts, []).append(window.id)
        base = f"{self._base}windows"
        replies = await self._reading.ask(
            *[("HMGET", f"{base}:{starts}" if starts else base, *some) for starts, some in ids.items()]
        )
        states = {
            name: WindowState(*map(int, text.split()))
            for some, texts in zip(ids.values(), replies, strict=True)
            for name, text in zip(some, texts, strict=True)
            if text
        }
        return limits.window_statuses(windows, states, int(now * 1e6))

    async def usage(
        self, group_by: Sequence[str], since: str | None = None, until: str | None = None, limit: int | None = None,
        after: Sequence[str] | None = None, only: ReportScope | None = None, where: Where = (),
    ) -> list[dict[str, Any]]:  # fmt: skip
        rows: list[dict[str, Any]] = []
        async with aclosing(self._reports(group_by, since, until, limit, after, only, where)) as found:
            async for report in found:
                # In a thread, because making and sorting very many rows would delay streams for too long.
                rows += await asyncio.to_thread(report.rows, None if limit is None else limit - len(rows), after)
                if limit is not None and len(rows) >= limit:
                    break
        return rows

    async def usage_portions(
        self, group_by: Sequence[str], since: str | None = None, until: str | None = None,
        only: ReportScope | None = None, where: Where = (),
    ) -> AsyncIterator[list[dict[str, Any]]]:  # fmt: skip
        async for report in self._reports(group_by, since, until, None, None, only, where):
            rows = report.each_row()
            while some := await asyncio.to_thread(list, islice(rows, USAGE_AT_ONCE)):
                yield some

    def _reports(
        self, group_by: Sequence[str], since: str | None, until: str | None, limit: int | None,
        after: Sequence[str] | None, only: ReportScope | None, where: Where,
    ) -> AsyncGenerator[UsageReport]:  # fmt: skip
        at_once = min(limit or PORTION, PORTION)
        return reports.usage(self._reading, self._days, self._base, group_by, since, until, at_once, after, only, where)

    async def measures(self, group_by: Sequence[str], since: str | None = None, until: str | None = None) -> Measures:
        return await reports.measures(self._reading, self._base, range_of(group_by, since, until), group_by)

    async def calls(
        self, limit: int, key: str | None = None, before: str | None = None, only: ReportScope | None = None,
        wanted: CallFilter | None = None,
    ) -> list[Mapping[str, Any]]:  # fmt: skip
        return await reports.calls(self._reading, self._days, self._base, limit, key, before, only, wanted)

    async def usage_by_returned_model(self, since: str, until: str) -> list[dict[str, Any]]:
        return await reports.usage_by_returned_model(self._reading, self._base, since, until)

    # -------------------------------------------------------------------------------------------------------- refusals

    async def add_refusals(self, entries: Sequence[RefusalEntry], now: float) -> None:
        await refusals.add(self._reading, self._base, entries, now)

    async def refusals(
        self, limit: int, before: str | None = None, wanted: RefusalQuery | None = None
    ) -> list[StoredRefusal]:
        return await refusals.newest(self._reading, self._base, limit, before, wanted or RefusalQuery())

    async def find_request(self, request_id: str) -> Record | RefusalEntry | None:
        return await refusals.find_request(self._reading, self._base, request_id)

    # ----------------------------------------------------------------------------------------------------------- bonds

    async def add_bond(self, bond: Bond, now: float) -> None:
        await bonds.add_bond(self._finding, self._bond, self._base, bond, now)

    async def find_bond(self, bond_id: str, now: float) -> Bond | None:
        return await bonds.find_bond(self._finding, self._base, bond_id, now)

    async def bonds_of(self, key: str, kind: str, now: float) -> list[Bond]:
        return await bonds.bonds_of(self._finding, self._base, key, kind, now)

    async def remove_bond(self, bond: Bond) -> None:
        await bonds.remove_bond(self._finding, self._base, bond)

    # ------------------------------------------------------------------------------------------------------------ keys

    async def find_keys(self, digests: Sequence[str]) -> list[str | None]:
        return await redis_keys.find(self._finding, self._find, self._base, digests)

    async def read(self, kind: DocumentKind, names: Sequence[str]) -> list[str | None]:
        return await redis_keys.read(self._finding, self._base, kind, names)

    async def page(self, kind: DocumentKind, after: str = "", limit: int = 1000) -> list[tuple[str, str]]:
        return await redis_keys.page(self._reading, self._base, kind, after, limit)

    async def change(self, change: StoreChange) -> bool:
        keys, arguments = redis_keys.encode_change(change, self._base, self._schema, self._offset_us())
        return redis_keys.was_applied(await self._reading.run(self._change, keys, arguments))

    async def is_used(self, key: str) -> bool:
        return (
            await redis_keys.is_under_way(self._reading, self._base, key)
            or await redis_keys.has_kept(self._reading, self._base, key)
            or bool(await self.usage((), limit=1, where=(("key", key),)))
            or bool(await self.refusals(1, wanted=RefusalQuery(key=key)))
        )

    async def is_replicated(self) -> bool | None:
        try:
            (replication,) = await self._reading.ask(("INFO", "replication"))
            if "connected_slaves:0" in replication:
                return None
            (replicas,) = await self._reading.ask(("WAIT", 1, REPLICA_WITHIN_MS))
        except (StoreUnavailable, ResponseError):
            return None  # the user may be forbidden both
        return int(replicas) > 0

    async def last_change(self, journal: str) -> int:
        return await redis_keys.last_change(self._finding, self._base, journal)

    async def changes_since(self, since: str | None) -> ChangeFeed:
        return await redis_keys.changes_since(self._finding, self._base, since)

    async def audit(self, limit: int, before: str | None = None) -> list[StoredAudit]:
        return await redis_keys.audit(self._reading, self._base, limit, before)

    async def close(self) -> None:
        await asyncio.gather(self._writing.close(), self._finding.close(), self._reading.close())

    # ------------------------------------------------------------------------------------------------------ connecting

    async def _greet(self, ask: Ask) -> None:
        await self._check_schema(ask)
        try:
            await ask(*self._reasserting())
        except ResponseError:
            pass  # the server permits no writes, so nothing is written before the connection for batches is made

    async def _greet_writing(self, ask: Ask) -> None:
        probe, script = self._probe, self._script
        asked_at = self.clock.monotonic()
        seconds, micros = await self._check_schema(
            ask, *self._reasserting(), ("SCRIPT", "LOAD", probe.text), ("SCRIPT", "LOAD", script.text),
            ("EVALSHA", probe.sha, 1, f"{self._base}probe"), ("TIME",),
        )  # fmt: skip
        self.clock.measured(int(seconds) + (int(micros) + self._offset_us()) / 1e6, asked_at)

    def _reasserting(self) -> list[Command]:
        """The first commands of a connection."""
        script = self._reassert
        return [("SCRIPT", "LOAD", script.text), ("EVALSHA", script.sha, 1, f"{self._base}sent")]

    async def _check_schema(self, ask: Ask, *more: Command) -> Any:
        """Check that a server has no data of a newer gateway; the last reply. Raises `ServerMisconfigured`."""
        schema, *replies = await ask(("GET", self._schema), *more)
        if schema is not None and int(schema) > SCHEMA:
            raise ServerMisconfigured(
                f"{self._settings.shown_url}: namespace {self._settings.namespace} was written by a newer gateway"
                f" (schema {schema}; this gateway has {SCHEMA}); start the newer one, or use another namespace"
            )
        return replies[-1] if replies else None

    async def look(self) -> list[str]:
        """Connect; the warnings about this server. Raises `StoreUnavailable`."""
        try:
            persistence, memory = await self._writing.ask(("INFO", "persistence"), ("INFO", "memory"))
        except (ServerMisconfigured, ResponseError):
            await self._writing.ask(("PING",))  # INFO may be forbidden; nothing else may
            persistence = memory = ""
        url, found = self._settings.shown_url, []
        if (warning := skew_warning(self.clock.skew_s)) is not None:
            found.append(f"{url}: {warning}")
        if "aof_enabled:0" in persistence:
            found.append(
                f"{url} keeps no append-only file (appendonly no): a restart loses what came after its last snapshot"
            )
        policy = memory.partition("maxmemory_policy:")[2].split("\r")[0]
        if policy not in ("", "noeviction"):
            found.append(f"{url} may throw quotas and usage away when its memory is full (maxmemory-policy {policy})")
        return found


def _constants(base: str, schema: str, settings: Settings) -> str:
    """The constants of apply.lua for all batches of a store. A name of a namespace needs no escapes in Lua."""
    keys = [base, *[base + name for name in ("windows", "alive", "records", "days", "retention")], schema]
    numbers = SILENT_S * 1_000_000, MAX_GAP_US, settings.sums_days * 86400
    # These are arguments of commands alone; to write a number as one takes Redis longer than to pass on a text.
    texts = [str(REAPED_AT_ONCE), str(settings.usage_records_max)]
    return (
        "local BASE, WINDOWS, ALIVE, RECORDS, DAYS, RETENTION, SCHEMA, SILENT_US, MAX_GAP_US, SUMS_S, REAPED_AT_ONCE,"
        f" RECORDS_MAX = {', '.join([*map(repr, keys), *map(str, numbers), *map(repr, texts)])}"
    )


async def warnings(settings: Settings) -> list[str]:
    """Warnings about a Redis store, one line each; an unreachable one is among them.

    Raises `StoreMisconfigured`.
    """
    store = RedisStore(settings)
    try:
        return await store.look()
    except ServerMisconfigured as away:
        raise StoreMisconfigured(str(away)) from None
    except StoreUnavailable as away:
        return [f"{away}; the gateway will start all the same, and wait for it"]
    finally:
        await store.close()
