"""The simulated upstream as a process that can be killed; a file keeps a line for each call that it serves.

    python -m bench.stack.simulator --port 12345 --book FILE

A line is `NUMBER begun` before the first byte of an answer is sent, and `NUMBER done`, `refused` or `left` at its end.
The number is in the call's prompt.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import socket
from io import RawIOBase
from pathlib import Path

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from gateway.simulator import Settings, build_app

_MARK = re.compile(rb"call (\d+) ")


def keeping(book: RawIOBase) -> Middleware:
    """Records every call with a number."""

    @web.middleware
    async def keep(request: web.Request, handler: Handler) -> web.StreamResponse:
        found = _MARK.search(await request.read()) if request.method == "POST" else None
        if not found:
            return await handler(request)
        number, end = found[1], b"refused"
        book.write(b"%b begun\n" % number)
        try:
            answer = await handler(request)
            end = b"done"
            return answer
        except (asyncio.CancelledError, ConnectionError):
            end = b"left"
            raise
        finally:
            book.write(b"%b %b\n" % (number, end))

    return keep


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.stack.simulator")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--book", type=Path, required=True)
    args = parser.parse_args()
    with args.book.open("ab", buffering=0) as book, socket.create_server(("127.0.0.1", args.port)) as listener:
        app = build_app(Settings())
        app.middlewares.append(keeping(book))
        print("The simulated upstream serves.", flush=True)
        web.run_app(
            app, sock=listener, access_log=None, print=None, handler_cancellation=True, shutdown_timeout=1
        )  # fmt: skip


if __name__ == "__main__":
    main()
