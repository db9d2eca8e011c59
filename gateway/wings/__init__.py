"""The wings: optional features, each in a folder of its own here. This list is all that the rest of the gateway, the
trunk, knows of them.

A wing touches the trunk in modules with agreed names. The trunk's module that asks for one defines the type of its
values: `commands/usage.py` asks every wing for its `usage`. A module is imported when it is asked for, not before:
a module of a wing may therefore import what asks for it.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeVar

WINGS = (
    "init",
    "litellm",
    "media",
    "realtime",
    "stored",
    "tasks",
    "content",
    "queue",
    "translate",
    "fan_out",
    "hedging",
    "alerts",
    "answers",
    "billing",
    "transfer",
    "people",
    "leavers",
    "scim",
    "parameters",
    "hooks",
    "cheaper",
    "budgets",
    "machine",
    "clouds",
    "plugins",
)
"""The names of the folders, in the order in which their parts are used."""

T = TypeVar("T")


def parts(kind: type[T], module: str) -> list[T]:
    """Every value of this type in the module of this name of each wing that has one."""
    names = [f"{__name__}.{wing}.{module}" for wing in WINGS]
    found = [import_module(name) for name in names if find_spec(name) is not None]
    return [value for each in found for value in vars(each).values() if isinstance(value, kind)]


class OfWings:
    """The notes of wings beside an object of the trunk: one value of each type, made when it is first asked for."""

    def __init__(self) -> None:
        self._made: dict[type, Any] = {}

    def __call__(self, kind: type[T]) -> T:
        if kind not in self._made:
            self._made[kind] = kind()
        found: T = self._made[kind]
        return found
