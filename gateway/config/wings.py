"""The sections of the file that wings have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

from pydantic import create_model

from gateway.wings import parts

from .faults import ConfigFault
from .sections import Config, Section


def _no_warnings(config: Config) -> Iterator[ConfigFault]:
    return iter(())


class WingSection(NamedTuple):
    """One section. It may be absent, so every setting of it has a default."""

    name: str
    kind: type[Section]
    secrets: tuple[str, ...] = ()
    """The settings of it that are secrets, which warnings about secrets look at."""
    address: str = ""
    """The setting with an address that is reached through the section's `proxy`; empty: there is none."""
    warnings: Callable[[Config], Iterator[ConfigFault]] = _no_warnings
    """Warnings about settings that load and cannot work as meant."""


@cache
def wing_sections() -> tuple[WingSection, ...]:
    """The sections of all wings. Asked for when a file is read: their modules import this package."""
    return tuple(parts(WingSection, "settings"))


@cache
def whole_file() -> type[Config]:
    """`Config` with the sections of all wings."""
    sections: dict[str, Any] = {each.name: (each.kind, each.kind()) for each in wing_sections()}
    return create_model("Config", __base__=Config, **sections)
