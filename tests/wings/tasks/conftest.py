"""A gateway in the test's process."""

from __future__ import annotations

from tests.web.conftest import inside

__all__ = ["inside"]
