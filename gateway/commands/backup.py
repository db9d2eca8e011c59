"""`gateway backup`: a copy of the embedded store, while a gateway serves from it.

SQLite's backup reads all of it in one transaction. In WAL mode that is a picture of one moment, which keeps no writer
waiting and is not begun anew for what is written meanwhile.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sqlite3
from pathlib import Path

from gateway.config import Config, StoreSettings
from gateway.store import StoreMisconfigured
from gateway.store.sqlite.database import describe_error, path_of

from .common import fail, file_of, put
from .place import add_config

PART = ".part"


class NotBackedUp(Exception):
    """There is no copy; the text has the reason, and what to do."""


def back_up(settings: StoreSettings, to: Path) -> int:
    """Write a checked copy, readable by this user only. Returns its size in bytes. Raises `NotBackedUp`;
    after any fault `to` is either absent or whole."""
    source = path_of(settings)
    if not source.exists():
        raise NotBackedUp(f"there is no {source.absolute()}")
    if to.exists():
        raise NotBackedUp(f"{to} is there already; name another file, or move it away")
    part = to.with_name(to.name + PART)
    try:
        os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        raise NotBackedUp(f"{part} is there: another backup is under way, or was broken off; remove it then") from None
    except OSError as error:
        raise NotBackedUp(f"{to}: {describe_error(error)}") from None
    try:
        _copy(source, part)
        _keep(part, to)
        return to.stat().st_size
    except FileExistsError:
        raise NotBackedUp(f"{to} is there already; name another file, or move it away") from None
    except (sqlite3.Error, OSError, StoreMisconfigured) as error:
        why = describe_error(error) if isinstance(error, sqlite3.Error | OSError) else str(error)
        raise NotBackedUp(f"cannot copy {source} to {to}: {why}") from None
    finally:
        with contextlib.suppress(OSError):
            part.unlink()


def _copy(source: Path, part: Path) -> None:
    # Opened for writing, though nothing is written: a read-only connection would leave the two files of WAL behind.
    with (
        contextlib.closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=rw", uri=True)) as original,
        contextlib.closing(sqlite3.connect(part)) as copy,
    ):
        original.backup(copy)  # all pages in one step, which is one transaction
        (found,) = copy.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise StoreMisconfigured(f"the copy is damaged: {found}")
        copy.execute("PRAGMA journal_mode = DELETE")  # one file, without others beside it


def _keep(part: Path, to: Path) -> None:
    """Give it its name, durably, unless another process has taken the name meanwhile."""
    descriptor = os.open(part, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.link(part, to)


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
    from gateway.commands.backup import NotBackedUp, back_up

    try:
        size = back_up(settings, args.to)
    except NotBackedUp as error:
        return fail(str(error))
    return put(f"{args.to} holds {file_of(settings)} as it is now ({size:,} bytes).\n")
