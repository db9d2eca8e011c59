"""A batch in the form of `apply.lua`, and its answer in the form of the ledger.

Values that many items share (windows, groups) are sent to Redis once, and the parts of an item that the script reads
are as short as possible; the entry itself is only stored. This saves Redis most of the parsing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from json.encoder import encode_basestring_ascii as quote
from typing import NamedTuple

from gateway.quota import windows as limits
from gateway.quota.ledger_entry import SEPARATOR, SUMS, attributions_of, group_of, sums_of
from gateway.quota.measures import measures_of
from gateway.records import Claim, Granted, Record, Refused, WindowState, WindowStatus
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

_SUMS = ",".join(["%d"] * len(SUMS))


_Shape = tuple[int, int, bool]
"""Limit of a window, its period in microseconds, and whether it is enforced."""


class EncodedBatch(NamedTuple):
    items: str
    """The end of the script's first argument."""
    texts: list[str]
    """The script's other arguments: the text of each item, empty if the item has none."""
    places: list[list[int]]
    """The places of each draw's windows in the answer."""


NOTHING = EncodedBatch("[],[],[],0,[],[],[],[],[]]", [], [])


def encode_items(items: Sequence[Item]) -> EncodedBatch:
    windows, groups, fields = _Windows(items), _Groups(), dict[str, int]()
    encoded = [""] * len(items)
    texts = [""] * len(items)
    measured, attributed = ["0"] * len(items), ["[]"] * len(items)
    drawn: list[list[int]] = []
    for i, item in enumerate(items):
        if isinstance(item, Reserve):
            record, claims = item.record, item.claims
            places = windows.places(claims)
            drawn.append(places)
            amounts = "".join([f",{place},{claim[1]}" for place, claim in zip(places, claims, strict=True)])
            encoded[i] = f'["{"f" if item.is_forced else "o"}",{quote(record.id)}{amounts}]'
            texts[i] = item.text
        elif isinstance(item, RateDraw):
            drawn.append(places := windows.places(item.claims))
            amounts = "".join([f",{place},{claim[1]}" for place, claim in zip(places, item.claims, strict=True)])
            encoded[i] = f'["r",""{amounts}]'
        elif isinstance(item, Settle):
            record, claims = item.record, item.claims
            charges = "".join([
                f",{place},{amount},{actual}"
                for place, (_, amount), actual in zip(
                    windows.places(claims), claims, limits.charges(record, claims), strict=True
                )
            ])  # fmt: skip
            encoded[i] = (
                f'["c",{quote(record.id)},{item.number},{int(record.time * 1e6)},{groups.place(record)},'
                f"{_SUMS % sums_of(record)}{charges}]"
            )
            texts[i] = item.text.partition("\t")[2]
            measured[i] = _measured(record, fields)
            if record.user or record.tags:
                attributed[i] = _attributed(record, fields)
        elif isinstance(item, Defer):
            record, claims = item.record, item.claims
            places = windows.places(claims)
            amounts = "".join([f",{place},{claim[1]}" for place, claim in zip(places, claims, strict=True)])
            encoded[i] = f'["d",{quote(record.id)},{item.number},{quote(heir_of(record.id))}{amounts}]'
            texts[i] = item.whole_text
        else:
            encoded[i] = f'["v",{quote(item.lease)},{item.number}]'
    text = (
        f"{windows.encode()},{int(bool(drawn))},[{','.join(groups.encoded)}],[{','.join(encoded)}],"
        f"[{','.join(map(quote, fields))}],[{','.join(measured)}],[{','.join(attributed)}]]"
    )
    return EncodedBatch(text, texts, drawn)


