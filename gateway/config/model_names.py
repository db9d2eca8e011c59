"""Which model serves a name that a client asks for: the one of this very name, else the most specific pattern.

A name of the section `models` that holds `*` is a pattern: `*` matches any characters, also none. Every other
character matches itself, because names of models hold `?` and `[`. The most specific pattern has the most characters
beside `*`; of equals, the longer text before its first `*`; then the first in the file.

An alias is a further name of one model. It counts before every pattern and leads to a model, never to another alias.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase, translate
from glob import escape

WILDCARD = "*"


def is_pattern(name: str) -> bool:
    """Whether a name of the section `models` matches many."""
    return WILDCARD in name


def most_specific_first(names: Iterable[str]) -> list[str]:
    """The patterns among these names; the first one that matches counts."""
    patterns = [name for name in names if is_pattern(name)]
    return sorted(patterns, key=lambda name: (-len(name.replace(WILDCARD, "")), -name.index(WILDCARD)))


def compiled(pattern: str) -> re.Pattern[str]:
    """The expression that matches the pattern's names, in linear time."""
    return re.compile(translate(re.sub(r"[\[?]", r"[\g<0>]", pattern)))


def with_targets(globs: Iterable[str], aliases: Mapping[str, str]) -> tuple[str, ...]:
    """Patterns of a key, and the models that it may use through aliases that they match."""
    given = tuple(globs)
    targets = [name for alias, name in aliases.items() if any(fnmatchcase(alias, glob) for glob in given)]
    return (*given, *(escape(name) for name in targets))


def may_overlap(pattern: str, glob: str) -> bool:
    """Whether some name matches both: a pattern of models, and one of keys or quotas (`fnmatch`).

    A set such as `[ab]` counts as any character, so the answer may be yes where it should be no.
    """
    one, other = pattern, re.sub(r"\[.[^]]*\]", "?", glob)
    starts = one.partition(WILDCARD)[0], re.split(r"[*?]", other, maxsplit=1)[0]
    if not (starts[0].startswith(starts[1]) or starts[1].startswith(starts[0])):
        return False  # as of most: the rest takes up to a millisecond
    # reachable[j]: some text matches the part of `one` that was read, and the first j characters of `other`
    reachable = _skip_stars({0}, other)
    for sign in one:
        if sign == WILDCARD:
            reachable = set(range(min(reachable), len(other) + 1)) if reachable else set()
            continue
        step = {j + 1 for j in reachable if j < len(other) and other[j] in (sign, "?")}
        step |= {j for j in reachable if j < len(other) and other[j] == WILDCARD}
        reachable = _skip_stars(step, other)
    return len(other) in reachable


def _skip_stars(places: set[int], text: str) -> set[int]:
    found = set(places)
    for place in sorted(places):
        stars = len(text) - place - len(text[place:].lstrip(WILDCARD))
        found.update(range(place, place + stars + 1))
    return found
