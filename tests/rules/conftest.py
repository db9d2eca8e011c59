"""Properties are looked for at leisure: how fast an example runs depends on the machine, and proves nothing."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("at-leisure", deadline=None)
settings.load_profile("at-leisure")
