"""A batch in the form of `apply.lua`, and its answer in the form of the ledger.

Values that many items share (windows, groups) are sent to Redis once, and the parts of an item that the script reads
are as short as possible; the entry itself is only stored. This saves Redis, which all gateways share, most of the
parsing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from json.encoder import encode_basestring_ascii as quote
from typing import NamedTuple

from gateway.quota import windows as limits
from gateway.quota.ledger_entry import SEPARATOR, SUMS, attributions_of, encode_window, group_of, sums_of
from gateway.quota.measures import measures_of
from gateway.records import Claim, Granted, Record, Refused, Window, WindowState, WindowStatus
from gateway.store import (
    Applied,
    Batch,
    Defer,
    Item,
    Progress,
    RateDraw,
    Reserve,
    Settle,
    StoreLostWrites,
    StoreUnavailable,
    Void,
    heir_of,
)

NOTHING = "[[],0,[],[],[],[],[]]"
"""The script's second argument where there are no items."""

_SUMS = ",".join(["%d"] * len(SUMS))


class Spelt(NamedTuple):
    """A batch's items in the form of the script."""

    arguments: list[str]
    """From the second on."""
    windows: list[list[int]]
    """For each draw, the places of its windows in the answer."""


def spell_items(items: Sequence[Item]) -> Spelt:
    """The items as the script takes them."""
    windows, groups, fields = _Windows(), _Groups(), dict[str, int]()
    spelt = [""] * len(items)
    texts = [""] * len(items)
    measured, attributed = ["0"] * len(items), ["[]"] * len(items)
    drawn: list[list[int]] = []
    # Reservations first, so that their windows, which the answer reports, have the first numbers.
    for i, item in enumerate(items):
        if isinstance(item, Reserve):
            record, claims = item.record, item.claims
            places = windows.places(claims)
            drawn.append(places)
            amounts = "".join([f",{place},{claim[1]}" for place, claim in zip(places, claims, strict=True)])
            spelt[i] = f'["{"f" if item.is_forced else "o"}",{quote(record.id)}{amounts}]'
            texts[i] = item.text
        elif isinstance(item, RateDraw):
            drawn.append(places := windows.places(item.claims))
            amounts = "".join([f",{place},{claim[1]}" for place, claim in zip(places, item.claims, strict=True)])
            spelt[i] = f'["r",""{amounts}]'
    shown = len(windows.spelt)
    for i, item in enumerate(items):
        if isinstance(item, Settle):
            record, claims = item.record, item.claims
            charges = "".join([
                f",{place},{amount},{actual}"
                for place, (_, amount), actual in zip(
                    windows.places(claims), claims, limits.charges(record, claims), strict=True
                )
            ])  # fmt: skip
            spelt[i] = (
                f'["c",{quote(record.id)},{item.number},{int(record.time * 1e6)},{groups.place(record)},'
                f"{_SUMS % sums_of(record)}{charges}]"
            )
            texts[i] = item.text.partition("\t")[2]
            measured[i] = _measured(record, fields)
            if record.user or record.tags:
                attributed[i] = _attributed(record, fields)
        elif isinstance(item, Defer):
            record, claims = item.record, item.claims
            amounts = "".join(
                [f",{place},{claim[1]}" for place, claim in zip(windows.places(claims), claims, strict=True)]
            )
            spelt[i] = f'["d",{quote(record.id)},{item.number},{quote(heir_of(record.id))}{amounts}]'
            texts[i] = item.whole_text
        elif isinstance(item, Void):
            spelt[i] = f'["v",{quote(item.lease)},{item.number}]'
    first = (
        f"[[{','.join(windows.spelt)}],{shown},[{','.join(groups.spelt)}],[{','.join(spelt)}],"
        f"[{','.join(map(quote, fields))}],[{','.join(measured)}],[{','.join(attributed)}]]"
    )
    return Spelt([first, *texts], drawn)


def _measured(record: Record, fields: dict[str, int]) -> str:
    """What was measured of a call: the places of fields, counted from 1, each with one counter."""
    found: list[int] = []
    for upstream, counter in measures_of(record):
        place = fields.setdefault(record.label_model + SEPARATOR + upstream, len(fields) + 1)
        found += (place, counter)
    return str(found)


