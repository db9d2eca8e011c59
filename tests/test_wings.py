"""The shape of the package: no circles of modules, and sizes that may only fall. `tests/test_floors.py` holds the order
of the rooms."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from importlib import import_module

import pytest

from gateway import wings

from .test_floors import MODULES, PACKAGE, PACKAGES, PARTS, imported

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


# ------------------------------------------------------------------------------------------------- trunk and wings

OUTSIDE = {"demo": "commands.demo commands.demo_history"}
"""The modules of optional features that have no folder in `gateway/wings`."""

FOLDERS = {wing: f"wings.{wing}" for wing in wings.WINGS}

WINGS = {wing: f"{FOLDERS.get(wing, '')} {OUTSIDE.get(wing, '')}" for wing in FOLDERS | OUTSIDE}
"""The modules and packages of each optional feature. All else is the trunk: what a plain call needs."""

LATER: Sequence[str] = (
    "answers", "billing", "budgets", "cheaper", "clouds", "content", "hooks", "leavers", "machine", "parameters",
    "plugins", "scim", "transfer",
)  # fmt: skip
"""Wings that are features since the split: their files, lines and imports are not counted. The ceilings judge what was
there before. Whatever such a feature changes in the trunk or in another wing is counted."""

CEILINGS = {
    "files": 400,
    "lines": 73_000,
    "lines of the trunk": 54_000,
    "arrows from the trunk to wings": 0,
    "arrows between wings": 0,
}
"""The most of each. A change that lowers a number lowers its ceiling: of files to the next ten, of lines to the next
250. A feature that raises one is built as a wing instead, or takes away as much elsewhere."""


def wing_of(module: str) -> str | None:
    """The wing that a module belongs to; None: the trunk."""
    for wing, names in WINGS.items():
        if any(f"{module}.".startswith(f"gateway.{name}.") for name in names.split()):
            return wing
    return None


def measured() -> dict[str, int]:
    """The numbers that have ceilings."""
    homes = {module: wing_of(module) for module in MODULES}
    counted = [module for module, wing in homes.items() if wing not in LATER]
    lines = {module: MODULES[module].count("\n") for module in counted}
    ends = [
        (homes[module], homes[name])
        for module, names in arrows(MODULES, PACKAGES).items()
        for name in names
        if module in counted
    ]
    return {
        "files": len(counted),
        "lines": sum(lines.values()),
        "lines of the trunk": sum(lines[module] for module in counted if homes[module] is None),
        "arrows from the trunk to wings": sum(start is None and end is not None for start, end in ends),
        "arrows between wings": sum(None not in (start, end) and start != end for start, end in ends),
    }


def test_the_package_grows_in_wings_or_not_at_all() -> None:
    numbers = measured()
    assert numbers.keys() == CEILINGS.keys()
    assert {name: number for name, number in numbers.items() if number > CEILINGS[name]} == {}, numbers


def test_the_list_of_wings_names_their_folders() -> None:
    folders = {path.parent.name for path in (PACKAGE / "wings").glob("*/__init__.py")}
    assert sorted(folders) == sorted(wings.WINGS)
    assert {*LATER} <= folders


def values_asked_for(part: str) -> list[object]:
    """What the trunk finds in the modules of this name: values of the types that the asking module defines."""
    asking = import_module(f"gateway.{PARTS[part]}")
    defined = [each for each in vars(asking).values() if getattr(each, "__module__", None) == asking.__name__]
    kinds = [each for each in defined if isinstance(each, type) and (issubclass(each, tuple) or is_dataclass(each))]
    return [value for kind in kinds for value in wings.parts(kind, part)]


@pytest.mark.parametrize("part", PARTS)
def test_every_part_of_a_wing_holds_what_the_trunk_asks_for(part: str) -> None:
    having = [wing for wing in wings.WINGS if f"gateway.wings.{wing}.{part}" in MODULES]
    assert len(values_asked_for(part)) >= len(having)


def test_a_wing_without_a_part_is_passed_over() -> None:
    assert wings.parts(object, "no_such_part") == []


def test_the_wings_name_only_modules_that_exist() -> None:
    named = [f"gateway.{name}" for names in WINGS.values() for name in names.split()]
    assert [name for name in named if name not in MODULES and name not in PACKAGES] == []
    assert len(set(named)) == len(named)


# ----------------------------------------------------------------------------- what a plain call is asked on its way

WAY_OF_A_PLAIN_CALL = {
    "pipeline": "serve",
    "pipeline.plan": "of",
    "pipeline.steps": "draw",
    "pipeline.active_call": "carry by_policy",
    "pipeline.request": "carry prepare changed_members",
    "accounting.reservation": "make draw _draw settle extend",
    "accounting.call_log": "__aenter__ __aexit__ headers attempt_began close acknowledged",
    "relay": "attempt _finish_plain _finish_stream",
    "relay.exchange": "read_plain response_headers",
}
"""The functions of the trunk that carry a plain call, by module; methods by their name alone."""

FEATURES = re.compile(
    r"\b_?(is_kept|bind|bond|kept_id|pending_id|items|refers_to|is_deferred|account_bound_by|passed|is_read|is_submission"
    r"|fit|may_shrink|min_output_tokens|fallbacks|has_fallback|places?|ticket|admission|pause|max_wait_s|may_wait|waits"
    r"|hedge_after|split_ways|is_single|PROMPT_BY_PROMPT|VIA_CHAT|TRANSLATED|translated|adaptive|learning|large|form"
    r"|upload|rewritten|tags|is_again|is_in_advance|growing|earlier|other_models|reduced_output|left_out)\b"
)
"""Words in a condition that asks about a feature: bonds, deferral, tasks, fitting output, fallbacks, the queue,
hedging, fan-out, translation, limits of upstreams, large bodies and forms."""

QUESTIONS_PERCENT = 8
"""The most of the conditions on the way of a plain call that may ask about a feature that it does not have."""


def conditions(function: ast.AST) -> Iterator[ast.AST]:
    """The single conditions of a function: operands of `and` and `or`, other tests, and arms of `match`."""
    for node in ast.walk(function):
        match node:
            case ast.BoolOp(values=values):
                yield from [each for each in values if not isinstance(each, ast.BoolOp)]
            case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
                if not isinstance(test, ast.BoolOp) and not isinstance(test, ast.Constant):
                    yield test
            case ast.comprehension(ifs=ifs):
                yield from [each for each in ifs if not isinstance(each, ast.BoolOp)]
            case ast.match_case(pattern=pattern):
                yield pattern


def questions(sources: Mapping[str, str]) -> tuple[int, int]:
    """How many conditions on the way of a plain call ask about features, and how many there are."""
    found = [
        ast.unparse(condition)
        for module, names in WAY_OF_A_PLAIN_CALL.items()
        for node in ast.walk(ast.parse(sources[f"gateway.{module}"]))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in names.split()
        for condition in conditions(node)
    ]
    return sum(FEATURES.search(each) is not None for each in found), len(found)


def test_a_plain_call_is_asked_little_about_features() -> None:
    asking, all_of_them = questions(MODULES)
    assert asking * 100 <= all_of_them * QUESTIONS_PERCENT, f"{asking} of {all_of_them}"


def test_the_measure_of_questions_itself() -> None:
    source = (
        "def f():\n    if a and x.bond is None:\n        return 1 if b else 2\n    return [c for c in d if c.large]"
    )
    texts = [ast.unparse(each) for each in conditions(ast.parse(source))]
    assert sorted(texts) == ["a", "b", "c.large", "x.bond is None"]
    assert [text for text in texts if FEATURES.search(text)] == ["x.bond is None", "c.large"]
