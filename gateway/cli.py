"""The commands: serve, demo, check, keys, teams, audit, usage, backup, simulate.

Exit codes: 0 done, 1 failed while running, 2 wrong arguments or configuration. What a person can mend is said on
standard error in one or few plain lines, never as a traceback.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import re
import secrets
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from . import __version__
from .api import tokenizer
from .commands import audit as audit_command
from .commands import backup as backup_command
from .commands import keys as keys_command
from .commands import put
from .commands import registry as registry_command
from .commands import teams as teams_command
from .commands import usage as usage_command
from .config import Config, ConfigError, ConfigFault, StoreSettings, Upstream, build
from .config.source import Reading, Source
from .files import FolderInUse, exclusive

DEMO_MODELS: dict[str, dict[str, Any]] = {
    "gpt-3.5-turbo-instruct": {"endpoints": ["completions"], "price": {"input": 1.5, "output": 2}},
    "gpt-4o-mini": {"endpoints": ["chat"], "price": {"input": 0.15, "output": 0.6, "cached_input": 0.075}},
    "deepseek-reasoner": {"endpoints": ["chat"], "price": {"input": 0.55, "output": 2.19}},
    "text-embedding-3-small": {"endpoints": ["embeddings"], "price": {"input": 0.02}},
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    args = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        code: int = args.run(args)
    except ConfigError as error:
        for fault in error.faults:
            print(f"gateway: {args.config}: {fault}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 1
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gateway", description="A reverse proxy for OpenAI-style completions that a whole team shares."
    )
    parser.add_argument("--version", action="version", version=f"gateway {__version__}")
    of_file = argparse.ArgumentParser(add_help=False)
    of_file.add_argument("--config", required=True, metavar="FILE", help="the configuration, in YAML")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    serve = commands.add_parser(
        "serve", help="serve until SIGTERM or SIGINT", description="Serve until a signal.", parents=[of_file]
    )
    serve.add_argument("--host", help="listen here instead of server.host")
    serve.add_argument("--port", type=port_number, help="listen here instead of server.port; 0 takes a free one")
    serve.add_argument("--workers", type=int, help="so many instead of server.workers")
    serve.set_defaults(run=_serve)

    demo = commands.add_parser("demo", help="try it: no network, no key, no server needed")
    demo.add_argument("--port", type=port_number, default=8080, help="default: 8080; 0 takes a free one")
    demo.set_defaults(run=_demo, config="demo")

    check = commands.add_parser("check", help="check a configuration and say every fault at once", parents=[of_file])
    check.set_defaults(run=_check)

    keys = commands.add_parser("keys", help="create, list, show, update, rotate, revoke, reset and top up keys")
    keys_command.add_arguments(keys)
    keys.set_defaults(run=_on_config(registry_command.run))

    teams = commands.add_parser("teams", help="the same for teams")
    teams_command.add_arguments(teams)
    teams.set_defaults(run=_on_config(registry_command.run))

    audit = commands.add_parser("audit", help="who changed which key, team or quota", parents=[of_file])
    audit_command.add_arguments(audit)
    audit.set_defaults(run=_on_config(registry_command.run))

    usage = commands.add_parser(
        "usage", help="what was used, by whom; beside a running gateway or without one", parents=[of_file]
    )
    usage_command.add_arguments(usage)
    usage.set_defaults(run=_on_config(usage_command.run))

    backup = commands.add_parser(
        "backup", help="copy the embedded store while a gateway serves from it", epilog=backup_command.EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter, parents=[of_file],
    )  # fmt: skip
    backup_command.add_arguments(backup)
    backup.set_defaults(run=_on_config(backup_command.run))

    simulate = commands.add_parser("simulate", help="run the simulated upstream alone")
    simulate.add_argument("--port", type=port_number, default=8081, help="default: 8081; 0 takes a free one")
    simulate.set_defaults(run=_simulate, config="simulate")
    return parser


def _on_config(
    run: Callable[[argparse.Namespace, Config], int],
) -> Callable[[argparse.Namespace], int]:
    """A command that is given what its file says, checked."""
    return lambda args: run(args, _read(args.config))


def port_number(text: str) -> int:
    """A port as an argument; 0 takes a free one."""
    if not re.fullmatch("[0-9]{1,5}", text) or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: expected 0 to 65535")
    return int(text)


# ------------------------------------------------------------------------------------------------------------- check


def _read(path: str) -> Config:
    """The checked configuration of a file. Raises `ConfigError`."""
    return Source(path, os.environ).read().config


def _check(args: argparse.Namespace) -> int:
    config = _read(args.config)
    server, warnings = config.server, _look_at(config.store)
    upstreams = ", ".join(f"{name} ({_where(upstream)})" for name, upstream in config.upstreams.items())
    keys = ", ".join(key.id for key in config.keys)
    lines = [
        f"{args.config} is good.",
        f"  serves     {_address(server.host, server.port)} with {_count(server.workers, 'worker')}",
        f"  store      {config.store.shown_url}, namespace {config.store.namespace}",
        f"  upstreams  {upstreams}",
        f"  models     {', '.join(config.models)}",
        f"  tokens     {tokenizer.describe(config.models)}",
        f"  keys       {keys or 'none in the file; gateway keys create makes some'}",
        f"  admin API  {_admin(config)}",
        f"  alerts     {_alerts(config)}",
        *[f"  warning    {warning}" for warning in warnings],
    ]
    return put("".join([f"{line}\n" for line in lines]))


def _look_at(settings: StoreSettings) -> list[str]:
    """Look at the places that the file names. Returns warnings; raises `ConfigError` for what cannot go well."""
    from .journal import foreign_journals, problem_with
    from .store import StoreMisconfigured, look_at

    faults, warnings = [], []
    try:
        warnings = asyncio.run(look_at(settings))
    except StoreMisconfigured as error:
        faults.append(ConfigFault("store.url", str(error)))
    folder = Path(settings.journal_dir)
    if problem := problem_with(folder):
        faults.append(ConfigFault("store.journal_dir", problem))
    for where, number in foreign_journals(folder, settings.origin).items():
        belong = f"{_count(number, 'journal')} in {folder} {'belongs' if number == 1 else 'belong'}"
        warnings.append(f"{belong} to another ledger ({where}); start once with the old store.url to deliver them")
    if faults:
        raise ConfigError(faults)
    return warnings


def _where(upstream: Upstream) -> str:
    """Its address; and its proxy, which may come from the environment without anybody's having thought of it."""
    return upstream.base_url if upstream.way is None else f"{upstream.base_url} through the proxy {upstream.way}"


