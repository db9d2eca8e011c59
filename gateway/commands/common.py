"""The common part of the commands that ask the store: a report to standard output, a fault in one plain line.

Exit codes: 0 done, 1 failed while running, 2 wrong arguments.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

from gateway.config import StoreSettings as Settings
from gateway.store import Store
from gateway.store.opening import open_store

T = TypeVar("T")

PAGE = 1000
"""Rows that a command reads at once."""


class UsageError(Exception):
    """Arguments that make no sense; each text names one and the reason."""


def ask(settings: Settings, question: Callable[[Store | None], Coroutine[Any, Any, T]]) -> T:
    """The answer of the store; `question` gets None where there is none yet, and nothing is written then.

    Raises `StoreUnavailable`, `StoreMisconfigured`; `OSError` where the store's folder may not be looked at.
    """
    if (file := missing(settings)) is not None:
        # Opening it would make it, and a mistyped folder would look like one in which nothing was used.
        print(f"gateway: nothing is recorded yet: there is no {file}", file=sys.stderr)
        return asyncio.run(question(None))
    return on_store(settings, question)


def on_store(settings: Settings, work: Callable[[Store], Awaitable[T]]) -> T:
    """The result of `work` on the store. Raises `StoreUnavailable`, `StoreMisconfigured`."""

    async def run() -> T:
        store = await open_store(settings)
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(run())


def missing(settings: Settings) -> Path | None:
    """The file of an embedded store that is not there yet; None: it is, or there is no file. Raises `OSError` where its
    folder may not be looked at."""
    if settings.is_embedded and not (file := file_of(settings)).exists():
        return file
    return None


def file_of(settings: Settings) -> Path:
    """Returns the absolute path of an embedded store's file."""
    from gateway.store.sqlite.database import path_of  # which a Redis store does without

    return path_of(settings).absolute()


async def newest_rows(
    limit: int, turn: Callable[[int, str | None], Awaitable[tuple[Sequence[T], str | None]]]
) -> list[T]:
    """The newest `limit` rows of a list that is read backwards. `turn` gets a number and a position, and returns at
    most that number of rows before the position, and the next position; None: there are no more."""
    rows: list[T] = []
    before: str | None = None
    while len(rows) < limit:
        some, before = await turn(min(PAGE, limit - len(rows)), before)
        rows += some
        if before is None:
            break
    return rows


async def newest_stored(
    limit: int, read_rows: Callable[[int, str | None], Awaitable[Sequence[T]]], position_of: Callable[[T], str]
) -> list[T]:
    """The same from a store, which has no more rows where it returns fewer than were asked for."""

    async def turn(size: int, before: str | None) -> tuple[Sequence[T], str | None]:
        found = await read_rows(size, before)
        return found, None if len(found) < size else position_of(found[-1])

    return await newest_rows(limit, turn)


def add_filters(parser: argparse.ArgumentParser) -> None:
    """The filters that lists of calls and of refusals have."""
    parser.add_argument("--key", metavar="ID", help="only requests of this key")
    parser.add_argument("--team", metavar="NAME", help="only requests of this team")
    parser.add_argument("--model", metavar="NAME", help="only requests for this model")
    parser.add_argument("--status", metavar="STATUS", help="only requests with this status, such as 429 or 5xx")
    parser.add_argument("--since", metavar="TIME", help="a duration before now such as 1d or 2h, a day, or a time")
    parser.add_argument("--until", metavar="TIME", help="the same; default: now")


def add_attribution(parser: argparse.ArgumentParser) -> None:
    """The filters by the attribution that clients give a request."""
    parser.add_argument("--user", metavar="NAME", help="only requests with this user, as named by the client")
    parser.add_argument("--tag", metavar="NAME:VALUE", help="only requests with this tag")


def read_count(text: str) -> int:
    if not text.isdecimal() or not 1 <= len(text) <= 9 or int(text) < 1:
        raise ValueError("expected a number from 1")
    return int(text)


def put(text: str) -> int:
    """Write a report, or a part of it; returns the exit code. Raises `SystemExit` where it cannot be written."""
    try:
        encoding = sys.stdout.encoding or "utf-8"  # which may be unable to encode a name
        print(text.encode(encoding, "backslashreplace").decode(encoding), end="", flush=True)
    except OSError as error:
        # So that the interpreter does not try again, and complain, when it ends (Python's signal, "Note on SIGPIPE").
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):  # such as `| head`, which has read enough
            raise SystemExit(fail(f"cannot write the report: {(error.strerror or '').lower()}")) from None
        raise SystemExit(0) from None
    return 0


def named(settings: Settings, why: str) -> str:
    """A reason that names the store."""
    return why if settings.shown_url in why else f"{settings.shown_url}: {why}"


def warn(text: str) -> None:
    """Print a warning about a change that was made."""
    print(f"gateway: warning: {text}", file=sys.stderr)


def fail(*lines: str, code: int = 1) -> int:
    """Print errors, each in one line; returns the exit code."""
    for line in lines:
        print(f"gateway: {' '.join(line.split())}", file=sys.stderr)
    return code
