"""The operations of this wing that each role may use, written out a second time."""

from __future__ import annotations

from collections.abc import Mapping

READ = {("GET", "/admin/api/people"), ("GET", "/admin/api/people/{person}")}
ACCESS = {("POST", f"/admin/api/people/{{person}}/{what}_access") for what in ("end", "give")}
CHANGE = ("PATCH", "/admin/api/people/{person}")
MAY: Mapping[str, set[tuple[str, str]]] = {"operator": {*READ, *ACCESS, CHANGE}, "viewer": READ}
BODIES: Mapping[tuple[str, str], object] = {CHANGE: {"quotas": [{"tokens": 1000, "per": "day"}]}}
