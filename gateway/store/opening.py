"""Opens the store that the settings name. A store brings its own libraries; only those of the one in use are loaded."""

from __future__ import annotations

from importlib import import_module

from gateway.config import StoreSettings

from . import Store


def load(settings: StoreSettings) -> None:
    """Import the libraries of the store that the settings name; `open_store` would do it, too."""
    import_module(f".{'sqlite' if settings.is_embedded else 'redis'}.store", __package__)


async def open_store(settings: StoreSettings, *, is_alone: bool = False) -> Store:
    """Open the store that the settings name. Raises `StoreMisconfigured` where a person has to mend something.

    `is_alone`: no other worker or gateway writes to it, so that an embedded one may decide batches in memory, and
    write them within a tenth of a second. A Redis that does not answer is no such thing: it is opened all the same,
    and away. An embedded one that cannot be opened is refused.
    """
    if settings.is_embedded:
        from .sqlite.store import SqliteStore

        return SqliteStore(settings, is_alone=is_alone)
    from .redis.store import RedisStore

    return await RedisStore.open(settings)


async def look_at(settings: StoreSettings) -> list[str]:
    """Warnings about the store for an operator.

    Raises `StoreMisconfigured` for faults that an operator has to mend.
    """
    if settings.is_embedded:
        from .sqlite.database import check_place

        check_place(settings)
        return []
    from .redis.store import warnings

    return await warnings(settings)
