"""The operations of this wing that each role may use, written out a second time."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.wings.billing.endpoints import PLACE

_BILLS, _STATEMENT = ("GET", "/admin/api/bills"), ("GET", "/admin/api/statement")
MAY: Mapping[str, set[tuple[str, str]]] = {
    "operator": {PLACE, _BILLS, _STATEMENT}, "lead": {PLACE, _STATEMENT}, "viewer": {_BILLS, _STATEMENT},
}  # fmt: skip
BODIES: Mapping[tuple[str, str], object] = {PLACE: {"text": "date,model,requests\n2026-11-20,m,1\n"}}
