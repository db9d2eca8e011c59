"""What a long run says in the end."""

from __future__ import annotations

import sys
from collections.abc import Iterable

SHOWN = 20
"""Complaints, of many."""
COMPLAINT_CHARACTERS = 4000


def tell(name: str, complaints: Iterable[str], well: str) -> int:
    """Print each complaint once, or that all is `well`; returns the exit code."""
    different = [*dict.fromkeys(complaints)]
    for complaint in different[:SHOWN]:
        print(f"{name}: {complaint[:COMPLAINT_CHARACTERS]}", file=sys.stderr)
    if different:
        print(f"{name}: {len(different)} things are not as they should be", file=sys.stderr)
        return 1
    print(well)
    return 0
