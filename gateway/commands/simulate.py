"""`gateway simulate`: the simulated upstream alone."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from .serve import port_number

if TYPE_CHECKING:
    from aiohttp.web import Application

    from gateway.simulator import Settings


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
