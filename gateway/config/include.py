"""`include:`: a configuration that is spread over several files, and the file and line of each of its settings.

    include: [teams.yaml, "keys/*.yaml"]     # relative to the file that has it

Lists (`keys`, `quotas`) are put one after the other. In every other section a name is in one file only: a second
one is a fault, because one of the two would not count. An included file may include others. YAML anchors and `x-`
sections end with their file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from glob import escape
from os.path import normpath, realpath
from pathlib import Path
from typing import Any

import yaml

from .faults import ConfigError, ConfigFault, format_faults
from .references import compose, load

INCLUDE = "include"
MAX_FILES = 1000

WILD = re.compile(r"[*?\[]")
_PATH_PART = re.compile(r'\[(\d+)\]|"((?:[^"])*)"|([\w-]+)')

Place = tuple[str | int, ...]


@dataclass(slots=True)
class Assembled:
    """The settings of all files together."""

    values: dict[str, Any] = field(default_factory=dict)
    """Settings of all files, before references are replaced."""
    texts: dict[str, str] = field(default_factory=dict)
    """Text by file, in the order in which the files were read."""
    unmatched: list[str] = field(default_factory=list)
    """Patterns of `include` that match no file."""
    origins: dict[Place, tuple[str, Place]] = field(default_factory=dict)
    """Origin of each section and of its direct members: the file, and the place in that file."""
    _nodes: dict[str, yaml.Node | None] = field(default_factory=dict)

    def locate(self, fault: ConfigFault) -> ConfigFault:
        """The fault with its file and line, as far as they are known."""
        if fault.file:
            return fault
        place = read_place(fault.path)
        for length in (2, 1):
            if (found := self.origins.get(place[:length])) is not None:
                file, local = found
                return replace(fault, file=file, line=self.line_of(file, (*local, *place[length:])))
        return replace(fault, file=next(iter(self.texts), ""))

    def line_of(self, file: str, place: Place) -> int:
        """The line of a place, or of the innermost thing around it that is there; 0 where nothing is known."""
        if file not in self._nodes:
            self._nodes[file] = compose(self.texts[file])
        node, line = self._nodes[file], 0
        for part in place:
            if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
                node = node.value[part]
                line = node.start_mark.line + 1
            elif isinstance(node, yaml.MappingNode) and (
                found := next((pair for pair in node.value if pair[0].value == str(part)), None)
            ):
                line, node = found[0].start_mark.line + 1, found[1]
            else:
                break
        return line


def assemble(
    path: str, read_file: Callable[[str], str], find_files: Callable[[str], Sequence[str]], given: str | None = None
) -> Assembled:
    """Read a file and all that it includes. `given` is the first file's text, if it is known.

    Raises `ConfigError` with every fault.
    """
    reader = _Reader(read_file, find_files)
    reader.add(path, (), given)
    if reader.faults:
        raise ConfigError(reader.faults)
    return reader.found


class _Reader:
    def __init__(self, read_file: Callable[[str], str], find_files: Callable[[str], Sequence[str]]) -> None:
        self._read_file = read_file
        self._find_files = find_files
        self._includer: dict[str, str] = {}
        """The including file, by the real path of the included one."""
        self.found = Assembled()
        self.faults: list[ConfigFault] = []

    def add(self, path: str, chain: tuple[str, ...], text: str | None = None) -> None:
        text = self._read_file(path) if text is None else text
        self.found.texts[path] = text
        self._includer[realpath(path)] = chain[-1] if chain else path
        try:
            values = load(text)
        except ConfigError as error:
            self.faults += [replace(fault, file=path) for fault in error.faults]
            return
        included = values.pop(INCLUDE, [])
        for name, value in values.items():
            if not str(name).startswith("x-"):
                self._merge(path, name, value)
        for index, entry in self._entries(path, included):
            for file in self._files_of(path, entry):
                self._include(path, index, file, (*chain, path))

    def _fault(self, file: str, place: Place, message: str) -> None:
        self.faults.append(ConfigFault(format_faults(place), message, file, self.found.line_of(file, place)))

    def _entries(self, path: str, included: Any) -> list[tuple[int, str]]:
        entries = included if isinstance(included, list) else [included]
        if any(not isinstance(entry, str) or not entry for entry in entries):
            self._fault(path, (INCLUDE,), 'expected a list of files, such as [teams.yaml, "keys/*.yaml"]')
            return []
        return list(enumerate(dict.fromkeys(entries)))

    def _files_of(self, path: str, entry: str) -> Sequence[str]:
        folder = Path(path).parent
        if not WILD.search(entry):
            return [normpath(folder / entry)]
        pattern = normpath(Path(escape(str(folder))) / entry)
        if not (files := self._find_files(pattern)):
            self.found.unmatched.append(pattern)
        return files

    def _include(self, path: str, index: int, file: str, chain: tuple[str, ...]) -> None:
        place = (INCLUDE, index)
        if realpath(file) in map(realpath, chain):
            self._fault(path, place, f"includes {file!r}, which leads back to it; take one of the two away")
        elif (first := self._includer.get(realpath(file))) is not None:
            if first != path:
                self._fault(path, place, f"{file!r} is included by {first!r} already; keep one")
        elif len(self.found.texts) >= MAX_FILES:
            self._fault(path, place, f"leads to more than {MAX_FILES} files")
        else:
            try:
                self.add(file, chain)
            except OSError as error:
                self._fault(path, place, f"cannot read {file!r}: {(error.strerror or str(error)).lower()}")
            except ValueError:
                self._fault(path, place, f"cannot read {file!r}: not UTF-8 text")

    def _merge(self, file: str, section: Any, value: Any) -> None:
        values, origins = self.found.values, self.found.origins
        known = values.get(section)
        origins.setdefault((str(section),), (file, (str(section),)))
        if section not in values or known is None:
            values[section] = value.copy() if isinstance(value, list | dict) else value
            known, start = values[section], 0
        elif isinstance(known, list) and isinstance(value, list):
            start = len(known)
            known.extend(value)
        elif isinstance(known, dict) and isinstance(value, dict):
            for name, item in value.items():
                if (first := origins.get((str(section), str(name)))) is not None:
                    line = self.found.line_of(*first)
                    self._fault(
                        file, (str(section), str(name)), f"is in {first[0]}:{line} as well; keep one of the two"
                    )
                else:
                    known[name] = item
            start = 0
        elif value is None:
            return
        else:
            first = origins[(str(section),)]
            self._fault(file, (str(section),), f"has another form than in {first[0]}")
            return
        if isinstance(value, list):
            for index in range(len(value)):
                origins[str(section), start + index] = (file, (str(section), index))
        elif isinstance(value, dict):
            for name in value:
                origins.setdefault((str(section), str(name)), (file, (str(section), str(name))))


def read_place(path: str) -> Place:
    """The parts of a fault's path: `keys[0]."a b".n` as ("keys", 0, "a b", "n")."""
    return tuple(
        int(index) if index else (quoted if quoted is not None and not word else word)
        for index, quoted, word in _PATH_PART.findall(path)
    )
