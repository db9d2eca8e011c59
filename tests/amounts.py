"""How much of a long repetition is run: a part in `make test`, all of it in `make test-rest` and in runs of one file.

A test that depends on it is marked `shortened`, so that `make test-rest` runs it whole (tests/test_tiers.py).
"""

from __future__ import annotations

from typing import TypeVar

from hypothesis import settings

T = TypeVar("T")

FEW_EXAMPLES = 25
"""The number of Hypothesis examples in `make test`."""


def amount(whole: T, part: T) -> T:
    """One of both. The Hypothesis profile decides, which tests/conftest.py chooses before tests are imported."""
    return part if settings.default.max_examples == FEW_EXAMPLES else whole
