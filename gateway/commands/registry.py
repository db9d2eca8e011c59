"""The shared part of `gateway keys`, `teams` and `audit`: they work on the store, with or without a running gateway.

Running gateways apply the changes within seconds. Keys and teams of the file are read from the file as it is now.
"""

from __future__ import annotations

import argparse
import logging
import os
import pwd
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar, cast

from gateway.config import Config
from gateway.config.quantities import QUOTA_EXAMPLES
from gateway.errors import GatewayError, InvalidRequest
from gateway.keys.decisions import changes_of_command
from gateway.keys.registry import Page, Registry
from gateway.quota.notation import NONE, Named, merged_quotas, read_limit, read_names, read_quota, read_since
from gateway.reports.registry import Column, format_csv, format_one, format_table
from gateway.reports.table import format_json
from gateway.store import Store, StoreMisconfigured, StoreUnavailable

from .common import UsageError, fail, missing, named, on_store, put, warn
from .place import RemoteGateway, add_place, on_gateway

T = TypeVar("T")
Place = Config | RemoteGateway
Action = Callable[[Registry], Awaitable[T]]


def carry_out(place: Place, deed: Action[T], *, makes_store: bool = True) -> T:
    """Run with the registry of the configured store, or with that of a running gateway.

    Raises `GatewayError`, `StoreUnavailable`, `StoreMisconfigured`, `OSError`.

    If there is no embedded store yet, one is created and reported; a command that only reads uses an empty one instead,
    so that a mistyped folder is not created.
    """
    if isinstance(place, RemoteGateway):
        return on_gateway(place, lambda remote: deed(cast("Registry", remote)))  # which has the methods of commands
    with ExitStack() as held:
        config = place
        settings = config.store
        if (file := missing(settings)) is not None and makes_store:
            print(f"gateway: there was no {file}; it is made now", file=sys.stderr)
        elif file is not None:
            print(f"gateway: there is no {file} yet", file=sys.stderr)
            folder = held.enter_context(tempfile.TemporaryDirectory(prefix="gateway-empty-"))
            settings = settings.model_copy(update={"url": f"embedded:{folder}"})

        def on_registry(store: Store) -> Awaitable[T]:
            registry = Registry(store, lambda: config, store.clock.now, changes_of_command(store, config.store))
            return deed(registry.warning(warn))

        return on_store(settings, on_registry)


def every_row(place: Place, turn: Callable[[Registry, str], Awaitable[Page]]) -> list[dict[str, Any]]:
    """The rows of all pages; `turn` gets the one behind a name. Raises as `carry_out`."""

    async def every(registry: Registry) -> list[dict[str, Any]]:
        rows, after = [], ""
        while True:
            page = await turn(registry, after)
            rows += page.rows
            if page.next is None:
                return rows
            after = page.next

    return carry_out(place, every, makes_store=False)


def run(args: argparse.Namespace, place: Place) -> int:
    """Run `args.act`, and print errors in plain lines; returns the exit code."""
    # Warnings of opening a store are for `gateway serve`.
    logging.getLogger("gateway").setLevel(logging.ERROR)
    try:
        return put(args.act(args, place))
    except UsageError as error:
        return fail(*error.args, code=2)
    except InvalidRequest as error:
        return fail(error.message, code=2)
    except GatewayError as error:
        return fail(error.message)
    except StoreUnavailable as error:
        return fail(f"{_named(place, str(error))}; a change may have been made or not: look, and repeat it")
    except StoreMisconfigured as error:
        return fail(_named(place, str(error)))
    except OSError as error:
        return fail(_named(place, (error.strerror or str(error)).lower()))


def _named(place: Place, why: str) -> str:
    return f"{place.url}: {why}" if isinstance(place, RemoteGateway) else named(place.store, why)


def actor(command: str) -> str:
    """The author for the audit log."""
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a user without a name, as containers have
        user = str(os.getuid())
    behind = os.environ.get("SUDO_USER", "") if os.getuid() == 0 else ""
    return f"gateway {command}, user {user}" + (f" (sudo by {behind[:64]})" if behind.isprintable() and behind else "")


# ---------------------------------------------------------------------------------------------------------- arguments


