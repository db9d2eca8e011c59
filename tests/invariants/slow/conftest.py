"""Fixtures of other folders that are used here."""

from __future__ import annotations

from tests.store.conftest import began_us, clock, folder, open_store, redis_servers, store, stores_behind, worker
from tests.web.conftest import inside

__all__ = ["began_us", "clock", "folder", "inside", "open_store", "redis_servers", "store", "stores_behind", "worker"]
