"""`gateway backup`: a copy of the embedded store, while a gateway serves from it."""

from __future__ import annotations

import argparse
from pathlib import Path

from gateway.config import Config

from .common import fail, file_of, put
from .place import add_config

EPILOG = """\
example: gateway backup --config gateway.yaml /backups/gateway-$(date +%F).sqlite

To restore it: stop the gateway, gateway restore, start it. Calls that were under way are closed at their estimates
60 s after the start. Keep the journal folder as it is: what a killed gateway left there is then delivered.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    parser.epilog, parser.formatter_class = EPILOG, argparse.RawDescriptionHelpFormatter
    parser.add_argument("to", metavar="TO.sqlite", type=Path, help="a file that does not exist yet")


def run(args: argparse.Namespace, config: Config) -> int:
    """Make the copy; returns the exit code."""
    settings = config.store
    if not settings.is_embedded:
        how = "is backed up by the means of Redis (BGSAVE, or a copy of its append-only file), or by gateway export"
        return fail(f"{settings.shown_url} {how}", code=2)
    from gateway.store.sqlite.backup import NotBackedUp, back_up

    try:
        size = back_up(settings, args.to)
    except NotBackedUp as error:
        return fail(str(error))
    return put(f"{args.to} holds {file_of(settings)} as it is now ({size:,} bytes).\n")
