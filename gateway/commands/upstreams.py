"""`gateway upstreams`: how each upstream is doing, and how far its limits are used.

A running gateway (`--url`) knows everything: circuits, keys in cooldown, calls under way and waiting, learned limits.
From the store alone (`--config`) come the limits and what is used of them.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gateway.config import Config, printable
from gateway.quota import window_status
from gateway.reports.table import UNKNOWN, aligned, format_json
from gateway.store import Store

from .common import ask
from .place import RemoteGateway, add_place, on_gateway
from .registry import Place, add_shape
from .registry import run as run

_HEALTH = ("upstream", "state", "for", "last failure", "in flight", "waiting", "connections", "keys", "in cooldown")
_LIMITS = ("upstream", "limit", "model", "configured", "assumed", "used", "%")
_SPANS = ((86400, "d"), (3600, "h"), (60, "m"), (0, "s"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Show how upstreams are doing. A running gateway (--url) knows their health and what it learned of their "
        "limits; with --config the limits and their use are read from the store."
    )
    add_place(parser)
    add_shape(parser)
    parser.set_defaults(act=_upstreams)


def _upstreams(args: argparse.Namespace, place: Place) -> str:
    if isinstance(place, RemoteGateway):
        rows = on_gateway(place, lambda gateway: gateway.upstreams())
    else:
        rows = _of_store(place)
    if args.shape == "json":
        return format_json(rows)
    lines = [_HEALTH, *[_health(row) for row in rows]] if isinstance(place, RemoteGateway) else []
    limits = [line for row in rows for line in _limits(row)]
    tables = [aligned(lines, 4, has_total=False)] if lines else []
    tables += ["\n".join(problems)] if (problems := [text for row in rows for text in _problems(row)]) else []
    tables += [aligned([_LIMITS, *limits], 3, has_total=False)] if limits else ["No limits are configured."]
    return "\n\n".join(tables) + "\n"


def _of_store(config: Config) -> list[dict[str, Any]]:
    from gateway.upstream.limits import UpstreamLimitTable

    table, now = UpstreamLimitTable(config.upstreams), time.time()
    every = list(table.every())
    windows = [table.window(limit, now) for _, limit in every]

    async def question(store: Store | None) -> list[Any]:
        return await store.window_statuses(windows, now) if store else []

    statuses = ask(config.store, question) if windows else []
    limits: dict[str, list[dict[str, Any]]] = {}
    for (name, limit), status in zip(every, statuses, strict=False):
        limits.setdefault(name, []).append(
            window_status.row(status, now) | {"configured": window_status.shown_amount(limit.unit, limit.limit)}
        )
    return [
        {"name": name, "base_url": upstream.base_url, "limits": limits.get(name, [])}
        for name, upstream in config.upstreams.items()
    ]


def _health(row: Mapping[str, Any]) -> Sequence[str]:
    last, keys = row["last_failure"], row["credentials"]
    resting = sum(key["resting_s"] > 0 for key in keys)
    return (
        printable(row["name"]), row["state"], _span(row["state_s"]),
        f"{last['fault']}, {_span(last['seconds_ago'])} ago" if last else UNKNOWN,
        *[str(row[name]) for name in ("in_flight", "waiting", "connections")], str(len(keys)), str(resting),
    )  # fmt: skip


def _problems(row: Mapping[str, Any]) -> Iterator[str]:
    """A line for each model and each API key that is avoided."""
    name = printable(row["name"])
    for model in row.get("models", ()):
        yield f"{name}: circuit of {printable(model['model'])} {model['state']} for {_span(model['state_s'])}"
    for key in row.get("credentials", ()):
        if key["resting_s"] > 0:
            of = "" if key["model"] is None else f" for {printable(key['model'])}"
            yield f"{name}: API key {key['number']} not used{of} for {_span(key['resting_s'])}: {key['fault']}"


def _limits(row: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    for limit in row["limits"]:
        used, scope = limit["used"] + limit["reserved"], str(limit["scope"])
        which = f"key {scope.rpartition('#')[2]}: " if "#" in scope else ""
        per = f" per {limit['per']}" if limit["per"] else ""
        assumed = f"{limit['limit']:,}" if limit["limit"] != limit["configured"] else "="
        yield (
            printable(row["name"]), f"{which}{limit['unit']}{per}", printable(limit["model"] or UNKNOWN),
            f"{limit['configured']:,}", assumed, f"{used:,}", f"{100 * used / limit['limit']:.0f}",
        )  # fmt: skip


def _span(seconds: float) -> str:
    size, letter = next(each for each in _SPANS if seconds >= each[0])
    return f"{seconds / (size or 1):.0f} {letter}"
