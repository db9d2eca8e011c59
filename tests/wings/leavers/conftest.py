"""A registry on a real store, a gateway in the test's process, and an identity provider."""

from __future__ import annotations

from tests.fakes.identity_provider import provider
from tests.keys.conftest import scenario
from tests.web.conftest import inside

__all__ = ["inside", "provider", "scenario"]
