"""The operations of this wing that each role may use, written out a second time."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.wings.leavers.endpoints import END, GIVE

MAY: Mapping[str, set[tuple[str, str]]] = {"operator": {("POST", END), ("POST", GIVE)}}
BODIES: Mapping[tuple[str, str], object] = {}
