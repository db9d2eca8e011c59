"""The result of a long run."""

from __future__ import annotations

import sys
from collections.abc import Iterable

SHOWN = 20
"""Maximum number of complaints shown."""
COMPLAINT_CHARACTERS = 4000


def tell(name: str, complaints: Iterable[str], well: str) -> int:
    """Prints each complaint once, or `well`; returns the exit code."""
    different = [*dict.fromkeys(complaints)]
    for complaint in different[:SHOWN]:
        print(f"{name}: {complaint[:COMPLAINT_CHARACTERS]}", file=sys.stderr)
    if different:
        print(f"{name}: {len(different)} things are not as they should be", file=sys.stderr)
        return 1
    print(well)
    return 0
