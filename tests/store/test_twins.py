"""Rules that exist twice, in Python and in Lua for Redis, have functions of the same names."""

from __future__ import annotations

import ast
import re

import pytest

from tests.test_floors import MODULES, ROOT

TWINS = {
    "apply_limits.lua": "gateway.quota.windows",
    "apply_items.lua": "gateway.store.rules.batch",
    "apply_retention.lua": "gateway.store.rules.retention",
}
"""The decisions of "One rule, two stores" in docs/architecture.md. The other scripts read and write."""

ALONE = {
    "apply_limits.lua": {
        "scaled": "products beyond 2^53, which integers of Python hold",
        "days_until_after": "the calendar; Python has datetime",
        "forgotten_at": "when Redis may delete a hash",
    },
    "apply_items.lua": {
        "hour_of": "reads the text of a record; group_of in Python",
        "make_attribute": "makes `attribute` when a batch needs it",
        "admit": "the bound of groups by tag; store/sqlite/ledger.py in Python",
        "lost_leases": "makes the functions that few batches need",
        "touch": "finds a window that the batch does not name",
    },
    "apply_retention.lua": {},
    "gateway.quota.windows": {"void": "`settle` with 0 units"},
    "gateway.store.rules.batch": {
        "following": "the state in memory of a lone worker (store/sqlite/write_behind.py)",
        "take": "the loop at the end of the script",
        "held": "in Lua the text of a lease has its claims",
        "settle": "a loop of `close` in Lua",
        "set": "in Lua a window is a table, which is changed in place",
    },
    "gateway.store.rules.retention": {"next_look": "the beginning of the script"},
}
"""Functions without a twin, each with the reason."""


def of_script(name: str) -> set[str]:
    source = (ROOT / "gateway" / "store" / "redis" / name).read_text()
    return {*re.findall(r"\blocal function (\w+)", source), *re.findall(r"^local (attribute)$", source, re.MULTILINE)}


def of_module(name: str, returns: str = "") -> set[str]:
    """The functions and methods of a module without their underscores: all, or those that return this type."""
    functions = [node for node in ast.walk(ast.parse(MODULES[name])) if isinstance(node, ast.FunctionDef)]
    return {
        each.name.removeprefix("_")
        for each in functions
        if not each.name.startswith("__") and (not returns or (each.returns and ast.unparse(each.returns) == returns))
    }


@pytest.mark.parametrize(("script", "module"), TWINS.items())
def test_functions_of_a_script_and_of_its_twin_have_the_same_names(script: str, module: str) -> None:
    in_lua, in_python = of_script(script), of_module(module)
    assert in_lua - in_python == ALONE[script].keys()
    # quota/windows.py is more than the arithmetic of a store: its twins are the functions that return a state.
    changing = of_module(module, "WindowState") if module == TWINS["apply_limits.lua"] else in_python
    changing -= {"unheard_us"}  # lines of apply_lost.lua
    assert changing - in_lua == ALONE[module].keys()
