"""The usage that an answer of chat completions, completions or embeddings reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.formats import reported_usage
from gateway.records import Usage


class ChatUsage:
    """Follows the reports of one answer."""

    def take(self, value: Mapping[str, Any]) -> Usage | None:
        """Take an answer or a chunk; return the usage so far if this is a report of it."""
        return reported_usage.reported(value.get("usage"), value.get("service_tier"))
