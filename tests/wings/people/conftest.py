"""A gateway in the test's process, an identity provider, and a registry on a real store."""

from __future__ import annotations

from tests.fakes.identity_provider import provider
from tests.keys.conftest import scenario
from tests.web.conftest import inside

__all__ = ["inside", "provider", "scenario"]
