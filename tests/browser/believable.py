"""A gateway with a past that looks like one: a team's month, for pictures and for whoever wants to look around."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from datetime import date
from typing import Any

from gateway.records import Record, Usage

from .stores import Row, days

PRICES = {
    "gpt-4o-mini": (0.15, 0.6), "gpt-4o": (2.5, 10.0), "gpt-3.5-turbo-instruct": (1.5, 2.0),
    "deepseek-reasoner": (0.55, 2.19), "text-embedding-3-small": (0.02, 0.0), "llama-3.1-8b": None,
}  # fmt: skip
"""USD per million tokens, in and out; of one nobody knows."""

UPSTREAMS = {
    "gpt-4o-mini": "openai", "gpt-4o": "openai", "gpt-3.5-turbo-instruct": "openai", "deepseek-reasoner": "deepseek",
    "text-embedding-3-small": "openai", "llama-3.1-8b": "local",
}  # fmt: skip
ENDPOINTS = {"gpt-3.5-turbo-instruct": "completions", "text-embedding-3-small": "embeddings"}

Wish = tuple[str, str, float]
"""Unit, period, and how full the window is by now, in percent; of a rate, its limit."""

TEAMS: dict[str, list[Wish]] = {
    "platform": [("usd", "month", 71)],
    "search": [("tokens", "day", 58), ("usd", "month", 34)],
    "research": [("usd", "month", 86)],
}

# Key, team, models with their share, calls a working day, quotas.
PEOPLE: list[tuple[str, str | None, dict[str, float], int, list[Wish]]] = [
    ("support-bot", "platform", {"gpt-4o-mini": 0.9, "gpt-4o": 0.1}, 5200,
     [("requests", "minute", 600), ("tokens", "day", 64)]),
    ("search-index", "search", {"text-embedding-3-small": 1.0}, 7400, [("tokens", "day", 47)]),
    ("search-answers", "search", {"gpt-4o-mini": 0.75, "gpt-3.5-turbo-instruct": 0.25}, 2600,
     [("requests", "minute", 300), ("usd", "month", 52)]),
    ("ci-bot", "platform", {"gpt-3.5-turbo-instruct": 0.7, "gpt-4o-mini": 0.3}, 900,
     [("tokens", "day", 104), ("usd", "month", 83)]),
    ("notebooks", "research", {"deepseek-reasoner": 0.6, "gpt-4o": 0.4}, 420, [("usd", "month", 91)]),
    ("evals", "research", {"gpt-4o": 0.5, "deepseek-reasoner": 0.3, "llama-3.1-8b": 0.2}, 1100,
     [("usd", "month", 61), ("requests", "minute", 240)]),
    ("alice", "research", {"gpt-4o-mini": 0.8, "deepseek-reasoner": 0.2}, 90, [("tokens", "day", 22)]),
    ("intern", None, {"gpt-4o-mini": 1.0}, 40, [("tokens", "day", 38)]),
]  # fmt: skip

SIZES = {"chat": (780, 260), "completions": (420, 120), "embeddings": (2900, 0)}


def _cost_nusd(model: str, prompt: int, completion: int) -> int | None:
    price = PRICES[model]
    return None if price is None else round((prompt * price[0] + completion * price[1]) * 1000)


def sums(number: int = 60) -> Iterator[Row]:
    """Daily sums: busy weekdays, quiet weekends, slow growth, one bad day. The same numbers each time."""
    chance = random.Random(7)
    over = days(number)
    for place, day in enumerate(over):
        weekday = date.fromisoformat(day).weekday()
        pace = (0.22 if weekday >= 5 else 1.0) * (0.7 + 0.5 * place / number) * chance.uniform(0.85, 1.15)
        pace *= 0.55 if place == number - 1 else 1  # today is not over
        for key, team, models, daily, _ in PEOPLE:
            for model, share in models.items():
                calls = int(daily * share * pace * chance.uniform(0.8, 1.2))
                if not calls:
                    continue
                endpoint = ENDPOINTS.get(model, "chat")
                prompt, completion = (int(size * calls * chance.uniform(0.8, 1.2)) for size in SIZES[endpoint])
                is_bad_day = place == number - 9 and UPSTREAMS[model] == "deepseek"
                errors = int(calls * (0.31 if is_bad_day else chance.uniform(0, 0.008)))
                cost = _cost_nusd(model, prompt, completion)
                yield (day, key, team or "", model, UPSTREAMS[model], endpoint), (
                    calls, errors, prompt, completion, int(prompt * 0.22) if endpoint == "chat" else 0,
                    int(completion * 0.6) if model == "deepseek-reasoner" else 0,
                    int((prompt + completion) * (0.12 if model == "llama-3.1-8b" else 0.004)),
                    cost or 0, calls if cost is None else 0,
                )  # fmt: skip


def spent(scope: str, unit: str, starts: str) -> int:
    """What has been used of the calendar window of a key, a team or the gateway that has this name, in units."""
    kind, _, name = scope.partition(":")
    place = {"key": 1, "team": 2}.get(kind, 0)
    rows = [row for row in sums() if row[0][0].startswith(starts) and (not place or row[0][place] == name)]
    numbers = {"requests": (0,), "tokens": (2, 3), "usd": (7,)}[unit]
    return sum(row[1][number] for row in rows for number in numbers)


def quotas(scope: str, wishes: list[Wish]) -> list[dict[str, Any]]:
    """Quotas as in a configuration, with round limits that leave the windows about as full as wished."""
    made = []
    for unit, per, wish in wishes:
        if per not in ("day", "month"):
            made.append({unit: int(wish), "per": per})
            continue
        used = spent(scope, unit, days(1)[0] if per == "day" else days(1)[0][:7]) / (1e9 if unit == "usd" else 1)
        limit = max(used / wish * 100, 1)
        digits = 10 ** (len(str(int(limit))) - 2)
        made.append({unit: max(1, round(limit / digits) * digits), "per": per})
    return made


def records(number: int) -> list[Record]:
    """The newest calls of the past, the oldest first."""
    chance, now = random.Random(11), time.time()
    made = []
    for place in range(number):
        key, team, models, _, _ = chance.choices(PEOPLE, weights=[each[3] for each in PEOPLE])[0]
        model = chance.choices([*models], weights=[*models.values()])[0]
        endpoint = ENDPOINTS.get(model, "chat")
        prompt, completion = (int(size * chance.lognormvariate(0, 0.5)) for size in SIZES[endpoint])
        first = chance.lognormvariate(-0.9, 0.45)
        plain = Record(
            id=f"req_{chance.getrandbits(128):032x}", time=now - (number - place) * 2.7 - 20, key=key, team=team,
            endpoint=endpoint, model=model, label_model=model, routed_model=model, returned_model=model,
            upstream=UPSTREAMS[model], status=200, stream=endpoint == "chat", ended="done", first_byte_s=first,
            usage=Usage(prompt, completion, int(prompt * 0.2), 0, "reported"), attempts=1,
            duration_s=first + completion / 70, cost_nusd=_cost_nusd(model, prompt, completion),
        )  # fmt: skip
        made.append(_with_trouble(plain, chance.random(), completion))
    return made


def _with_trouble(record: Record, luck: float, completion: int) -> Record:
    if luck < 0.03:
        return record._replace(status=502, ended="error", usage=Usage(), first_byte_s=None, attempts=3, cost_nusd=0)
    if luck < 0.05:
        return record._replace(ended="error", truncated=True, usage=record.usage._replace(source="estimated"))
    if luck < 0.09:
        usage = record.usage._replace(completion_tokens=completion // 3, source="estimated")
        return record._replace(status=499, ended="client_gone", usage=usage)
    return record._replace(attempts=2) if luck < 0.13 else record
