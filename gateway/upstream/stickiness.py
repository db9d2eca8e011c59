"""Sticky routes: calls with the same prompt prefix, cache key or conversation go to the same upstream and API key,
whose prompt cache is warm then. For models with `sticky`, and for conversations that only one account can go on with
(`Params.account_bound_by`). Pure.

1. Rendezvous hashing (Thaler and Ravishankar, "Using name-based mappings to increase hit rates", 1998): each place has
   a score from the hash of the call's affinity and the place's name, divided as -weight/ln(h), so that a place with
   twice the weight has twice the calls. The highest score wins. A place that is added or leaves moves its own calls.
2. A route with more than `LOAD_FACTOR` times its share of this worker's calls under way comes last (bounded loads:
   Mirrokni, Thorup and Zadimoghaddam, "Consistent Hashing with Bounded Loads", 2018), so that one hot prefix does not
   flood one upstream. A conversation of one account stays there.
3. The prefix ends with the first message of the user, because what follows differs from turn to turn of one
   conversation. OpenAI routes by about the first 256 tokens ("Prompt caching", platform.openai.com/docs), which is
   the default of `prefix_bytes`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from math import log
from typing import Any

from gateway.config import Route, Sticky
from gateway.records import Document

LOAD_FACTOR = 1.5
"""Times the mean number of calls under way that a route may have."""
LIGHT_LOAD = 4
"""Calls under way that a route may have in any case."""

_HASHES = 2.0**64


def affinity(settings: Sticky, document: Document, header: Callable[[str], str | None]) -> bytes | None:
    """A hash that is equal for calls that go to the same place: of the first property of `settings.by` that the call
    has; None: it has none. `header` returns a header of the request by its name."""
    for by in settings.by:
        value: str | bytes | None
        if by == "header":
            value = header(settings.header)
        elif by == "prompt_cache_key":
            value = document.members.get("prompt_cache_key")
        else:
            value = _prefix(document, settings.prefix_bytes)
        if isinstance(value, str | bytes) and value:
            data = value if isinstance(value, bytes) else value.encode("utf-8", "surrogatepass")
            return blake2b(data, digest_size=16, person=by.encode()).digest()
    return None


def no_load(route: Route) -> int:
    """Returns 0 for each route, so that `ranked` orders without regard to the load."""
    return 0


def _prefix(document: Document, size: int) -> bytes:
    """The beginning of the prompt, in the order in which models read it."""
    if document.large is not None:
        return b"".join(map(bytes, document.large.pieces[:1]))[:size]
    found = b""
    for value in _opening(document.members):
        found += json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
        if len(found) >= size:
            break
    return found[:size]


def _opening(members: Mapping[str, Any]) -> Iterator[Any]:
    """Tools, instructions and messages, to the first message of the user."""
    yield from (members[name] for name in ("tools", "system", "instructions") if name in members)
    turns = next((members[name] for name in ("messages", "input", "prompt") if name in members), None)
    if not isinstance(turns, list):
        yield turns
        return
    for turn in turns:
        yield turn
        if isinstance(turn, dict) and turn.get("role") == "user":
            return


def ranked(routes: Iterable[Route], key: bytes, in_flight: Callable[[Route], int]) -> list[Route]:
    """The routes, the best first: by `priority`, then those with room, then by their scores."""
    known = list(routes)
    mean = (sum([in_flight(route) for route in known]) + 1) / max(1, len(known))

    def place(route: Route) -> tuple[int, bool, float]:
        is_crowded = in_flight(route) >= LIGHT_LOAD and in_flight(route) + 1 > LOAD_FACTOR * mean
        return route.priority, is_crowded, -_score(key, f"{route.upstream}\0{route.model or ''}", route.weight)

    return sorted(known, key=place)


def ranks(key: bytes, count: int) -> Sequence[int]:
    """The rank of each API key of an upstream, by its position: 0 is the first to be used."""
    order = sorted(range(count), key=lambda position: -_score(key, f"#{position}", 1))
    found = [0] * count
    for rank, position in enumerate(order):
        found[position] = rank
    return found


def _score(key: bytes, name: str, weight: int) -> float:
    drawn = int.from_bytes(blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8, key=key).digest(), "big")
    return -weight / log((drawn + 1) / (_HASHES + 2))
