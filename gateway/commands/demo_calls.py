"""A trickle of calls in the demo, so that its live numbers move."""

# ruff: noqa: S311 - no secret is made here

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import aiohttp

from gateway.tasks import Tasks

from .demo_history import PEOPLE

PAUSE_S = 1.5
"""Average pause between two calls, in seconds."""
PROMPTS = (
    "Summarise what changed since yesterday.", "Why did the build fail?", "Name three risks of this plan.",
    "Rewrite this paragraph for a customer.", "Which tests cover this function?",
)  # fmt: skip
UNKNOWN_MODEL = 0.03
"""Share of the calls that ask for a model that is not there."""


async def call_now_and_then(address: str, secrets: Mapping[str, str]) -> None:
    """Call with the keys of the demo until cancelled. `secrets` are theirs, by id."""
    calls = Tasks()
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:
        try:
            while True:
                await asyncio.sleep(random.expovariate(1 / PAUSE_S))
                key = random.choice([*PEOPLE])
                path, body = _call(key)
                calls.spawn(_send(session, f"{address}{path}", secrets[key], body), "demo-call")
        finally:
            await calls.cancel_all()


def _call(key: str) -> tuple[str, dict[str, Any]]:
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
