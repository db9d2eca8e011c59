"""The difference of two configurations: which settings differ, in text safe for logs, and which need a restart.

Never shown is the value of a setting that is a secret by its type, nor of one that came out of a `${...}` reference, in
the old file or in the new one: such a value may be confidential.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from pydantic import BaseModel, SecretStr

from .sections import Config, FileKey

Place = tuple[str | int, ...]
"""The path of a value in the file."""

NEEDS_RESTART: Sequence[Place] = (
    ("server", "host"), ("server", "port"), ("server", "workers"), ("store",), ("admin", "listen"),
    ("tracing",),
)  # fmt: skip
"""Settings of what is opened, bound or started once, including nested settings."""

SECRET_FIELDS = frozenset({"sha256", "url"})
"""Settings that show more than a log should hold, though their type is not secret."""

MAX_SHOWN = 120
"""Characters of one value that a change shows."""


@dataclass(frozen=True, slots=True)
class SettingChange:
    """A setting whose value differs between two configurations."""

    place: Place
    """Place in the file, except that a key is identified by its id instead of its number."""
    what: str

    def __str__(self) -> str:
        return f"{_format_place(self.place)}: {self.what}"

    @property
    def needs_restart(self) -> bool:
        """Whether the gateway has to be started again for it."""
        return any(self.place[: len(start)] == start for start in NEEDS_RESTART)

    @property
    def path(self) -> str:
        """Where, as it is shown."""
        return _format_place(self.place)


def changes(
    old: Config, new: Config, referenced_before: Iterable[Place] = (), referenced_now: Iterable[Place] = ()
) -> list[SettingChange]:
    """The differences, in the order of the file. `referenced_...`: the places whose values came out of references."""
    found: list[SettingChange] = []
    before, now = _Side(referenced_before), _Side(referenced_now)
    _compare(old, new, (), (before, ()), (now, ()), found)
    return found


class _Side:
    """One of the two compared files, with the places whose values must stay hidden because they came out of
    references."""

    def __init__(self, referenced: Iterable[Place]) -> None:
        self._hidden = frozenset(place[:n] for place in referenced for n in range(1, len(place) + 1))

    def hides(self, place: Place) -> bool:
        """Whether something of the value at this place came out of a reference."""
        return place in self._hidden


_Where = tuple[_Side, Place]


def _compare(one: Any, other: Any, place: Place, before: _Where, now: _Where, found: list[SettingChange]) -> None:
    if one == other:
        return
    if (ones := _members(one)) is None or (others := _members(other)) is None:
        is_section = isinstance(one, BaseModel) or isinstance(other, BaseModel)
        if is_section:  # and the other one is null
            found.append(SettingChange(place, "removed" if other is None else "added"))
        else:
            is_secret = place[-1] in SECRET_FIELDS or _holds_secret(one) or _holds_secret(other)
            is_secret = is_secret or before[0].hides(before[1]) or now[0].hides(now[1])
            what = "(secret) changed" if is_secret else f"{_format_value(one)} -> {_format_value(other)}"
            found.append(SettingChange(place, what))
        return
    for name in dict.fromkeys([*ones, *others]):
        here = (*place, name)
        if name not in others:
            found.append(SettingChange(here, "removed"))
        elif name not in ones:
            found.append(SettingChange(here, "added"))
        else:
            (index, mine), (other_index, its) = ones[name], others[name]
            _compare(mine, its, here, (before[0], (*before[1], index)), (now[0], (*now[1], other_index)), found)


def _members(value: Any) -> dict[str | int, tuple[str | int, Any]] | None:
    """The parts of a value, by name: each with its name in the file. None: the value is shown as a whole."""
    if isinstance(value, BaseModel):
        return {name: (name, getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, Mapping):
        return {name: (name, item) for name, item in value.items()}
    if isinstance(value, tuple) and value and all(isinstance(item, FileKey) for item in value):
        return {key.id: (index, key) for index, key in enumerate(value)}
    if isinstance(value, tuple) and (not value or all(isinstance(item, BaseModel) for item in value)):
        return {index: (index, item) for index, item in enumerate(value)}
    return None


def _holds_secret(value: Any) -> bool:
    return isinstance(value, SecretStr) or (isinstance(value, tuple) and any(map(_holds_secret, value)))


def _format_value(value: Any) -> str:
    text = json.dumps(_plain(value))
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def _plain(value: Any) -> Any:
    """Converts a value to the form that it has in the configuration file."""
    match value:
        case None | bool() | int() | str():
            return value
        case Decimal():
            return int(value) if value == int(value) else float(value)
        case float():
            return int(value) if value.is_integer() else value
        case datetime():
            return value.isoformat()
        case tuple():
            return [_plain(item) for item in value]
        case _:
            return str(value)


def _format_place(place: Place) -> str:
    """Formats a place like `format_place`, but with quotes around every name that is not a plain word."""
    text = ""
    for part in place:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            name = part if part.isidentifier() and part.isascii() else json.dumps(part)
            text += f".{name}" if text else name
    return text
