"""`gateway people`: the limits of people and what is used of them, and their sessions; the operations of the admin API,
on the store itself."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any
from urllib.parse import quote, urlencode

from gateway.commands.common import PAGE, UsageError
from gateway.commands.registry import (
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
    quotas_of,
)
from gateway.commands.registry import run as run
from gateway.commands.remote import RemoteRegistry
from gateway.commands.windows import add_window_actions
from gateway.errors import NotFound
from gateway.keys.manage_people import BY_OPERATOR
from gateway.keys.registry import Page, Registry, Shown
from gateway.quota.scopes import PERSON
from gateway.reports.registry import PEOPLE
from gateway.reports.table import format_json

from .people import PeopleLimits, limits_of

ANN = "alice@example.org"


class RemotePeople:
    """Answers like `Registry` for people, from a running gateway. `actor` is not sent: the token names the author."""

    def __init__(self, gateway: RemoteRegistry) -> None:
        self._gateway = gateway

    async def list_people(self, after: str, limit: int) -> Page:
        query = {"limit": limit} | ({"after": after} if after else {})
        found = await self._gateway.ask("GET", f"people?{urlencode(query)}")
        return Page(found["data"], found["next"])

    async def show_person(self, name: str) -> Shown:
        return await self._gateway.ask("GET", _path(name))

    async def update_person(self, name: str, changes: Mapping[str, Any], actor: str) -> Shown:
        return await self._gateway.change("PATCH", _path(name), changes)

    async def set_access(self, person: str, ended_by: str | None, actor: str) -> bool:
        await self._gateway.change("POST", f"{_path(person)}/{'give' if ended_by is None else 'end'}_access")
        return True

    async def end_sessions(self, person: str, actor: str) -> Shown:
        return await self._gateway.change("POST", f"{_path(person)}/end_sessions")


def _path(name: str) -> str:
    return f"people/{quote(name, safe='')}"


def _people(registry: Registry | RemoteRegistry) -> PeopleLimits | RemotePeople:
    return RemotePeople(registry) if isinstance(registry, RemoteRegistry) else limits_of(registry)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = Actions(parser)
    add_shape(actions.add("list", "list the owners of keys, and how much of their limits is used", _list), csv=True)

    show = actions.add("show", "show one person", _show, f"gateway people show {ANN} --config gateway.yaml")
    show.add_argument("person", metavar="PERSON")
    add_shape(show)

    update = actions.add(
        "update", "give a person quotas of her own, over all her keys", _update,
        f"gateway people update {ANN} --config gateway.yaml --usd 50/month",
        f"gateway people update {ANN} --config gateway.yaml --as-everyone",
    )  # fmt: skip
    update.add_argument("person", metavar="PERSON")
    update.add_argument(
        "--as-everyone", action="store_true", help="take them away: those of her role or of everyone count again"
    )
    add_quotas(update, "set this quota, or add it; none/TIME takes it away")
    add_shape(update)

    end = actions.add(
        "end-sessions", "end every session that a person has at the dashboard", _end_sessions,
        f"gateway people end-sessions {ANN} --config gateway.yaml",
    )  # fmt: skip
    end.add_argument("person", metavar="PERSON", help="the owner of her keys, as the audit log names her")
    add_shape(end)
    for name, help_text, cause in (
        ("end-access", "refuse all keys, tokens and sessions of a person", BY_OPERATOR),
        ("give-access", "give a person her access back, whatever has ended it", None),
    ):
        access = actions.add(
            name, help_text, partial(_set_access, ended_by=cause), f"gateway people {name} {ANN} --config gateway.yaml"
        )
        access.add_argument("person", metavar="PERSON")
        add_shape(access)
    add_window_actions(actions, "people", PERSON, ANN)


def _list(args: argparse.Namespace, place: Place) -> str:
    rows = every_row(place, lambda registry, after: _people(registry).list_people(after, PAGE))
    rows.sort(key=lambda row: -max([each["used"] / each["limit"] for each in row["windows"]], default=0))
    return format_rows(args, PEOPLE, rows)


def _show(args: argparse.Namespace, place: Place) -> str:
    return format_row(
        args, carry_out(place, lambda registry: _people(registry).show_person(args.person), makes_store=False)
    )


def _update(args: argparse.Namespace, place: Place) -> str:
    quotas = quotas_of(args)
    if bool(quotas) == args.as_everyone:
        raise UsageError("expected quotas, such as --usd 50/month, or --as-everyone")

    async def change(registry: Registry) -> dict[str, Any]:
        given = None
        if quotas:
            known: list[dict[str, Any]] = []
            with suppress(NotFound):
                known = (await _people(registry).show_person(args.person))["quotas"]
            given = merged(known, quotas)
        return await _people(registry).update_person(args.person, {"quotas": given}, actor("people"))

    return format_row(args, carry_out(place, change))


def _set_access(args: argparse.Namespace, place: Place, ended_by: str | None) -> str:
    async def change(registry: Registry) -> dict[str, Any]:
        await _people(registry).set_access(args.person, ended_by, actor("people"))
        return await _people(registry).show_person(args.person)

    return format_row(args, carry_out(place, change))


def _end_sessions(args: argparse.Namespace, place: Place) -> str:
    ended = carry_out(place, lambda registry: _people(registry).end_sessions(args.person, actor("people")))
    if args.shape == "json":
        return format_json(ended)
    return f"Every session of {args.person} that began before {ended['sessions_ended_at']} is over.\n"
