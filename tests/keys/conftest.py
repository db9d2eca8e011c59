"""A registry on a real store, and the key cache of a worker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gateway.api import auth
from gateway.config import Config, build
from gateway.config import StoreSettings as Settings
from gateway.keys.cache import KeyCache
from gateway.keys.registry import Registry
from gateway.records import Key
from gateway.store import Store
from gateway.store.opening import open_store

SECRET = "sk-in-the-file-0123456789"
BY = "a test"


def settings(**more: Any) -> Config:
    """A configuration with a key and a team in the file."""
    return build(
        {
            "upstreams": {"u": {"base_url": "http://127.0.0.1:1/v1", "api_key": "k" * 24}},
            "models": {"gpt-4o": {"routes": [{"upstream": "u"}], "max_output_tokens": 50}},
            "teams": {"platform": {"quotas": [{"usd": 10, "per": "month"}]}},
            "keys": [{"id": "ci-bot", "secret": SECRET, "quotas": [{"requests": 5, "per": "day"}]}],
            **more,
        }
    )


@dataclass
class Scenario:
    """A registry with its store, key cache and two manual clocks."""

    store: Store
    config: Config = field(default_factory=settings)
    now: float = 1_800_000_000.0
    books: list[KeyCache] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.registry = Registry(self.store, lambda: self.config, lambda: self.now)

    def book(self) -> KeyCache:
        """The key cache of another worker; reads changes on demand."""
        self.books.append(KeyCache(self.store, self.config, lambda: self.now))
        return self.books[-1]

    async def caller(self, book: KeyCache, secret: str, remote: str | None = None) -> Key:
        """The key with this secret. Raises `Unauthorized` or `Unavailable`."""
        book.trust()
        known = book.known.get(auth.digest(secret)) or await book.look_up(secret, remote)
        return auth.admit(known, secret, now=self.now, remote=remote)


@pytest.fixture
async def scenario(tmp_path: Path) -> AsyncIterator[Scenario]:
    made = Scenario(await open_store(Settings(url=f"embedded:{tmp_path}/data")))
    yield made
    for book in made.books:
        await book.close()
    await made.store.close()
