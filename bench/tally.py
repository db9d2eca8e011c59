"""Counts as tables: by module and by function."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .counter import Function

OURS = "gateway"

EVERY_CALL = 0.9
"""Minimum share of calls that enter a function of their path; functions of timers are below it."""


class Row(NamedTuple):
    """Counts per call."""

    name: str
    entered: float
    """Entries of functions written in Python."""
    calls_to_c: float
    """Calls from them to functions written in C."""


def by_function(functions: Iterable[Function], calls: int) -> list[Row]:
    """By function, the highest count first."""
    return _sorted([
        Row(f"{each.module}:{each.line} {each.name}", each.entered / calls, each.calls_to_c / calls)
        for each in functions
    ])  # fmt: skip


def by_module(functions: Iterable[Function], calls: int) -> list[Row]:
    """By module of the gateway, and by third-party package."""
    sums: dict[str, list[int]] = {}
    for each in functions:
        of = sums.setdefault(_module(each.module), [0, 0])
        of[0] += each.entered
        of[1] += each.calls_to_c
    return _sorted([Row(name, entered / calls, to_c / calls) for name, (entered, to_c) in sums.items()])


class Breadth(NamedTuple):
    """The number of files and functions of the gateway that one call enters."""

    files: int
    functions: int


def breadth(functions: Iterable[Function], calls: int) -> Breadth:
    """The gateway's files and functions that (nearly) every call enters, without comprehensions and lambdas."""
    own = [
        each
        for each in functions
        if _module(each.module).startswith(OURS) and "<" not in each.name.rpartition(".")[2]
        if each.entered >= calls * EVERY_CALL
    ]
    return Breadth(len({each.module for each in own}), len(own))


def total(rows: Iterable[Row], name: str) -> Row:
    """The sum of all."""
    listed = list(rows)
    return Row(name, sum(row.entered for row in listed), sum(row.calls_to_c for row in listed))


def is_ours(row: Row) -> bool:
    """Whether this is code of the gateway."""
    return row.name == OURS or row.name.startswith(f"{OURS}.")


def difference(more: Iterable[Row], less: Iterable[Row], by: int) -> list[Row]:
    """The increase, divided by `by`."""
    found = {row.name: row for row in less}
    nothing = Row("", 0, 0)
    received = []
    for row in more:
        other = found.get(row.name, nothing)
        received.append(Row(row.name, (row.entered - other.entered) / by, (row.calls_to_c - other.calls_to_c) / by))
    return _sorted(received)


def table(heading: str, rows: Sequence[Row], shown: int = 1000) -> str:
    """As text, without rows of less than one in a hundred calls."""
    sums = [total(rows, "all of it"), total(filter(is_ours, rows), "of it the gateway's own")]
    kept = [row for row in rows if row.entered + row.calls_to_c >= 0.01][:shown]
    lines = [f"{heading:70} {'entered':>9} {'calls to C':>11}"]
    lines += [f"  {row.name[:68]:68} {row.entered:9.2f} {row.calls_to_c:11.2f}" for row in [*sums, *kept]]
    return "\n".join(lines)


def numbers(heading: str, counts: Counter[str], calls: int, shown: int = 1000) -> str:
    """Counts per call, the highest first."""
    rows = {"all of it": counts.total(), **dict(counts.most_common(shown))}
    kept = {name: count / calls for name, count in rows.items() if abs(count) >= calls / 100 or name == "all of it"}
    return "\n".join([heading, *(f"  {name[:68]:68} {value:9.2f}" for name, value in kept.items())])


def _module(name: str) -> str:
    if name.startswith("namedtuple_"):
        return "named tuples"
    if name == OURS or name.startswith(f"{OURS}."):
        return name
    return name.partition(".")[0]


def _sorted(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: -(row.entered + row.calls_to_c))
