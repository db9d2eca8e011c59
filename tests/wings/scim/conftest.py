"""A gateway in the test's process, and a registry on a real store."""

from __future__ import annotations

from tests.keys.conftest import scenario
from tests.web.conftest import inside

__all__ = ["inside", "scenario"]
