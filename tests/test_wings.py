"""No modules of the package import each other in a circle; `tests/test_floors.py` holds the order of the rooms."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import pytest

from .test_floors import MODULES, PACKAGES, imported

# ---------------------------------------------------------------------------------------------------------- circles


def arrows(sources: Mapping[str, str], packages: set[str]) -> dict[str, set[str]]:
    """The modules that each module imports, at any place: for types and within functions, too.

    Importing a module of a package from outside runs the `__init__` of the package, too.
    """
    known = set(sources)
    found = {}
    for module, source in sources.items():
        names = {name for _, name in imported(module, source, known, packages)} & known
        for name in tuple(names):
            parts = name.split(".")
            above = {".".join(parts[:number]) for number in range(2, len(parts))} & packages
            names |= {package for package in above if not f"{module}.".startswith(f"{package}.")}
        found[module] = names - {module}
    return found


def circles(graph: Mapping[str, Collection[str]]) -> list[list[str]]:
    """The groups of modules that import each other, directly or through others."""
    ahead = {module: reachable(module, graph) for module in graph}
    groups = {tuple(sorted(name for name in ahead[module] if module in ahead[name])) for module in graph}
    return [list(group) for group in sorted(groups) if group]


def reachable(start: str, graph: Mapping[str, Collection[str]]) -> set[str]:
    """The modules to which arrows lead from this one."""
    found: set[str] = set()
    ahead = [start]
    while ahead:
        new = {*graph[ahead.pop()]} - found
        found |= new
        ahead += new
    return found


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Remedies: move what both need into a module below, or ask for a `Protocol` or for values."""
    assert circles(arrows(MODULES, PACKAGES)) == []


@pytest.mark.parametrize(
    ("sources", "found"),
    [
        ({"a": "from .b import x", "b": "from .c import x", "c": ""}, []),
        ({"a": "from .b import x", "b": "from .a import x"}, [["a", "b"]]),
        ({"a": "from .b import x", "b": "if TYPE_CHECKING:\n    from .a import X"}, [["a", "b"]]),
        ({"a": "def f():\n    from . import b", "b": "from .c import x", "c": "from .a import x"}, [["a", "b", "c"]]),
        (
            {"a": "from .b import x", "b": "from .a import x", "c": "from .d import x", "d": "from . import a, c"},
            [["a", "b"], ["c", "d"]],
        ),
        ({"a": "from .p.low import x", "p": "from .high import x", "p.low": "", "p.high": "from ..a import x"},
         [["a", "p", "p.high"]]),
    ],
)  # fmt: skip
def test_the_rule_against_circles_itself(sources: dict[str, str], found: Sequence[Sequence[str]]) -> None:
    named = {f"gateway.{name}": source for name, source in sources.items()}
    graph = arrows(named, {"gateway", "gateway.p"} & {"gateway", *named})
    assert circles(graph) == [[f"gateway.{name}" for name in group] for group in found]
