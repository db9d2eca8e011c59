"""Converts the file's text to plain values: parses YAML and replaces its `${...}` references."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar

import yaml

from .faults import ConfigError, ConfigFault, format_faults, printable
from .wings import wing_sections

MAX_CHARACTERS = 4 * 2**20
"""Characters of a file; 10,000 keys need half of them."""
MAX_VALUES = 500_000
"""Largest number of values in a file after expanding aliases and merges: a few lines of them can expand to billions."""
MAX_DEPTH = 100


def _construct_mapping(loader: _Rules, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[Any] = set()
    for name_node, _ in node.value:
        if name_node.tag == "tag:yaml.org,2002:merge":
            continue
        name = loader.construct_object(name_node)
        if not isinstance(name, str | int | float | bool):
            continue
        if name in seen:
            problem = f"{name!r} is given twice, the second time"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=name_node.start_mark)
        seen.add(name)
    return yaml.constructor.SafeConstructor.construct_mapping(loader, node, deep=True)


class _Rules(yaml.constructor.SafeConstructor):
    """A name that is given twice is a fault, and a date stays text until its field is known."""

    yaml_constructors: ClassVar = {**yaml.SafeLoader.yaml_constructors, "tag:yaml.org,2002:map": _construct_mapping}

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        super().flatten_mapping(node)
        if len(node.value) > MAX_VALUES:
            raise yaml.MarkedYAMLError(
                problem=f"merged into more than {MAX_VALUES} values", problem_mark=node.start_mark
            )


_RESOLVERS = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


class _Loader(_Rules, yaml.SafeLoader):
    yaml_implicit_resolvers = _RESOLVERS


if yaml.__with_libyaml__:

    class _FastLoader(_Rules, yaml.CSafeLoader):
        """This loader takes a fifth of the time."""

        yaml_implicit_resolvers = _RESOLVERS


_READ_OTHERWISE = re.compile(
    r"[^\n\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]|[!?]|[|>][-+0-9]*#"
)
"""Texts that the two loaders may read differently: tabs, other line ends than \\n, tags, question marks, and a # behind
the sign of a block."""


def _values_of(text: str) -> Any:
    """Raises what PyYAML raises. The messages are those of the slower loader."""
    if yaml.__with_libyaml__ and not _READ_OTHERWISE.search(text):
        try:
            return yaml.load(text, _FastLoader)  # noqa: S506 - a SafeLoader
        except (yaml.YAMLError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
            pass
    return yaml.load(text, _Loader)  # noqa: S506 - a SafeLoader


NEVER_EMPTY = re.compile(r"upstreams\..+\.(api_key|api_keys\[\d+\])|(admin|metrics)\.(.+\.)?token|keys\[\d+\]\.secret")

_REFERENCE = re.compile(
    r"\$\{(?:file:(?P<file>[^}]+)|(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>(?:(?!\$\{)[^}])*))?)\}|(?P<broken>\$\{)"
)


_SHOWN_BY_THE_PARSER = (
    "found undefined alias", "could not determine a constructor", "found undefined tag handle", "duplicate tag handle",
)  # fmt: skip
"""Beginnings of YAML problems that quote the file's text, which may be a secret."""


def read_text(path: str) -> str:
    """A file's text without the line break at its end."""
    return Path(path).read_text(encoding="utf-8-sig").rstrip("\r\n")


def load(text: str) -> dict[Any, Any]:
    """The YAML's own values. Raises `ConfigError` with the place where it is broken."""
    if len(text) > MAX_CHARACTERS:
        raise ConfigError([ConfigFault("", f"the file is longer than {MAX_CHARACTERS} characters")])
    try:
        values = _values_of(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "somewhere"
        problem = str(error.problem or error.context)
        if problem.startswith(_SHOWN_BY_THE_PARSER):
            problem = "text that begins with * or ! has to be in quotes"
        elif mark and any(sign in line for line in text.splitlines()[mark.line :][:1] for sign in "\u00a0\u202f\u3000"):
            problem = "the line holds a blank that is not seen (a no-break space); write plain ones"
        raise ConfigError([ConfigFault("", f"not valid YAML at {where}: {problem}")]) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError([ConfigFault("", f"not valid YAML: {type(error).__name__}")]) from None
    except (AttributeError, LookupError, TypeError):  # PyYAML trusts tags: !!timestamp x, !!bool x
        raise ConfigError([ConfigFault("", "not valid YAML: a value does not fit its tag")]) from None
    if not isinstance(values, dict):
        raise ConfigError([ConfigFault("", "expected settings as 'name: value' lines, such as 'upstreams:'")])
    return values


def compose(text: str) -> yaml.Node | None:
    """The nodes of the YAML, which know their lines; None for what is not valid."""
    try:
        return yaml.compose(text, _Loader)
    except (yaml.YAMLError, ValueError, RecursionError):
        return None


SECRET_PLACES: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "upstreams/*/api_key", "upstreams/*/api_keys/*", "upstreams/*/headers/*", "keys/*/secret", "admin/token",
            "admin/viewer_token", "admin/tokens/*/token", "metrics/token", "tracing/headers/*",
        ),
        "",
    ),
    "upstreams/*/proxy": "http://not-read.invalid:9",
}  # fmt: skip
"""Settings that only a process that serves needs, each with a text in its place where one of its own does not fit;
beside those of wings. `store.url`, with a password in it, is needed by every command."""


