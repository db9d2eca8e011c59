"""How many functions of the gateway's own a call may enter, how many calls to C these may make, and what a call may ask
of the kernel and of Redis: what `tests/slow/alone/test_ceilings.py` holds it to.

Counted, so a busy machine changes nothing; and only what stands in the package `gateway`, written in Python, so that
another version of a library changes nothing either. A newer Python enters fewer: comprehensions are no functions there.

A change that needs more says why, and writes here what `python -m bench.counts --ceilings` prints. One that
needs less does so too, or the room that it made is filled by the next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from . import tally
from .redis_script import CommandCount, Served

MARGIN = 1.1
"""What goes together in one batch differs a little from run to run, and so does what a checkpoint keeps from the event
loop."""


class Steps(NamedTuple):
    """The work of the gateway's own functions."""

    entered: float
    """Functions written in Python."""
    calls_to_c: float
    """Calls from them to functions written in C."""


STEPS: Mapping[str, Steps] = {
    "a plain call, alone": Steps(264.0, 320.0),
    "a plain call, 64 at once": Steps(242.0, 292.0),
    "a stream of one chunk, alone": Steps(450.0, 525.0),
    "a further chunk": Steps(6.7, 10.8),
    "a draw and its settlement, alone": Steps(81.0, 109.0),
    "a draw and its settlement, alone, of one of several workers": Steps(159.0, 217.0),
    "a draw and its settlement, 64 at once": Steps(52.3, 79.0),
}

ON_REDIS = "a draw and its settlement on Redis, alone"
STEPS_ON_REDIS = Steps(164.0, 301.0)
"""Redis' own work is below, in `REDIS`. Of redis-py and asyncio are as many functions again, which are not counted."""

SYSTEM_CALLS: Mapping[str, float] = {"a plain call, 64 at once": 13.0}
"""Not of a call alone, nor of a chunk: what runs by the clock makes more of them for one that takes longer."""


BREADTH: Mapping[str, tally.Breadth] = {
    "a plain call": tally.Breadth(files=54, functions=209),
    "a stream": tally.Breadth(files=63, functions=278),
}
"""How many files and functions a call goes through; the aims are 40 and 190, and 42 and 215. A plain call enters
206 functions and a stream 262, and some more on a machine so busy that writes of the store and the metrics run within
each. The bytes of a client are read in turns of the event loop: one function more."""


REDIS: Mapping[str, Served] = {
    "a draw, alone": Served(commands=19.00, sent=1396.6, received=104.9),
    "a settlement, alone": Served(commands=29.00, sent=1374.1, received=35.0),
    "a draw, 64 at once": Served(commands=0.27, sent=789.9, received=12.7),
    "a settlement, 64 at once": Served(commands=1.41, sent=570.9, received=1.6),
}
"""What a draw and a settlement cost Redis, in commands and bytes. A batch is sent twice, the first time without records
(gateway/store/redis/reassert.lua says why). `make counts` also counts instructions, where Valgrind is installed."""


def of(rows: Sequence[tally.Row]) -> Steps:
    """Of this table, what is held under its ceilings."""
    _, entered, calls_to_c = tally.total(filter(tally.is_ours, rows), "")
    return Steps(entered, calls_to_c)


def spell(tables: Mapping[str, Sequence[tally.Row]]) -> str:
    """The constant as it would be."""
    found = {name: of(rows) for name, rows in tables.items()}
    lines = [f'    "{name}": Steps({entered:.1f}, {to_c:.1f}),' for name, (entered, to_c) in found.items()]
    return "\n".join(["STEPS: Mapping[str, Steps] = {", *lines, "}"])


def spell_redis(found: Mapping[str, CommandCount]) -> str:
    """The constant as it would be."""
    lines = [
        f'    "{name}": Served(commands={commands:.2f}, sent={sent:.1f}, received={received:.1f}),'
        for name, ((commands, sent, received), *_) in found.items()
    ]
    return "\n".join(["REDIS: Mapping[str, Served] = {", *lines, "}"])
