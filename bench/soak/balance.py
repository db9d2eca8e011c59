"""Compares what clients, upstreams and the gateway recorded.

The gateway's records, daily sums, quotas and metrics must agree; a call that a client saw answered is recorded as
answered, and every answer of an upstream is charged. A call of a killed worker is lost and charged its estimate.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from tests.flows.books import check_sums, day_of, sums_of
from tests.flows.gateway_process import Gateway

from .observed import LIMIT, ObservedCall

CUT_WITHIN_S = 15.0
"""Seconds after a kill: a slow client reads buffered data before it notices."""
LOST_COUNTS = 40
"""Calls that a killed worker may have had under way: the permitted difference of metrics and records per kill."""
FEWEST_SERVED = 0.5
"""Minimum share of valid calls that are served; a gateway that refuses all calls would have equal sums, too."""
GOOD = ("plain", "stream", "long", "embeddings", "sdk", "sdk_stream")

Record = Mapping[str, Any]


def differences(
    gateway: Gateway,
    received: Sequence[ObservedCall],
    sold: Counter[int],
    kills: Sequence[float],
    records: Sequence[Record],
    dying: Collection[int] = (),
) -> Iterator[str]:
    """One sentence per difference. No call may be under way.

    `sold`: answers that upstreams began, by call. `kills`: times at which calls may have been cut. `dying`: calls
    that were under way when an upstream was killed.
    """
    by_number: dict[int, Record] = {}
    for record in records:
        number = int(record["client_request_id"].removeprefix("client-"))
        if number in by_number:
            yield f"call {number} is recorded twice"
        by_number[number] = record
    calls = {call.number: call for call in received}
    for number in sorted((by_number.keys() | sold) - calls.keys()):
        yield f"call {number} is known, and nobody has made it"
    for call in received:
        if fault := wrong(call, by_number.get(call.number), is_sold=call.number in sold):
            yield f"{fault}: {call}, recorded as {by_number.get(call.number)}"
        # A killed upstream's reset within the first second looks like that of a connection that it had closed before.
        answers = min(1, sold[call.number]) if call.number in dying else sold[call.number]
        short = below_bill(call, by_number.get(call.number), answers)
        if short and not may_be_below_bill(call, by_number[call.number]):
            yield f"{short} tokens below the upstream's bill: {call}, recorded as {by_number.get(call.number)}"
        if call.is_cut and not any(0 <= call.ended - kill < CUT_WITHIN_S for kill in kills):
            yield f"cut, though nobody was killed: {call}"
    try:
        check_sums(gateway, records)
    except AssertionError as error:
        yield str(error)
    yield from _wrong_windows(gateway, records)
    good = [call for call in received if call.kind in GOOD]
    if sum(call.is_served for call in good) < FEWEST_SERVED * len(good):
        yield f"of {len(good)} good calls {sum(call.is_served for call in good)} were served"


def wrong(call: ObservedCall, record: Record | None, *, is_sold: bool) -> str:
    """The error of one call; empty if it is right."""
    if record is None:
        return "no record" if is_sold or call.is_served else ""
    ended, tokens = record["ended"], (record["prompt_tokens"], record["completion_tokens"])
    truth, most = call.truth[1:], 0 if call.endpoint == "embeddings" else LIMIT
    if record["key"] != call.who or (call.id and record["id"] != call.id):
        return "somebody else's record"
    if ended == "lost":
        is_right = tokens[1] == most and record["status"] == 0 and not (call.is_served or call.code)
    elif ended == "done":
        is_right = is_sold and tokens == truth and (call.is_served or call.has_left or call.is_cut)
    elif ended == "client_gone":
        is_right = call.has_left or call.is_cut
    else:
        is_right = not call.is_served and (call.has_left or call.is_cut or bool(call.code))
        if call.status != 200 and call.code:
            is_free = record["usage_source"] == "none"
            is_right = is_right and record["status"] == call.status and is_free == (tokens == (0, 0))
    if ended != "lost" and record["usage_source"] == "reported":
        is_right = is_right and tokens == truth
    return "" if is_right and tokens[1] <= most * max(1, record["attempts"]) else f"not so ({ended})"


def below_bill(call: ObservedCall, record: Record | None, answers: int) -> int:
    """Tokens by which the charge is below the bill of an upstream that bills every begun answer as a whole."""
    if record is None:
        return 0
    billed = answers * sum(call.truth[1:])
    return max(0, billed - record["prompt_tokens"] - record["completion_tokens"])


def may_be_below_bill(call: ObservedCall, record: Record) -> bool:
    """Unknown to the gateway: output after the last event of a stream that was cut or stopped, and the number of
    attempts of a killed worker (docs/guarantees.md)."""
    return record["ended"] == "lost" or (call.is_stream and record["ended"] != "done")


def bill_of(received: Sequence[ObservedCall], sold: Counter[int], records: Sequence[Record]) -> str:
    """The upstreams' bill beside the charge, as a sentence."""
    by_number = {int(record["client_request_id"].removeprefix("client-")): record for record in records}
    billed = sum(sold[call.number] * sum(call.truth[1:]) for call in received)
    charged = sum(record["prompt_tokens"] + record["completion_tokens"] for record in records)
    short = [below_bill(call, by_number.get(call.number), sold[call.number]) for call in received]
    return (
        f"billed {billed} tokens, charged {charged}; {sum(map(bool, short))} calls that were cut or stopped are "
        f"{sum(short)} tokens below their bill ({100 * sum(short) / max(1, billed):.2f} % of it)"
    )


def _wrong_windows(gateway: Gateway, records: Sequence[Record]) -> Iterator[str]:
    """Windows of days and months have the use of their calls; nothing is reserved. No call may be under way."""
    today = day_of({"time": time.time()})
    for row in gateway.admin("quotas").json["data"]:
        if row["reserved"]:
            yield f"still reserved: {row}"
        mine = [record for record in records if row["key"] in (None, record["key"])]
        if row["unit"] == "parallel":
            expected = 0
        elif row["per"] in ("day", "month"):
            length = 10 if row["per"] == "day" else 7
            name = {"tokens": "total_tokens", "usd": "cost_usd"}.get(row["unit"], row["unit"])
            expected = sum(sums_of(record)[name] for record in mine if day_of(record)[:length] == today[:length])
        else:
            continue  # rates refill
        used = round(row["used"] * 1e9) if row["unit"] == "usd" else row["used"]
        if used != expected:
            yield f"{len(mine)} records have used {expected}: {row}"
        if row["unit"] != "parallel" and row["used"] > row["limit"]:
            yield f"more than there was: {row}"


def wrong_metrics(
    gateway: Gateway, received: Sequence[ObservedCall], kills: int, records: Sequence[Record]
) -> Iterator[str]:
    """Metrics of the watched gateway that differ from its records. `kills`: its killed workers."""
    mine = {call.client_id for call in received if call.port == gateway.port}
    counted = gateway.metric("gateway_requests_total", status="200")
    recorded = sum(record["status"] == 200 for record in records if record["client_request_id"] in mine)
    if abs(counted - recorded) > kills * LOST_COUNTS:
        yield f"{counted:.0f} calls with status 200 in the metrics, {recorded} in the records"
    yield from unfinished(gateway)


def unfinished(gateway: Gateway) -> Iterator[str]:
    """Reservations and calls that should have ended."""
    for name in ("gateway_in_flight_requests", "gateway_journal_pending_records"):
        if left := gateway.metric(name):
            yield f"{name} is {left:.0f}"
