"""The command line: a table of commands, each of which is a module of `gateway/commands` or of a wing.

1. Only the module of the command that is named is imported; `gateway --help` imports none.
2. Exit codes: 0 success, 1 failure while running, 2 wrong arguments or configuration.
3. A fault that an operator can correct is one or few plain lines on standard error, never a traceback.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from . import __version__
from .wings import parts

if TYPE_CHECKING:
    from .config import Config


class Command(NamedTuple):
    """One command. A wing has it in its module `command`, which imports nothing else: every `--help` reads it."""

    name: str
    """One word, or two where commands have the first one in common."""
    help: str
    takes_config: bool = False
    """`run` takes the checked configuration, too."""
    module: str = ""
    """Its module below `gateway`; empty: the one of its name in `commands`."""
    reads_secrets: bool = False
    """That configuration has the secrets of upstreams, keys and tokens, which most commands do not use."""


COMMANDS = (
    Command("serve", "serve until SIGTERM or SIGINT"),
    Command("demo", "try the gateway: no network, no key, no server needed"),
    Command("check", "check a configuration and report every fault at once"),
    Command("keys", "create, list, show, change, pause, revoke, delete, reset and top up keys", takes_config=True),
    Command("teams", "the same for teams", takes_config=True),
    Command(
        "quotas",
        "reset and top up quotas of the gateway, of upstreams and of labels",
        takes_config=True,
        module="commands.windows",
    ),
    Command("audit", "changes of keys, teams and quotas, with their author", takes_config=True),
    Command("usage", "usage by key, team, model or day; with or without a running gateway", takes_config=True),
    Command("calls", "calls, the newest first, or one request by its id", takes_config=True),
    Command("refusals", "refused requests and why; with or without a running gateway", takes_config=True),
    Command("upstreams", "state of each upstream, and use of its limits", takes_config=True, reads_secrets=True),
    Command("prices", "prices of the models, and their sources"),
    Command("backup", "copy the embedded store while a gateway serves from it", takes_config=True),
    Command("simulate", "run the simulated upstream without a gateway"),
)
FIRST_WORDS = {"import": "take over what another gateway has"}  # the help of words that commands have in common


def commands_of_all() -> Sequence[Command]:
    """The commands of the trunk and of all wings."""
    return (*COMMANDS, *parts(Command, "command"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    args = _parser(given[:2]).parse_args(given)

    import gc  # imported late: only running a command needs it
    import logging
    import os

    # Else pydantic reads the metadata of every installed package, and runs the plugins that it finds there.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    gc.disable()  # imports allocate much and free little: collections would only take time
    from .commands.common import UsageError, fail
    from .commands.place import chosen
    from .config import ConfigError

    gc.enable()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    run = _module(args.command).run
    try:
        read = partial(_read, reads_secrets=args.command.reads_secrets)
        code: int = run(args, chosen(args, read)) if args.command.takes_config else run(args)
    except UsageError as error:
        return fail(*error.args, code=2)
    except ConfigError as error:
        for fault in error.faults:
            print(f"gateway: {fault.located(args.config)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 1
    return code


def _parser(named: Sequence[str] | None = None) -> argparse.ArgumentParser:
    """The parser, with the arguments of the commands that are named; by default of all."""
    parser = argparse.ArgumentParser(
        prog="gateway", description="A reverse proxy for OpenAI-style completions that a whole team shares."
    )
    parser.add_argument("--version", action="version", version=f"gateway {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    groups = {"": commands}
    for command in commands_of_all():
        first, _, name = command.name.rpartition(" ")
        if first not in groups:
            group = commands.add_parser(first, help=FIRST_WORDS[first])
            groups[first] = group.add_subparsers(title="formats", required=True, metavar="FORMAT")
        own = groups[first].add_parser(name, help=command.help)
        own.set_defaults(command=command)
        if named is None or " ".join(named).startswith(command.name):
            _module(command).add_arguments(own)
    return parser


def _module(command: Command) -> Any:
    return import_module(f"gateway.{command.module or f'commands.{command.name}'}")


def _read(path: str, *, reads_secrets: bool) -> Config:
    """The checked configuration of a file. Raises `ConfigError`."""
    import os

    from .config.source import Source

    return Source(path, os.environ, reads_secrets=reads_secrets).read().config
