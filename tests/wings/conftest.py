"""Gateways inside the test's own process, for the endpoints of wings."""

from __future__ import annotations

from tests.web.conftest import inside

__all__ = ["inside"]
