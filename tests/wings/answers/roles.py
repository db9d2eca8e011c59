"""The operations of this wing that each role may use, written out a second time."""

from __future__ import annotations

from collections.abc import Mapping

_BOTH = {("GET", f"/admin/api/{name}") for name in ("money", "problems", "events")}
_MINUTES = {("GET", "/admin/api/minutes")}
MAY: Mapping[str, set[tuple[str, str]]] = {
    "operator": _BOTH | _MINUTES, "viewer": _BOTH | _MINUTES, "lead": _BOTH | _MINUTES, "member": _MINUTES,
    "key": _MINUTES,
}  # fmt: skip
BODIES: Mapping[tuple[str, str], object] = {}
