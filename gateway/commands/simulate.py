"""`gateway simulate`: the simulated upstream alone. Also the parts of wings in the demo, which has more upstreams."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from gateway.wings import parts

from .serve import port_number

if TYPE_CHECKING:
    from aiohttp.web import Application

    from gateway.config import Config
    from gateway.simulator import Settings
    from gateway.store import Store

WORKER = "demo-history"  # by its name the past of the demo is written


class WingPast(NamedTuple):
    """Adds entries of a wing to the store of the demo, after the calls of the past. The last argument is the present
    Unix time."""

    write: Callable[[Store, Config, float], Awaitable[None]]


class WingDemo(NamedTuple):
    """A wing's part of the demo: its section of the file, from those of the upstreams; and the application of a
    simulated upstream, from its name, the configuration and the Unix time at which the past ends."""

    section: str
    settings: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    build: Callable[[str, Config, float, Settings], Application]


def pasts_of_wings() -> list[WingPast]:
    return parts(WingPast, "demo_history")


def demos_of_wings() -> list[WingDemo]:
    return parts(WingDemo, "demo_history")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=port_number, default=8081, help="default: 8081; 0 takes a free one")
    parser.add_argument(
        "--prefix-cache", type=int, default=0, metavar="BLOCKS",
        help="size of the prefix cache of chats, in blocks of 128 tokens; default: none",
    )  # fmt: skip
    parser.set_defaults(config="simulate")


def run(args: argparse.Namespace, build: Callable[[Settings], Application] | None = None) -> int:
    """Serve the simulated upstream, or what `build` makes; returns the exit code."""
    from gateway import simulator
    from gateway.process import supervisor

    async def serve() -> None:
        with supervisor.bind("127.0.0.1", args.port) as listener:
            settings = simulator.Settings(prefix_cache_blocks=args.prefix_cache)
            runner = await simulator.serve_on(listener, settings, build or simulator.build_app)
            print(f"The simulated upstream serves http://127.0.0.1:{listener.getsockname()[1]}/v1", flush=True)
            stopped = asyncio.Event()
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, stopped.set)
            await stopped.wait()
            await runner.cleanup()

    try:
        asyncio.run(serve())
    except supervisor.CannotServe as error:
        print(f"gateway: {error}", file=sys.stderr)
        return 1
    return 0
