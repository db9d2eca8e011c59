"""Comparison of the gateway's usage with a provider's export, by day and model.

The daily sums are kept by configured model. A provider bills by its own name, which is often a dated snapshot of the
requested model (`gpt-4o-2024-08-06` for `gpt-4o`). The names are matched in this order:

1. A call whose record is kept counts under the model name of the upstream's answer, else under the name that was sent
   to the upstream.
2. A call whose record is gone counts under the name of the model's route, else under its configured name.
3. Snapshots of one model have rows of their own if both sides have exactly the same snapshots. Otherwise they share one
   row under the name without the date; `names` lists them.

A provider counts the calls that it answered. So our failed calls (`errors`: refused by the gateway or the upstream, or
broken off) are not among our requests here; tokens that were charged for them are.

A difference is ours minus theirs; a percentage is of theirs. A row that one side lacks counts 0 there. A number that
the file does not have is unknown, and so is its difference.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol, Self, TypeVar

from gateway.config import Model, ModelTable

from .invoice import Tally

_DATE = r"20\d\d-?(?:0[1-9]|1[0-2])-?(?:0[1-9]|[12]\d|3[01])|(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])"
_SNAPSHOT = re.compile(rf"(.+)-(?:{_DATE})")

Name = tuple[str, str]
"""A day and a model."""


class RecordedUsage(NamedTuple):
    """Sums of the gateway: tokens; and numbers of requests, errors and requests without a price (`unpriced`)."""

    requests: int = 0
    errors: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    estimated_tokens: int = 0
    cost_nusd: int = 0
    """Cost of the requests with a known cost."""
    unpriced: int = 0
    """Number of requests whose cost is unknown."""

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Self:
        """A row of a usage report."""
        cost_nusd = round((row["cost_usd"] or 0) * 1e9)
        return cls(**{name: cost_nusd if name == "cost_nusd" else row[name] for name in cls._fields})

    def plus(self, other: RecordedUsage) -> RecordedUsage:
        return RecordedUsage(*map(int.__add__, self, other))

    def minus(self, other: RecordedUsage) -> RecordedUsage:
        return RecordedUsage(*[max(0, a - b) for a, b in zip(self, other, strict=True)])

    @property
    def tally(self) -> Tally:
        """Returns the usage in the terms of the provider, which does not count failed calls as requests."""
        return Tally(
            self.requests - self.errors, self.prompt_tokens, self.completion_tokens, self.cached_tokens,
            self.prompt_tokens + self.completion_tokens,
            None if self.unpriced == self.requests > 0 else self.cost_nusd,
        )  # fmt: skip


class _Summed(Protocol):
    def plus(self, other: Self, /) -> Self: ...


Entry = TypeVar("Entry", bound=_Summed)


class Pair(NamedTuple):
    """A day and model on both sides; None: this side does not have it."""

    day: str
    model: str
    names: tuple[str, ...]
    """The names that share this row, if they are more than the model's own."""
    ours: RecordedUsage | None
    theirs: Tally | None


def by_upstream_name(
    sums: Iterable[Mapping[str, Any]], recorded: Iterable[Mapping[str, Any]], routes: Mapping[tuple[str, str], str]
) -> dict[Name, RecordedUsage]:
    """The gateway's usage by day and the upstream's name of the model.

    `sums` are usage rows by day, model and upstream. `recorded` is the part of them whose records are kept, also by
    `returned_model` (the upstream's name of the model). `routes` has the model name of a route, by model and upstream.
    Calls that
    did not reach an upstream are left out, because no provider has them.
    """
    left = {(row["day"], row["model"], row["upstream"]): RecordedUsage.of(row) for row in sums if row["upstream"]}
    found: defaultdict[Name, RecordedUsage] = defaultdict(RecordedUsage)
    for row in recorded:
        group = row["day"], row["model"], row["upstream"]
        if group in left:
            part = RecordedUsage.of(row)
            left[group] = left[group].minus(part)
            name = row["day"], row["returned_model"]
            found[name] = found[name].plus(part)
    for (day, model, upstream), rest in left.items():
        if rest.requests:
            name = day, routes.get((model, upstream), model)
            found[name] = found[name].plus(rest)
    return dict(found)


def routes_of(models: Mapping[str, Model], names: Iterable[str]) -> dict[tuple[str, str], str]:
    """A model's name at an upstream, if it differs from the one here."""
    table = ModelTable(models)
    return {
        (name, route.upstream): route.model
        for name in names
        if (found := table.find(name)) is not None
        for route in reversed(found.model.routes)  # of two to one upstream, the first counts
        if route.model
    }


def base_name(model: str) -> str:
    """A model's name without the date of its snapshot: `-2024-08-06`, `-20240806`, `-0613`."""
    found = _SNAPSHOT.fullmatch(model)
    return found[1] if found else model


def compare(ours: Mapping[Name, RecordedUsage], theirs: Mapping[Name, Tally]) -> list[Pair]:
    """Both sides in pairs, in the order of days and models."""
    names = common_names({model for _, model in ours}, {model for _, model in theirs})
    our, their = folded(ours, names), folded(theirs, names)
    stands_for: defaultdict[Name, set[str]] = defaultdict(set)
    for day, model in (*ours, *theirs):
        stands_for[day, names[model]].add(model)
    return [
        Pair(*name, () if found == {name[1]} else tuple(sorted(found)), our.get(name), their.get(name))
        for name, found in sorted(stands_for.items())
    ]


def total(pairs: Iterable[Pair]) -> Pair:
    some = list(pairs)
    return Pair("total", "", (), _sum([pair.ours for pair in some]), _sum([pair.theirs for pair in some]))


def common_names(ours: set[str], theirs: set[str]) -> dict[str, str]:
    """The name of each model in the comparison."""
    of_base: defaultdict[str, tuple[set[str], set[str]]] = defaultdict(lambda: (set(), set()))
    for side, models in enumerate((ours, theirs)):
        for model in models:
            of_base[base_name(model)][side].add(model)
    return {
        model: base if our and their and our != their else model
        for base, (our, their) in of_base.items()
        for model in our | their
    }


def folded(unfolded: Mapping[Name, Entry], names: Mapping[str, str]) -> dict[Name, Entry]:
    """Adds up what has one name in common on a day. A model that is on neither side keeps its name."""
    entries: defaultdict[Name, list[Entry]] = defaultdict(list)
    for (day, model), entry in unfolded.items():
        entries[day, names.get(model, model)].append(entry)
    return {name: found for name, some in entries.items() if (found := _sum(some)) is not None}


def _sum(entries: Iterable[Entry | None]) -> Entry | None:
    """None where there is none."""
    found: Entry | None = None
    for entry in entries:
        if entry is not None:
            found = entry if found is None else found.plus(entry)
    return found
