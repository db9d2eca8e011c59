"""What a folder is not good for, said before anything depends on it."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from pathlib import Path

from gateway.mounts import network_file_system

HEAD_BYTES = 4096
"""More than the first line of a journal's lock takes, which says whose it is (`home`)."""


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


def strangers(folder: Path, origin: str) -> dict[str, int]:
    """How many journals in a folder belong to each ledger other than `origin`. None is locked or changed."""
    found: Counter[str] = Counter()
    try:
        heads = sorted(folder.glob("*/lock"))
    except OSError:
        return {}
    for head in heads:
        if re.fullmatch(r"[0-9a-f]{32}", head.parent.name):
            try:
                with head.open("rb") as lock:
                    whose = json.loads(lock.readline(HEAD_BYTES))["origin"]
            except (OSError, ValueError, KeyError, TypeError):
                continue  # gone meanwhile, or none of ours
            if isinstance(whose, str) and whose != origin:
                found[whose] += 1
    return dict(found)