def secret_places() -> Mapping[str, str]:
    return {**SECRET_PLACES, **{place: form for each in wing_sections() for place, form in each.secrets.items()}}


def _instead_of_secret(path: tuple[str | int, ...]) -> str | None:
    """The text in the place of a secret, for commands that do not use it; None: the setting is none."""
    text = "/".join([str(part).replace("/", "-") for part in path])
    for place, form in secret_places().items():
        if text.count("/") == place.count("/") and fnmatchcase(text, place):
            # Each has its own text: two that are the same would be a fault.
            return form or f"not-read-{sha256(repr(path).encode()).hexdigest()[:32]}"
    return None


class References:
    """Replaces `${...}` in plain values, and collects the faults of unresolved ones."""

    def __init__(self, env: Mapping[str, str], read_file: Callable[[str], str], *, reads_secrets: bool = True) -> None:
        self._reads_secrets = reads_secrets
        self._env = env
        self._read_file = read_file
        self._values = 0
        self.faults: list[ConfigFault] = []
        self.places: set[tuple[str | int, ...]] = set()
        """Places of values that held references."""

    def replace_in(self, value: Any, path: tuple[str | int, ...]) -> Any:
        """Raises `ConfigError` where there is no end to them."""
        self._values += 1
        if self._values > MAX_VALUES or len(path) > MAX_DEPTH:
            what = f"more than {MAX_VALUES} values" if self._values > MAX_VALUES else f"more than {MAX_DEPTH} levels"
            raise ConfigError([ConfigFault(format_faults(path[:1]), f"holds {what}, aliases included")])
        if isinstance(value, dict):
            for name in value:
                if not isinstance(name, str):
                    self.faults.append(
                        ConfigFault(format_faults(path), f"the name {name!r} has to be text: put it in quotes")
                    )
            return {str(name): self.replace_in(item, (*path, str(name))) for name, item in value.items()}
        if isinstance(value, list):
            return [self.replace_in(item, (*path, index)) for index, item in enumerate(value)]
        if isinstance(value, str):
            if not self._reads_secrets and "${" in value and (other := _instead_of_secret(path)) is not None:
                return other
            known = len(self.faults)
            replaced, count = _REFERENCE.subn(lambda match: self._value_of(match, format_faults(path)), value)
            if count:
                self.places.add(path)
                if len(self.faults) == known and not replaced.strip() and NEVER_EMPTY.fullmatch(format_faults(path)):
                    self.faults.append(ConfigFault(format_faults(path), f"{printable(value.strip())} is empty"))
            return replaced
        if value is not None and not isinstance(value, int | float):  # !!binary, !!timestamp and the like
            self.faults.append(ConfigFault(format_faults(path), "expected text or a number; put the value in quotes"))
            return ""
        return value

    def _value_of(self, match: re.Match[str], path: str) -> str:
        if match["broken"]:
            forms = "${NAME}, ${NAME:-default} or ${file:/path}"
            self.faults.append(ConfigFault(path, f"'${{' begins none of {forms}"))
        elif match["file"]:
            try:
                return self._read_file(match["file"])
            except OSError as error:
                self.faults.append(ConfigFault(path, f"cannot read {match['file']!r}: {error.strerror}"))
            except ValueError as error:
                reason = "not UTF-8 text" if isinstance(error, UnicodeDecodeError) else "no file can be called so"
                self.faults.append(ConfigFault(path, f"cannot read {match['file']!r}: {reason}"))
        elif match["default"] is not None:
            return self._env.get(match["name"]) or match["default"]  # as in a shell: also where it is empty
        elif (value := self._env.get(match["name"])) is not None:
            return value
        else:
            self.faults.append(ConfigFault(path, f"the environment variable {match['name']} is not set"))
        return ""
