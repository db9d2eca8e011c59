"""`gateway audit`: the changes and their authors, newest first."""

from __future__ import annotations

import argparse
from typing import Any

from gateway.keys.registry import Registry
from gateway.reports.registry import CHANGES, CHANGES_IN_TABLE, with_change

from .common import newest_rows, read_count
from .place import add_place
from .registry import Place, add_shape, carry_out, format_rows, read
from .registry import run as run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_place(parser)
    parser.add_argument("--limit", default="100", metavar="N", help="maximum number of lines; default: 100")
    add_shape(parser, csv=True)
    parser.set_defaults(act=_audit)


def _audit(args: argparse.Namespace, place: Place) -> str:
    limit = read("--limit", read_count, args.limit)

    async def newest(registry: Registry) -> list[dict[str, Any]]:
        async def turn(size: int, before: str | None) -> tuple[list[dict[str, Any]], str | None]:
            page = await registry.audit(size, before)
            return page.rows, page.next

        return await newest_rows(limit, turn)

    changes = carry_out(place, newest, makes_store=False)
    if args.shape == "table":
        changes = [with_change(change) for change in changes]
    return format_rows(args, CHANGES, changes, CHANGES_IN_TABLE)
