"""Faults in a configuration: the place of each in the file, and the remedy."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ConfigFault:
    """One fault: its place in the file, and the remedy."""

    path: str
    message: str
    file: str = field(default="", compare=False)
    """The file that has it; empty: not known."""
    line: int = field(default=0, compare=False)
    """Line of the fault in `file`; 0: not known."""

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message

    def located(self, file: str = "") -> str:
        """Returns the fault with its file and line: `gateway.yaml:12: server.port: ...`. The argument `file` is used if
        the fault has no file of its own."""
        where = self.file or file
        return f"{where}:{self.line}: {self}" if self.line else f"{where}: {self}" if where else str(self)


class ConfigError(Exception):
    """The configuration cannot be used. `faults` holds every mistake that was found, not only the first."""

    def __init__(self, faults: list[ConfigFault]) -> None:
        super().__init__("\n".join(str(fault) for fault in faults))
        self.faults = faults


def format_faults(path: tuple[str | int, ...]) -> str:
    """A path as a person would point at it: keys[0].limits.n, models."gpt-4.1".routes[0]."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            name = part if re.fullmatch(r"[\w-]+", part) else f'"{printable(part)}"'
            text += f".{name}" if text else name
    return text


def few(names: Sequence[str], most: int) -> str:
    """The first names, and the number of the others."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def printable(text: str) -> str:
    """The text as one printable line; other characters are escaped as in Python."""
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)