class Actions:
    """The actions of one command: each a parser of its own, with the configuration and `--json`."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self._actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION")

    def add(
        self, name: str, what: str, act: Callable[[argparse.Namespace, Place], str], *examples: str
    ) -> argparse.ArgumentParser:
        """One action; `act` returns what is written to standard output."""
        shown = "".join([f"  {example}\n" for example in examples])
        parser = self._actions.add_parser(
            name, help=what, description=f"{what[0].upper()}{what[1:]}.",
            epilog=f"examples:\n{shown}" if shown else None, formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        add_place(parser)
        parser.set_defaults(act=act)
        return parser


def add_shape(parser: argparse.ArgumentParser, *, csv: bool = False, quiet: str = "") -> None:
    """The output format; default: for people."""
    shapes = parser.add_mutually_exclusive_group()
    shapes.add_argument("--json", action="store_const", dest="shape", const="json", help="for scripts")
    if csv:
        shapes.add_argument("--csv", action="store_const", dest="shape", const="csv", help="for spreadsheets")
    if quiet:
        shapes.add_argument("--quiet", action="store_const", dest="shape", const="quiet", help=quiet)
    parser.set_defaults(shape="table")


def add_quotas(parser: argparse.ArgumentParser, what: str) -> None:
    """`--tokens`, `--requests` and `--usd`, each as often as wanted."""
    for unit, example in QUOTA_EXAMPLES.items():
        parser.add_argument(
            f"--{unit}", metavar="N/TIME", action="append", default=[], help=f"{what}, such as {example}"
        )


def quotas_of(args: argparse.Namespace) -> list[Named]:
    """The quotas that were named. Raises `UsageError`."""
    return [
        read(f"--{unit}", partial(read_quota, unit), text)
        for unit in ("requests", "tokens", "usd")
        for text in getattr(args, unit)
    ]


def merged(known: Sequence[Mapping[str, Any]], quotas: Sequence[Named]) -> list[dict[str, Any]]:
    """Quotas with those that were named set or gone. Raises `UsageError`."""
    try:
        return merged_quotas(known, quotas)
    except ValueError as error:
        raise UsageError(str(error)) from None


def read_moment(text: str) -> float:
    """A Unix time: a time back from now, a day or a moment. Raises `ValueError`."""
    return read_since(text, datetime.now(UTC))


def given(args: argparse.Namespace, name: str, reader: Callable[[str], T]) -> T | None:
    """The value of an option, read; None where it is not given. Raises `UsageError`."""
    text = getattr(args, name)
    return None if text is None else read(f"--{name}", reader, text)


def read(option: str, how: Callable[[str], T], text: str) -> T:
    """The value of an argument. Raises `UsageError`, which names the option."""
    try:
        return how(text)
    except ValueError as error:
        raise UsageError(f"argument {option}: {error}") from None


def names_of(option: str, texts: Sequence[str]) -> list[str] | None:
    """Returns the names that an option lists, separated by commas or in repeated options; None for `none`. Raises
    `UsageError` if there is no name."""
    names = [name for text in texts for name in read_names(text)]
    if not names:  # an empty variable of a script: an empty list of networks would admit every address
        raise UsageError(f"argument {option}: expected one or more, with commas, or {NONE}")
    return None if names == [NONE] else names


def limits_of(texts: Sequence[str], known: dict[str, Any] | None = None) -> dict[str, Any]:
    """Limits with those that were named set or gone. Raises `UsageError`."""
    named_ones = dict(read("--limit", read_limit, text) for text in texts)
    return {name: value for name, value in {**(known or {}), **named_ones}.items() if value is not None}


def one_name(args: argparse.Namespace, option: str) -> str:
    """A name that may be given with its option or without. Raises `UsageError`."""
    given = [name for name in (args.name, args.named) if name is not None]
    if len(given) != 1:
        raise UsageError(f"argument {option}: expected {'exactly one' if given else 'one'}, such as {option} alice")
    return str(given[0])


# ------------------------------------------------------------------------------------------------------------- output


def format_rows(
    args: argparse.Namespace, columns: Sequence[Column], rows: Sequence[Any], in_table: Sequence[Column] = ()
) -> str:
    """Rows in the requested format; `in_table` are the columns of a table, default: all."""
    if args.shape == "json":
        return format_json(rows)
    if args.shape == "csv":
        return format_csv(columns, rows)
    return format_table(in_table or columns, rows) if rows else "There are none.\n"


def format_row(args: argparse.Namespace, row: Any) -> str:
    """One thing in the shape that was asked for."""
    return format_json(row) if args.shape == "json" else format_one(row)
