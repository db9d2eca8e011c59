"""What a folder is not good for, said before anything depends on it."""

from __future__ import annotations

import os
from pathlib import Path

from gateway.files import network_file_system


def problem_with(folder: Path) -> str | None:
    """Why no journal should be kept in a folder, in plain words; None where one may be. It need not exist yet.

    Network file systems are only known on Linux.
    """
    existing = folder.absolute()
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():
        return f"{existing} is not a folder"
    # The second question is for root, who is told that everything may be written.
    if not os.access(existing, os.W_OK | os.X_OK) or os.statvfs(existing).f_flag & os.ST_RDONLY:
        return f"{existing} cannot be written by this user"
    if kind := network_file_system(existing):
        return f"{folder} is on a network file system ({kind}), where locks and writes cannot be relied upon"
    return None
