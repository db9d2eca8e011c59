"""What an upstream's answer means when it is not the answer that was asked for.

One judgement for every error: a `Failure` when it is the upstream's fault or the gateway's own account's, which the
client cannot mend, or an `UpstreamRefused` when the client's request has to change. An error inside a 200 is judged by
its own words, as if it had come with the status it should have had. What a client is shown is cleaned of our keys, our
hosts and the upstream's own name of the model.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from email.utils import parsedate_to_datetime
from typing import Any

from gateway.errors import UpstreamRefused
from gateway.records import Failure, Fault, Phase

from .connection import Head

_BALANCE_CODES = frozenset({
    "insufficient_quota", "insufficient_user_quota", "pre_consume_token_quota_failed", "billing_hard_limit_reached",
    "credit_balance_exhausted", "project_spend_limit_exceeded", "billing_not_active",
})  # fmt: skip
_AUTH_CODES = frozenset({"invalid_api_key", "account_deactivated", "authentication_error", "permission_error"})
_RATE_CODES = frozenset({"rate_limit_exceeded", "rate_limit_error", "slow_down"})
_REQUEST_CODES = frozenset({"invalid_request", "invalid_request_error"})
"""The request is at fault, whatever the status says: new-api sends such errors with a 500 (new-api#6773)."""

_CHANNEL_CODES = frozenset({"get_channel_failed", "model_not_found"})
_NO_CHANNEL = re.compile(r"\bno (?:available )?channels?\b|无可用渠道", re.IGNORECASE)
"""A 503 of one-api and new-api (middleware/distributor.go) whose channels for this one model are used up or switched
off. Their other models may be well."""

_FOREIGN_TYPE = re.compile(r"\w+_api_error|upstream_error")
"""Types that only resellers have: new_api_error, one_api_error, upstream_error."""
_WRAPPING = re.compile(r"^litellm\.\w+: (?:\w+ - )?|\s?\(request id: [^()]*\)\s*$", re.IGNORECASE)
"""What resellers put around a message: their product's name before it, their own request id behind it."""
_PORT = re.compile(r"\b(the upstream|the proxy):[0-9]{1,5}\b")
"""What is left of an address when the stand-in has taken its host's place."""

RELAYED = frozenset({400, 404, 413, 422})
"""Statuses that say the client's request has to change."""


def retry_after_s(head: Head, now: float) -> float | None:
    """When the upstream says to come back, in seconds from the Unix time `now`; both its headers are understood."""
    try:
        if (ms := head.get("retry-after-ms")) is not None:
            seconds = float(ms) / 1000
        elif (after := head.get("retry-after")) is None:
            return None
        elif after.strip().replace(".", "", 1).isdigit():
            seconds = float(after)
        else:
            seconds = parsedate_to_datetime(after).timestamp() - now
    except (ValueError, TypeError, OverflowError):
        return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


def error_of(body: bytes) -> dict[str, Any] | None:
    """The error object of an answer, None where there is none."""
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        return None
    error = answer.get("error") if isinstance(answer, dict) else None
    if isinstance(error, str):
        return {"message": error}
    return error if isinstance(error, dict) and error else None


def judge(
    upstream: str, head: Head, body: bytes, *, now: float, hide: Iterable[tuple[str, str]]
) -> Failure | UpstreamRefused:
    """What an answer with an error status means. `hide` are texts a client must not see, each with its stand-in."""
    error = error_of(body)
    after_s = retry_after_s(head, now)
    if 300 <= head.status < 400:
        return Failure(upstream, Phase.REFUSED, Fault.REDIRECT, f"status {head.status}", head.status)
    if (fault := _fault(head.status, error)) is not None:
        detail = f"status {head.status}" + (f", code {error.get('code') or error.get('type')}" if error else "")
        return Failure(upstream, Phase.REFUSED, fault, detail[:200], head.status, after_s)
    return _refused(head.status if head.status in RELAYED else 400, error or {}, hide)


def judge_in_band(
    upstream: str, error: dict[str, Any], *, hide: Iterable[tuple[str, str]]
) -> Failure | UpstreamRefused:
    """What an error inside a 200 means, as if it had come with the status it should have had."""
    status = _status_of(error)
    fault = _fault(status, error)
    if fault is None and (status is not None or _words(error) & _REQUEST_CODES):
        return _refused(status or 400, error, hide)
    detail = f"in a 200, code {error.get('code') or error.get('type')}"[:200]
    return Failure(upstream, Phase.REFUSED, fault or Fault.IN_BAND, detail, status)


def _status_of(error: dict[str, Any]) -> int | None:
    """The status that an error inside a 200 names as its code (OpenRouter 502, LiteLLM "429")."""
    code = str(error.get("code"))
    return int(code) if re.fullmatch(r"[45][0-9][0-9]", code) else None


def _words(error: dict[str, Any] | None) -> set[str]:
    return {str(error.get("code")), str(error.get("type"))} if error else set()


def _fault(status: int | None, error: dict[str, Any] | None) -> Fault | None:
    """Whose fault it is: None where the client has to change its request."""
    words = _words(error)
    if words & _BALANCE_CODES or status == 402:
        return Fault.BALANCE
    if status in (401, 403) or words & _AUTH_CODES:
        return Fault.AUTH
    if status == 429 or words & _RATE_CODES:
        return Fault.RATE_LIMITED
    if status is None or status in RELAYED or (status == 500 and words & _REQUEST_CODES):
        return None
    if status == 503 and (words & _CHANNEL_CODES or _NO_CHANNEL.search(str(error and error.get("message")))):
        return Fault.NO_CHANNEL
    return Fault.STATUS


def _refused(status: int, error: dict[str, Any], hide: Iterable[tuple[str, str]]) -> UpstreamRefused:
    hide = list(hide)

    def clean(value: Any) -> str | None:
        if value in (None, ""):
            return None
        text = str(value)
        for secret, stand_in in hide:
            if secret:
                # In any spelling: host names are the same in capitals, and upstreams repeat them as they like.
                said = stand_in.replace("\\", r"\\")
                text = re.sub(re.escape(secret), said, text, flags=re.IGNORECASE)
        return _PORT.sub(r"\1", text)

    message = _WRAPPING.sub("", clean(error.get("message")) or "")
    code, param, error_type = clean(error.get("code")), clean(error.get("param")), clean(error.get("type"))
    if code == "bad_response_status_code":  # a reseller's word for "the one behind me refused"; its param is a status
        code = param = None
    if code is not None and code.isdecimal():
        code = None  # the status once more
    if error_type is None or _FOREIGN_TYPE.fullmatch(error_type):
        error_type = "invalid_request_error"
    return UpstreamRefused(
        status, message or "The upstream refused this request and did not say why.", error_type, param, code
    )
