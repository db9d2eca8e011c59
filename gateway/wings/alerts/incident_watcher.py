"""Reports incidents and their end to receivers, once among all workers on one store.

Every few seconds each worker exchanges with the others what it sees, and the one that holds a claim compares the causes
of all with what was reported. That is a claim in the store for each receiver and incident, held until its end is
reported: a restart repeats nothing, and another worker follows one that was killed.

While the store is away gateways cannot agree. Each of them reports it by itself: by the worker that has locked a file
in the folder of the journal. The file keeps the receivers that know, so that the end is reported after a restart, too.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from gateway.config import Config
from gateway.observe.metrics import Telemetry
from gateway.store import Ledger, StoreUnavailable
from gateway.upstream.status import UpstreamReport

from . import incidents
from .channels import Channel
from .incidents import Cause
from .routing import Subject

LOOK_EVERY_S = 5.0
KEPT_S = 30.0
"""How long the store keeps a worker's view, and the claim of the worker that reports."""
OPEN_S = 90 * 86_400.0
"""How long an incident may be open."""
REPORTED, ASKING = "reported", "asking"
"""The holder of the claims of what was reported, and a holder that only asks."""


class IncidentWatcher:
    """One worker's watcher of incidents; call `run`. `holder` is its unique name in the store."""

    def __init__(
        self, ledger: Ledger, config: Config, reports: Callable[[], Iterable[UpstreamReport]], telemetry: Telemetry,
        channels: Mapping[str, Channel], *, holder: str, clock: Callable[[], float],
    ) -> None:  # fmt: skip
        self._ledger = ledger
        self._namespace = config.store.namespace
        self._names = [f"upstream/{name}" for name in config.upstreams] + [f"ledger/{name}" for name in incidents.TEXTS]
        self._reports = reports
        self._telemetry = telemetry
        self._channels = channels
        self._holder = holder
        self._clock = clock
        self._counts: dict[str, float] = {}
        self._risen_at: dict[str, float] = {}
        self._seen_at: dict[str, float] = {}
        """When each incident was last seen, or first looked for in vain."""
        self._known: dict[str, Cause] = {}
        """Open incidents with their texts, for the report of their end."""
        self._done: set[str] = set()
        """Reports that were delivered, which the store does not know yet."""
        self._away_since: float | None = None
        self._file = _KnowingFile(Path(config.store.journal_dir) / "alerts-of-the-store.json")

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            with suppress(StoreUnavailable):  # the next look finds whether it lasts
                await self.look()
            await asyncio.sleep(LOOK_EVERY_S)

    async def look(self) -> None:
        """Look once, and report what is due. Raises `StoreUnavailable`."""
        now = self._clock()
        self._take_done()
        mine = [*incidents.of_upstreams(self._reports(), now), *incidents.of_ledger(self._risen(now), now)]
        try:
            others = await self._ledger.exchange("alerts", self._holder, json.dumps(mine), KEPT_S)
        except StoreUnavailable:
            self._away_since = now if self._away_since is None else self._away_since
            self._report_store(incidents.of_store(self._away_since, self._namespace), now, is_over=False)
            return
        self._away_since = None
        self._report_store(incidents.of_store(now, self._namespace), now, is_over=True)
        seen = incidents.merged([*mine, *[Cause(*row) for text in others.values() for row in json.loads(text)]])
        if (await self._ledger.claim(self._holder, {"incidents": KEPT_S}))["incidents"] == 0:
            await self._compare(seen, now)

    async def close(self, timeout_s: float) -> None:
        """A last attempt for what waits; the next worker reports what is not taken."""
        await asyncio.gather(*[each.outbox.close(timeout_s / 2) for each in self._channels.values()])
        with suppress(StoreUnavailable, TimeoutError):
            async with asyncio.timeout(timeout_s / 2):
                self._take_done()
                await self._note_done()
                await self._ledger.claim(self._holder, {"incidents": 0.0})
        self._file.close()

    async def _compare(self, seen: Mapping[str, Cause], now: float) -> None:
        """Report to each receiver what it does not know yet, and the end of what it knows."""
        await self._note_done()
        claims = {
            f"incident|{way}|{name}": (way, name)
            for way, channel in self._channels.items()
            for name in self._names
            if channel.takes(Subject(name.partition("/")[0]))
        }
        open_s = await self._ledger.claim(ASKING, dict.fromkeys(claims, 0.0)) if claims else {}
        for name in self._names:
            self._seen_at[name] = now if name in seen else self._seen_at.get(name, now)
        for claim, (way, name) in claims.items():
            cause = seen.get(name)
            if cause is not None and not open_s[claim] and incidents.is_due(cause, now):
                self._known[name] = cause
                self._put(way, claim, cause, now, is_over=False)
            elif cause is None and open_s[claim] and now - self._seen_at[name] >= incidents.CALM_S:
                kind, _, subject = name.partition("/")
                known = self._known.get(name) or Cause(kind, subject, now, f"the incident of {kind} {subject}.")
                self._put(way, claim, known, now, is_over=True)

    def _report_store(self, cause: Cause, now: float, *, is_over: bool) -> None:
        ways = [way for way, channel in self._channels.items() if channel.takes(Subject("store"))]
        is_due = not self._file.is_empty if is_over else incidents.is_due(cause, now)
        if not ways or not is_due or not self._file.lock():
            return
        knowing = self._file.read()
        for way in ways:
            if (way in knowing) == is_over:
                self._put(way, f"store|{way}", cause, now, is_over=is_over)

    def _put(self, way: str, claim: str, cause: Cause, now: float, *, is_over: bool) -> None:
        outbox, name = self._channels[way].outbox, f"{claim}|{'over' if is_over else 'open'}"
        outbox.drop(f"{claim}|{'open' if is_over else 'over'}")  # no longer true
        if name not in outbox.waiting:
            self._channels[way].put(name, incidents.notice(cause, self._namespace, now, is_over=is_over))

    def _take_done(self) -> None:
        """Collect what receivers have taken or refused for good; incidents of the store are noted at once."""
        done = {name for channel in self._channels.values() for name in channel.outbox.take_done()}
        of_store = {name for name in done if name.startswith("store|")}
        self._file.note(of_store)
        self._done |= done - of_store

    async def _note_done(self) -> None:
        ends = [name.rpartition("|") for name in self._done]
        if ends:
            await self._ledger.claim(REPORTED, {claim: OPEN_S if end == "open" else 0.0 for claim, _, end in ends})
        self._done.clear()

    def _risen(self, now: float) -> Mapping[str, float]:
        """When each of the metrics about the ledger has risen last in this worker."""
        counts = dict.fromkeys(incidents.TEXTS, 0.0)
        for family in self._telemetry.registry.restricted_registry([*counts]).collect():
            for sample in family.samples:
                if sample.name in counts and sample.labels.get("outcome") != "restored":
                    counts[sample.name] += sample.value
        self._risen_at |= {name: now for name, count in counts.items() if count > self._counts.get(name, count)}
        self._counts = counts
        return self._risen_at


class _KnowingFile:
    """The receivers that know that the store is away, in a file that one worker of a gateway locks."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._handle: int | None = None

    @property
    def is_empty(self) -> bool:
        return not self._path.is_file() or self._path.stat().st_size == 0

    def lock(self) -> bool:
        """Lock it until `close`; whether this worker has it."""
        if self._handle is None:
            handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(handle)
            else:
                self._handle = handle
        return self._handle is not None

    def read(self) -> list[str]:
        """The ways of the receivers that know."""
        with suppress(OSError, ValueError):
            return list(json.loads(self._path.read_text()))
        return []

    def note(self, done: Collection[str]) -> None:
        """Note what was delivered: `store|WAY|open` or `store|WAY|over`."""
        if self._handle is None or not done:
            return
        ends = [(way, end) for _, way, end in [name.split("|") for name in done]]
        knowing = [way for way in self.read() if (way, "over") not in ends] + [
            way for way, end in ends if end == "open"
        ]
        os.ftruncate(self._handle, 0)
        os.pwrite(self._handle, json.dumps(knowing).encode() if knowing else b"", 0)

    def close(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
