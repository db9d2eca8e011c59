"""A registry on a real store, and a gateway in the test's process."""

from __future__ import annotations

from tests.keys.conftest import scenario
from tests.web.conftest import inside

__all__ = ["inside", "scenario"]
