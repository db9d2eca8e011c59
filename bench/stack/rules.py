"""The alert rules of deploy/, accelerated: Prometheus scrapes every second instead of every 15 s, and all windows and
waits are shorter by the same factor. An alert that fires there after a minute fires here after four seconds, on as many
samples.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tests.deploy.examples import load
from tests.fakes.prometheus import RULES, SCRAPED_EVERY_S, Labels, Prometheus

_UNITS = {"s": 1, "m": 60, "h": 3600}
_DURATION = re.compile(r"(\[|\bfor: )(\d+)([smh])\b")


def _seconds(text: str) -> float:
    return int(text[:-1]) * _UNITS[text[-1]]


def acceleration() -> float:
    """The factor of acceleration compared with deploy/compose."""
    every_s = _seconds(load("compose/prometheus.yml")["global"]["scrape_interval"])
    return every_s / SCRAPED_EVERY_S


def accelerated(folder: Path) -> Path:
    """The rule files, with shorter windows and waits; returns the folder."""
    folder.mkdir()
    factor = acceleration()

    def shorter(found: re.Match[str]) -> str:
        return f"{found[1]}{int(1000 * _seconds(found[2] + found[3]) / factor)}ms"

    for file in RULES.glob("*.yaml"):
        text, count = _DURATION.subn(shorter, file.read_text())
        assert count, f"{file} has no windows and no waits"
        (folder / file.name).write_text(text)
    return folder


LINGERS_S = 40.0
"""Seconds that an alert may outlast its cause: twice the longest window of a cause (5 minutes, accelerated)."""
_APART_S = 4 * SCRAPED_EVERY_S
"""Seconds without a sample after which an alert has ended."""


@dataclass
class Cause:
    """Why an alert may fire, and whether it must. Unix times."""

    alert: str
    labels: Mapping[str, str]
    since: float
    until: float = float("inf")
    is_needed: bool = False

    def explains(self, seen: Seen) -> bool:
        """Whether it is an alert of this cause at a permitted time."""
        is_named = seen.name == self.alert and self.labels.items() <= dict(seen.labels).items()
        return is_named and self.since <= seen.first and seen.last <= self.until + LINGERS_S


class Seen(NamedTuple):
    """An alert that was pending or firing, from its first to its last sample, in Unix times."""

    labels: Labels
    first: float
    last: float

    @property
    def name(self) -> str:
        return dict(self.labels)["alertname"]

    @property
    def state(self) -> str:
        """pending or firing."""
        return dict(self.labels)["alertstate"]

    def __str__(self) -> str:
        more = {name: value for name, value in self.labels if name in ("instance", "upstream", "key", "model")}
        return f"{self.name} {more or ''} {self.state} for {self.last - self.first:.0f} s"


def active(server: Prometheus, name: str = ".+", states: str = "pending|firing", **labels: str) -> int:
    """The number of current alerts with this name in one of these states."""
    wanted = "".join(f', {label}="{value}"' for label, value in labels.items())
    return len(server.query(f'ALERTS{{alertname=~"{name}", alertstate=~"{states}"{wanted}}}'))


def history(server: Prometheus, since: float, until: float) -> list[Seen]:
    """Every alert that was active between these Unix times."""
    seen: list[Seen] = []
    for labels, taken in server.samples("ALERTS", since, until).items():
        first = last = taken[0][0]
        for at, _ in taken:
            if at > last + _APART_S:
                seen.append(Seen(labels, first, last))
                first = at
            last = at
        seen.append(Seen(labels, first, last))
    return sorted(seen, key=lambda alert: alert.first)


def wrong_alerts(seen: Sequence[Seen], causes: Sequence[Cause]) -> Iterator[str]:
    """Alerts that fired without a cause, and causes without their alert. Pending alerts need no cause."""
    for alert in seen:
        if alert.state == "firing" and not any(cause.explains(alert) for cause in causes):
            yield f"an alert without a cause: {alert}"
    for cause in causes:
        if cause.is_needed and not any(cause.explains(alert) for alert in seen):
            yield f"no alert, though there was a cause: {cause.alert} {dict(cause.labels) or ''}"
