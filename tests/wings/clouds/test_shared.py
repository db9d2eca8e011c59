"""Upstreams with the same `auth` share what they obtain, in one worker and across reloads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

from gateway.wings.clouds.pool import CloudPool
from gateway.wings.clouds.renewal import Renewal
from gateway.wings.clouds.settings import CloudUpstream
from gateway.wings.clouds.sources import identity_of
from tests.fakes.scripted import Scripted, error_json, ok_json, until
from tests.web.test_hot_reload import Inside, inside

from .fakes import ACCESS, SECRET, numbered, signature_of, token_reply

REGIONS = ("eu", "us", "asia")
CALL = {"model": "m", "prompt": "Hello", "max_tokens": 5}


def oauth(tokens: Scripted, **more: Any) -> dict[str, Any]:
    return {"type": "oauth", "token_url": f"{tokens.url}/token", "client_id": "c", "client_secret": "s", **more}


def routed(upstreams: dict[str, Any]) -> dict[str, Any]:
    """Sections with a model for each upstream, of the same name."""
    models = {name: {"routes": [{"upstream": name}], "max_output_tokens": 9} for name in upstreams}
    return {"upstreams": upstreams, "models": models, "keys": [{"id": "k", "secret": "sk-gw-of-this-test-000001"}]}


async def called(gateway: Inside, model: str) -> int:
    headers = {"Authorization": "Bearer sk-gw-of-this-test-000001"}
    async with gateway.client.post("/v1/completions", json={**CALL, "model": model}, headers=headers) as answer:
        await answer.read()
        return answer.status


def renewals(gateway: Inside) -> dict[str, Renewal | None]:
    pools = gateway.worker.parts.pools
    return {name: pool.renewal for name, pool in pools.items() if isinstance(pool, CloudPool)}


async def shared(gateway: Inside, count: int) -> None:
    """Wait until the upstreams have so many renewals together, each with a grant."""

    def are_there() -> bool:
        found = {renewal for renewal in renewals(gateway).values() if renewal is not None}
        return len(found) == count and all(renewal.grant is not None for renewal in found)

    await until(are_there, 20)


async def test_many_regions_ask_for_one_token(tmp_path: Path) -> None:
    cloud = Scripted(prefix="", always=ok_json())
    tokens = Scripted(prefix="", always=numbered(lambda number: token_reply(f"token-{number}")))
    async with cloud, tokens, inside(tmp_path, cloud.url) as gateway:
        upstreams = {name: {"base_url": f"{cloud.url}/{name}", "auth": oauth(tokens)} for name in REGIONS}
        await gateway.change(**routed(upstreams))
        await shared(gateway, 1)
        for name in REGIONS:
            assert await called(gateway, name) == 200
        sent = {request.path.split("/")[1]: request.headers["authorization"] for request in cloud.requests}
        assert tokens.hits <= 2  # one may have been asked before they were put together
        (renewal,) = set(renewals(gateway).values())
        assert renewal is not None
        assert set(sent.values()) == {f"Bearer {renewal.secrets[0]}"}
        assert renewal.upstreams == "eu, us, asia"
        hits = tokens.hits

        # One with another scope has its own; one more with the same, and without one of before, asks for nothing.
        changed = {name: upstreams[name] for name in REGIONS[1:]}
        changed |= {"other": {"base_url": f"{cloud.url}/other", "auth": oauth(tokens, scopes=["x"])}}
        changed |= {"africa": {"base_url": f"{cloud.url}/africa", "auth": oauth(tokens)}}
        await gateway.change(**routed(changed))
        await shared(gateway, 2)
        for name in changed:
            assert await called(gateway, name) == 200
        found = renewals(gateway)
        assert found["africa"] is found["us"] is found["asia"] is renewal
        assert found["other"] is not renewal
        assert hits + 1 <= tokens.hits <= hits + 2
        await renewal.renew()  # the end of the pool that began it has not ended it
        assert await called(gateway, "us") == 200
        assert cloud.requests[-1].headers["authorization"] == f"Bearer {renewal.secrets[0]}"


async def test_a_refusal_is_that_of_each_upstream(tmp_path: Path) -> None:
    async with Scripted(prefix="", always=error_json(403)) as tokens, inside(tmp_path, tokens.url) as gateway:
        upstreams = {name: {"base_url": f"{tokens.url}/{name}", "auth": oauth(tokens)} for name in REGIONS}
        await gateway.change(**routed(upstreams))
        await until(lambda: len(set(renewals(gateway).values())) == 1, 20)
        text = 'gateway_upstream_authorizations_total{outcome="refused",upstream="%s"}'
        registry = gateway.worker.parts.accounting.telemetry.registry
        for name in REGIONS:
            await until(lambda name=name: text % name in generate_latest(registry).decode(), 20)


async def test_keys_of_amazon_sign_for_each_region(tmp_path: Path) -> None:
    own = {"type": "aws", "access_key_id": ACCESS, "secret_access_key": SECRET}
    async with Scripted(prefix="", always=ok_json()) as cloud, inside(tmp_path, cloud.url) as gateway:
        upstreams = {
            region: {
                "base_url": f"{cloud.url}/{region}",
                "auth": {**own, "region": region, "service": "bedrock-mantle"},
            }
            for region in ("us-west-2", "eu-west-1")
        }
        await gateway.change(**routed(upstreams))
        await shared(gateway, 1)
        for region in upstreams:
            assert await called(gateway, region) == 200
            request = cloud.requests[-1]
            assert request.headers["authorization"] == signature_of(request, SECRET, "bedrock-mantle", region)


def upstream(auth: Any, **more: Any) -> CloudUpstream:
    return CloudUpstream.model_validate({"base_url": "https://x.test/v1", "auth": auth, **more})


OAUTH = {"type": "oauth", "token_url": "https://t.test", "client_id": "c", "client_secret": "s"}


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        (upstream("google"), upstream("google", base_url="https://y.test/v1"), True),
        (upstream("google"), upstream({"type": "google", "scopes": ["x"]}), False),
        (upstream(OAUTH), upstream({**OAUTH, "client_secret": "another"}), False),
        (upstream(OAUTH), upstream(OAUTH, proxy="http://p.test:1"), False),
        (upstream("google"), upstream("google", proxy="http://p.test:1"), True),
        (upstream({"type": "aws", "region": "us-west-2"}), upstream({"type": "aws", "region": "eu-west-1"}), True),
        (upstream({"type": "aws", "region": "us-west-2"}), upstream({"type": "aws", "region": "us-gov-west-1"}), False),
        (upstream({"type": "aws", "region": "us-west-2"}), upstream({"type": "aws", "region": "cn-north-1"}), False),
    ],
)
def test_which_upstreams_have_one_source(one: CloudUpstream, other: CloudUpstream, is_same: bool) -> None:
    assert (identity_of(one) == identity_of(other)) == is_same
