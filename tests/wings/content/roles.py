"""The operations of this wing that each role may use, written out a second time."""

from __future__ import annotations

from collections.abc import Mapping

_READ = {("GET", "/admin/api/content")}
MAY: Mapping[str, set[tuple[str, str]]] = dict.fromkeys(("operator", "lead", "member", "viewer", "key"), _READ)
BODIES: Mapping[tuple[str, str], object] = {}
