"""`gateway quotas`, and `reset` and `top-up` of keys, teams and people: changes of current windows."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from gateway.config.quantities import read_per
from gateway.quota.notation import Named
from gateway.quota.scopes import PERSON, member_scope
from gateway.reports.registry import WINDOWS

from .common import UsageError
from .registry import Actions, Place, actor, add_quotas, add_shape, carry_out, format_rows, quotas_of, read
from .registry import run as run

ANY_SCOPE = "scope"
"""The kind whose names are whole scopes."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Those of `gateway quotas`: windows of the whole gateway, of upstreams and of labels."""
    parser.description = "SCOPE is what a refusal and GET /admin/api/quotas call the scope, such as upstream:openai."
    add_window_actions(Actions(parser), "quotas", ANY_SCOPE, "upstream:openai")


def add_window_actions(actions: Actions, command: str, kind: str, example: str) -> None:
    """Adds the actions on quota windows of a `kind`: a key, a team or a person."""
    reset = actions.add(
        "reset", f"set the use in the current windows of a {kind} to 0", partial(_reset, command, kind),
        f"gateway {command} reset {example} --config gateway.yaml --unit tokens --per day",
    )  # fmt: skip
    _add_owner(reset, kind)
    reset.add_argument("--unit", choices=("requests", "tokens", "usd"), help="only windows of this unit")
    reset.add_argument(
        "--per", metavar="TIME", help="only windows of a second, minute, hour, day, week, month, or a time such as 90s"
    )
    reset.add_argument("--model", metavar="PATTERN", help="only windows of this model pattern, as in the quota")
    add_shape(reset, csv=True)

    top_up = actions.add(
        "top-up", f"let a {kind} spend more in the running day, week or month", partial(_top_up, command, kind),
        f"gateway {command} top-up {example} --config gateway.yaml --tokens 100000/day",
    )  # fmt: skip
    _add_owner(top_up, kind)
    add_quotas(top_up, "the amount to add")
    add_shape(top_up, csv=True)


def _add_owner(parser: argparse.ArgumentParser, kind: str) -> None:
    parser.add_argument("name", metavar="ID" if kind == "key" else "SCOPE" if kind == ANY_SCOPE else "NAME")
    if kind == PERSON:
        parser.add_argument("--team", metavar="TEAM", help="the windows that she has in this team")


def _scope(kind: str, args: argparse.Namespace) -> str:
    if kind == PERSON and args.team is not None:
        return member_scope(args.team, args.name)
    return str(args.name) if kind == ANY_SCOPE else f"{kind}:{args.name}"


def _reset(command: str, kind: str, args: argparse.Namespace, place: Place) -> str:
    which: dict[str, Any] = {
        "unit": args.unit,
        "per": None if args.per is None else read("--per", read_per, args.per),
        "model": args.model,
    }
    which = {name: value for name, value in which.items() if value is not None}
    scope = _scope(kind, args)
    return _format_windows(args, carry_out(place, lambda registry: registry.reset_quotas(scope, which, actor(command))))


def _top_up(command: str, kind: str, args: argparse.Namespace, place: Place) -> str:
    grants = quotas_of(args)
    if len(grants) != 1:
        raise UsageError("expected one of --tokens, --requests, --usd, such as --tokens 100000/day")
    grant = _grant(grants[0])
    scope = _scope(kind, args)
    return _format_windows(args, carry_out(place, lambda registry: registry.top_up(scope, grant, actor(command))))


def _grant(named: Named) -> dict[str, Any]:
    if named.amount is None:
        raise UsageError("a top-up needs an amount, such as --tokens 100000/day")
    return named.settings


def _format_windows(args: argparse.Namespace, rows: list[dict[str, Any]]) -> str:
    return format_rows(args, WINDOWS, rows)
