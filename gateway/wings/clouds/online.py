"""The questions of `gateway check --online` for clouds: an authorization for each upstream, Bedrock's own list, and
counts of tokens at Vertex AI.

Bedrock's runtime has no list of models: ListFoundationModels at the host `bedrock.REGION` reads, and costs nothing.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence

from gateway import untrusted_json
from gateway.commands.online import MAX_NAMED, WITHIN_S, Asked, WingQuestion, sent_names
from gateway.config import Config
from gateway.config.faults import few
from gateway.records import Failure
from gateway.upstream.ask import MAX_BYTES, Fetched, fetch
from gateway.upstream.pool import pool_of

from . import sources
from .amazon import OF_CREDENTIALS, kind_of
from .counting import count, is_at_vertex
from .grant import NoGrant
from .settings import CloudUpstream, control_of

_PROFILE = re.compile(r"(?:[a-z]{2,6}|us-gov)\.(?=[a-z0-9-]+\.)")
"""The part of an inference profile's name before that of its model (AWS, "Supported Regions and models for inference
profiles")."""


async def ask(config: Config) -> Sequence[Asked]:
    """Ask for each upstream that has an `auth`, or is one of Bedrock or Vertex AI."""
    clouds = {name: each for name, each in config.upstreams.items() if isinstance(each, CloudUpstream)}
    asking = [_upstream(name, each, sent_names(name, config)) for name, each in clouds.items()]
    return [asked for several in await asyncio.gather(*asking) for asked in several]


async def _upstream(name: str, upstream: CloudUpstream, models: Sequence[str]) -> Sequence[Asked]:
    asked = [await _grant(name, upstream)] if upstream.auth.renews else []
    if not all(each.is_good for each in asked):
        return asked
    if is_at_vertex(upstream):
        return [*asked, *await count(name, upstream, models)]
    control = control_of(upstream.base_url)
    if upstream.lists_models or control is None:
        return asked
    listing = [_listed(name, upstream, control, key, models) for key in range(len(upstream.credentials))]
    return [*asked, *await asyncio.gather(*listing)]


async def _grant(name: str, upstream: CloudUpstream) -> Asked:
    what = f"upstream {name}, auth {upstream.auth.type}"
    source = sources.of(upstream)
    assert source is not None
    try:
        async with asyncio.timeout(upstream.auth.within_s):
            grant = await source.obtain()
    except TimeoutError:
        return Asked(what, f"no answer within {upstream.auth.within_s:g} s", is_good=False)
    except NoGrant as refused:
        return Asked(what, str(refused), is_good=False)
    if grant.expires_at is None:
        return Asked(what, "obtained; it names no end")
    left_s = grant.expires_at - time.time()
    if left_s <= 0:
        return Asked(what, "the authorization has expired already: compare the clocks", is_good=False)
    return Asked(what, f"obtained, for {left_s / 60:.3g} min", is_doubtful=left_s < 60)


async def _listed(name: str, upstream: CloudUpstream, control: str, key: int, models: Sequence[str]) -> Asked:
    """Ask for the list of the region, with the authorization of calls."""
    auth = upstream.auth.model_copy(update={"region": upstream.region, "service": "bedrock"})
    there = upstream.model_copy(update={"base_url": control, "paths": "openai", "auth": auth})
    which = f" with key {key + 1} of {len(upstream.credentials)}" if len(upstream.credentials) > 1 else ""
    what = f"upstream {name}, GET {control}/foundation-models{which}"
    pool = pool_of(name, there, 1)
    try:
        request = pool.request("/foundation-models", [("Accept", "application/json")], b"", method="GET", key=key)
        found = await fetch(name, pool, request, WITHIN_S, MAX_BYTES)
    finally:
        await pool.close()
    return _judged(what, found, models, has_key=not upstream.auth.renews)


def _judged(what: str, found: Fetched | Failure, models: Sequence[str], *, has_key: bool) -> Asked:
    if isinstance(found, Failure):
        return Asked(what, found.detail, is_good=False)
    status, kind = found.head.status, kind_of(found.head.get("x-amzn-errortype"))
    if kind in OF_CREDENTIALS:
        why = "the API key is refused; Bedrock's keys expire" if has_key else OF_CREDENTIALS[kind]
        return Asked(what, f"{kind}: {why}", is_good=False)
    if kind == "AccessDeniedException" or status == 403:
        why = "the credentials are good, but may not list models (bedrock:ListFoundationModels); calls may work"
        return Asked(what, f"{kind or 'it answered 403'}: {why}", is_doubtful=True)
    listed = _ids(found.body) if status == 200 else None
    if listed is None:
        return Asked(what, f"it answered {status}{f' ({kind})' if kind else ''}", is_good=False)
    missing = [each for each in models if not each.startswith("arn:") and _PROFILE.sub("", each, count=1) not in listed]
    if missing:
        return Asked(what, f"not in the list of this region: {few(missing, MAX_NAMED)}", is_doubtful=True)
    return Asked(what, f"{len(listed)} models")


def _ids(body: bytes) -> set[str] | None:
    """The names in an answer (botocore, data/bedrock, `ListFoundationModelsResponse`); None: it is none."""
    try:
        return {each["modelId"] for each in untrusted_json.parse(body)["modelSummaries"]}
    except (ValueError, LookupError, TypeError):
        return None


QUESTION = WingQuestion(ask)
