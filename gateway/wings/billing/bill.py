"""The lines of a provider's bill, in one form for all providers. Pure."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from .generations import GenerationCost, NotedCall, ReadCall
from .invoice import whole_nusd

CLASSES = ("input", "cached_input", "output", "other")
"""Tokens and money are counted by these. `input` has no tokens out of a cache; those that were written to
one are in it, because the records do not count them apart. `other` is money for anything else, such as searches."""

NOTHING = (0, 0, 0, 0)
STANDARD = "standard"

Numbers = tuple[int, int, int, int]
"""One number for each of `CLASSES`."""


class BillFault(Exception):
    """A bill cannot be read; the text has the reason and a remedy, and no secret."""


class BillLine(NamedTuple):
    """One line of a bill. Providers state usage and money in lines apart, so either may be 0."""

    day: str
    model: str
    key: str = ""
    """The provider's id of the API key; empty: unknown."""
    project: str = ""
    tier: str = STANDARD
    requests: int = 0
    tokens: Numbers = NOTHING
    nusd: Numbers = NOTHING
    """Money in billionths of a US dollar."""
    rounding_nusd: int = 0
    """Rounding may have changed the money by this at most, up or down."""


Service = Literal["storage_bytes", "sessions"]
"""Usage of an account that is no call and has no model: bytes in vector stores, sessions of the code interpreter."""


class ServiceUse(NamedTuple):
    """Usage of a day and project without a price: what it cost is in a line of its own."""

    day: str
    service: Service
    project: str
    number: int


class Side(NamedTuple):
    """The sum of the lines of one day and model."""

    requests: int = 0
    tokens: Numbers = NOTHING
    nusd: Numbers = NOTHING
    rounding_nusd: int = 0
    special_tokens: int = 0
    """Tokens of another tier than the standard one."""

    def plus(self, line: BillLine | Side) -> Side:
        special = line.special_tokens if isinstance(line, Side) else 0 if line.tier == STANDARD else sum(line.tokens)
        return Side(
            self.requests + line.requests,
            _added(self.tokens, line.tokens),
            _added(self.nusd, line.nusd),
            self.rounding_nusd + line.rounding_nusd,
            self.special_tokens + special,
        )


class Billed(NamedTuple):
    """One day and model of a bill: what was used with the keys of the gateway, and with other keys of the account."""

    ours: Side = Side()
    others: Side = Side()

    def plus(self, other: Billed) -> Billed:
        return Billed(self.ours.plus(other.ours), self.others.plus(other.others))


class Account(NamedTuple):
    """A provider's statement of the account: the rest of a prepaid balance, or the limit of a month."""

    left_usd: float | None = None
    limit_usd: float | None = None


class Bill(NamedTuple):
    """A bill as it was read at a Unix time."""

    read_at: float
    since: str
    """Its first day; it has each day from there to the day of its reading, also those without a line."""
    rows: dict[tuple[str, str], Billed]
    """Both sides of each day (UTC) and model, by the name that the provider has for it."""
    account: Account = Account()
    calls: tuple[ReadCall, ...] = ()
    """Single calls that were read, of a provider that has them."""
    services: Mapping[tuple[str, Service], int] = MappingProxyType({})
    """Usage of each day that is no call."""


def summed(
    lines: Iterable[BillLine], keys: Collection[str], projects: Collection[str]
) -> dict[tuple[str, str], Billed]:
    """The lines by day and model. `keys` and `projects` are the gateway's own; where there are none, all are."""
    found: defaultdict[tuple[str, str], Billed] = defaultdict(Billed)
    for line in lines:
        is_ours = not (_is_foreign(line.key, keys) or _is_foreign(line.project, projects))
        ours, others = found[line.day, line.model]
        found[line.day, line.model] = Billed(ours.plus(line), others) if is_ours else Billed(ours, others.plus(line))
    return {name: billed for name, billed in found.items() if any(map(_has_any, billed))}


def summed_services(uses: Iterable[ServiceUse], projects: Collection[str]) -> dict[tuple[str, Service], int]:
    """The usage by day and service, of the gateway's own projects."""
    found: defaultdict[tuple[str, Service], int] = defaultdict(int)
    for use in uses:
        if use.number and not _is_foreign(use.project, projects):
            found[use.day, use.service] += use.number
    return dict(found)


def _is_foreign(name: str, own: Collection[str]) -> bool:
    """Whether a key or project is another one than the gateway's; an unknown one may be its own."""
    return bool(own) and bool(name) and name not in own


def _has_any(side: Side) -> bool:
    return side != Side()


def _added(some: Numbers, more: Numbers) -> Numbers:
    return some[0] + more[0], some[1] + more[1], some[2] + more[2], some[3] + more[3]


def money_of(kind: str, usd: Decimal) -> tuple[Numbers, int]:
    """An amount of one of `CLASSES` in billionths of a US dollar, and half of its last place, by which it may have been
    rounded: at most half a cent, because JSON has no zeros at the end."""
    exponent = usd.as_tuple().exponent
    half = whole_nusd(Decimal(5).scaleb(min(exponent, -2) - 1)) if usd and isinstance(exponent, int) else 0
    return place(kind, whole_nusd(usd)), half


def check_currency(currency: str) -> None:
    """Raises `BillFault` for another one than US dollars."""
    if currency.lower() != "usd":
        raise BillFault(f"its costs are in {currency[:40]!r}, and only US dollars can be compared")


def place(kind: str, number: int) -> Numbers:
    """Numbers that are 0 but for one of `CLASSES`."""
    return tuple(number if kind == name else 0 for name in CLASSES)  # type: ignore[return-value]


# ------------------------------------------------------------------------------------- as text of one line


def written(bill: Bill) -> str:
    """The bill as JSON without a line end, in which one worker posts it for the others."""
    rows = [[*name, *map(list, billed)] for name, billed in bill.rows.items()]
    services = [[*name, number] for name, number in bill.services.items()]
    return json.dumps([bill.read_at, bill.since, rows, list(bill.account), bill.calls, services], separators=(",", ":"))


def read(text: str) -> Bill:
    """A bill that `written` made; one of another version, with more or fewer fields, raises ValueError or TypeError."""
    read_at, since, rows, account, calls, services = json.loads(text)
    return Bill(
        read_at, since,
        {(day, model): Billed(_side(ours), _side(others)) for day, model, ours, others in rows},
        Account(*account),
        tuple([ReadCall(NotedCall(*one), GenerationCost(*other)) for one, other in calls]),
        {(day, service): number for day, service, number in services},
    )  # fmt: skip


def _side(fields: list[Any]) -> Side:
    requests, tokens, nusd, rounding_nusd, special = fields
    return Side(requests, tuple(tokens), tuple(nusd), rounding_nusd, special)
