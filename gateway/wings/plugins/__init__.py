"""Plug-ins in Python: code that a team adds to calls without changing the gateway. All that they may import is here,
and it loads nothing else of the gateway."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .interface import (
        INTERFACE_VERSION,
        AnswerHead,
        AttemptEnd,
        CallEnd,
        Plugin,
        PluginAttempt,
        PluginCall,
        Refuse,
    )

__all__ = [
    "INTERFACE_VERSION", "AnswerHead", "AttemptEnd", "CallEnd", "Plugin", "PluginAttempt", "PluginCall", "Refuse",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Loads the interface when a plug-in asks for it: commands look for parts of the wing without it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import interface

    return getattr(interface, name)
