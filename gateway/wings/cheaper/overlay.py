"""The steps of a key, team or person in its overlay of the store."""

from __future__ import annotations

from gateway.keys.cache import WingMember

from .settings import SECTION_NAME, read_steps

STEPS = WingMember(SECTION_NAME, read_steps)
