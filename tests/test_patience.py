"""What makes tests fail on a busy machine, held by reading the source of the fast tier.

A test that waits for what must come has patience; one that needs time to pass moves a clock
(tests/upstream/moved_clock.py, tests/store/changes.py), or is in the slow tier. A time limit that is short is that of
an upstream of its own.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import tier_of

ROOT = Path(__file__).parent.parent
NO_TIER = ("browser",)
SOURCES = {
    str(path.relative_to(ROOT)): path.read_text()
    for path in sorted((ROOT / "tests").rglob("*.py"))
    if tier_of(path) == "fast" and not set(path.parts) & {*NO_TIER}
}

PATIENCE_S = 5.0
"""The shortest limit of a wait for what must come."""
LIMIT_S = 3.0
"""The shortest time limit of an upstream from which a test wants answers."""

WAITS = {"wait_for": 1, "timeout": 0, "until": 1, "eventually": 1}
"""Functions that fail when something does not come, and the place of their limit in seconds."""
LIMITS = ("connect_s", "head_s", "idle_s", "total_s")


def number_of(node: ast.expr | None) -> float | None:
    """A literal number."""
    value = getattr(node, "value", None)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def short_waits(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or (place := WAITS.get(called(node))) is None:
            continue
        given = [each.value for each in node.keywords if each.arg in ("timeout", "timeout_s")]
        limit = number_of(next(iter([*given, *node.args[place : place + 1]]), None))
        if limit is not None and 0 < limit < PATIENCE_S:
            yield node.lineno, f"{called(node)} waits {limit:g} s: at least {PATIENCE_S:g} cost nothing if all is well"


def sleeps(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Sleeps of tests and fixtures themselves: not those of a loop that looks again, nor of a server in the test."""
    for function in tree.body:
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) or not function.name.startswith("test_"):
            continue
        ahead: list[ast.AST] = list(function.body)
        while ahead:
            node = ahead.pop()
            if isinstance(node, ast.While | ast.For | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            if isinstance(node, ast.Call) and called(node) == "sleep" and (number_of(node.args[0]) or 0) > 0:
                yield node.lineno, "sleeps: wait for a condition, move a clock, or see tests/patience.py"
            ahead += ast.iter_child_nodes(node)


def short_limits(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Short time limits of the upstream `main`, which serves most tests of a file."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Dict):
            continue
        for name, upstream in zip(node.keys, node.values, strict=True):
            if getattr(name, "value", None) != "main" or not isinstance(upstream, ast.Dict):
                continue
            for each in ast.walk(upstream):
                if isinstance(each, ast.Dict):
                    yield from _short_in(each)


def _short_in(limits: ast.Dict) -> Iterator[tuple[int, str]]:
    for name, value in zip(limits.keys, limits.values, strict=True):
        limit = number_of(value)
        if getattr(name, "value", None) in LIMITS and limit is not None and limit < LIMIT_S:
            yield value.lineno, f"{limit:g} s is a limit of every test of the file: give it to an upstream of its own"


RULES = {
    short_waits: re.compile(
        r"^.*(?:wait_for|timeout|until|eventually)\(.*[(=, ][0-4](?:\.\d+)?\)|^\s+timeout(?:_s)?=[0-4](?:\.\d+)?,$",
        re.MULTILINE,
    ),
    sleeps: re.compile(r"^    (?:    )*(?:await )?(?:asyncio|time)\.sleep\((?!0\))", re.MULTILINE),
    short_limits: re.compile(rf"(?:{'|'.join(LIMITS)})['\"]: [0-2]\b"),
}
"""The rules, with what a source has that breaks them: most are not parsed."""


@pytest.mark.parametrize("rule", RULES)
def test_the_fast_tier_has_patience(rule: Callable[[ast.Module], Iterator[tuple[int, str]]]) -> None:
    sources = {name: source for name, source in SOURCES.items() if RULES[rule].search(source)}
    found = [f"{name}:{line}: {what}" for name, source in sources.items() for line, what in rule(ast.parse(source))]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("rule", "source", "is_fine"),
    [
        (short_waits, "await asyncio.wait_for(end, 0.5)", False),
        (short_waits, "async with asyncio.timeout(2):\n    pass", False),
        (short_waits, "eventually(look, timeout_s=1)", False),
        (short_waits, "await asyncio.wait_for(end, 10)\nawait until(is_so)\neventually(look, timeout_s=LONG_S)", True),
        (sleeps, "async def test_it():\n    await asyncio.sleep(0.1)", False),
        (sleeps, "def test_it():\n    with gateway:\n        time.sleep(1)", False),
        (sleeps, "async def test_it():\n    await asyncio.sleep(0)", True),
        (sleeps, "async def test_it():\n    while not is_so():\n        await asyncio.sleep(0.1)", True),
        (sleeps, "async def test_it():\n    async def serve():\n        await asyncio.sleep(0.1)", True),
        (short_limits, '{"main": {"timeouts": {"head_s": 0.5}}}', False),
        (short_limits, '{"main": {"timeouts": {"head_s": 5}}, "hasty": {"timeouts": {"head_s": 0.5}}}', True),
    ],
)
def test_the_rules_themselves(
    rule: Callable[[ast.Module], Iterator[tuple[int, str]]], source: str, is_fine: bool
) -> None:
    assert (not list(rule(ast.parse(source)))) is is_fine
