"""`gateway restore`: puts a backup in the place of the embedded store, after it has listed the newer things that go."""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path

from gateway.commands.common import fail, file_of, put
from gateway.commands.place import add_config
from gateway.config import Config, StoreSettings
from gateway.files import FolderInUse
from gateway.store import StoreMisconfigured, StoreUnavailable
from gateway.store.sqlite.folder import exclusive_folder

from .printing import count
from .rows import StoreRow
from .tables import open_tables

EPILOG = """\
example:
  gateway restore --config gateway.yaml /backups/gateway-2026-11-29.sqlite
  gateway restore --config gateway.yaml /backups/gateway-2026-11-29.sqlite --yes

Without --yes nothing is changed: it lists all that is newer than the backup, and would be gone. Stop the gateway first.
The present file is kept beside the restored one. Entries of the journal folder are delivered to the restored store.
"""

NAMED = 5
"""Keys, teams and overlays of one sort that are named."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    add_config(parser)
    parser.epilog, parser.formatter_class = EPILOG, argparse.RawDescriptionHelpFormatter
    parser.add_argument("backup", metavar="BACKUP.sqlite", type=Path, help="a file that gateway backup wrote")
    parser.add_argument("--yes", action="store_true", help="restore, and lose what is newer")


def run(args: argparse.Namespace, config: Config) -> int:
    """List the things that would be lost, and restore if that was agreed to; returns the exit code."""
    settings = config.store
    if not settings.is_embedded:
        return fail(f"{settings.shown_url} is restored by the means of Redis; this is for an embedded store", code=2)
    if not args.backup.is_file():
        return fail(f"there is no {args.backup}", code=2)
    try:
        with exclusive_folder(settings), tempfile.TemporaryDirectory(dir=settings.folder, prefix="restore-") as scratch:
            copied = settings.model_copy(update={"url": f"embedded:{scratch}"})
            shutil.copyfile(args.backup, file_of(copied))
            if not _has_tables(file_of(copied)):
                return fail(f"{args.backup} is no backup: it has none of a gateway's tables; nothing is changed")
            newer = lost(asyncio.run(rows_of(settings)), asyncio.run(rows_of(copied)))
            if newer and not args.yes:
                lines = "".join(f"  {line}\n" for line in newer)
                put(f"{file_of(settings)} has what {args.backup} does not have:\n{lines}")
                return fail("nothing is changed; with --yes it is restored, and this is gone")
            kept = _exchange(file_of(settings), file_of(copied))
    except FolderInUse as error:
        return fail(f"{error}; stop that gateway first")
    except (StoreMisconfigured, StoreUnavailable) as error:
        return fail(f"{args.backup} cannot be restored: {error}")
    except OSError as error:
        return fail(f"cannot restore {args.backup}: {(error.strerror or str(error)).lower()}")
    return put(f"{file_of(settings)} is as {args.backup} has it; the former file is {kept.name} beside it.\n")


def _has_tables(path: Path) -> bool:
    """Whether a file is a store's: an empty one, or one of another program, would become an empty store. A
    file of any release has leases."""
    try:
        with closing(sqlite3.connect(path)) as db:
            return bool(db.execute("SELECT 1 FROM sqlite_master WHERE name = 'leases'").fetchall())
    except sqlite3.DatabaseError:
        return True  # the store names what is wrong with it


async def rows_of(settings: StoreSettings) -> list[StoreRow]:
    """The rows of a store without those that only count what others have."""
    tables = open_tables(settings)
    try:
        return [row async for row in tables.rows() if row.kind not in ("hour", "tag", "latency", "rate")]
    finally:
        await tables.close()


def lost(here: Sequence[StoreRow], backup: Sequence[StoreRow]) -> list[str]:
    """Sentences about what the present store has and the backup does not."""
    known, present = {row.mark: row for row in backup}, {row.mark for row in here}
    documents = [row for row in here if row.kind == "document"]
    sorts = {
        "made since": [row for row in documents if row.mark not in known],
        "changed since": [row for row in documents if row.mark in known and known[row.mark].text != row.text],
        "deleted since, and there again": [row for row in backup if row.kind == "document" and row.mark not in present],
    }
    found = [_named(words, rows) for words, rows in sorts.items() if rows]
    requests, cost = (_sum(here, place) - _sum(backup, place) for place in (0, 7))
    if requests > 0:
        found.append(f"usage of {count(requests, 'request')}, ${cost / 1e9:.2f}, from sums and quotas")
    for kind, noun in (("audit", "entry in the audit log|entries in the audit log"), ("record", "usage record"),
                       ("refusal", "refused request"), ("bond", "id at an upstream|ids at upstreams")):  # fmt: skip
        number = len([row for row in here if row.kind == kind and row.mark not in known])
        one, _, many = noun.partition("|")
        if number:
            found.append(f"{number:,} {one if number == 1 else many or one + 's'}")
    return found


def _named(words: str, rows: Sequence[StoreRow]) -> str:
    names = ", ".join(" ".join(row.names) for row in rows[:NAMED])
    return f"{words}: {names}{f' and {len(rows) - NAMED} more' if len(rows) > NAMED else ''}"


def _sum(rows: Sequence[StoreRow], place: int) -> int:
    return sum(row.numbers[place] for row in rows if row.kind == "day")


def _exchange(present: Path, restored: Path) -> Path:
    """Put the restored file in the place of the present one, which gets another name. Every connection is closed, so
    that the present file is whole without the two beside it; they would be applied to the restored one."""
    with restored.open("rb+") as file:
        os.fsync(file.fileno())
    restored.chmod(0o600)
    kept = present.with_name(f"{present.name}.before-restore-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}")
    for ending in ("-wal", "-shm"):
        with suppress(FileNotFoundError):
            present.with_name(present.name + ending).unlink()
    os.link(present, kept)
    restored.replace(present)
    return kept
