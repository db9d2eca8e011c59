"""In which order the routes of a call are to be tried.

Lower priority first. Within one priority the weights decide by chance: a route of weight 3 comes before one of weight 1
three times out of four. Routes of the same weight are equals, and among equals the one with the fewest calls under way
comes first, so that an upstream that has become slow gets fewer of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gateway.config import Route


def order(routes: Sequence[Route], in_flight: Callable[[Route], int], chance: Callable[[], float]) -> list[Route]:
    """The routes, the best first. `chance` gives numbers from 0 up to 1."""
    tiers: dict[int, list[Route]] = {}
    for route in routes:
        tiers.setdefault(route.priority, []).append(route)
    ordered: list[Route] = []
    for _, left in sorted(tiers.items()):
        while len(left) > 1:
            chosen = _choose(left, in_flight, chance)
            left.remove(chosen)
            ordered.append(chosen)
        ordered += left
    return ordered


def _choose(routes: Sequence[Route], in_flight: Callable[[Route], int], chance: Callable[[], float]) -> Route:
    """One by weight, or among its equals the one with fewer calls."""
    at = chance() * sum([route.weight for route in routes])
    chosen = routes[-1]
    for route in routes:
        at -= route.weight
        if at < 0:
            chosen = route
            break
    fewest = in_flight(chosen)
    for route in routes:
        if route.weight == chosen.weight and (number := in_flight(route)) < fewest:
            chosen, fewest = route, number
    return chosen
