"""`gateway people`: end the sessions of a person; the operation of the admin API, on the store itself."""

from __future__ import annotations

import argparse

from gateway.reports.table import format_json

from .registry import Actions, Place, actor, add_shape, carry_out
from .registry import run as run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Every action."""
    end = Actions(parser).add(
        "end-sessions", "end every session that a person has at the dashboard", _end_sessions,
        "gateway people end-sessions alice@example.org --config gateway.yaml",
    )  # fmt: skip
    end.add_argument("person", metavar="PERSON", help="the owner of her keys, as the audit log names her")
    add_shape(end)


def _end_sessions(args: argparse.Namespace, place: Place) -> str:
    ended = carry_out(place, lambda registry: registry.end_sessions(args.person, actor("people")))
    if args.shape == "json":
        return format_json(ended)
    return f"Every session of {args.person} that began before {ended['sessions_ended_at']} is over.\n"
