"""The past of the demo: 60 days of calls by five keys of three teams: busy weekdays, one bad day, some failures. After
it, a trickle of calls by these keys moves its live numbers.

The past has the same numbers for one moment, because the generator has a fixed seed.
"""

# ruff: noqa: S311 - no secret is made here

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import aiohttp

from gateway.api import auth
from gateway.config import Config, Model
from gateway.quota.ledger_entry import encode
from gateway.quota.pricing import cost_nusd, record_text
from gateway.quota.windows import LimitTable
from gateway.records import Claim, Record, Settlement, Usage
from gateway.store import Batch, RefusalEntry, Settle, Store
from gateway.store.opening import open_store
from gateway.tasks import Tasks

from .simulate import WORKER, pasts_of_wings

DAYS = 60
BAD_DAY = 9
"""Days since the second upstream failed most attempts."""
AT_ONCE = 200
SPARE = "shaky"
"""The upstream that fails now and then."""
PAUSE_S = 1.5
"""Average pause between two calls, in seconds."""
PROMPTS = (
    "Summarise what changed since yesterday.", "Why did the build fail?", "Name three risks of this plan.",
    "Rewrite this paragraph for a customer.", "Which tests cover this function?",
)  # fmt: skip
UNKNOWN_MODEL = 0.03
"""Share of the calls that ask for a model that is not there."""


class DemoCaller(NamedTuple):
    """The behaviour of one key's calls."""

    team: str
    models: Mapping[str, float]
    """Models that the key calls, with their shares of its calls."""
    daily: int
    """Calls on a working day."""
    prompt: int
    completion: int
    """Tokens of a typical call."""
    quotas: tuple[Mapping[str, Any], ...]
    """Quotas higher than the usage of the past calls, even at the end of a month."""
    center: str
    """The label `center` of the key."""
    users: tuple[str, ...] = ("",)
    project: str = ""
    owner: str | None = None


PEOPLE: Mapping[str, DemoCaller] = {
    "support-bot": DemoCaller(
        "platform", {"gpt-4o-mini": 0.85, "claude-sonnet-5": 0.15}, 62, 1900, 420,
        ({"requests": 600, "per": "minute"}, {"usd": 4.5, "per": "month"}), "operations",
        ("ada", "grace", "edsger"), "helpdesk", "ada@example.org",
    ),
    "ci-bot": DemoCaller(
        "platform", {"gpt-3.5-turbo-instruct": 0.7, "gpt-4o-mini": 0.3}, 24, 900, 240,
        ({"tokens": 60000, "per": "day"}, {"usd": 1.25, "per": "month"}), "operations",
        project="builds", owner="ada@example.org",
    ),
    "search-index": DemoCaller(
        "search", {"text-embedding-3-small": 1.0}, 70, 4200, 0,
        ({"tokens": 600000, "per": "day"},), "product", project="search",
    ),
    "notebooks": DemoCaller(
        "research", {"claude-sonnet-5": 0.6, "deepseek-reasoner": 0.4}, 16, 6200, 1500,
        ({"usd": 12.5, "per": "month"},), "product", ("barbara", "alan"), "evaluation", "barbara@example.org",
    ),
    "alice": DemoCaller(
        "research", {"gpt-4o-mini": 0.6, "deepseek-reasoner": 0.4}, 9, 1100, 600,
        ({"requests": 60, "per": "minute"}, {"usd": 0.35, "per": "month"}), "people",
        owner="alice@example.org",
    ),
}  # fmt: skip
"""Callers of the demo, by the ids of their keys."""

TEAMS: Mapping[str, Mapping[str, Any]] = {
    "platform": {"quotas": [{"usd": 6, "per": "month"}]},
    "search": {"quotas": [{"tokens": 2_000_000, "per": "day"}]},
    "research": {"quotas": [{"usd": 14, "per": "month"}], "members": {"max_keys": 3}},
}

