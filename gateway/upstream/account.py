"""Which of an upstream's API keys something belongs to, without the key: what an account keeps, only its key finds."""

from __future__ import annotations

import hashlib

from gateway.config import Upstream


def account_of(upstream: Upstream, position: int) -> str:
    """A short digest of the API key at this position; empty where the upstream has none."""
    key = upstream.credentials[position]
    return "" if key is None else hashlib.sha256(key.get_secret_value().encode()).hexdigest()[:16]


def position_of(upstream: Upstream, account: str) -> int | None:
    """The position of the API key with this digest; None: it is no longer configured.

    The sole key of an upstream matches any digest: a key that was renewed belongs to the same account.
    """
    if len(upstream.credentials) == 1:
        return 0
    return next((at for at in range(len(upstream.credentials)) if account_of(upstream, at) == account), None)
