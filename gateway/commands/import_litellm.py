"""`gateway import litellm FILE`: a configuration out of that of LiteLLM's proxy, and a list of what is not in it."""

from __future__ import annotations

import argparse
from pathlib import Path

from .common import fail, put
from .serve import count


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    kinds = parser.add_subparsers(title="formats", required=True, metavar="FORMAT")
    litellm = kinds.add_parser("litellm", help="the YAML file of LiteLLM's proxy")
    litellm.add_argument("file", metavar="FILE", help="LiteLLM's config.yaml")
    litellm.add_argument("--config", default="gateway.yaml", metavar="FILE", help="to write; default: gateway.yaml")
    litellm.add_argument("--force", action="store_true", help="replace the file if it is there")


def run(args: argparse.Namespace) -> int:
    """Convert, write, and list what is not converted; returns the exit code."""
    import yaml

    from gateway.config import ConfigError
    from gateway.config.from_litellm import convert

    target = Path(args.config)
    if target.exists() and not args.force:
        return fail(f"{target} is there already; name another with --config, or replace it with --force", code=2)
    try:
        done = convert(Path(args.file).read_text(encoding="utf-8-sig"), args.file)
    except ConfigError as error:
        return fail(*[fault.located(args.file) for fault in error.faults], code=2)
    except (OSError, UnicodeDecodeError) as error:
        return fail(f"cannot read {args.file}: {getattr(error, 'strerror', None) or 'not UTF-8 text'}", code=2)
    dumped = yaml.safe_dump(done.values, sort_keys=False, allow_unicode=True, width=110)
    head = f"# Converted from {Path(args.file).name} by gateway import litellm. Every setting: docs/configuration.md\n"
    try:
        with target.open("w" if args.force else "x", encoding="utf-8") as opened:
            opened.write(head + dumped)
    except OSError as error:
        return fail(f"cannot write {target}: {(error.strerror or str(error)).lower()}")
    models, upstreams = len(done.values["models"]), len(done.values["upstreams"])
    lines = [
        f"{target} is written: {count(models, 'model')} at {count(upstreams, 'upstream')}.",
        *(["Not converted, or different here:", *[f"  {note.located()}" for note in done.notes]] if done.notes else []),
        *([f"Variables to set: {', '.join(done.variables)}"] if done.variables else []),
        "Keys and teams are in LiteLLM's database: see docs/from-litellm.md, Keys.",
        "Next:",
        f"  gateway check --config {target}",
        f"  gateway serve --config {target}",
    ]
    return put("".join([f"{line}\n" for line in lines]))