_ENDPOINTS = {
    "gpt-3.5-turbo-instruct": "completions", "text-embedding-3-small": "embeddings", "claude-sonnet-5": "messages",
}  # fmt: skip


def history(config: Config, now: float) -> Iterator[Record]:
    """The calls of the last days, the oldest first."""
    chance = random.Random(26)
    today = datetime.fromtimestamp(now, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    for ago in range(DAYS - 1, -1, -1):
        day = today - timedelta(days=ago)
        pace = (0.2 if day.weekday() >= 5 else 1.0) * (1.2 - 0.5 * ago / DAYS)
        calls = [
            (name, min(86399.0, max(0.0, chance.gauss(13.5, 3.2) * 3600)))
            for name, person in PEOPLE.items()
            for _ in range(round(person.daily * pace * chance.uniform(0.8, 1.2)))
        ]
        for name, second in sorted(calls, key=lambda call: call[1]):
            if (at := day.timestamp() + second) < now - 60:
                yield _call(chance, config, name, at, is_bad_day=ago == BAD_DAY)


def _call(chance: random.Random, config: Config, key: str, at: float, *, is_bad_day: bool) -> Record:
    person = PEOPLE[key]
    name = chance.choices([*person.models], weights=[*person.models.values()])[0]
    model = config.models[name]
    prompt = round(person.prompt * chance.lognormvariate(0, 0.5))
    completion = round(person.completion * chance.lognormvariate(0, 0.5))
    first_s = chance.lognormvariate(-0.8, 0.45) * (2.5 if is_bad_day else 1)
    usage = Usage(prompt, completion, round(prompt * 0.2), completion // 2 if "reasoner" in name else 0, "reported")
    is_stream = bool(completion) and key != "ci-bot"
    record = Record(
        id=f"req_{chance.getrandbits(128):032x}", time=at, key=key, team=person.team,
        endpoint=_ENDPOINTS.get(name, "chat"), model=name, label_model=name, routed_model=name, returned_model=name,
        upstream=_upstream(chance, model), status=200, stream=is_stream, usage=usage, ended="done",
        first_byte_s=first_s, duration_s=first_s + completion / 60, attempts=1, user=chance.choice(person.users),
        tags=f"project={person.project}" if person.project else "",
    )  # fmt: skip
    return _priced(_with_failures(record, chance.random(), 0.3 if is_bad_day else 0.0), model)


def _upstream(chance: random.Random, model: Model) -> str:
    routes = model.routes
    return chance.choices([route.upstream for route in routes], weights=[route.weight for route in routes])[0]


def _timeline(record: Record, fault: str) -> str:
    """A quick failure of the second upstream, and the attempt at the first one, with its fault."""
    began_ms, ended_ms = round((record.first_byte_s or 0) * 400), round(record.duration_s * 1000)
    return f"{SPARE}:0:{began_ms}:status simulator:{began_ms}:{ended_ms}:{fault}"


def _with_failures(record: Record, luck: float, extra: float) -> Record:
    """Some calls fail, more are repeated at another upstream, and some clients leave."""
    if luck < 0.006 + extra * 0.3:
        failed = f"{SPARE}:status simulator:timeout"
        timeline = _timeline(record, "timeout")
        return record._replace(
            status=502, ended="error", usage=Usage(), first_byte_s=None, attempts=2, failed=failed, timeline=timeline
        )
    if luck < 0.03 + extra:
        timeline = _timeline(record, "")
        return record._replace(attempts=2, failed=f"{SPARE}:status", upstream="simulator", timeline=timeline)
    if luck < 0.05 + extra and record.stream:
        usage = record.usage._replace(completion_tokens=record.usage.completion_tokens // 3, source="estimated")
        return record._replace(status=499, ended="client_gone", usage=usage)
    return record


def _priced(record: Record, model: Model) -> Record:
    price, usage = model.price, record.usage
    return record._replace(cost_nusd=cost_nusd(price, usage, record.time), price=record_text(price, usage, record.time))


def refusals(now: float) -> list[RefusalEntry]:
    """The refusals of the last days, the oldest first."""
    chance = random.Random(27)
    kinds = (
        ("ci-bot", "gpt-4o-mini", 429, "insufficient_quota", "The quota of 60000 tokens per day is spent.",
         "tokens per day"),
        ("alice", "gpt-5", 404, "model_not_found",
         "The model `gpt-5` does not exist or you do not have access to it.", None),
        ("notebooks", "claude-sonnet-5", 400, "invalid_value", "Invalid 'max_tokens': must be at least 1.", None),
    )  # fmt: skip
    made = []
    for ago_s in sorted([chance.uniform(600, 6.5 * 86400) for _ in range(40)], reverse=True):
        key, model, status, code, message, limit = chance.choice(kinds)
        made.append(RefusalEntry(
            f"req_{chance.getrandbits(128):032x}", now - ago_s, key, PEOPLE[key].team, "chat", "/v1/chat/completions",
            model if status != 404 else "other", status, code, None, message, limit, "127.0.0.1",
            model if status == 404 else None,
        ))  # fmt: skip
    return made


async def write_history(config: Config, now: float) -> None:
    """Put the past until a Unix time into the store of the demo, with what it used of the running windows."""
    store = await open_store(config.store)
    try:
        await _settle(store, config, now)
        for each in pasts_of_wings():
            await each.write(store, config, now)
        await store.retire(WORKER)
        await store.add_refusals(refusals(now), now)
    finally:
        await store.close()


async def _settle(store: Store, config: Config, now: float) -> None:
    keys = {key.id: auth.read(key) for key in config.keys}
    table = LimitTable(config.quotas, config.teams, {})
    made = []
    for record in history(config, now):
        terms = [term for term in table.of(keys[record.key]) if term.is_calendar]
        made.append(Settlement(record, tuple([Claim(term.window(record.time), 0) for term in terms])))
    for number in range(0, len(made), AT_ONCE):
        some = enumerate(made[number : number + AT_ONCE], number + 1)
        seq = number // AT_ONCE
        await store.apply(Batch(WORKER, seq + 1, seq, [Settle(place, *each, encode(*each)) for place, each in some]))


async def call_now_and_then(address: str, secrets: Mapping[str, str]) -> None:
    """Call with the keys of the demo until cancelled. `secrets` are theirs, by id."""
    calls = Tasks()
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:
        try:
            while True:
                await asyncio.sleep(random.expovariate(1 / PAUSE_S))
                key = random.choice([*PEOPLE])
                path, body = _next_call(key)
                calls.spawn(_send(session, f"{address}{path}", secrets[key], body), "demo-call")
        finally:
            await calls.cancel_all()


def _next_call(key: str) -> tuple[str, dict[str, Any]]:
    """Path and body of a call of this key."""
    person = PEOPLE[key]
    models, prompt = person.models, random.choice(PROMPTS)
    name = random.choices([*models], weights=[*models.values()])[0]
    chat = {"stream": True, "max_tokens": 160, "messages": [{"role": "user", "content": prompt}]}
    if random.random() < UNKNOWN_MODEL:
        return "/v1/chat/completions", {"model": "gpt-5", **chat}
    if name == "text-embedding-3-small":
        return "/v1/embeddings", {"model": name, "input": prompt * 20}
    if name == "gpt-3.5-turbo-instruct":
        return "/v1/completions", {"model": name, "prompt": prompt, "max_tokens": 80}
    return "/v1/messages" if name.startswith("claude") else "/v1/chat/completions", {"model": name, **chat}


async def _send(session: aiohttp.ClientSession, url: str, secret: str, body: Mapping[str, Any]) -> None:
    """One call, read to its end; what becomes of it is what the dashboard shows."""
    with suppress(aiohttp.ClientError, TimeoutError):
        async with session.post(url, json=body, headers={"Authorization": f"Bearer {secret}"}) as answer:
            await answer.read()
