"""The wrappers of the loop over attempts, in their order: a queue around a fan-out around hedging.

Each wrapper is a class that overrides one step of `ActiveCall`: `without_room`, `carry_singly`, `attempt`. A plain call
enters none of them. Other models, which wrap all of it, are tried by `serve`.
"""

from __future__ import annotations

from gateway.config import Model

from .active_call import ActiveCall
from .hedging import Hedge
from .prompts import FanOut
from .waiting import Queue


class OneAtATime(Queue, FanOut):
    """A call with one of its models."""

    __slots__ = ()


class TwoAtOnce(Queue, FanOut, Hedge):
    """The same, for a model with `hedge_after`."""

    __slots__ = ()


def stack_of(model: Model) -> type[ActiveCall]:
    """The class that carries the calls of a model."""
    return OneAtATime if model.hedge_after is None else TwoAtOnce
