"""`gateway refusals`: requests that the gateway refused, and why, the newest first."""

from __future__ import annotations

import argparse
from typing import Any

from gateway.reports.calls import REFUSAL_COLUMNS, REFUSALS_IN_TABLE, refusal_in_table, refusal_members
from gateway.store import RefusalQuery, Store
from gateway.store.call_filter import read_status, read_tag

from .common import add_attribution, add_filters, ask, newest_stored, read_count
from .place import RemoteGateway, add_place, on_gateway
from .registry import Place, add_shape, format_rows, given, read, read_moment
from .registry import run as run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_place(parser)
    add_filters(parser)
    add_attribution(parser)
    parser.add_argument("--code", metavar="NAME", help="only refusals with this error code, such as insufficient_quota")
    parser.add_argument("--limit", default="100", metavar="N", help="maximum number of lines; default: 100")
    add_shape(parser, csv=True)
    parser.set_defaults(act=_refusals)


def _refusals(args: argparse.Namespace, place: Place) -> str:
    limit = read("--limit", read_count, args.limit)
    wanted = RefusalQuery(
        args.key, args.code, team=args.team, model=args.model, status=given(args, "status", read_status),
        since=given(args, "since", read_moment), until=given(args, "until", read_moment),
        user=args.user, tag=given(args, "tag", read_tag),
    )  # fmt: skip

    async def newest(store: Store | None) -> list[dict[str, Any]]:
        if store is None:
            return []
        found = await newest_stored(
            limit, lambda size, before: store.refusals(size, before, wanted), lambda each: each.position
        )
        return [refusal_members(each.entry) for each in found]

    if isinstance(place, RemoteGateway):
        names = ("key", "team", "model", "code", "status", "since", "until", "user", "tag")
        filters = {name: getattr(args, name) for name in names}
        rows = on_gateway(place, lambda gateway: gateway.newest("refusals", limit, **filters))
    else:
        rows = ask(place.store, newest)
    shown = [refusal_in_table(row) for row in rows] if args.shape == "table" else rows
    return format_rows(args, REFUSAL_COLUMNS, shown, REFUSALS_IN_TABLE)
