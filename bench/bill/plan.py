"""The calls of a run, in blocks that are called one after the other. Pure.

Each kind of fault has a model of its own, because two opposite faults of one day and model hide each other in any bill
(docs/billing.md). Within a model most calls are good ones.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, NamedTuple

KILLS = 3
KILL_BLOCK = 40
"""Calls under way while a worker is killed."""

UNPAID = "gpt-4.1-mini"
DEARER = "claude-sonnet-5"
DRAINED = "drained"
"""A model at an upstream of its own, whose answers are read to their end when the client leaves."""

REPEATED = "gpt-5-mini"
"""A model with two routes: what the first upstream bills and answers with an error, the second one answers."""

PRICES: Mapping[str, Mapping[str, float]] = {
    "gpt-3.5-turbo-instruct": {"input": 1.5, "output": 2}, "gpt-4o-mini": {"input": 0.15, "output": 0.6},
    UNPAID: {"input": 0.4, "output": 1.6}, "deepseek-reasoner": {"input": 0.55, "output": 2.19},
    "text-embedding-3-small": {"input": 0.02}, DEARER: {"input": 3, "output": 15}, DRAINED: {"input": 0.5, "output": 2},
    "gpt-4.1": {"input": 2, "output": 8}, REPEATED: {"input": 0.25, "output": 2},
}  # fmt: skip
"""US dollars for a million tokens. They are those of the gateway, and those of the provider until noon."""
DEARER_BY_PERCENT = 20
ENDPOINTS: Mapping[str, str] = {
    "gpt-3.5-turbo-instruct": "completions", "text-embedding-3-small": "embeddings", DEARER: "messages",
    "gpt-4.1": "responses",
}  # fmt: skip
"""Those of models that are not called by chats."""
UPSTREAMS: Mapping[str, tuple[str, ...]] = {DRAINED: (DRAINED,), REPEATED: ("main", DRAINED)}
"""Those of models that have others than `main`."""
PATHS = {
    "chat": "/v1/chat/completions", "completions": "/v1/completions", "embeddings": "/v1/embeddings",
    "messages": "/v1/messages", "responses": "/v1/responses",
}  # fmt: skip


class Kind(Enum):
    """What becomes of a call."""

    WHOLE = "answered"
    LEFT = "left by its client, and cancelled at the provider"
    DRAINED = "left by its client, and read to its end"
    CUT = "cut by the provider"
    UNPAID = "billed, and answered with an error"
    REPEATED = "billed, answered with an error, and by another upstream"
    KILLED = "under way when a worker is killed"
    OTHER = "of another user of the account"


class PlannedCall(NamedTuple):
    """One call. Its number is in its prompt, too."""

    number: int
    kind: Kind
    model: str
    body: Mapping[str, Any]

    @property
    def path(self) -> str:
        return PATHS[ENDPOINTS.get(self.model, "chat")]


class Block(NamedTuple):
    """Calls that end before the next block begins."""

    calls: list[PlannedCall]
    is_killed: bool


SHARES: Mapping[tuple[Kind, str], int] = {
    (Kind.WHOLE, "gpt-4o-mini"): 20, (Kind.WHOLE, "gpt-3.5-turbo-instruct"): 12, (Kind.WHOLE, UNPAID): 14,
    (Kind.WHOLE, "deepseek-reasoner"): 4, (Kind.WHOLE, "text-embedding-3-small"): 12, (Kind.WHOLE, DEARER): 18,
    (Kind.WHOLE, "gpt-4.1"): 6, (Kind.LEFT, "gpt-4o-mini"): 2, (Kind.CUT, "gpt-4o-mini"): 2,
    (Kind.DRAINED, DRAINED): 3, (Kind.UNPAID, UNPAID): 2, (Kind.OTHER, "gpt-4o-mini"): 2, (Kind.OTHER, DEARER): 3,
    (Kind.WHOLE, REPEATED): 14, (Kind.REPEATED, REPEATED): 2,
}  # fmt: skip


def planned(calls: int, seed: int) -> Iterator[Block]:
    """The blocks of this number of calls: mixed ones, with a killed one between two of them."""
    dice, numbers = random.Random(seed), iter(range(calls))
    mixed = calls - KILLS * KILL_BLOCK
    for part in range(KILLS + 1):
        size = mixed * (part + 1) // (KILLS + 1) - mixed * part // (KILLS + 1)
        kinds = dice.choices([*SHARES], weights=[*SHARES.values()], k=size)
        yield Block([_call(dice, next(numbers), *each) for each in kinds], False)
        if part < KILLS:
            yield Block([_call(dice, next(numbers), Kind.KILLED, "gpt-4o-mini") for _ in range(KILL_BLOCK)], True)


def _call(dice: random.Random, number: int, kind: Kind, model: str) -> PlannedCall:
    endpoint = ENDPOINTS.get(model, "chat")
    text = f"call {number:06} " + "word " * dice.randint(5, 120)
    limit = dice.randint(10, 80)
    is_stream = kind in (Kind.LEFT, Kind.DRAINED, Kind.CUT, Kind.KILLED) or (
        kind is Kind.WHOLE and endpoint != "embeddings" and dice.random() < 0.4
    )
    body: dict[str, Any] = {"model": model}
    if endpoint == "embeddings":
        body["input"] = text
    elif endpoint == "completions":
        body |= {"prompt": text, "max_tokens": limit, "stream": is_stream}
    elif endpoint == "responses":
        body |= {"input": text, "max_output_tokens": limit, "stream": is_stream, "store": False}
    else:
        body |= {"messages": [{"role": "user", "content": text}], "max_tokens": limit, "stream": is_stream}
    if kind in _PACES:
        body["simulate"] = _PACES[kind]
    return PlannedCall(number, kind, model, body)


_PACES: Mapping[Kind, Mapping[str, float]] = {
    Kind.LEFT: {"tokens_per_s": 100}, Kind.DRAINED: {"tokens_per_s": 100}, Kind.CUT: {"cut_after_events": 8},
    Kind.KILLED: {"tokens_per_s": 10},
}  # fmt: skip
