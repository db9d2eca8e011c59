"""Watchers over the stores that the promises are checked on, in front of one another like workers of several nodes."""

from __future__ import annotations

from tests.store.conftest import began_us, clock, folder, open_store, other, redis_servers, store, stores_behind, worker

__all__ = ["began_us", "clock", "folder", "open_store", "other", "redis_servers", "store", "stores_behind", "worker"]