def _admin(config: Config) -> str:
    if config.admin.token is None:
        return "off: admin.token is not set"
    return f"on, at {config.admin.listen}, with dashboard and metrics" if config.admin.listen else "on"


def _alerts(config: Config) -> str:
    """Of what is told, and where."""
    from .alerts.policy import LEVELS, count_alerted

    if not (number := count_alerted(config)):
        return "none: no quota is per day or month"
    levels = " and ".join(f"{level} %" for level in LEVELS)
    webhook = config.alerts.shown_webhook
    where = f"log, metrics and {webhook}" if webhook else "log and metrics alone: alerts.webhook is not set"
    if webhook and config.alerts.way is not None:
        where += f" through the proxy {config.alerts.way}"
    return f"at {levels} of {_count(number, 'quota')} per day or month, to {where}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


# ------------------------------------------------------------------------------------------------------------- serve


def _serve(args: argparse.Namespace) -> int:
    source = Source(args.config, os.environ, {"host": args.host, "port": args.port, "workers": args.workers})
    return _supervise(source.read(), source)


def _supervise(reading: Reading, source: Source | None, demo: Demo | None = None) -> int:
    from .process import supervisor  # after the configuration: a fault in it is said sooner
    from .store import StoreMisconfigured
    from .store.sqlite.folder import exclusive_folder

    config = reading.config

    async def run() -> None:
        if demo is not None:
            await demo.start_upstream()
        listeners = [supervisor.bind(config.server.host, config.server.port)]
        if config.admin.address is not None:
            listeners.append(supervisor.bind(*config.admin.address))
        address, *office = [_address_of(each) for each in listeners]

        def say_ready() -> None:
            if demo is not None:
                print(demo.welcome(address), flush=True)
            else:
                own = f"; admin, dashboard and metrics at {office[0]}" if office else ""
                number = _count(config.server.workers, "worker")
                print(f"gateway {__version__} serves {address} with {number}{own}", flush=True)

        with ExitStack() as opened:
            for listener in listeners:
                opened.enter_context(listener)
            await supervisor.Supervisor(reading, source, listeners).run(say_ready)

    try:
        with ExitStack() as held:
            if config.store.is_embedded:
                held.enter_context(exclusive_folder(config.store))
            held.enter_context(exclusive(Path(config.store.journal_dir), "store.journal_dir"))
            asyncio.run(run())
    except (supervisor.CannotServe, FolderInUse) as error:
        print(f"gateway: {error}", file=sys.stderr)
        return 1
    except StoreMisconfigured as error:
        print(f"gateway: cannot use {config.store.shown_url}: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"gateway: cannot use {error.filename}: {(error.strerror or str(error)).lower()}", file=sys.stderr)
        return 1
    return 0


def _address_of(listener: socket.socket) -> str:
    return _address(*listener.getsockname()[:2])


def _address(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


# -------------------------------------------------------------------------------------------------------------- demo


class Demo:
    """A simulated upstream, a store that is thrown away, a key and an admin token, made for this run."""

    def __init__(self, port: int, folder: str) -> None:
        self.key = f"sk-gw-demo-{secrets.token_urlsafe(24)}"
        self.admin_token = secrets.token_urlsafe(24)
        self._upstream_key = secrets.token_urlsafe(24)
        self._upstream = socket.create_server(("127.0.0.1", 0), backlog=128)
        upstream_port = self._upstream.getsockname()[1]
        self.values: dict[str, Any] = {
            "server": {"port": port, "access_log": "off", "drain_delay_s": 0, "drain_timeout_s": 5},
            "store": {"url": f"embedded:{folder}/data", "journal_dir": f"{folder}/journal"},
            "admin": {"token": self.admin_token},
            "upstreams": {
                "simulator": {"base_url": f"http://127.0.0.1:{upstream_port}/v1", "api_key": self._upstream_key}
            },
            "models": {
                name: {**model, "routes": [{"upstream": "simulator"}], "max_output_tokens": 4096}
                for name, model in DEMO_MODELS.items()
            },
            "keys": [
                {
                    "id": "demo",
                    "secret": self.key,
                    "quotas": [
                        {"requests": 600, "per": "minute"},
                        {"tokens": 1000000, "per": "day"},
                        {"usd": 5, "per": "month"},
                    ],
                }
            ],
        }

    async def start_upstream(self) -> None:
        """Serve the simulated upstream beside the supervisor."""
        from . import simulator

        settings = simulator.Settings(api_key=self._upstream_key, first_token_delay_s=0.15, tokens_per_s=40)
        await simulator.serve_on(self._upstream, settings)

    def welcome(self, address: str) -> str:
        """What to type next."""
        return f"""\
The gateway serves {address} in front of a simulated upstream. Nothing leaves this machine.

Talk to it:

  curl -N {address}/v1/chat/completions \\
    -H "Authorization: Bearer {self.key}" -H "Content-Type: application/json" \\
    -d '{{"model": "gpt-4o-mini", "stream": true, "messages": [{{"role": "user", "content": "Hello!"}}]}}'

Or with the official SDK (`pip install openai`; .venv/bin/python has it):

  from openai import OpenAI
  client = OpenAI(base_url="{address}/v1", api_key="{self.key}")
  answer = client.chat.completions.create(model="gpt-4o-mini", messages=[{{"role": "user", "content": "Hello!"}}])
  print(answer.choices[0].message.content, answer.usage)

Then see who uses what, in a browser:

  {address}/dashboard#token={self.admin_token}

Or ask what it cost, by model:

  curl "{address}/admin/api/usage?group_by=key,model" -H "Authorization: Bearer {self.admin_token}"

Metrics are at {address}/metrics. Ctrl-C ends the demo."""


def _demo(args: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory(prefix="gateway-demo-") as folder:
        demo = Demo(args.port, folder)
        return _supervise(Reading(build(demo.values), demo.values, frozenset()), None, demo)


# ---------------------------------------------------------------------------------------------------------- simulate


def _simulate(args: argparse.Namespace) -> int:
    from . import simulator
    from .process import supervisor

    async def run() -> None:
        with supervisor.bind("127.0.0.1", args.port) as listener:
            runner = await simulator.serve_on(listener, simulator.Settings())
            print(f"The simulated upstream serves http://127.0.0.1:{listener.getsockname()[1]}/v1", flush=True)
            stopped = asyncio.Event()
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, stopped.set)
            await stopped.wait()
            await runner.cleanup()

    try:
        asyncio.run(run())
    except supervisor.CannotServe as error:
        print(f"gateway: {error}", file=sys.stderr)
        return 1
    return 0
