"""A proxy that only forwards: aiohttp's server and client with one key, started as `python -m bench.bare FD URL`.

It is what `lone.py` compares with: the least that a Python gateway on aiohttp could cost. It does not validate, count,
limit or log.
"""

from __future__ import annotations

import socket
import sys

import uvloop
from aiohttp import ClientSession, web

from . import calls

FORWARDED = {"Authorization": "Bearer sk-upstream-of-the-bench", "Content-Type": "application/json"}


async def serve(listener: socket.socket, url: str) -> None:
    """Forward the calls of this listener to `url` until the process is ended."""
    async with ClientSession() as session:

        async def forward(request: web.Request) -> web.Response:
            if request.headers.get("Authorization") != calls.HEADERS["Authorization"]:
                return web.Response(status=401)
            async with session.post(url + request.path, data=await request.read(), headers=FORWARDED) as answer:
                return web.Response(status=answer.status, body=await answer.read(), content_type=answer.content_type)

        application = web.Application()
        application.router.add_post(calls.PATH, forward)
        await web._run_app(application, sock=listener, access_log=None, print=None)


if __name__ == "__main__":
    uvloop.run(serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2]))
