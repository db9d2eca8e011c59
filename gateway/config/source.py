"""The file that a configuration is read from, with all that it refers to: read as a whole, and watched for changes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from glob import glob
from pathlib import Path
from typing import Any, NamedTuple

from . import build, resolve_values
from .faults import ConfigError, ConfigFault
from .include import Assembled, assemble
from .price_table import with_table_prices
from .sections import Config


class Reading(NamedTuple):
    """The result of reading a file."""

    config: Config
    values: dict[str, Any]
    """The plain values that it was built from."""
    referenced: frozenset[tuple[str | int, ...]]
    """Places of values that came out of `${...}`."""
    whole: Assembled | None = None
    """The files, and the place of each setting in them."""


Contents = Mapping[str, str | None]
"""A hash of each file by its path, and of the names that a pattern matches by `PATTERN` and it; None: unreadable."""

PATTERN = "files like "


class Source:
    """A file, and what the command line puts in the place of its `server` settings."""

    def __init__(
        self,
        path: str,
        env: Mapping[str, str],
        overrides: Mapping[str, Any] | None = None,
        *,
        reads_secrets: bool = True,
    ) -> None:
        self._reads_secrets = reads_secrets
        self._path = path
        self._env = env
        self._overrides = {name: value for name, value in (overrides or {}).items() if value is not None}
        self.seen: Contents = {}
        """The contents at the last reading, valid or not."""

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
            return data.decode("utf-8-sig")

        def find_files(pattern: str) -> list[str]:
            files = _files(pattern)
            seen[PATTERN + pattern] = _hash_of_names(files)
            return files

        try:
            text = read_file(self._path)
        except (OSError, UnicodeDecodeError) as error:
            reason = (error.strerror or "").lower() if isinstance(error, OSError) else "not UTF-8 text"
            raise ConfigError([ConfigFault("", f"cannot read the file: {reason}")]) from None
        whole = assemble(self._path, read_file, find_files, text)
        try:
            resolved = resolve_values(
                whole.values, self._env, lambda path: read_file(path).rstrip("\r\n"), reads_secrets=self._reads_secrets
            )
            values = resolved.values
            server = values.get("server") or {}
            if self._overrides and isinstance(server, dict):  # anything else is a fault, reported below
                values["server"] = {**server, **self._overrides}
            values = _with_table_prices(values, read_file)
            return Reading(build(values), values, resolved.referenced, whole)
        except ConfigError as error:
            raise ConfigError([whole.locate(fault) for fault in error.faults]) from None

    def look(self) -> Contents:
        """The present contents of the files that were read last."""
        return {path: _hash_of(path) for path in self.seen}


def _with_table_prices(values: Mapping[str, Any], read_file: Callable[[str], str]) -> dict[str, Any]:
    """Raises `ConfigError`, with the faults of everything else as well."""
    try:
        return with_table_prices(values, datetime.now(UTC), read_file)
    except ConfigError as error:
        faults = error.faults
    try:
        build(values)
    except ConfigError as error:
        faults = [*faults, *error.faults]
    raise ConfigError(faults)


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _hash_of(path: str) -> str | None:
    if path.startswith(PATTERN):
        return _hash_of_names(_files(path.removeprefix(PATTERN)))
    try:
        return _hash(Path(path).read_bytes())
    except (OSError, ValueError):
        return None


def _files(pattern: str) -> list[str]:
    return sorted(path for path in glob(pattern) if Path(path).is_file())  # noqa: PTH207 - with its folder as it is given


def _hash_of_names(files: Iterable[str]) -> str:
    return _hash("\0".join(files).encode(errors="surrogateescape"))
