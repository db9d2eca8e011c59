"""`gateway calls`: usage records, the newest first; or one request by its id, a call or a refusal."""

from __future__ import annotations

import argparse
from typing import Any

from gateway.records import Record
from gateway.reports.calls import LISTED, call_members, refusal_members
from gateway.reports.table import format_json, format_members, utc
from gateway.store import CallFilter, RefusalEntry, Store
from gateway.store.call_filter import read_status, read_tag
from gateway.store.report_rows import call_row

from .common import UsageError, add_attribution, add_filters, ask, newest_stored, read_count
from .place import RemoteGateway, add_place, on_gateway
from .registry import Place, add_shape, format_rows, given, read, read_moment
from .registry import run as run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_place(parser)
    parser.add_argument("--id", metavar="ID", help="the request with this x-request-id: a call, or why it was refused")
    add_filters(parser)
    parser.add_argument("--upstream", metavar="NAME", help="only calls that this upstream served")
    add_attribution(parser)
    parser.add_argument("--limit", default="100", metavar="N", help="maximum number of lines; default: 100")
    add_shape(parser, csv=True)
    parser.set_defaults(act=_calls)


def _calls(args: argparse.Namespace, place: Place) -> str:
    if args.id is not None:
        return _one(args, place)
    limit = read("--limit", read_count, args.limit)
    wanted = CallFilter(
        team=args.team, model=args.model, upstream=args.upstream, status=given(args, "status", read_status),
        since=given(args, "since", read_moment), until=given(args, "until", read_moment),
        user=args.user, tag=given(args, "tag", read_tag),
    )  # fmt: skip

    async def newest(store: Store | None) -> list[dict[str, Any]]:
        if store is None:
            return []
        found = await newest_stored(
            limit,
            lambda size, before: store.calls(size, args.key, before, wanted=wanted),
            lambda call: str(call["position"]),
        )
        return [call_members(call) for call in found]

    if isinstance(place, RemoteGateway):
        names = ("key", "team", "model", "upstream", "status", "since", "until", "user", "tag")
        filters = {name: getattr(args, name) for name in names}
        rows = on_gateway(place, lambda gateway: gateway.newest("calls", limit, **filters))
    else:
        rows = ask(place.store, newest)
    return format_rows(args, LISTED, rows)


def _one(args: argparse.Namespace, place: Place) -> str:
    async def find(store: Store | None) -> Record | RefusalEntry | None:
        return None if store is None else await store.find_request(args.id)

    if isinstance(place, RemoteGateway):
        shown = on_gateway(place, lambda gateway: gateway.request(args.id))
        kind = "refusal" if shown["call"] is None else "call"
        return _format_one(args, {"is": kind, **shown[kind]})
    found = ask(place.store, find)
    if found is None:
        raise UsageError(f"argument --id: there is no call and no refusal with the id {args.id!r}")
    if isinstance(found, Record):
        members = {"is": "call", **call_members(call_row(found, ""))}
    else:
        members = {"is": "refusal", **refusal_members(found)}
    return _format_one(args, members)


def _format_one(args: argparse.Namespace, members: dict[str, Any]) -> str:
    if args.shape == "json":
        return format_json(members)
    return format_members({**members, "time": utc(members["time"]), "at": None})
