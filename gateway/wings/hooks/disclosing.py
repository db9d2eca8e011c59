"""Which keys' answers hooks get, for their owners."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

from gateway.config import Config
from gateway.pipeline.services import WingDisclosure, is_never_disclosed

from .settings import AfterCall, HookSettings

Shown = dict[str, Any]


def of_keys(config: Config) -> Callable[[str, str | None], Shown | None] | None:
    hooks = [hook for hook in config.section(HookSettings).after_call.values() if hook.answers_of]

    def is_shown(hook: AfterCall, key: str, team: str | None) -> bool:
        return hook.is_about_key(key, team) and any(fnmatchcase(key, pattern) for pattern in hook.answers_of)

    def of_key(key: str, team: str | None) -> Shown | None:
        found = [hook for hook in hooks if is_shown(hook, key, team)]
        if not found or is_never_disclosed(config, key):
            return None
        calls = [{"models": None if "*" in hook.models else [*hook.models], "share": 1.0} for hook in found]
        return {"key": key, "to": [f"{hook.shown} (answers alone)" for hook in found], "calls": calls}

    return of_key if hooks else None


DISCLOSURE = WingDisclosure(of_keys)
