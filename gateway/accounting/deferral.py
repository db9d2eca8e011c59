"""The facts with which any worker can settle a deferred lease: where its work goes on, and the bounds of its charge."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from gateway.records import Usage


class Deferral(NamedTuple):
    """Work that goes on at an upstream without a call."""

    kept_id: str
    """Id of the work at the upstream."""
    upstream: str
    account: str
    """Which API key of the upstream it belongs to (upstream/credentials.py)."""
    routed_model: str | None
    """The model's name there, if it differs."""
    model: str
    """The model's name in the configuration."""
    output_limit: int | None
    """Output limit as it was sent to the upstream; None if the request has none."""
    request_bytes: int
    """Size in bytes of the request and of other input that the upstream reads for it: the ceiling of the prompt's
    tokens."""
    began: float
    """Time when the work was deferred, as Unix time in seconds."""
    remote: str | None = None
    spent: tuple[int, int] = (0, 0)
    """Prompt and completion tokens of attempts that did not answer the call."""
    path: str = ""
    """Path below the upstream's base URL at which a task of a passthrough row is polled; empty for other work."""
    lines: int = 0
    """Requests of a batch; 0: it is no batch."""
    lines_endpoint: str = ""
    """The endpoint of those requests."""
    attempts: int = 1
    """Attempts of the call, including the one that began this work."""
    failed: str = ""
    """Those of them that failed, as in `Record`."""
    ceilings: tuple[int, int, int, int] = (0, 0, 0, 0)
    """`LineCeilings` of a batch; zeros: they are not known."""
    timeline: str = ""
    """Its attempts and waits until this work began, as in `Record`."""
    outputs: int = 1
    """Number of outputs that a task was asked for."""

    @property
    def spent_usage(self) -> Usage:
        """The possible cost of attempts that did not answer the call."""
        return Usage(*self.spent, source="estimated") if any(self.spent) else Usage()


def encode_deferral(deferral: Deferral) -> str:
    """Returns JSON text without tabs and line ends."""
    return json.dumps(deferral, separators=(",", ":"))


def decode_deferral(text: str) -> Deferral:
    """Raises `ValueError` or `TypeError`. A newer gateway's further members are left out."""
    values: list[Any] = json.loads(text)
    return Deferral(*values[: len(Deferral._fields)])
