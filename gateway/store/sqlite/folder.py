"""The embedded store's folder, for the one gateway that uses it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gateway.config import StoreSettings
from gateway.files import exclusive

from .database import create
from .upgrade import upgrade


@contextmanager
def exclusive_folder(settings: StoreSettings) -> Iterator[None]:
    """Lock the folder, and create or upgrade the tables before several workers could do so at once.

    Raises `FolderInUse`; `StoreMisconfigured` if the file cannot be used, `OSError` if the folder cannot.
    """
    with exclusive(settings.folder, "store.url"):
        upgrade(settings)
        create(settings).close()
        yield
