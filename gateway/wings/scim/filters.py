"""Filters of lists and paths (RFC 7644, 3.4.2.2), as far as providers send them: `eq`, joined by `and`. Pure.

Okta asks for `userName eq "..."` (Okta's reference of SCIM 2.0, "Determine if the User object exists"), Entra for
`userName`, `externalId`, `displayName` and `emails[type eq "work"].value` (Microsoft's tutorial "Develop and plan
provisioning for a SCIM endpoint").
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gateway import untrusted_json
from gateway.config.sections import folded_name

from .faults import ScimFault

PATH = r"[A-Za-z][\w$-]*(?:\[[^\]]*\])?(?:\.[\w$-]+)?"
_TERM = re.compile(rf'\s*({PATH})\s+eq\s+("(?:[^"\\]|\\.)*"|true|false)\s*(?:(and)\b|$)', re.IGNORECASE)
_PARTS = re.compile(r"([A-Za-z][\w$-]*)(?:\[([^\]]*)\])?(?:\.([\w$-]+))?")
_CORE = re.compile(r"urn:ietf:params:scim:schemas:core:2\.0:(?:User|Group):", re.IGNORECASE)

HALF = re.compile(r"[\ud800-\udfff]")
"""Matches half of a surrogate pair, which is no character: it can be neither kept nor sent."""

EXACT = frozenset({"id", "externalid", "value"})
"""Attributes whose case counts, in small letters."""


class Path(NamedTuple):
    """The place of a value in a resource."""

    name: str
    where: Sequence[Term] = ()
    """The conditions on one of several values."""
    part: str | None = None


class Term(NamedTuple):
    """A condition that a value has to fulfil."""

    path: Path
    value: Any


def read_path(text: str) -> Path:
    """Raises `ScimFault` for a path that is not understood."""
    found = _PARTS.fullmatch(_CORE.sub("", text.strip()))
    if found is None:
        raise ScimFault(400, f"The path {text[:100]!r} is not understood.", "invalidPath")
    return Path(found[1], read_filter(found[2]) if found[2] is not None else (), found[3])


def read_filter(text: str) -> Sequence[Term]:
    """Raises `ScimFault` for a filter that is not understood."""
    text, at, terms, is_more = _CORE.sub("", text), 0, [], True
    while is_more:
        if (found := _TERM.match(text, at)) is None:
            raise ScimFault(400, "Expected ATTRIBUTE eq VALUE, or several joined by and.", "invalidFilter")
        try:
            value = untrusted_json.parse(found[2] if found[2].startswith('"') else found[2].lower())
        except ValueError:
            raise ScimFault(400, "A value of the filter is no JSON text.", "invalidFilter") from None
        if isinstance(value, str) and HALF.search(value) is not None:
            raise ScimFault(400, "A value of the filter has half of a character.", "invalidFilter")
        terms.append(Term(read_path(found[1]), value))
        at, is_more = found.end(), found[3] is not None
    return terms


def member(values: Mapping[str, Any], name: str) -> Any:
    """The member of this name, in any case."""
    return next((value for key, value in values.items() if key.lower() == name.lower()), None)


def matches(resource: Mapping[str, Any], terms: Sequence[Term]) -> bool:
    """Whether a resource, or one of several values, fulfils all conditions."""
    return all(any(_is_equal(found, term) for found in _values(resource, term.path)) for term in terms)


def _values(resource: Mapping[str, Any], path: Path) -> list[Any]:
    found = member(resource, path.name)
    several = found if isinstance(found, list) else [found]
    if path.where:
        several = [each for each in several if isinstance(each, dict) and matches(each, path.where)]
    part = path.part or ("value" if isinstance(found, list) else None)
    return several if part is None else [member(each, part) for each in several if isinstance(each, dict)]


def _is_equal(found: Any, term: Term) -> bool:
    name = (term.path.part or term.path.name).lower()
    if isinstance(found, str) and isinstance(term.value, str) and name not in EXACT:
        return folded_name(found) == folded_name(term.value)
    return type(found) is type(term.value) and bool(found == term.value)
