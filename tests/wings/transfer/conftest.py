"""Redis servers for moves between stores."""

from __future__ import annotations

from tests.store.conftest import redis_servers

__all__ = ["redis_servers"]
