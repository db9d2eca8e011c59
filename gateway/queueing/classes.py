"""Classes of calls: how much of an upstream each gets where calls of several wait.

A class is a factor on the weight of a key and no strict precedence: an interactive call goes before batch calls unless
its key has had more than 16 times the service per weight, and batch is never starved.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

from gateway.config import Priority
from gateway.errors import InvalidRequest

FACTORS: Mapping[Priority, int] = {"interactive": 16, "normal": 4, "batch": 1}

HEADER = "X-Gateway-Priority"


def lowered(own: Priority, asked: str) -> Priority:
    """The class of a call whose client asked for one: the lower one of that and the key's own.

    Raises `InvalidRequest` for a word that is no class.
    """
    for priority in get_args(Priority):
        if asked.strip().lower() == priority:
            return min(own, priority, key=FACTORS.__getitem__)
    raise InvalidRequest(
        f"The header {HEADER} must be one of {', '.join(get_args(Priority))}. Send one of them, or leave it out."
    )
