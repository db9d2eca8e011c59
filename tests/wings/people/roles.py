"""The operations of this wing that each role may use, written out a second time."""

from __future__ import annotations

from collections.abc import Mapping

MAY: Mapping[str, set[tuple[str, str]]] = {"operator": {("POST", "/admin/api/people/{person}/end_sessions")}}
BODIES: Mapping[tuple[str, str], object] = {}
