"""Forbidden content of gateway logs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tests.flows.gateway_process import TROUBLES, Gateway


def troubles(gateways: Sequence[Gateway]) -> Iterator[str]:
    """Tracebacks, warnings of asyncio, and secrets in the logs so far."""
    for gateway in gateways:
        text = gateway.stderr
        at = min([text.find(words) for words in TROUBLES if words in text], default=None)
        if at is not None:
            yield f"in the log of {gateway!r}: ...{text[max(0, at - 300) : at + 3000]}"
            continue
        try:
            gateway.check_logs()
        except AssertionError:
            yield f"a secret stands in the log of {gateway!r}"
