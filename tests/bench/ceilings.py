"""How many functions of the gateway's own a call may enter, and what it may ask of Redis: what
`tests/slow/alone/test_ceilings.py` holds it to.

Counted, so a busy machine changes nothing; and only what stands in the package `gateway`, written in Python, so that
another version of a library changes nothing either. A newer Python enters fewer: comprehensions are no functions there.

A change that needs more says why, and writes here what `python -m tests.bench.counts --ceilings` prints. One that
needs less does so too, or the room that it made is filled by the next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from . import tally
from .redis_script import CommandCount, Served

MARGIN = 1.1
"""What goes together in one batch differs a little from run to run, and so does what a checkpoint keeps from the event
loop."""

ENTERED: Mapping[str, float] = {
    "a plain call, alone": 277.0,
    "a plain call, 64 at once": 258.0,
    "a stream of one chunk, alone": 425.0,
    "a further chunk": 6.7,
    "a draw and its settlement, alone": 83.1,
    "a draw and its settlement, alone, of one of several workers": 161.0,
    "a draw and its settlement, 64 at once": 52.3,
}


BREADTH: Mapping[str, tally.Breadth] = {
    "a plain call": tally.Breadth(files=57, functions=204),
    "a stream": tally.Breadth(files=64, functions=262),
}
"""How many files and functions a call goes through; the aims are 40 and 190, and 42 and 215. A stream enters 245
functions, and up to 261 on a machine so busy that writes of the store and the metrics run within each."""


REDIS: Mapping[str, Served] = {
    "a draw, alone": Served(commands=17.00, sent=1396.6, received=104.9),
    "a settlement, alone": Served(commands=27.00, sent=1374.1, received=35.0),
    "a draw, 64 at once": Served(commands=0.27, sent=789.9, received=12.7),
    "a settlement, 64 at once": Served(commands=1.41, sent=570.9, received=1.6),
}
"""What a draw and a settlement cost Redis, in commands and bytes. A batch is sent twice, the first time without records
(gateway/store/redis/reassert.lua says why). `make counts` also counts instructions, where Valgrind is installed."""


def of(rows: Sequence[tally.Row]) -> float:
    """Of this table, what is held under its ceiling."""
    return tally.total(filter(tally.is_ours, rows), "").entered


def spell(tables: Mapping[str, Sequence[tally.Row]]) -> str:
    """The constant as it would be."""
    lines = [f'    "{name}": {of(rows):.1f},' for name, rows in tables.items()]
    return "\n".join(["ENTERED: Mapping[str, float] = {", *lines, "}"])


def spell_redis(found: Mapping[str, CommandCount]) -> str:
    """The constant as it would be."""
    lines = [
        f'    "{name}": Served(commands={commands:.2f}, sent={sent:.1f}, received={received:.1f}),'
        for name, ((commands, sent, received), *_) in found.items()
    ]
    return "\n".join(["REDIS: Mapping[str, Served] = {", *lines, "}"])
