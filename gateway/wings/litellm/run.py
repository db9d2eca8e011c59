"""`gateway import litellm FILE`: a configuration out of that of LiteLLM's proxy and of rows of its database, and a list
of what is not in it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway.commands.common import UsageError, fail, put
from gateway.commands.serve import count
from gateway.config import ConfigError, ConfigFault

if TYPE_CHECKING:
    from .given import Converted


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.add_argument("file", nargs="?", metavar="FILE", help="LiteLLM's config.yaml")
    parser.add_argument(
        "--database", action="append", default=[], metavar="FILE",
        help="rows of its tables of keys, teams, budgets and users as JSON or CSV; may be given again. Without FILE, "
        "a file of keys and teams alone is written, for include:",
    )  # fmt: skip
    parser.add_argument("--config", default="gateway.yaml", metavar="FILE", help="to write; default: gateway.yaml")
    parser.add_argument("--force", action="store_true", help="replace the file if it is there")


def run(args: argparse.Namespace) -> int:
    """Convert, write, and list what is not converted; returns the exit code. Raises `UsageError`."""
    import yaml

    if args.file is None and not args.database:
        raise UsageError("expected LiteLLM's config.yaml, or --database FILE, or both")
    target = Path(args.config)
    if target.exists() and not args.force:
        return fail(f"{target} is there already; name another with --config, or replace it with --force", code=2)
    try:
        done = _converted(args)
    except ConfigError as error:
        return fail(*[fault.located(args.file or "") for fault in error.faults], code=2)
    dumped = yaml.safe_dump(done.values, sort_keys=False, allow_unicode=True, width=110)
    source = Path(args.file or args.database[0]).name
    head = f"# Converted from {source} by gateway import litellm. Every setting: docs/configuration.md\n"
    try:
        with target.open("w" if args.force else "x", encoding="utf-8") as opened:
            opened.write(head + dumped)
    except OSError as error:
        return fail(f"cannot write {target}: {(error.strerror or str(error)).lower()}")
    lines = [
        f"{target} is written: {_content(done)}.",
        *(["Not converted, or different here:", *[f"  {note.located()}" for note in done.notes]] if done.notes else []),
        *([f"Variables to set: {', '.join(done.variables)}"] if done.variables else []),
        *([] if args.database else ["Keys and teams are in LiteLLM's database: see docs/from-litellm.md, Keys."]),
        *(
            []
            if args.file is None
            else ["Next:", f"  gateway check --config {target}", f"  gateway serve --config {target}"]
        ),
    ]
    return put("".join([f"{line}\n" for line in lines]))


def _converted(args: argparse.Namespace) -> Converted:
    """Converts the file and the rows of the databases. Raises `ConfigError`."""
    from .conversion import convert
    from .database import add_rows, read_rows
    from .given import Converted

    now = datetime.now(UTC)
    done = Converted() if args.file is None else convert(_read(args.file), args.file, now)
    tables: dict[str, list[Mapping[str, Any]]] = {}
    for file in args.database:
        for name, rows in read_rows(_read(file), file).items():
            tables.setdefault(name, []).extend(rows)
    if tables:
        add_rows(done, tables, now)
    return done


def _read(file: str) -> str:
    """Reads a text file in UTF-8. Raises `ConfigError` if that fails."""
    try:
        return Path(file).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise ConfigError([ConfigFault("", f"cannot read {file}: {reason}")]) from None


def _content(done: Converted) -> str:
    values = done.values
    parts = []
    if "models" in values:
        parts.append(f"{count(len(values['models']), 'model')} at {count(len(values['upstreams']), 'upstream')}")
    if "keys" in values or "teams" in values:
        parts.append(f"{count(len(values.get('keys', [])), 'key')} in {count(len(values.get('teams', {})), 'team')}")
    return ", ".join(parts) or "nothing"
