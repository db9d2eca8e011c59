"""A token and its end in the JSON of a program or of a token endpoint. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from math import isfinite
from typing import Any

from gateway import untrusted_json

from .grant import Grant, NoGrant, bearer

TOKENS = ("token", "access_token", "accessToken", "id_token")
ENDS = ("expires_at", "expires_on", "expirationTimestamp", "expiration", "expiry", "token_expiry")
"""The names of the end of a token: RFC 6749 has `expires_in`, `az account get-access-token` `expires_on`, plugins of
kubectl `expirationTimestamp`, `gcloud config config-helper` `token_expiry`."""


def read_grant(text: bytes | str, now: float) -> Grant:
    """The grant in a JSON object, or in its `status` or `credential`. Raises `NoGrant`, quoting nothing of it."""
    try:
        found = untrusted_json.parse(text)
    except ValueError:
        raise NoGrant("the answer is not JSON") from None
    if isinstance(found, dict):
        found = next((found[name] for name in ("status", "credential") if isinstance(found.get(name), dict)), found)
    if not isinstance(found, dict):
        raise NoGrant("the answer is no JSON object")
    token = next((found[name] for name in TOKENS if isinstance(found.get(name), str)), None)
    if token is None:
        raise NoGrant(f"the answer has none of {', '.join(TOKENS)}")
    return bearer(token, _end_of(found, now))


def _end_of(found: Mapping[str, Any], now: float) -> float | None:
    lifetime = _number(found.get("expires_in"))
    if lifetime is not None:
        return now + lifetime
    for name in ENDS:
        value = found.get(name)
        if (number := _number(value)) is not None:
            return number
        if isinstance(value, str):
            try:
                end = datetime.fromisoformat(value)
            except ValueError:
                raise NoGrant(f"{name} is no time: write Unix seconds, or 2027-01-01T00:00:00Z") from None
            return (end if end.tzinfo else end.replace(tzinfo=UTC)).timestamp()
    return None


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if isfinite(number) else None


def error_of(text: bytes) -> str:
    """The error code in an answer of a token endpoint (RFC 6749, 5.2), which is no secret; empty: it has none."""
    try:
        code = untrusted_json.parse(text)["error"]
    except (ValueError, LookupError, TypeError):
        return ""
    return code if isinstance(code, str) and code.replace("_", "").isalnum() and len(code) <= 64 else ""
