"""`gateway export`: all that a store has, in one file, while gateways serve from it."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from pathlib import Path

from gateway.commands.common import ask, fail, put
from gateway.commands.place import add_config
from gateway.config import Config
from gateway.store import Store, StoreMisconfigured, StoreUnavailable

from . import file
from .printing import count, totals_text
from .rows import Total
from .tables import open_tables

EPILOG = """\
example:
  gateway export --config old.yaml gateway.jsonl.gz
  gateway import store --config new.yaml gateway.jsonl.gz

The file has the digests of keys, not the keys, and is readable by you only. docs/moving.md has the whole way, with
gateways that serve all the time.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    add_config(parser)
    parser.epilog, parser.formatter_class = EPILOG, argparse.RawDescriptionHelpFormatter
    parser.add_argument("to", metavar="TO.jsonl.gz", type=Path, help="a file that does not exist yet; .gz: compressed")


def run(args: argparse.Namespace, config: Config) -> int:
    """Write the file, and print what is in it; returns the exit code."""

    async def work(store: Store | None) -> tuple[file.ExportHead, dict[str, Total]] | None:
        if store is None:
            return None
        tables = open_tables(config.store)
        try:
            head = file.ExportHead(
                await tables.id(),
                config.store.shown_url,
                datetime.now(UTC).isoformat(timespec="seconds"),
                *await tables.under_way(),
            )
            return head, await file.write(args.to, head, tables.rows())
        finally:
            await tables.close()

    try:
        done = ask(config.store, work)
    except (StoreUnavailable, StoreMisconfigured, file.BadExport) as error:
        return fail(str(error))
    except OSError as error:
        return fail(f"cannot write {args.to}: {(error.strerror or str(error)).lower()}")
    if done is None:
        return 1
    head, totals = done
    return put(f"{args.to} has all that {head.store} had:\n{totals_text(totals)}{under_way(head)}")


def under_way(head: file.ExportHead) -> str:
    """A sentence about usage that is not in the file, or nothing."""
    if not head.open_calls + head.deferred:
        return ""
    return (
        f"\n{count(head.open_calls, 'call')} under way, and {head.deferred} that upstreams go on with: their usage "
        "comes with a further export after their end.\n"
    )
