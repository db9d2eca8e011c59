"""The question of `gateway check --online` for Vertex AI: to count the tokens of a short text with each model of its
routes. It has no list of models for a project, and counting costs nothing (Google, "CountTokens API", "Count tokens for
Claude models"), but takes the permission of a call, the project, the location and the model.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from gateway import untrusted_json
from gateway.commands.online import MAX_NAMED, WITHIN_S, Asked
from gateway.config.faults import few
from gateway.records import Failure
from gateway.upstream.ask import MAX_BYTES, Fetched, fetch
from gateway.upstream.pool import Pool, pool_of

from .settings import CloudUpstream

MAX_ASKED = 20
"""Models that are asked about, of one upstream."""

CAUSES: Mapping[str, str] = {
    "SERVICE_DISABLED": "the API aiplatform.googleapis.com is not enabled in the project",
    "BILLING_DISABLED": "the project has no billing account",
    "CONSUMER_INVALID": "the project of base_url does not exist, or is not open to these credentials",
    "IAM_PERMISSION_DENIED": "the credentials lack aiplatform.endpoints.predict (role Vertex AI User) in this project "
    "and location, or these do not exist",
    "API_KEY_INVALID": "the API key is refused",
    "ACCESS_TOKEN_EXPIRED": "the token has expired: compare the clocks",
}
"""The cause of a refusal by the reason in its ErrorInfo (googleapis, google/api/error_reason.proto)."""
_REASON = re.compile(r"[A-Z0-9_]{1,63}")

_TEXT = "Hi"
_GEMINI, _CHATS = "/publishers/google", "/endpoints/openapi"
_GOOGLE = "google/"


class CountRequest(NamedTuple):
    """One question about a model: the path below a base URL, and the body."""

    path: str
    body: dict[str, Any]


class Counted(NamedTuple):
    """The meaning of an answer. An empty `fault`: it is good."""

    fault: str = ""
    is_doubtful: bool = False


def is_at_vertex(upstream: CloudUpstream) -> bool:
    return upstream.paths == "vertex" or _path_of(upstream).endswith((_GEMINI, _CHATS))


def _path_of(upstream: CloudUpstream) -> str:
    return urlsplit(upstream.base_url).path.rstrip("/")


def question_of(upstream: CloudUpstream, model: str) -> CountRequest | None:
    """The question about a model at Vertex AI; None: there is none that costs nothing."""
    if upstream.paths == "vertex":
        body = {"model": model, "messages": [{"role": "user", "content": _TEXT}]}
        return CountRequest("/messages/count_tokens", body)
    if _path_of(upstream).endswith(_CHATS):
        if not model.startswith(_GOOGLE):
            return None
        model = model.removeprefix(_GOOGLE)
    contents = [{"role": "user", "parts": [{"text": _TEXT}]}]
    return CountRequest(f"/models/{quote(model, safe='@')}:countTokens", {"contents": contents})


async def count(name: str, upstream: CloudUpstream, models: Sequence[str]) -> list[Asked]:
    """Ask about the models, with each of the keys. Models with the same outcome share a line."""
    asking = {model: question for model in models if (question := question_of(upstream, model)) is not None}
    if not asking:
        return []
    base = upstream.base_url.rstrip("/")
    base = f"{base.removesuffix(_CHATS)}{_GEMINI}" if base.endswith(_CHATS) else base
    pool = pool_of(name, upstream.model_copy(update={"base_url": base}), MAX_NAMED)
    keys = len(upstream.credentials)
    try:
        found: list[Asked] = []
        for key in range(keys):
            which = f" with key {key + 1} of {keys}" if keys > 1 else ""
            found += await _with_key(f"upstream {name}, counting tokens{which}", name, pool, asking, key)
    finally:
        await pool.close()
    return found


async def _with_key(what: str, name: str, pool: Pool, asking: Mapping[str, CountRequest], key: int) -> list[Asked]:
    asked = dict([*asking.items()][:MAX_ASKED])

    async def ask(question: CountRequest) -> Counted:
        body = json.dumps(question.body).encode()
        request = pool.request(question.path, [("Content-Type", "application/json")], body, key=key)
        return judged(
            await fetch(name, pool, request, WITHIN_S, MAX_BYTES), is_claude=question.path.startswith("/messages")
        )

    outcomes: dict[Counted, list[str]] = {}
    for model, outcome in zip(asked, await asyncio.gather(*map(ask, asked.values())), strict=True):
        outcomes.setdefault(outcome, []).append(model)
    return [
        Asked(
            f"{what} of {few(those, MAX_NAMED)}", outcome.fault or "counted",
            is_good=not outcome.fault or outcome.is_doubtful, is_doubtful=outcome.is_doubtful,
        )
        for outcome, those in outcomes.items()
    ]  # fmt: skip


def judged(found: Fetched | Failure, *, is_claude: bool) -> Counted:
    """The meaning of an answer. Claude's tokens are counted at some locations alone."""
    if isinstance(found, Failure):
        return Counted(found.detail)
    status, (reason, is_counted) = found.head.status, _read(found.body)
    if status == 200 and is_counted:
        return Counted()
    came = f"it answered {status}{f' ({reason})' if reason else ''}"
    if (cause := CAUSES.get(reason)) is not None:
        return Counted(f"{came}: {cause}")
    match status:
        case 401:
            return Counted(f"{came}: the credentials are refused")
        case 403:
            return Counted(f"{came}: {CAUSES['IAM_PERMISSION_DENIED']}")
        case 404 if is_claude:
            why = "this location has no such model, or does not count its tokens, and then calls may work"
            return Counted(f"{came}: {why}", is_doubtful=True)
        case 404:
            return Counted(f"{came}: this location has no such model, or the project in base_url is another one")
        case 429:
            return Counted(f"{came}: the quota is spent for now", is_doubtful=True)
        case 200:
            return Counted(f"{came}, and not with a count: base_url is probably wrong")
    return Counted(came)


def _read(body: bytes) -> tuple[str, bool]:
    """The reason of an error, which is no secret, and whether this is a count. Errors may come in a list."""
    try:
        answer = untrusted_json.parse(body)
        answer = answer[0] if isinstance(answer, list) else answer
        is_counted = "totalTokens" in answer or "input_tokens" in answer
        details = [each for each in answer.get("error", {}).get("details", []) if "reason" in each]
    except (ValueError, LookupError, TypeError, AttributeError):
        return "", False
    reason = details[0]["reason"] if details else ""
    return reason if isinstance(reason, str) and _REASON.fullmatch(reason) else "", is_counted
