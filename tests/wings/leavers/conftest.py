"""A registry on a real store, a gateway in the test's process, and an identity provider."""

from __future__ import annotations

from tests.keys.conftest import scenario
from tests.web.conftest import inside
from tests.web.test_sign_in import provider

__all__ = ["inside", "provider", "scenario"]
