"""`gateway teams`: quotas that several keys share; the operations of the admin API, on the store itself."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from gateway.config.quantities import read_count
from gateway.keys.registry import Registry
from gateway.quota.notation import NONE
from gateway.reports.registry import TEAMS
from gateway.reports.table import format_json

from .common import PAGE, UsageError
from .registry import (
    Actions,
    Place,
    actor,
    add_quotas,
    add_shape,
    carry_out,
    every_row,
    format_row,
    format_rows,
    merged,
    names_of,
    one_name,
    quotas_of,
    read,
)
from .registry import run as run
from .windows import add_window_actions


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = Actions(parser)
    create = actions.add(
        "create", "make a team", _create,
        "gateway teams create --config gateway.yaml --name platform --usd 500/month",
    )  # fmt: skip
    create.add_argument("name", nargs="?", metavar="NAME", help=argparse.SUPPRESS)
    create.add_argument("--name", "--id", dest="named", metavar="NAME", help="[a-z0-9][a-z0-9_.-]*")
    _add_settings(create, "a quota")
    add_shape(create)

    listed = actions.add("list", "list all teams, of file and store", _list)
    add_shape(listed, csv=True)

    show = actions.add("show", "show one team", _show)
    show.add_argument("name", metavar="NAME")
    add_shape(show)

    update = actions.add(
        "update", "change settings of a team; others stay unchanged", _update,
        "gateway teams update platform --config gateway.yaml --usd 800/month",
    )  # fmt: skip
    update.add_argument("name", metavar="NAME")
    _add_settings(update, "set this quota, or add it; none/TIME takes it away")
    add_shape(update)

    delete = actions.add("delete", "delete a team without keys", _delete)
    delete.add_argument("name", metavar="NAME")
    add_shape(delete)
    add_window_actions(actions, "teams", "team", "platform")


def _add_settings(parser: argparse.ArgumentParser, quota: str) -> None:
    parser.add_argument(
        "--member-quota", metavar="QUOTA", action="append",
        help="a quota of each person with her keys there, such as '30 USD/month', in place of those before; or none",
    )  # fmt: skip
    parser.add_argument("--member-keys", metavar="N", help="keys that each member may make; none: members make none")
    parser.add_argument("--member-models", action="append", metavar="NAMES", help="which models these may have")
    parser.add_argument(
        "--member-by-key", action="append", choices=["pause", "rotate", NONE], help="changes that a key may make itself"
    )
    add_quotas(parser, quota)


def _members(args: argparse.Namespace, known: Mapping[str, Any] | None) -> dict[str, Any]:
    """`members` of a request, if an option names some of it. Raises `UsageError`."""
    number, models, by_key = args.member_keys, args.member_models, args.member_by_key
    if number is None and models is None and by_key is None:
        return {}
    if number == NONE:
        for option, given in (("--member-models", models), ("--member-by-key", by_key)):
            if given is not None:
                raise UsageError(f"argument {option}: --member-keys none lets members make no keys")
        return {"members": None}
    members = dict(known or {})
    if number is not None:
        members["max_keys"] = read("--member-keys", read_count, number)
    if models is not None:
        members["models"] = names_of("--member-models", models) or ["*"]
    if by_key is not None:
        members["by_key"] = [each for each in by_key if each != NONE]
    return {"members": members}


def _member_quotas(args: argparse.Namespace) -> dict[str, Any]:
    """`member_quotas` of a request, if the option is given."""
    texts: list[str] | None = args.member_quota
    return {} if texts is None else {"member_quotas": [] if texts == [NONE] else texts}


def _create(args: argparse.Namespace, place: Place) -> str:
    name, quotas = one_name(args, "--name"), quotas_of(args)
    body = {"name": name, "quotas": merged([], quotas), **_member_quotas(args), **_members(args, None)}
    return format_row(args, carry_out(place, lambda registry: registry.create_team(body, actor("teams"))))


def _list(args: argparse.Namespace, place: Place) -> str:
    rows = every_row(place, lambda registry, after: registry.list_teams(after, PAGE))
    return format_rows(args, TEAMS, rows)


def _show(args: argparse.Namespace, place: Place) -> str:
    return format_row(args, carry_out(place, lambda registry: registry.show_team(args.name), makes_store=False))


def _update(args: argparse.Namespace, place: Place) -> str:
    quotas = quotas_of(args)
    if not (quotas or args.member_quota or args.member_keys or args.member_models):
        raise UsageError("nothing to change: name a setting, such as --usd 800/month")

    async def change(registry: Registry) -> dict[str, Any]:
        known = await registry.show_team(args.name)
        changes = _members(args, known["members"]) | _member_quotas(args)
        if quotas:
            changes["quotas"] = merged(known["quotas"], quotas)
        return await registry.update_team(args.name, changes, actor("teams"))

    return format_row(args, carry_out(place, change))


def _delete(args: argparse.Namespace, place: Place) -> str:
    carry_out(place, lambda registry: registry.delete_team(args.name, actor("teams")))
    if args.shape == "json":
        return format_json({"object": "team", "name": args.name, "deleted": True})
    return f"The team {args.name} is gone.\n"