def _attributed(record: Record, fields: dict[str, int]) -> str:
    """The places of the groups by user and tag in which a call counts."""
    return str([
        fields.setdefault(
            SEPARATOR.join((record.key, record.team or "", record.label_model, name, value)), len(fields) + 1
        )
        for name, value in attributions_of(record)
    ])  # fmt: skip


class _Windows:
    """The windows of a batch, each formatted once, and their places, counted from 1."""

    def __init__(self) -> None:
        self.spelt: list[str] = []
        self._by_object: dict[int, int] = {}
        self._by_value: dict[tuple[str, int, int, bool], int] = {}

    def places(self, claims: Sequence[Claim]) -> list[int]:
        # Most claims share their windows' very objects, which are faster to compare than all that is in them.
        known = self._by_object
        return [known.get(id(window)) or self._place(window) for window, _ in claims]

    def _place(self, window: Window) -> int:
        value = window.id, window.limit, window.period_us, window.is_enforced
        place = self._by_value.get(value)
        if place is None:
            self.spelt.append(f"{encode_window(window)}]")
            place = self._by_value[value] = len(self.spelt)
        self._by_object[id(window)] = place
        return place


class _Groups:
    """The days, hours and groups in whose sums the calls of a batch count, as `_Windows`."""

    def __init__(self) -> None:
        self.spelt: list[str] = []
        self._known: dict[tuple[str, ...], int] = {}

    def place(self, record: Record) -> int:
        hour, *names = group = group_of(record)
        place = self._known.get(group)
        if place is None:
            self.spelt.append(f'["{hour[:10]}",{quote(SEPARATOR.join(names))},"{hour}"]')
            place = self._known[group] = len(self.spelt)
        return place


def read_answer(batch: Batch, drawn: Sequence[Sequence[int]], answer: str) -> Applied:
    """What became of the batch. Raises `StoreLostWrites`, or `StoreUnavailable` for a late copy."""
    first, *lines = answer.split("\n")
    kind, *numbers = first.split()
    if kind == "b":
        raise StoreLostWrites(Progress(*map(int, numbers)))
    if kind == "l":
        raise StoreUnavailable("a later batch of this worker was applied before")
    now_us, lost = map(int, numbers)
    letters, stand, refusals = lines
    verdicts: list[Granted | Refused | None] = [None] * len(batch.items)
    if drawn:
        states, then = list(_read_states(stand)), _read_states(refusals)
        known: dict[int, WindowStatus] = {}
        places = iter(drawn)
        for i, item in enumerate(batch.items):
            if isinstance(item, Reserve | RateDraw):
                of_draw = next(places)
                if letters[i] == "g":
                    verdicts[i] = _grant(item.claims, of_draw, states, known, now_us)
                else:
                    verdicts[i] = _refusal(item.claims[item.held :], then, now_us)
    return Applied(verdicts, lost)


def _read_states(text: str) -> Iterator[WindowState]:
    numbers = iter(map(int, text.split()))
    return map(WindowState, numbers, numbers, numbers)


def _grant(
    claims: Sequence[Claim],
    places: Sequence[int],
    states: Sequence[WindowState],
    known: dict[int, WindowStatus],
    now_us: int,
) -> Granted:
    """A window that many reservations share is reported once."""
    standings = []
    for place, claim in zip(places, claims, strict=True):
        standing = known.get(place)
        if standing is None:
            standing = known[place] = limits.standing(claim.window, states[place - 1], now_us)
        standings.append(standing)
    return Granted(tuple(standings))


def _refusal(claims: Sequence[Claim], then: Iterator[WindowState], now_us: int) -> Refused:
    """The refusal in the words of `limits`, from the windows as the script has found them."""
    refused = limits.refusal([(claim, next(then)) for claim in claims], now_us)
    assert refused is not None, "the script has refused what limits.shortage would grant"
    return refused


def header(
    base: str, worker: str, seq: int, acked: int, silent_us: int, max_gap_us: int, reaped_at_once: int,
    records_max: int, sums_s: int, offset_us: int, voided_at_once: int, is_forgotten: bool,
    reopened_at_once: int,
) -> str:  # fmt: skip
    """The script's first argument."""
    return (
        f"[{quote(base)},{quote(worker)},{seq},{acked},{silent_us},{max_gap_us},{reaped_at_once},{records_max},{sums_s},"
        f"{offset_us},{voided_at_once},{int(is_forgotten)},{reopened_at_once}]"
    )
