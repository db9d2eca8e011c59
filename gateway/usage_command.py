"""`gateway usage`: what was used, by whom, read from the store itself.

It needs no running gateway and disturbs none. A report goes to standard output, all else to standard error.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from pathlib import Path
from typing import Any

from .config import Store as Settings
from .store import USAGE_GROUPS, StoreAway, StoreRefused, open_store
from .usage_report import read_day, read_groups, spell_csv, spell_json, spell_table

FORMATS = ("table", "csv", "json")


class Mistaken(Exception):
    """An argument that makes no sense; the text says which and why."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes beside its configuration."""
    parser.add_argument("--by", default="key", metavar="NAMES", help=f"default: key; some of {','.join(USAGE_GROUPS)}")
    parser.add_argument("--since", metavar="DAY", help="the first day, such as 2026-11-20 (UTC); default: all kept")
    parser.add_argument("--until", metavar="DAY", help="the last day; default: all kept")
    parser.add_argument("--format", default="table", choices=FORMATS, help="default: table")


def run(args: argparse.Namespace, settings: Settings) -> int:
    """Print the report; returns the exit code."""
    try:
        groups, since, until = _question(args)
    except Mistaken as error:
        return _fail(str(error), 2)
    # What a store warns of when it is opened is for those who serve; a report has no news of it.
    logging.getLogger("gateway").setLevel(logging.ERROR)
    try:
        rows = _rows(settings, groups, since, until)
    except (StoreAway, StoreRefused) as error:
        return _fail(f"cannot read the usage: {_named(settings, str(error))}")
    except OSError as error:
        return _fail(f"cannot read the usage: {_named(settings, (error.strerror or str(error)).lower())}")
    return _print(_spelt(args.format, groups, rows))


def _question(args: argparse.Namespace) -> tuple[list[str], str | None, str | None]:
    """Groups, first and last day. Raises `Mistaken`."""
    try:
        groups = read_groups(args.by)
    except ValueError as error:
        raise Mistaken(f"argument --by: {error}") from None
    for name in ("since", "until"):
        day = getattr(args, name)
        try:
            _ = day is None or read_day(day)
        except ValueError as error:
            raise Mistaken(f"argument --{name}: {error}") from None
    if args.since and args.until and args.since > args.until:
        raise Mistaken(f"argument --until: {args.until} is before --since {args.since}")
    return groups, args.since, args.until


def _rows(settings: Settings, groups: list[str], since: str | None, until: str | None) -> list[dict[str, Any]]:
    """The report. Raises `StoreAway`, `StoreRefused`; `OSError` where the store's folder may not be looked at."""
    if settings.is_embedded and not (file := _file(settings)).exists():
        # Opening it would make it, and a mistyped folder would look like one in which nothing was used.
        print(f"gateway: nothing is recorded yet: there is no {file}", file=sys.stderr)
        return []

    async def read() -> list[dict[str, Any]]:
        store = await open_store(settings)
        try:
            return await store.usage(groups, since, until)
        finally:
            await store.close()

    return asyncio.run(read())


def _file(settings: Settings) -> Path:
    from .store.sqlite import path_of  # which a Redis store does without

    return path_of(settings).absolute()


def _spelt(shape: str, groups: list[str], rows: list[dict[str, Any]]) -> str:
    if shape == "json":
        return spell_json(rows) + "\n"
    if shape == "csv":
        return spell_csv(groups, rows, line_end="\n")
    return spell_table(groups, rows) + "\n" if rows else "Nothing was used.\n"


def _print(text: str) -> int:
    try:
        print(text, end="", flush=True)
    except OSError as error:
        # So that the interpreter does not try again, and complain, when it ends (Python's signal, "Note on SIGPIPE").
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):  # which is `| head`, who has seen enough
            return _fail(f"cannot write the report: {(error.strerror or '').lower()}")
    return 0


def _named(settings: Settings, why: str) -> str:
    """A reason that names the store."""
    return why if settings.shown_url in why else f"{settings.shown_url}: {why}"


def _fail(what: str, code: int = 1) -> int:
    print(f"gateway: {' '.join(what.split())}", file=sys.stderr)
    return code
