"""Which limits a person has: her own, else those of her role, else those of everyone."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.config import PersonLimits
from gateway.config.sections import PERSON_DEFAULTS, ROLE_PREFIX, folded_name

from .issued import Overlay

UNLIMITED = PersonLimits()
"""The limits of a person where none are configured."""


def person_limits(people: Mapping[str, PersonLimits], name: str, overlay: Overlay | None) -> PersonLimits:
    """The limits of this person. `overlay`: what was given to her while the gateway ran, and the role of her last
    sign-in."""
    if (named := people.get(folded_name(name))) is not None:
        return named
    of_role = people.get(f"{ROLE_PREFIX}{overlay.role}") if overlay is not None else None
    shared = of_role or people.get(PERSON_DEFAULTS, UNLIMITED)
    if overlay is None or overlay.quotas is None:
        return shared
    return shared.model_copy(update={"quotas": overlay.quotas})
