"""`gateway serve`: runs the supervisor until a signal. Imports what it needs when it runs, so that `--help` is fast."""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from gateway import __version__

from .place import add_config

if TYPE_CHECKING:
    from gateway.config.source import Reading, Source


class Companion(Protocol):
    """Runs beside the supervisor. Implemented by demo.py."""

    async def start_upstream(self) -> None:
        """Serve what the configuration names as upstreams, before the gateway listens."""

    def welcome(self, address: str) -> str:
        """The text for the operator, once the gateway serves this address."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Serve until a signal."
    add_config(parser)
    parser.add_argument("--host", help="listen here instead of server.host")
    parser.add_argument("--port", type=port_number, help="listen here instead of server.port; 0 takes a free one")
    parser.add_argument("--workers", type=int, help="number of workers instead of server.workers")


def run(args: argparse.Namespace) -> int:
    from gateway.config.source import Source

    source = Source(args.config, os.environ, {"host": args.host, "port": args.port, "workers": args.workers})
    return supervise(source.read(), source)


def port_number(text: str) -> int:
    """A port as an argument; 0 takes a free one."""
    if not re.fullmatch("[0-9]{1,5}", text) or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: expected 0 to 65535")
    return int(text)


def supervise(reading: Reading, source: Source | None, companion: Companion | None = None) -> int:
    """Run the supervisor until it is stopped; returns the exit code."""
    from gateway.files import FolderInUse, exclusive
    from gateway.process import supervisor  # after the configuration, so that a fault in it is reported sooner
    from gateway.process.worker_start import forked
    from gateway.store import StoreMisconfigured
    from gateway.store.sqlite.folder import exclusive_folder

    config = reading.config

    async def run() -> None:
        if companion is not None:
            await companion.start_upstream()
        listeners = [supervisor.bind(config.server.host, config.server.port)]
        if config.admin.address is not None:
            listeners.append(supervisor.bind(*config.admin.address))
        address, *admin_addresses = [format_address(*each.getsockname()[:2]) for each in listeners]

        def say_ready() -> None:
            if companion is not None:
                print(companion.welcome(address), flush=True)
            else:
                own = f"; admin, dashboard and metrics at {admin_addresses[0]}" if admin_addresses else ""
                number = count(config.server.workers, "worker")
                print(f"gateway {__version__} serves {address} with {number}{own}", flush=True)
                if config.has_admin_api:
                    print(
                        f"The dashboard is at {admin_addresses[0] if admin_addresses else address}/dashboard",
                        flush=True,
                    )

        with ExitStack() as opened:
            for listener in listeners:
                opened.enter_context(listener)
            await supervisor.Supervisor(reading, source, listeners, workers).run(say_ready)

    try:
        with forked(config) as workers, ExitStack() as held:
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


def format_address(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def count(number: int, what: str) -> str:
    """Returns the number with its noun, plural with an `s`: `1 worker`, `2 workers`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
