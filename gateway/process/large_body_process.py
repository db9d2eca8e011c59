"""A process that reads large bodies for one worker, so that the worker's event loop is not blocked meanwhile.

It reads requests from its standard input and writes answers to its standard output, one after the other. A request is a
line, `{"job": "read", "endpoint": "chat", "length": 26214400, "idle_s": 0}` with what else the job needs, and the body;
an answer is a line: the result of the job, or `{"refused": [message, param, code]}`, `{"unfit": "why"}` or
`{"failed": "MemoryError"}`. Where it has a `length`, the bytes of a body follow.

| job | result |
|---|---|
| `read` | the checked parameters: `api/large_body.py` |
| `rewrite` | the body as it goes up: `formats/bridges.py` |
| `make` | what a function of a module makes of the body, pickled as the function and its further arguments are |

It ends when its standard input is closed, which happens when the worker ends for any reason, and when no other
request has come for `idle_s` seconds, unless they are 0. It has no state.
"""

from __future__ import annotations

import gc
import json
import os
import pickle
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any

from gateway.api import large_body
from gateway.api.other_models import LISTS
from gateway.errors import InvalidRequest
from gateway.formats import bridges, table
from gateway.formats.events import Unfit
from gateway.records import Rewriting

NICENESS = 5
"""The worker's other calls go first."""


def _read(asked: Mapping[str, Any], body: bytes) -> tuple[bytes, bytes]:
    params = table.read(asked["endpoint"], body)
    keeps = {*table.FORMATS[asked["endpoint"]].keeps(params), *(LISTS if params.other_models else ())}
    return large_body.brief(params, asked["drops"], keeps, asked["reads"]), b""


def _rewrite(asked: Mapping[str, Any], body: bytes) -> tuple[bytes, bytes]:
    known, sent = bridges.made(asked["endpoint"], Rewriting(*asked["rewriting"]), body)
    return large_body.line(known | {"length": len(sent)}), sent


def _make(asked: Mapping[str, Any], body: bytes) -> tuple[bytes, bytes]:
    head = asked["head"]
    function, arguments = pickle.loads(body[:head])  # noqa: S301 - of the worker that has started this process
    made = pickle.dumps(function(body[head:], *arguments))
    return large_body.line({"length": len(made)}), made


JOBS: Mapping[str, Callable[[Mapping[str, Any], bytes], tuple[bytes, bytes]]] = {
    "read": _read, "rewrite": _rewrite, "make": _make,
}  # fmt: skip
"""Each returns the line and the bytes of an answer. Raises `InvalidRequest` or `Unfit`."""


def answer(asked: Mapping[str, Any], body: bytes) -> tuple[bytes, bytes]:
    """One line, and what follows it."""
    try:
        return JOBS[asked["job"]](asked, body)
    except InvalidRequest as refused:
        return json.dumps({"refused": [refused.message, refused.param, refused.code]}).encode() + b"\n", b""
    except Unfit as unfit:
        return large_body.line({"unfit": str(unfit)}), b""
    except Exception as error:  # its text may be the client's
        return json.dumps({"failed": type(error).__name__}).encode() + b"\n", b""


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
        signal.setitimer(signal.ITIMER_REAL, 0)
        asked = json.loads(line)
        for written in answer(asked, source.read(asked["length"])):
            sink.write(written)
        sink.flush()
        del written
        gc.collect()
        signal.setitimer(signal.ITIMER_REAL, asked["idle_s"])


if __name__ == "__main__":
    main()
