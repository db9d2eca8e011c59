"""The programs in `examples/hooks` can be imported by their names, as they import each other."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "examples" / "hooks"))
