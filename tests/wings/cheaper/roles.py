"""The operations of this wing that each role may use, written out a second time."""

from __future__ import annotations

from collections.abc import Mapping

KEY, TEAM, PERSON = [
    f"/admin/api/{path}/when_above" for path in ("keys/{id}", "teams/{name}", "people/{person}")
]  # fmt: skip
READ = {("GET", KEY), ("GET", TEAM), ("GET", PERSON)}
OF_KEY, OF_TEAM, OF_PERSON = ("PUT", KEY), ("PUT", TEAM), ("PUT", PERSON)
MAY: Mapping[str, set[tuple[str, str]]] = {
    "operator": {*READ, OF_KEY, OF_TEAM, OF_PERSON},
    "lead": {("GET", KEY), ("GET", TEAM), OF_KEY},
    "member": {("GET", KEY)},
    "viewer": READ,
    "key": {("GET", KEY)},
}
BODIES: Mapping[tuple[str, str], object] = {each: {"steps": None} for each in (OF_KEY, OF_TEAM, OF_PERSON)}
