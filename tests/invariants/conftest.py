"""The fixture of another folder that is used here."""

from __future__ import annotations

from tests.web.conftest import inside

__all__ = ["inside"]
