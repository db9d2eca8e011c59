"""What was measured, as a table for people or as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

RIVALS = ("nginx", "gateway")
HEAD = ("", *RIVALS, "ratio", "lowest - highest")


@dataclass
class Row:
    """One figure of each rival, round by round."""

    seen: dict[str, list[float]] = field(default_factory=lambda: {rival: [] for rival in RIVALS})

    @property
    def ratios(self) -> list[float]:
        """The gateway's figure over nginx's, for the rounds that ran side by side, the smallest first."""
        pairs = zip(*(self.seen[rival] for rival in RIVALS), strict=True)
        return sorted(ours / theirs if theirs else float("inf") for theirs, ours in pairs)

    def cells(self) -> tuple[str, ...]:
        """Medians, and between which ratios the rounds lay."""
        ratios = self.ratios
        spread = f"{figure(ratios[0])} - {figure(ratios[-1])}" if ratios[-1] < float("inf") else "-"
        return *(figure(median(self.seen[rival])) for rival in RIVALS), figure(median(ratios)), spread


class Group:
    """Figures under one heading."""

    def __init__(self, heading: str) -> None:
        self.heading = heading
        self.rows: dict[str, Row] = {}

    def add(self, rival: str, figures: Mapping[str, float]) -> None:
        """What one round has shown of a rival: the name of each figure, with its unit, and its value."""
        for name, value in figures.items():
            self.rows.setdefault(name, Row()).seen[rival].append(value)


def figure(value: float) -> str:
    """A number with the digits that count."""
    if value == float("inf"):
        return "-"  # nginx took nothing that could be seen
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def render(groups: Iterable[Group]) -> str:
    """One aligned table."""
    lines = list(_lines(groups))
    widths = [max(len(cells[column]) for cells in lines if len(cells) > 1) for column in range(len(HEAD))]
    return "\n".join(
        "   ".join([cells[0].ljust(widths[0]), *map(str.rjust, cells[1:], widths[1:])]).rstrip() for cells in lines
    )


def _lines(groups: Iterable[Group]) -> Iterator[tuple[str, ...]]:
    yield HEAD
    for group in groups:
        yield (group.heading,)
        for name, row in group.rows.items():
            yield f"  {name}", *row.cells()


def as_markdown(groups: Iterable[Group]) -> str:
    """A table for each heading."""
    tables = []
    for group in groups:
        head = [group.heading, *HEAD[1:]]
        rows = [head, ["---", *["---:"] * (len(HEAD) - 1)], *[[name, *row.cells()] for name, row in group.rows.items()]]
        tables.append("\n".join(f"| {' | '.join(cells)} |" for cells in rows))
    return "\n\n".join(tables)


def as_json(machine: str, groups: Iterable[Group], costs: Mapping[Any, Any] = {}) -> str:
    """Every round of every figure, and what the ledger costs."""
    figures = [
        {"of": group.heading, "name": name, **row.seen, "ratio": median(row.ratios)}
        for group in groups
        for name, row in group.rows.items()
    ]
    ledger = [{**case._asdict(), **cost._asdict()} for case, cost in costs.items()]
    return json.dumps({"machine": machine, "figures": figures, "ledger": ledger}, indent=1)
