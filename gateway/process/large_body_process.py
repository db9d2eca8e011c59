"""A process that reads large bodies for one worker, so that the worker's event loop is not blocked meanwhile.

It reads requests from its standard input and writes answers to its standard output, one after the other. A request is a
line, `{"endpoint": "chat", "length": 26214400}`, and the body; an answer is a line: the result of `api/large_body.py`,
or `{"refused": [message, param, code]}`, or `{"failed": "MemoryError"}`.

It ends when its standard input is closed, which happens when the worker ends for any reason. It has no state.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
from typing import Any

from gateway import formats
from gateway.api import large_body
from gateway.errors import InvalidRequest

NICENESS = 5
"""The worker's other calls go first."""


def answer(endpoint: Any, body: bytes) -> bytes:
    """One line."""
    try:
        return large_body.brief(formats.read(endpoint, body))
    except InvalidRequest as refused:
        return json.dumps({"refused": [refused.message, refused.param, refused.code]}).encode() + b"\n"
    except Exception as error:  # its text may be the client's
        return json.dumps({"failed": type(error).__name__}).encode() + b"\n"


def main() -> None:
    """Serve one worker until it hangs up."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # sent to the whole group; the worker decides
    os.nice(NICENESS)
    # No collections while a body is being read: what JSON is made of has no rings, and there is a lot of it.
    gc.disable()
    gc.freeze()
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    while line := source.readline():
        asked = json.loads(line)
        sink.write(answer(asked["endpoint"], source.read(asked["length"])))
        sink.flush()
        gc.collect()


if __name__ == "__main__":
    main()
