"""Fixtures of other folders that are used here."""

from __future__ import annotations

from tests.web.conftest import inside

__all__ = ["inside"]
