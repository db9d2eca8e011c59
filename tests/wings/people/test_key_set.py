"""The key set of an identity provider that is slow, or away: who waits for it, and how often it is asked."""

from __future__ import annotations

import asyncio
import json

import pytest

from gateway.wings.people.key_set import FRESH_S, KEPT_S, REFETCH_S, KeySet, ProviderUnavailable, read_key_set
from gateway.wings.people.provider import read_discovery
from tests.fakes.identity_provider import KEY

KNOWN, UNKNOWN = {"alg": "RS256", "kid": "one"}, {"alg": "RS256", "kid": "another"}
WITHIN_S = REFETCH_S
"""The time limit of a fetch, as that of a provider."""


class HangingProvider:
    """It answers once `goes_on` is set; one that is away takes the whole time limit."""

    def __init__(self) -> None:
        self.now = 0.0
        self.fetches = 0
        self.goes_on = asyncio.Event()
        self.goes_on.set()
        self.is_away = False

    async def fetch(self) -> bytes:
        self.fetches += 1
        await self.goes_on.wait()
        if self.is_away:
            self.now += WITHIN_S
            raise ProviderUnavailable("it does not answer")
        return json.dumps({"keys": [KEY.as_dict(private=False)]}).encode()


@pytest.fixture
async def provider() -> HangingProvider:
    return HangingProvider()


@pytest.fixture
async def keys(provider: HangingProvider) -> KeySet:
    keys = KeySet(provider.fetch, lambda: provider.now)
    assert await keys.find(KNOWN) is not None
    provider.now += FRESH_S + 1
    provider.goes_on.clear()
    provider.is_away, provider.fetches = True, 0
    return keys


async def test_one_call_waits_for_a_provider_that_hangs(provider: HangingProvider, keys: KeySet) -> None:
    first = asyncio.ensure_future(keys.find(KNOWN))
    await asyncio.sleep(0)
    others = [asyncio.ensure_future(keys.find(KNOWN)) for _ in range(20)]
    await asyncio.sleep(0)
    assert [each.done() and each.result() is not None for each in others] == [True] * 20
    provider.goes_on.set()
    assert await first is not None
    assert provider.fetches == 1


async def test_all_that_wait_go_by_one_result(provider: HangingProvider, keys: KeySet) -> None:
    """Each would wait for all before it otherwise, for hours where there are many."""
    waiting = [asyncio.ensure_future(keys.find(UNKNOWN)) for _ in range(20)]
    await asyncio.sleep(0)
    provider.goes_on.set()
    assert await asyncio.gather(*waiting) == [None] * 20
    assert provider.fetches == 1
    provider.now += KEPT_S
    waiting = [asyncio.ensure_future(keys.find(KNOWN)) for _ in range(20)]
    found = await asyncio.gather(*waiting, return_exceptions=True)
    assert {type(each) for each in found} == {ProviderUnavailable}
    assert provider.fetches == 2


async def test_a_client_that_leaves_ends_no_fetch(provider: HangingProvider, keys: KeySet) -> None:
    """Clients with an unknown id that leave as soon as the gateway asks would keep a rotation from being followed."""
    provider.is_away = False
    left = asyncio.ensure_future(keys.find(UNKNOWN))
    await asyncio.sleep(0)
    left.cancel()
    provider.goes_on.set()
    with pytest.raises(asyncio.CancelledError):
        await left
    provider.now += FRESH_S - 1
    assert await keys.find(KNOWN) is not None
    assert provider.fetches == 1


def test_json_of_a_provider_that_is_too_deep_is_an_error_of_the_provider() -> None:
    for read in (read_key_set, lambda body: read_discovery(body, "https://login.example.org")):
        with pytest.raises(ProviderUnavailable):
            read(b'{"a":' * 40_000)