def _measured(record: Record, fields: dict[str, int]) -> str:
    """The measurements of a call: the places of fields, counted from 1, each with one counter."""
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
    """The windows of a batch by the hashes that hold them, and their places, counted from 1 over all hashes."""

    def __init__(self, items: Sequence[Item]) -> None:
        self._by_object: dict[int, int] = {}
        hashes: dict[str, dict[tuple[str, _Shape], list[int]]] = {}
        for item in items:
            for window, _ in () if isinstance(item, Void) else item.claims:
                # Most claims share their windows' very objects, which are faster to compare than all that is in them.
                name = id(window)
                if name not in self._by_object:
                    self._by_object[name] = 0
                    shape = window.limit, window.period_us, window.is_enforced
                    hashes.setdefault(window.starts, {}).setdefault((window.id, shape), []).append(name)
        self._hashes = hashes
        place = 0
        for placed in hashes.values():
            for names in placed.values():
                place += 1
                for name in names:
                    self._by_object[name] = place

    def places(self, claims: Sequence[Claim]) -> list[int]:
        known = self._by_object
        return [known[id(window)] for window, _ in claims]

    def encode(self) -> str:
        """The hashes, their shapes, and the windows that are an earlier one with another shape."""
        shapes: dict[_Shape, int] = {}
        first: dict[str, int] = {}
        hashes, same, place = [], [], 0
        for starts, placed in self._hashes.items():
            ids, of = [], []
            for name, shape in placed:
                place += 1
                ids.append(quote(name))
                of.append(str(shapes.setdefault(shape, len(shapes) + 1)))
                if (earlier := first.setdefault(name, place)) != place:
                    same += [str(place), str(earlier)]
            hashes.append(f'["{starts}",[{",".join(ids)}],[{",".join(of)}]]')
        encoded = ",".join([f"[{limit},{period_us},{int(is_enforced)}]" for limit, period_us, is_enforced in shapes])
        return f"[{','.join(hashes)}],[{encoded}],[{','.join(same)}]"


class _Groups:
    """The days, hours and groups in whose sums the calls of a batch count, as `_Windows`."""

    def __init__(self) -> None:
        self.encoded: list[str] = []
        self._known: dict[tuple[str, ...], int] = {}

    def place(self, record: Record) -> int:
        hour, *names = group = group_of(record)
        place = self._known.get(group)
        if place is None:
            self.encoded.append(f'["{hour[:10]}",{quote(SEPARATOR.join(names))},"{hour}"]')
            place = self._known[group] = len(self.encoded)
        return place


def read_answer(batch: Batch, drawn: Sequence[Sequence[int]], answer: str) -> Applied:
    """The result of the batch. Raises `StoreLostWrites`, or `StoreUnavailable` for a late copy."""
    first, *lines = answer.split("\n")
    kind, *numbers = first.split()
    if kind == "b":
        raise StoreLostWrites(Progress(*map(int, numbers)))
    if kind == "l":
        raise StoreUnavailable("a later batch of this worker was applied before")
    now_us, lost = map(int, numbers)
    letters, granted, refusals = lines
    verdicts: list[Granted | Refused | None] = [None] * len(batch.items)
    if drawn:
        states, then = list(_read_states(granted)), _read_states(refusals)
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


def moment_us_of(answer: str) -> int:
    """When the server applied the batch of such an answer."""
    return int(answer.split(" ", 2)[1])


def _read_states(text: str) -> Iterator[WindowState]:
    numbers = iter(map(int, text.split()))
    return map(WindowState, numbers, numbers, numbers)


def _grant(
    claims: Sequence[Claim], places: Sequence[int], states: Sequence[WindowState], known: dict[int, WindowStatus],
    now_us: int,
) -> Granted:  # fmt: skip
    """A window that many reservations share is reported once."""
    statuses = []
    for place, claim in zip(places, claims, strict=True):
        status = known.get(place)
        if status is None:
            status = known[place] = limits.window_status(claim.window, states[place - 1], now_us)
        statuses.append(status)
    return Granted(tuple(statuses))


def _refusal(claims: Sequence[Claim], then: Iterator[WindowState], now_us: int) -> Refused:
    """The refusal in the words of `limits`, from the windows as the script has found them."""
    refused = limits.refusal([(claim, next(then)) for claim in claims], now_us)
    assert refused is not None, "the script has refused what limits.shortage would grant"
    return refused


def header(
    seq: int, acked: int, offset_us: int, voided_at_once: int = 0, *, is_forgotten: bool = False,
    reopened_at_once: int = 0,
) -> str:  # fmt: skip
    return f"[{seq},{acked},{offset_us},{voided_at_once},{int(is_forgotten)},{reopened_at_once},"
