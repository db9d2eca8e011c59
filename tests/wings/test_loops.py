"""Work that goes on by itself until the worker ends goes on after an error, too: an ended task is not begun again."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]

OTHERS: Mapping[str, str] = {
    "billing/asking.py:buckets": "one reading, whose reader knows its errors",
    "clouds/background.py:keep_renewed": "each renewal is a task of its own",
    "queue/waiting_room.py:_come_back": "one call, which gets the error",
}
"""Loops that are no work of a worker, or have nothing that fails, with the reason."""


def _loops(function: ast.AsyncFunctionDef) -> Iterator[ast.While]:
    """The endless loops of a coroutine that sleep."""
    for loop in ast.walk(function):
        is_endless = isinstance(loop, ast.While) and isinstance(loop.test, ast.Constant)
        if is_endless and any(ast.unparse(each) == "asyncio.sleep" for each in ast.walk(loop)):
            assert isinstance(loop, ast.While)
            yield loop


def _ends_by_an_error(loop: ast.While) -> bool:
    blocks = [each for each in ast.walk(loop) if isinstance(each, ast.Try)]
    return not any(
        handler.type is not None and ast.unparse(handler.type) == "Exception"
        for block in blocks
        for handler in block.handlers
    )


def test_the_work_of_wings_goes_on_after_an_error() -> None:
    wings = ROOT / "gateway" / "wings"
    found = {
        f"{path.relative_to(wings).as_posix()}:{function.name}"
        for path in wings.rglob("*.py")
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(function, ast.AsyncFunctionDef) and any(map(_ends_by_an_error, _loops(function)))
    }
    assert found == OTHERS.keys()
