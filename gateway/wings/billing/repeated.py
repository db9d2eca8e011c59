"""Attempts that failed here, behind which an upstream may have generated and billed, and whose calls went on with
another attempt: what is unexplained of a bill may be theirs, as far as they can have cost it.

It is a guess, so it is the last rule: it takes at most what all other rules have left of a difference upwards, at most
what such attempts can have cost, and of a bill with numbers of requests at most as many as it has above the records.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from fractions import Fraction
from math import isqrt
from typing import Any, NamedTuple

from gateway.records import Fault
from gateway.store import ReportReader
from gateway.store.call_filter import CallFilter

from .bill import Side
from .compare import Name, RecordedUsage
from .explain import Explained, mean, move, prices

MAY_HAVE_GENERATED = frozenset({
    Fault.STATUS.value, Fault.TIMEOUT.value, Fault.CUT.value, Fault.IN_BAND.value, Fault.NOT_JSON.value,
    Fault.TOO_LARGE.value, Fault.ENCODING.value, Fault.UNFIT.value, Fault.PROTOCOL.value, "hedged",
})  # fmt: skip
"""Faults of attempts whose request was sent and may have been carried out, in the words of `Record.failed`."""

MOST_CALLS = 5_000
"""The newest calls with such attempts that are read."""
PAGE = 1_000


class FailedAttempts(NamedTuple):
    """The attempts of one day and model that may have been billed, with the tokens of the calls they were for."""

    number: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def plus(self, other: FailedAttempts) -> FailedAttempts:
        return FailedAttempts(*map(int.__add__, self, other))


async def attempts_at(
    store: ReportReader, upstream: str, days: Iterable[str], routes: Mapping[tuple[str, str], str]
) -> dict[Name, FailedAttempts]:
    """Those at this upstream, by day and its name of the model. `routes`: the model name of a route, by model and
    upstream. Raises `StoreUnavailable`."""
    some = sorted(days)
    end = date.fromisoformat(some[-1]) + timedelta(days=1)
    wanted = CallFilter(failed_at=upstream, since=_time(date.fromisoformat(some[0])), until=_time(end))
    found: defaultdict[Name, FailedAttempts] = defaultdict(FailedAttempts)
    position: str | None = None
    for _ in range(MOST_CALLS // PAGE):
        calls = await store.calls(PAGE, before=position, wanted=wanted)
        for call in calls:
            name = _day(call["time"]), _model(call, upstream, routes)
            for attempt in _attempts(call, upstream):
                found[name] = found[name].plus(attempt)
        if len(calls) < PAGE:
            break
        position = calls[-1]["position"]
    return dict(found)


def _attempts(call: Mapping[str, Any], upstream: str) -> Iterator[FailedAttempts]:
    """Those of one call. The last one of a call that failed was not repeated: the call itself counts as failed."""
    failed = call["failed"].split(" ")
    usage = call["usage"]
    for each in failed[:-1] if call["ended"] == "error" else failed:
        name, _, fault = each.rpartition(":")
        if name == upstream and fault in MAY_HAVE_GENERATED:
            yield FailedAttempts(1, usage["prompt_tokens"], usage["completion_tokens"])


def _model(call: Mapping[str, Any], upstream: str, routes: Mapping[tuple[str, str], str]) -> str:
    if call["upstream"] == upstream:
        return str(call["returned_model"] or call["routed_model"])
    return routes.get((call["label_model"], upstream), call["label_model"])


def with_repeated(rows: Iterable[Explained], attempts: Mapping[Name, FailedAttempts]) -> list[Explained]:
    """The same with `repeated`, by what is unexplained of each row and can have been its attempts' cost."""
    found = []
    for row in rows:
        left = row.causes.get("unexplained", 0)
        failed = attempts.get((row.day, row.model))
        if left > 0 and failed is not None and row.billed is not None:
            extra = _extra(row.ours or RecordedUsage(), row.billed.ours, "not_arrived" in row.causes)
            causes = dict(row.causes)
            move(causes, "repeated", min(left, most_of(failed, row.billed.ours, extra)))
            found.append(row._replace(causes=causes))
        else:
            found.append(row)
    return found


def _extra(ours: RecordedUsage, side: Side, has_not_arrived: bool) -> int | None:
    """The requests that the bill has above the answered calls, and above those that did not arrive; None: it has no
    number of requests."""
    if not side.requests:
        return None
    extra = side.requests - (ours.requests - ours.errors)
    return max(0, extra - ours.errors if has_not_arrived else extra)


def most_of(failed: FailedAttempts, side: Side, extra: int | None) -> int:
    """The most that these attempts can have cost, at the prices of the bill: as much as the answers that their calls
    got in the end, and two roots of their number more, for another answer to the same prompt may be longer."""
    number = failed.number if extra is None else min(failed.number, extra)
    if number <= 0:
        return 0
    fresh, _, output = [mean(side) if price is None else price for price in prices(side)]
    each = (failed.prompt_tokens * fresh + failed.completion_tokens * output) / failed.number
    if not each and side.requests:
        each = Fraction(sum(side.nusd), side.requests)
    return round(each * (number + 2 * isqrt(number)))


def _day(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).date().isoformat()


def _time(day: date) -> float:
    return datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()
