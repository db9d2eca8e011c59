"""A process that gives kept calls of one worker the form in which they are exported (`digest.py`), so that the worker's
event loop is not held up by long bodies, and a pattern that takes forever can be ended (`digester.py`).

The first line of its standard input is `{"paths": [...], "patterns": [...], "has_otlp": true}`. Then each call is a
line with its facts and the sizes of its bodies, and these bodies. The answer is a line with two sizes, the line for a
file, and the request for OTLP, which is empty where it is not asked for; or `[]`, where the call cannot be read.

It ends when its standard input is closed. It has no state.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import suppress
from typing import Any, BinaryIO

from .digest import KeptBody, KeptCall, exported, line_of
from .redaction import Redactor

NICENESS = 5
"""The worker's calls go first."""


def head_of(call: KeptCall) -> bytes:
    """The line with which a call begins; its bodies follow."""
    bodies = [[*each._replace(data=b""), len(each.data)] for each in (call.request, *call.answers)]
    shown = [[endpoint, is_stream, is_cut, size] for endpoint, _, is_stream, is_cut, size in bodies]
    return json.dumps({"facts": dict(call.facts), "bodies": shown}).encode() + b"\n"


def read_call(head: bytes, source: BinaryIO) -> KeptCall:
    """The call that begins with this line."""
    given = json.loads(head)
    request, *answers = [
        KeptBody(endpoint, source.read(size), is_stream, is_cut)
        for endpoint, is_stream, is_cut, size in given["bodies"]
    ]
    return KeptCall(given["facts"], request, answers)


def main() -> None:
    """Serve one worker until it hangs up."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # sent to the whole group; the worker decides
    os.nice(NICENESS)
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    asked: dict[str, Any] = json.loads(source.readline())
    redact = Redactor(asked["paths"], asked["patterns"])
    if asked["has_otlp"]:
        from .otlp import request_of
    while head := source.readline():
        kept = read_call(head, source)
        made: tuple[bytes, ...] = ()
        with suppress(Exception):  # its text may be the client's
            call = exported(kept, redact)
            made = (line_of(call), request_of(call) if asked["has_otlp"] else b"")
        for written in (json.dumps([*map(len, made)]).encode() + b"\n", *made):
            sink.write(written)
        sink.flush()


if __name__ == "__main__":
    main()
