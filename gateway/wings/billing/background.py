"""The reader of bills: one worker of all gateways on the store reads each bill, shows its differences as metrics and
posts it for the others."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from gateway.accounting.changed_windows import ChangedWindows
from gateway.config.sections.values import DAY_S
from gateway.keys.registry import Registry
from gateway.observe.metrics import Telemetry
from gateway.pipeline import Services
from gateway.quota.pricing import usd
from gateway.store import StoreUnavailable
from gateway.tasks import Tasks
from gateway.web.background import WingWork

from .account import read_bill
from .bill import Bill, BillFault
from .explain import CAUSES, total
from .findings import HOLDER, PLACE, finding_of, unread, written
from .generations import GenerationNotes
from .metrics import DIFFERENCE, LEFT, READINGS
from .posted import newest, post
from .recorded import ComparedBill, compared
from .settings import BillingSettings
from .singles import Singles, post_noted, still_of

log = logging.getLogger("gateway")

CLAIM = "billing"
HELD_S = 180.0
"""A worker that ends is followed by another one after so long."""
ASK_EVERY_S = 60.0
KEPT_READINGS = 48
"""A post is kept for this number of readings that fail."""


class BillingWork:
    """The reader of one worker."""

    def __init__(self, parts: Services, _: ChangedWindows, __: Registry) -> None:
        self._parts = parts
        self._settings = parts.config.section(BillingSettings)
        self._holder = uuid.uuid4().hex
        self._read_at = -self._settings.every
        self._logged: dict[str, str] = {}
        """The fault or difference of each upstream that was logged last, so that each is logged once."""
        self._notes = parts.accounting.of_wing(GenerationNotes)
        self._singles = Singles(parts.accounting.ledger)
        self._tasks = Tasks()
        if self._settings.upstreams:
            self._tasks.keep(self._run, "read-bills")

    async def close(self) -> None:
        await self._tasks.cancel_all()
        try:
            await self._post_noted()
        except StoreUnavailable:
            pass  # a bill explains less

    async def _run(self) -> None:
        ledger, loop = self._parts.accounting.ledger, asyncio.get_running_loop()
        try:
            while True:
                try:
                    await self._post_noted()
                    locked = await ledger.claim(self._holder, {CLAIM: HELD_S})
                    if locked[CLAIM] == 0 and loop.time() - self._read_at >= self._settings.every:
                        self._read_at = loop.time()
                        await self._read_all()
                except StoreUnavailable as error:
                    log.warning("the bills of providers cannot be kept: %s", error)
                await asyncio.sleep(ASK_EVERY_S)
        finally:
            await _release(self._parts, self._holder)

    async def _post_noted(self) -> None:
        """Post the calls that were noted for single questions. Raises `StoreUnavailable`."""
        parts = self._parts
        for_s, today = self._settings.days * DAY_S, datetime.fromtimestamp(parts.clock.now(), UTC).date().isoformat()
        await post_noted(parts.accounting.ledger, self._notes, self._holder, today, for_s)

    async def _read_all(self) -> None:
        """Read each bill once, and single calls where it differs. Raises `StoreUnavailable`."""
        parts, settings = self._parts, self._settings
        known = await newest(parts.accounting.ledger, settings.upstreams)
        found: dict[str, Bill] = {}
        faults: dict[str, str | None] = {}
        for name in [each for each in settings.upstreams if each in parts.config.upstreams]:  # `check` warns of others
            bill, faults[name] = await self._read(name)
            before = known[name][0]
            if kept := still_of(bill, before) if bill else before:
                found[name] = kept
            await post(parts.accounting.ledger, name, kept, faults[name], KEPT_READINGS * settings.every)
        both = await compared(parts.reports, found, settings, parts.config.models)
        if more := await self._read_singles(both, faults):
            found |= more
            both = await compared(parts.reports, found, settings, parts.config.models)
        for each in both:
            show(parts.accounting.telemetry, each)
            self._log_difference(each)
        findings = [finding_of(each, faults[each.upstream], float(settings.alert_above)) for each in both]
        findings += [unread(name, fault) for name, fault in faults.items() if name not in found]
        for_s = KEPT_READINGS * settings.every
        await parts.accounting.ledger.exchange(PLACE, HOLDER, written(findings), for_s)

    async def _read_singles(self, both: Sequence[ComparedBill], faults: Mapping[str, str | None]) -> dict[str, Bill]:
        """The bills of which single calls were read. Raises `StoreUnavailable`."""
        parts, settings, found = self._parts, self._settings, dict[str, Bill]()
        for each in both:
            name = each.upstream
            bill, failed = await self._singles.read(each, settings.upstreams[name], parts.config.upstreams[name])
            if failed is not None:
                log.info("not all single calls of %s were read: %s", name, failed)
            if bill is not None:
                found[name] = bill
                await post(parts.accounting.ledger, name, bill, faults[name], KEPT_READINGS * settings.every)
        return found

    async def _read(self, name: str) -> tuple[Bill | None, str | None]:
        parts, settings = self._parts, self._settings
        try:
            bill = await read_bill(
                settings.upstreams[name], parts.config.upstreams[name], parts.clock.now(), settings.days
            )
        except BillFault as error:
            parts.accounting.telemetry.count(READINGS, name, "failed")
            self._log_once(name, f"the bill of {name} cannot be read: {error}")
            return None, str(error)
        parts.accounting.telemetry.count(READINGS, name, "read")
        return bill, None

    def _log_difference(self, each: ComparedBill) -> None:
        unexplained = usd(total(each.rows).get("unexplained", 0))
        if abs(unexplained) <= self._settings.alert_above:
            self._logged.pop(each.upstream, None)
            return
        way = "more" if unexplained > 0 else "less"
        text = f"the bill of {each.upstream} has ${abs(unexplained):,.2f} {way} than the records, unexplained"
        self._log_once(each.upstream, f"{text}; `gateway bill` has the days and models")

    def _log_once(self, name: str, text: str) -> None:
        if self._logged.get(name) != text:
            self._logged[name] = text
            log.warning("%s", text)


async def _release(parts: Services, holder: str) -> None:
    try:
        await parts.accounting.ledger.claim(holder, {CLAIM: 0})
    except StoreUnavailable:
        pass  # it ends by itself


def show(telemetry: Telemetry, each: ComparedBill) -> None:
    """Set the metrics of one upstream; a cause that has gone is 0."""
    causes = total(each.rows)
    for cause in CAUSES:
        telemetry.show(DIFFERENCE, usd(causes.get(cause, 0)), each.upstream, cause)
    if each.bill.account.left_usd is not None:
        telemetry.show(LEFT, each.bill.account.left_usd, each.upstream)


WORK = WingWork("billing", BillingSettings, BillingWork)
