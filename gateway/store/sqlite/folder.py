"""The embedded store's folder, for the one gateway that uses it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gateway.config import StoreSettings
from gateway.files import exclusive

from .database import create


@contextmanager
def exclusive_folder(settings: StoreSettings) -> Iterator[None]:
    """Hold it, its tables made before several workers want to make them at once.

    Raises `FolderInUse`; `StoreMisconfigured` where the file cannot be used, `OSError` where the folder cannot.
    """
    with exclusive(settings.folder, "store.url"):
        create(settings).close()
        yield
