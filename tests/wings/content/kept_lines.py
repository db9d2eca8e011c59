"""The lines of the files that a gateway keeps content in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def lines(folder: Path) -> list[dict[str, Any]]:
    """Those that are whole: a long one is written in pieces."""
    texts = [each.read_text() for each in sorted(folder.glob("*.jsonl"))]
    return [json.loads(line) for text in texts for line in text.rpartition("\n")[0].splitlines()]
