"""The option `--compare FILE` of `gateway usage`: compares the gateway's usage with a provider's usage export.

It is a report: the exit code does not depend on the differences. Notes name the lines that cannot be compared, and how
model names were matched.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from gateway.commands import common
from gateway.commands.common import UsageError
from gateway.commands.place import RemoteGateway
from gateway.commands.usage import WingOption, days_of
from gateway.config import Config
from gateway.reports.table import format_json
from gateway.reports.usage import read_day

from . import comparison as comparison_report
from .invoice import Export, NotUnderstood, read_export
from .question import Comparison, Question, ask

LIVE = "live"
"""The word in place of a file: ask the provider."""


def read_file(path: str) -> Export:
    """A provider's export. Raises `NotUnderstood`, also for a file that cannot be read."""
    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as lines:
            return read_export(lines)
    except UnicodeDecodeError:
        raise NotUnderstood(["is not UTF-8 text"]) from None
    except OSError as error:
        raise NotUnderstood([f"cannot be read: {(error.strerror or str(error)).lower()}"]) from None


def format_comparison(shape: str, comparison: Comparison, export: Export) -> str:
    """The comparison as `table`, `csv` or `json`."""
    pairs = comparison.pairs
    if shape == "table":
        return (comparison_report.format_table(pairs, export.reported) if pairs else "Nothing was used.") + "\n"
    rows = comparison_report.rows_of(pairs, export.reported)
    if shape == "csv":
        return comparison_report.format_csv(rows)
    return format_json(rows)


def report(args: argparse.Namespace, config: Config | RemoteGateway) -> tuple[str, Sequence[str]]:
    """The usage beside a provider's export, and notes. Raises `UsageError`, and as `commands.ask`."""
    if isinstance(config, RemoteGateway):
        raise UsageError("argument --compare: needs --config, for it reads the store itself")
    since, until = days_of(args, read_day)
    if args.by is not None:
        raise UsageError("argument --by: a comparison is always by day and model")
    for name in ("key", "team", "model"):
        if getattr(args, name) is not None:
            raise UsageError(f"argument --{name}: a comparison is of all keys and models")
    upstreams = [name for part in (args.upstream or "").split(",") if (name := part.strip())]
    if unknown := [name for name in upstreams if name not in config.upstreams]:
        raise UsageError(
            f"argument --upstream: there is no upstream {unknown[0]!r}; there are: {', '.join(config.upstreams)}"
        )
    if args.compare == LIVE:
        from . import run  # an export needs no client

        return run.report(args, run.with_secrets(args), since, until)
    try:
        export = read_file(args.compare)
    except NotUnderstood as error:
        raise UsageError(*[f"{args.compare}: {fault}" for fault in error.faults]) from None
    question = Question(export, upstreams, since, until)
    comparison = common.ask(config.store, lambda store: ask(store, question, config.models))
    return format_comparison(args.format, comparison, export), comparison.notes


OPTION = WingOption(
    "compare",
    "FILE",
    "compare with a provider's usage export (CSV), or `live` with its bill; --upstream may then name several",
    report,
)
