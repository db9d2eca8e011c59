"""The operations of this wing that each role may use, written out a second time."""

from __future__ import annotations

from collections.abc import Mapping

_BOTH = {("GET", "/admin/api/money"), ("GET", "/admin/api/problems")}
MAY: Mapping[str, set[tuple[str, str]]] = {"operator": _BOTH, "viewer": _BOTH, "lead": _BOTH}
BODIES: Mapping[tuple[str, str], object] = {}
