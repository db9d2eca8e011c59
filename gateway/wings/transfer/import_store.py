"""`gateway import store`: takes the file of `gateway export` into the store of a configuration."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

from gateway.commands.common import fail, on_store, put
from gateway.commands.place import add_config
from gateway.config import Config, StoreSettings
from gateway.store import Store, StoreMisconfigured, StoreUnavailable

from .export import under_way
from .file import BadExport, ExportHead, check_contents, checked_totals, read_head
from .printing import compared_text, faults_of
from .tables import open_tables
from .taking import Compared, compare, take


class Taken(NamedTuple):
    """The result of an import, with its faults."""

    head: ExportHead
    faults: list[str]
    compared: list[Compared]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    add_config(parser)
    parser.add_argument("file", metavar="FILE", type=Path, help="a file of gateway export")
    parser.description = (
        "Takes all of the file that was not taken before, with or without gateways that serve from this store; then "
        "compares both. It can be repeated at any time: nothing is taken twice."
    )


def run(args: argparse.Namespace, config: Config) -> int:
    """Take the file, compare, and print the comparison; returns the exit code."""
    try:
        done = on_store(config.store, lambda store: _take(args.file, config.store, store))
    except (StoreUnavailable, StoreMisconfigured) as error:
        return fail(f"{error}; what was taken stays: import the same file again")
    except BadExport as error:
        return fail(str(error), code=2)
    except OSError as error:
        return fail(f"cannot read {args.file}: {(error.strerror or str(error)).lower()}", code=2)
    put(f"{args.file} was made of {done.head.store} at {done.head.made}.\n\n{compared_text(done.compared)}")
    put(under_way(done.head))
    if faults := [*done.faults, *faults_of(done.compared)]:
        return fail(*faults)
    return put(f"\n{config.store.shown_url} has all that the file has.\n")


async def _take(path: Path, settings: StoreSettings, store: Store) -> Taken:
    head, totals = read_head(path), checked_totals(path)
    if totals["record"].rows > settings.usage_records_max:
        raise BadExport(
            f"{path} has {totals['record'].rows:,} usage records, and store.usage_records_max is "
            f"{settings.usage_records_max:,}: raise it, or the oldest are lost"
        )
    check_contents(path)
    tables = open_tables(settings)
    try:
        if await tables.id() == head.source:
            raise BadExport(f"{path} was made of this store itself")
        faults = await take(tables, store, head, path)
        return Taken(head, faults, await compare(tables, store, head, path, totals))
    finally:
        await tables.close()
