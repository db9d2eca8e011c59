"""The file that a configuration is read from, with all that it refers to: read as a whole, and watched for changes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from . import build, resolve
from .faults import ConfigError, ConfigFault
from .sections import Config


class Reading(NamedTuple):
    """What was read."""

    config: Config
    values: dict[str, Any]
    """The plain values that it was built from."""
    referenced: frozenset[tuple[str | int, ...]]
    """Places of values that came out of `${...}`."""


Contents = Mapping[str, str | None]
"""A hash of each file by its path; None: it cannot be read."""


class Source:
    """A file, and what the command line puts in the place of its `server` settings."""

    def __init__(self, path: str, env: Mapping[str, str], overrides: Mapping[str, Any] | None = None) -> None:
        self._path = path
        self._env = env
        self._overrides = {name: value for name, value in (overrides or {}).items() if value is not None}
        self.seen: Contents = {}
        """What was there when it was last read, sound or not."""

    def __repr__(self) -> str:
        return f"<Source {self._path}>"

    def read(self) -> Reading:
        """Everything as it is now. Raises `ConfigError` with every fault."""
        seen: dict[str, str | None] = {}
        self.seen = seen

        def read_file(path: str) -> str:
            seen.setdefault(path, None)
            data = Path(path).read_bytes()
            seen[path] = _hash(data)
            return data.decode("utf-8")

        try:
            text = read_file(self._path)
        except (OSError, UnicodeDecodeError) as error:
            reason = (error.strerror or "").lower() if isinstance(error, OSError) else "not UTF-8 text"
            raise ConfigError([ConfigFault("", f"cannot read the file: {reason}")]) from None
        resolved = resolve(text, self._env, lambda path: read_file(path).rstrip("\r\n"))
        values = resolved.values
        server = values.get("server") or {}
        if self._overrides and isinstance(server, dict):  # anything else is a fault, reported below
            values["server"] = {**server, **self._overrides}
        return Reading(build(values), values, resolved.referenced)

    def look(self) -> Contents:
        """What is there now of what was read last."""
        return {path: _hash_of(path) for path in self.seen}


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _hash_of(path: str) -> str | None:
    try:
        return _hash(Path(path).read_bytes())
    except (OSError, ValueError):
        return None
